"""Parses the statements that change data, INSERT, UPSERT, DELETE and LOAD, and the procedures that consist of them.

The two are together because a procedure's body is one of these statements, or a query.
"""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from tocsin.language.syntax import statements as st
from tocsin.language.syntax.dialect import LET
from tocsin.language.syntax.token_stream import TokenStream
from tocsin.rules.model.values import Duration
from tocsin.rules.periods import parse_period

# The tokens that begin the records to insert. The word before such a token is a dataset name, even if it is DATASET.
_AFTER_NAME = (
    TokenType.L_BRACE, TokenType.L_BRACKET, TokenType.L_PAREN, TokenType.SELECT, TokenType.WITH, TokenType.FROM, LET,
    TokenType.DOT, TokenType.ALIAS, TokenType.SENTINEL,
)  # fmt: skip

# The tokens that follow a dataset's name in DELETE if there is no variable; the last two end a procedure's body.
_AFTER_DATASET = (TokenType.WHERE, TokenType.R_BRACE, TokenType.SEMICOLON)

_DURATIONS = ("DURATION", "DAY_TIME_DURATION", "YEAR_MONTH_DURATION")


def insert(tokens: TokenStream, *, upsert: bool = False) -> st.Insert:
    tokens.need("INTO")
    if tokens.following.token_type not in _AFTER_NAME:
        tokens.word("DATASET")
    dataset = tokens.qualified("a dataset")
    alias = tokens.name("a variable") if tokens.accept(TokenType.ALIAS) else None
    source = tokens.query("a query, an object or an array of objects")
    returning = tokens.expression("an expression after RETURNING") if tokens.word("RETURNING") else None
    return st.Insert(dataset=dataset, source=source, upsert=upsert, alias=alias, returning=returning)


def delete(tokens: TokenStream) -> st.Delete:
    tokens.need("FROM")
    dataset = tokens.qualified("a dataset")
    alias = None
    if tokens.accept(TokenType.ALIAS) or (tokens.here and not tokens.at(*_AFTER_DATASET)):
        alias = tokens.name("a variable")
    where = tokens.expression("a condition after WHERE") if tokens.accept(TokenType.WHERE) else None
    return st.Delete(dataset=dataset, alias=alias, where=where)


def load(tokens: TokenStream) -> st.Statement:
    tokens.need("DATASET")
    dataset = tokens.qualified("a dataset")
    tokens.need("USING")
    adapter = tokens.name("an adapter")
    options = tokens.configuration()
    if tokens.word("PRE"):  # a hint for AsterixDB's storage: PRE-SORTED
        tokens.need_token(TokenType.DASH, "-SORTED")
        tokens.need("SORTED")
    return st.Load(dataset=dataset, adapter=adapter, options=options)


# ---------------------------------------------------------------- procedures


def create_procedure(tokens: TokenStream) -> st.Statement:
    name, if_not_exists = tokens.new_name("a procedure")
    parameters = tuple(parameter.name for parameter in tokens.parameters())
    if_not_exists = tokens.if_not_exists() or if_not_exists
    offset, body = tokens.braced("the procedure's statement", lambda: procedure_body(tokens))
    period = None
    if tokens.word("PERIOD"):
        period = period_duration(tokens)
    return st.CreateProcedure(
        name=name, parameters=parameters, body=body, body_offset=offset, period=period, if_not_exists=if_not_exists
    )


def procedure_body(tokens: TokenStream) -> st.ProcedureBody:
    if tokens.word("INSERT"):
        return insert(tokens)
    if tokens.word("UPSERT"):
        return insert(tokens, upsert=True)
    if tokens.accept(TokenType.DELETE):
        return delete(tokens)
    return st.Query(query=tokens.query("an INSERT, an UPSERT, a DELETE or a query"))


def period_duration(tokens: TokenStream) -> Duration:
    """Parses the duration after PERIOD: a text, or a constructor around a text."""
    wrapped = tokens.one_of(_DURATIONS)
    if wrapped:
        tokens.need_token(TokenType.L_PAREN, '("PT20S")')
    token = tokens.current
    try:
        period = parse_period(tokens.text('a duration such as duration("PT20S")'))
    except ValueError as error:
        tokens.refuse(str(error), token=token)
    if wrapped:
        tokens.need_token(TokenType.R_PAREN, ")")
    return period
