"""Parses statements. `STATEMENTS` maps the first words of a statement to the function that parses the rest.

IF [NOT] EXISTS may stand before the name, as in SQL, and after the name, as in AsterixDB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Final, TypeAlias

from sqlglot.tokenizer_core import TokenType

from tocsin.language.functions.function_registry import BUILT_IN
from tocsin.language.syntax import parser_channels, parser_datasets
from tocsin.language.syntax import statements as st
from tocsin.language.syntax.token_stream import TokenStream
from tocsin.rules.did_you_mean import did_you_mean

_StatementGrammar: TypeAlias = Callable[[TokenStream], st.Statement]

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

# Tokens that can follow a misspelt keyword, but not a name that begins an expression.
_WORDS = (TokenType.VAR, TokenType.NUMBER, TokenType.STRING, TokenType.IDENTIFIER, TokenType.INTO)

# Statements of SQL++ that are not taken, and what to write instead.
_REPLACED: Final = {
    "DECLARE": "CREATE FUNCTION", "TRUNCATE": "DELETE FROM the dataset", "UPDATE": "UPSERT INTO",
    "COPY": "LOAD DATASET to read a file, or a query to get the rows",
}  # fmt: skip

# What AsterixDB creates and drops and this language does not have, and what to do instead.
_MISSING_OBJECTS: Final = {
    "SYNONYM": "write dataverse.dataset where the name stands",
    "VIEW": "write CREATE FUNCTION name() {SELECT …}, and FROM name() AS x",
    "EXTERNAL": "write CREATE DATASET, and LOAD DATASET or a feed that reads the files",
    "NODEGROUP": "leave it out, Spark distributes the data by itself",
    "INGESTION": "leave it out, a feed stores every record that it acknowledges",
    "FULLTEXT": "leave it out, and leave stop words out of what ftcontains looks for",
    "LIBRARY": "put the module beside the server, and write CREATE FUNCTION … LANGUAGE PYTHON",
    "ADAPTER": "write CREATE FEED with one of the adapters of docs/feeds.md",
}

# Tokens that follow a field or a function named CHANNEL. Any other token is the name of a channel.
_AFTER_EXPRESSION = (TokenType.DOT, TokenType.L_PAREN, TokenType.L_BRACKET)


def parse_statement(tokens: TokenStream) -> st.Statement:
    """Parses a statement; without a known first word it must be a query or an expression."""
    first = tokens.current
    parse = STATEMENTS.get(first.text.upper()) if first.token_type != TokenType.STRING else None
    if parse is not None:
        tokens.advance()
        statement = _parse_object(tokens, parse) if isinstance(parse, Mapping) else parse(tokens)
    else:
        expected = _expected_statement(first.text.upper())
        if first.text.upper() in _REPLACED and tokens.next_token.token_type not in _AFTER_EXPRESSION:
            tokens.refuse(f"Expected a statement: write {_REPLACED[first.text.upper()]} instead", token=first)
        if first.token_type == TokenType.VAR and tokens.next_token.token_type in _WORDS:
            # No expression begins with two words, so the first must be a misspelt keyword.
            tokens.refuse(f"Expected {expected}", token=first)
        statement = st.Query(query=tokens.query(expected))
    object.__setattr__(statement, "offset", first.start)
    object.__setattr__(statement, "text", tokens.script[first.start : tokens.previous.end + 1])
    return statement


@lru_cache(maxsize=64)
def _expected_statement(first_word: str) -> str:
    words = [*sorted(STATEMENTS), "SELECT"]
    hint = did_you_mean(first_word, words)
    return f"a statement: {', '.join(words)}" + (f"; {hint}" if hint else "")


def _parse_object(tokens: TokenStream, kinds: Mapping[str, _StatementGrammar]) -> st.Statement:
    """Parses a CREATE or a DROP, from the word that says what to create or drop."""
    verb = tokens.previous.text.upper()
    if verb == "CREATE" and tokens.word("OR", "REPLACE"):
        tokens.need("FUNCTION")
        return _create_function(tokens, or_replace=True)
    parse = next((parse for word, parse in kinds.items() if tokens.word(word)), None)
    if parse is None:
        remedy = _MISSING_OBJECTS.get(tokens.current.text.upper()) if not tokens.at(TokenType.STRING) else None
        if remedy is not None:
            tokens.refuse(f"Expected no {verb} {tokens.current.text.upper()}: {remedy}")
        tokens.refuse(f"Expected {_OBJECTS[verb]} after {verb}")
    return parse(tokens)


# ---------------------------------------------------------------- CREATE


def _create_dataverse(tokens: TokenStream) -> st.Statement:
    before = tokens.if_not_exists()
    name = tokens.name("a dataverse")
    return st.CreateDataverse(name=name, if_not_exists=tokens.if_not_exists() or before)


def _create_type(tokens: TokenStream) -> st.Statement:
    name, if_not_exists = tokens.new_name("a type")
    tokens.need("AS")
    return st.CreateType(name=name, type=tokens.type(), if_not_exists=if_not_exists)


def _create_function(tokens: TokenStream, *, or_replace: bool = False) -> st.Statement:
    before = tokens.if_not_exists()
    first = tokens.current
    name = tokens.full_name("a function")
    if name.name.lower() in BUILT_IN:
        tokens.refuse(f"Expected a name of its own, {name.name} is a function of the language", token=first)
    if_not_exists = tokens.if_not_exists() or before
    parameters = tuple(parameter.name for parameter in tokens.parameters())
    if_not_exists = tokens.if_not_exists() or if_not_exists
    if or_replace and if_not_exists:
        tokens.refuse("Expected OR REPLACE or IF NOT EXISTS, not both", token=first)
    if not tokens.accept(TokenType.L_BRACE):
        return _create_python_function(tokens, name, parameters, if_not_exists, or_replace=or_replace)
    body = tokens.current.start
    tokens.query("a query or an expression")
    end = tokens.need_token(TokenType.R_BRACE, "} after the function's body").start
    text = tokens.script[body:end].strip()
    return st.CreateFunction(
        name=name, parameters=parameters, body=text, body_offset=body, if_not_exists=if_not_exists,
        or_replace=or_replace,
    )  # fmt: skip


def _create_python_function(
    tokens: TokenStream, name: st.Name, parameters: tuple[str, ...], before: bool, *, or_replace: bool
) -> st.Statement:
    returns, optional = tokens.item_type() if (has_type := tokens.word("RETURNS")) else (None, True)
    if not tokens.word("LANGUAGE"):
        tokens.refuse(
            "Expected LANGUAGE PYTHON" if has_type else "Expected { and the function's body, or LANGUAGE PYTHON"
        )
    tokens.need("PYTHON")
    tokens.need_token(TokenType.ALIAS, 'AS "module:function"')
    target = tokens.need_token(TokenType.STRING, '"module:function"')
    if _TARGET.fullmatch(target.text) is None:
        tokens.refuse('Expected "module:function"', token=target)
    return st.CreatePythonFunction(
        name=name, parameters=parameters, returns=returns, optional=optional, target=target.text,
        target_offset=target.start, if_not_exists=tokens.if_not_exists() or before, or_replace=or_replace,
    )  # fmt: skip


def _create_feed(tokens: TokenStream) -> st.Statement:
    name, if_not_exists = tokens.new_name("a feed")
    if not tokens.at(TokenType.WITH):
        tokens.refuse("Expected WITH {…}")
    return st.CreateFeed(name=name, options=tokens.options(), if_not_exists=if_not_exists)


def _need_channel_kind(tokens: TokenStream) -> st.Statement:
    tokens.refuse("Expected REPETITIVE or CONTINUOUS before CHANNEL", token=tokens.previous)


# ---------------------------------------------------------------- DROP


def _drop(
    tokens: TokenStream, kind: Callable[..., st.Statement], what: str, *, arity: bool = False, force: bool = False
) -> st.Statement:
    """Parses the DROP of anything with a qualified name; `arity` and `force` say what else it may have."""
    before = tokens.word("IF", "EXISTS")
    parts: dict[str, object] = {"name": tokens.full_name(what)}
    if arity:
        parts["arity"] = tokens.arity()
    parts["if_exists"] = tokens.word("IF", "EXISTS") or before
    if force:
        parts["force"] = tokens.word("FORCE")
    return kind(**parts)


def _drop_dataverse(tokens: TokenStream) -> st.Statement:
    before = tokens.word("IF", "EXISTS")
    name = tokens.name("a dataverse")
    return st.DropDataverse(name=name, if_exists=tokens.word("IF", "EXISTS") or before)


def _drop_index(tokens: TokenStream) -> st.Statement:
    before = tokens.word("IF", "EXISTS")
    offset = tokens.current.start
    parts = tokens.path()
    if len(parts) not in (2, 3):
        tokens.refuse("Expected dataset.index")
    dataset = st.Name(parts[-2], parts[0] if len(parts) == 3 else None, offset)
    return st.DropIndex(dataset=dataset, name=parts[-1], if_exists=tokens.word("IF", "EXISTS") or before)


# ---------------------------------------------------------------- other statements


def _use(tokens: TokenStream) -> st.Statement:
    tokens.word("DATAVERSE")
    return st.Use(dataverse=tokens.name("a dataverse"))


def _set(tokens: TokenStream) -> st.Statement:
    """Parses `SET name "value"`. Names of the original have hyphens and dots, with or without backticks."""
    name = tokens.name("an option")
    while tokens.at(TokenType.DOT, TokenType.DASH):
        name += tokens.advance().text + tokens.name("an option")
    return st.SetOption(name=name, value=tokens.text('the value in quotes, as in SET timeout "30s"'))


def _write_output(tokens: TokenStream) -> st.Statement:
    tokens.need("OUTPUT", "TO")
    node = tokens.name("a node")
    tokens.need_token(TokenType.COLON, ": and a file in quotes")
    target = f"{node}:{tokens.text('a file in quotes')}"
    if tokens.word("USING"):
        tokens.text("a class in quotes")
    return st.WriteOutput(target=target)


def _explain(tokens: TokenStream) -> st.Statement:
    if tokens.next_token.token_type not in _AFTER_EXPRESSION and tokens.word("CHANNEL"):
        return st.ExplainChannel(channel=tokens.full_name("a channel"))
    return st.Explain(query=tokens.query("a query after EXPLAIN"))


def _feed(tokens: TokenStream) -> st.Name:
    tokens.need("FEED")
    return tokens.full_name("a feed")


def _connect(tokens: TokenStream) -> st.Statement:
    feed = _feed(tokens)
    tokens.need("TO", "DATASET")
    dataset = tokens.full_name("a dataset")
    function = None
    if tokens.word("APPLY", "FUNCTION"):
        function = tokens.full_name("a function")
        tokens.arity()
        if tokens.at(TokenType.COMMA):
            tokens.refuse("Expected one function: write one that calls the others")
    policy = tokens.name("a policy") if tokens.word("USING", "POLICY") else None
    if tokens.at(TokenType.WHERE):
        tokens.refuse("Expected no WHERE: APPLY FUNCTION takes a function that returns only the records to keep")
    return st.ConnectFeed(feed=feed, dataset=dataset, function=function, policy=policy)


def _disconnect(tokens: TokenStream) -> st.Statement:
    feed = _feed(tokens)
    tokens.need("FROM", "DATASET")
    return st.DisconnectFeed(feed=feed, dataset=tokens.full_name("a dataset"), force=tokens.word("FORCE"))


def _execute(tokens: TokenStream) -> st.Statement:
    return st.Execute(procedure=tokens.full_name("a procedure"), arguments=tokens.arguments())


# ---------------------------------------------------------------- the table

STATEMENTS: Final[Mapping[str, _StatementGrammar | Mapping[str, _StatementGrammar]]] = {
    "CREATE": {
        "DATAVERSE": _create_dataverse,
        "TYPE": _create_type,
        "ACTIVE": parser_datasets.create_active_dataset,
        "INTERNAL": parser_datasets.create_internal_dataset,
        "DATASET": parser_datasets.create_dataset,
        "COLLECTION": parser_datasets.create_dataset,
        "INDEX": parser_datasets.create_index,
        "PRIMARY": parser_datasets.create_primary_index,
        "FUNCTION": _create_function,
        "FEED": _create_feed,
        "BROKER": parser_channels.create_broker,
        "REPETITIVE": partial(parser_channels.create_channel, continuous=False),
        "CONTINUOUS": partial(parser_channels.create_channel, continuous=True),
        "CHANNEL": _need_channel_kind,
        "PROCEDURE": parser_datasets.create_procedure,
    },
    "DROP": {
        "DATAVERSE": _drop_dataverse,
        "TYPE": partial(_drop, kind=st.DropType, what="a type"),
        "DATASET": partial(_drop, kind=st.DropDataset, what="a dataset"),
        "COLLECTION": partial(_drop, kind=st.DropDataset, what="a dataset"),
        "INDEX": _drop_index,
        "FUNCTION": partial(_drop, kind=st.DropFunction, what="a function", arity=True),
        "FEED": partial(_drop, kind=st.DropFeed, what="a feed", force=True),
        "BROKER": partial(_drop, kind=st.DropBroker, what="a broker"),
        "CHANNEL": partial(_drop, kind=st.DropChannel, what="a channel"),
        "PROCEDURE": partial(_drop, kind=st.DropProcedure, what="a procedure", arity=True),
    },
    "USE": _use,
    "SET": _set,
    "WRITE": _write_output,
    "INSERT": parser_datasets.insert,
    "UPSERT": partial(parser_datasets.insert, upsert=True),
    "DELETE": parser_datasets.delete,
    "LOAD": parser_datasets.load,
    "EXPLAIN": _explain,
    "CONNECT": _connect,
    "DISCONNECT": _disconnect,
    "START": lambda tokens: st.StartFeed(feed=_feed(tokens)),
    "STOP": lambda tokens: st.StopFeed(feed=_feed(tokens)),
    "SUBSCRIBE": parser_channels.subscribe,
    "UNSUBSCRIBE": parser_channels.unsubscribe,
    "CHANGE": parser_channels.change_subscription,
    "EXECUTE": _execute,
}

_OBJECTS: Final = {
    "CREATE": "DATAVERSE, TYPE, [ACTIVE] DATASET, INDEX, FUNCTION, FEED, BROKER, REPETITIVE CHANNEL, "
    "CONTINUOUS CHANNEL or PROCEDURE",
    "DROP": "DATAVERSE, TYPE, DATASET, INDEX, FUNCTION, FEED, BROKER, CHANNEL or PROCEDURE",
}
