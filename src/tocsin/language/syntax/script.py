"""Splits a script into statements, and converts offsets to lines and columns.

It parses statements one by one, so that the statements before a bad one can run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeVar

from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from tocsin.language.syntax.dialect import Tocsin
from tocsin.language.syntax.parser import parse_statement
from tocsin.language.syntax.parser_datasets import procedure_body
from tocsin.language.syntax.statements import ProcedureBody, Statement
from tocsin.language.syntax.token_stream import TokenStream
from tocsin.wire.errors import StatementError

_T = TypeVar("_T")

_DEPTH_LIMIT = 100  # nesting of brackets: far beyond what people write, far below what exhausts the stack
_TREE_LIMIT = 300  # nesting of operators, such as a + b + c + …; each level costs more than the one before
_CHAIN_LIMIT = 1_000  # conditions in an AND or OR; the engine's time grows with their square: 4 s for a thousand
TOKENS_LIMIT = 100_000  # words and signs of one statement; each takes hundreds of bytes, and 0.2 ms in a query
_STATEMENTS_LIMIT = 10_000  # of one script: the answer to each waits in memory until the script has ended
_DIGITS_LIMIT = 1_000  # digits of a number; the largest double has 309, and Python parses at most 4,300
_HALF = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_OPENING = {TokenType.L_PAREN, TokenType.L_BRACE, TokenType.L_BRACKET}
_CLOSING = {TokenType.R_PAREN: "(", TokenType.R_BRACE: "{", TokenType.R_BRACKET: "["}


def statements(script: str) -> Iterator[Statement]:
    """Yields the statements of a script. Raises StatementError with place and number at the first invalid one."""
    number = 1
    try:
        for chunk in _chunks(script):
            if number > _STATEMENTS_LIMIT:
                raise _error_at(
                    script, chunk[0].start, f"the script has more than {_STATEMENTS_LIMIT:,} statements",
                    "send it in parts",
                )  # fmt: skip
            statement = _parse_all(TokenStream(script, chunk), parse_statement)
            _shallow_parts(script, statement)
            yield statement
            number += 1
    except StatementError as error:
        error.statement = error.statement or number
        raise


def parse_query(text: str) -> exp.Expr:
    """Parses a function's body: a query or an expression."""
    tokens = list(read_tokens(text))
    if not tokens:
        raise _error_at(text, 0, "expected a query or an expression")
    body = _parse_all(TokenStream(text, tokens), lambda tokens: tokens.query("a query or an expression"))
    _shallow(text, body)
    return body


def parse_procedure(text: str) -> ProcedureBody:
    """Parses a procedure's body."""
    tokens = list(read_tokens(text))
    if not tokens:
        raise _error_at(text, 0, "expected an INSERT, an UPSERT, a DELETE or a query")
    statement = _parse_all(TokenStream(text, tokens), procedure_body)
    _shallow_parts(text, statement)
    object.__setattr__(statement, "text", text)
    return statement


def place(script: str, offset: int) -> tuple[int, int]:
    """Returns line and column, both counted from 1."""
    offset = max(0, min(offset, len(script)))
    return script.count("\n", 0, offset) + 1, offset - script.rfind("\n", 0, offset)


def _error_at(script: str, offset: int, message: str, hint: str | None = None) -> StatementError:
    line, column = place(script, offset)
    return StatementError(message, line=line, column=column, hint=hint)


def offset_of(node: Any) -> int | None:
    """Returns the place of an expression in its script: the first token that has a known place."""
    if not isinstance(node, exp.Expr):
        return None
    starts = [part.meta["start"] for part in node.walk() if part._meta and "start" in part._meta]
    return min(starts, default=None)


# ---------------------------------------------------------------- internals


class _BoundedTokens(list[Token]):
    """The tokens that the tokenizer has made and nobody has taken yet."""

    def append(self, token: Token) -> None:
        if len(self) >= TOKENS_LIMIT:
            raise _TooManyTokensError(token)
        super().append(token)


class _TooManyTokensError(Exception):
    def __init__(self, token: Token) -> None:
        self.token = token


def read_tokens(script: str) -> Iterator[Token]:
    """Yields the tokens of a script. Only those up to the next semicolon are in memory, and they are limited: a token
    takes hundreds of times the memory of its text.
    """
    half = _HALF.search(script)
    if half is not None:
        raise _error_at(script, half.start(), "half of a surrogate pair is no character")
    core = Tocsin().tokenizer()._core
    core.reset()
    core.sql, core.size = script, len(script)
    core.tokens = _BoundedTokens()
    while core.size and not core._end:
        try:
            core._scan(check_semicolon=True)
        except _TooManyTokensError as error:
            raise _too_long(script, error.token) from None
        except Exception as error:  # sqlglot's tokenizer has few checks of its own
            raise _token_error(script, error) from None
        yield from core.tokens
        core.tokens.clear()


def _too_long(script: str, token: Token) -> StatementError:
    return _error_at(
        script, token.start, f"the statement has more than {TOKENS_LIMIT:,} words and signs",
        "send many records through a feed or with LOAD, or in several statements",
    )  # fmt: skip


def _chunks(script: str) -> Iterator[list[Token]]:
    """Yields the tokens up to each semicolon outside of brackets."""
    chunk: list[Token] = []
    open_brackets: list[Token] = []
    since_statement = 0
    for token in read_tokens(script):
        kind = token.token_type
        since_statement += 1
        if since_statement > TOKENS_LIMIT:
            raise _too_long(script, token)
        if kind in _OPENING:
            open_brackets.append(token)
            if len(open_brackets) > _DEPTH_LIMIT:
                line, column = place(script, token.start)
                raise StatementError(f"brackets are nested more than {_DEPTH_LIMIT} deep", line=line, column=column)
        elif kind in _CLOSING:
            if not open_brackets or open_brackets[-1].text != _CLOSING[kind]:
                expected = (
                    f"expected the end of {open_brackets[-1].text!r}" if open_brackets else "nothing is open here"
                )
                raise _error_at(script, token.start, f"unexpected {token.text!r}: {expected}")
            open_brackets.pop()
        elif kind == TokenType.NUMBER and len(token.text) > _DIGITS_LIMIT:
            raise _error_at(script, token.start, f"a number of {len(token.text)} digits is too long")
        elif kind == TokenType.NUMBER and not _NUMBER.fullmatch(token.text):
            raise _error_at(script, token.start, f"{_token_text(token)} is not a number")
        if kind == TokenType.SEMICOLON and not open_brackets:
            if chunk:
                yield chunk
                since_statement = 0
            chunk = []
        else:
            chunk.append(token)
    if chunk:
        if open_brackets:
            last = open_brackets[-1]
            raise _error_at(script, last.start, f"{last.text!r} is never closed")
        yield chunk


def _shallow_parts(script: str, statement: Statement) -> None:
    for part in fields(statement):
        value = getattr(statement, part.name)
        for part_value in (
            value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
        ):
            _shallow(script, part_value)


def _shallow(script: str, root: Any) -> None:
    """Balances a tree, and refuses it if it is still so deep that it would exhaust the stack or take very long."""
    if not isinstance(root, exp.Expr):
        return
    _balance(script, root)
    level = [root]
    for _ in range(_TREE_LIMIT):
        level = [child for node in level for child in node.iter_expressions()]
        if not level:
            return
    raise _error_at(
        script,
        offset_of(root) or 0,
        f"operators are nested more than {_TREE_LIMIT} deep",
        "break it up with LET or WITH, or put the values into an array",
    )


def _balance(script: str, root: exp.Expr) -> None:
    """Balances long chains of AND or OR, so that thousands of conditions are only a few levels deep."""
    for node in list(root.walk()):
        kind = type(node)
        if kind not in (exp.And, exp.Or) or type(node.parent) is kind:
            continue
        parts = _operands(node)
        if len(parts) > _CHAIN_LIMIT:
            message = f"{len(parts)} conditions stand in a row, at most {_CHAIN_LIMIT} can"
            raise _error_at(script, offset_of(node) or 0, message, "use IN with a list, or a join with a dataset")
        while len(parts) > 2:
            pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
            parts = [kind(this=pair[0], expression=pair[1]) if pair[1:] else pair[0] for pair in pairs]
        node.set("this", parts[0])
        node.set("expression", parts[1])


def _operands(chain: exp.Expr) -> list[exp.Expr]:
    """Returns the operands of a chain, from left to right."""
    operands: list[exp.Expr] = []
    pending = [chain]
    while pending:
        node = pending.pop()
        if type(node) is type(chain):
            pending += [node.expression, node.this]
        else:
            operands.append(node)
    return operands


def _parse_all(tokens: TokenStream, parse: Callable[[TokenStream], _T]) -> _T:
    """Parses all tokens, and turns any error of the parser into a StatementError with a place."""
    try:
        parsed = parse(tokens)
        tokens.need_end()
        return parsed
    except ParseError as error:
        raise _syntax_error(tokens, error) from None
    except RecursionError:
        raise _error_at(
            tokens.script,
            (tokens.here or tokens.first).start,
            "the statement is nested too deeply",
            "break it up with LET or WITH",
        ) from None
    except (AttributeError, TypeError, ValueError, KeyError, IndexError, AssertionError, TokenError):
        # sqlglot has few checks of its own, so these errors mean that it cannot parse the statement.
        raise _error_at(
            tokens.script,
            (tokens.here or tokens.first).start,
            f"cannot read the statement near {_token_text(tokens.here)}",
        ) from None


def _syntax_error(tokens: TokenStream, error: ParseError) -> StatementError:
    """Rewrites sqlglot's message for our users."""
    detail = error.errors[0] if error.errors else {}
    message = str(detail.get("description") or "cannot be read").split(" but got <Token")[0].rstrip(".")
    token = tokens.error_token
    offset = token.start if token else tokens.last.end + 1
    if message.startswith("Required keyword"):
        message = "Expected an expression"
    if message.startswith(("Invalid expression", "Expecting", "Expected")):
        message = {
            "Invalid expression / Unexpected token": "expected an operator, a clause or the end of the statement"
        }.get(message, message[0].lower() + message[1:])
    return _error_at(tokens.script, offset, f"syntax error at {_token_text(token)}: {message}")


def _token_text(token: Token | None) -> str:
    if token is None:
        return "the end of the statement"
    text = token.text if len(token.text) <= 40 else token.text[:37] + "..."
    return repr(text)


def _token_error(script: str, error: Exception) -> StatementError:
    cause = error.__cause__ or error.__context__ or error
    quote = _find_unclosed_quote(script)
    if quote is not None and script[quote] == "/":
        return _error_at(script, quote, "the comment is never closed")
    if quote is not None:
        return _error_at(script, quote, f"the string or name that begins with {script[quote]} is never closed")
    return _error_at(script, 0, f"the script cannot be read: {str(cause).splitlines()[0]}")


def _find_unclosed_quote(script: str) -> int | None:
    """Returns the place of the first quote that is never closed, outside of comments."""
    at = 0
    while at < len(script):
        two = script[at : at + 2]
        if two in ("--", "//"):
            at = (script.find("\n", at) + 1) or len(script)
        elif two == "/*":
            end = script.find("*/", at + 2)
            if end < 0:
                return at
            at = end + 2
        elif script[at] in "'\"`":
            end = at + 1
            while end < len(script) and script[end] != script[at]:
                end += 2 if script[end] == "\\" and script[at] != "`" else 1
            if end >= len(script):
                return at
            at = end + 1
        else:
            at += 1
    return None


@lru_cache(maxsize=512)
def parse_body(text: str) -> exp.Expr:
    """Caches `parse_query`, so that a function's body is parsed once, however often queries call it."""
    return parse_query(text)
