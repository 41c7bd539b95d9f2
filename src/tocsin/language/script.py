"""A script cut into statements, and offsets turned into lines and columns.

Statements are parsed one by one, so that those before a bad one can run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from tocsin.language.dialect import Tocsin
from tocsin.language.grammar import StatementParser
from tocsin.language.statements import Statement
from tocsin.wire.errors import StatementError

T = TypeVar("T")

DEPTH_LIMIT = 100  # brackets within brackets; far beyond what people write, far below what exhausts the stack
_OPENING = {TokenType.L_PAREN, TokenType.L_BRACE, TokenType.L_BRACKET}
_CLOSING = {TokenType.R_PAREN: "(", TokenType.R_BRACE: "{", TokenType.R_BRACKET: "["}


def statements(script: str) -> Iterator[Statement]:
    """The statements of a script; StatementError where it cannot be read, with its place and number."""
    number = 1
    try:
        for chunk in _chunks(script):
            yield _parse(script, chunk)
            number += 1
    except StatementError as error:
        error.statement = error.statement or number
        raise


def parse_query(text: str) -> exp.Expr:
    """A function's body: a query or an expression."""
    parser = _parser(text, _tokens(text))
    return _guarded(text, parser, parser.parse_body)


def place(script: str, offset: int) -> tuple[int, int]:
    """Line and column, both counted from 1."""
    offset = max(0, min(offset, len(script)))
    return script.count("\n", 0, offset) + 1, offset - script.rfind("\n", 0, offset)


def error_at(script: str, offset: int, message: str, hint: str | None = None) -> StatementError:
    line, column = place(script, offset)
    return StatementError(message, line=line, column=column, hint=hint)


def offset_of(node: Any) -> int | None:
    """Where an expression stands in its script: the place of the first token that remembers its own."""
    if not isinstance(node, exp.Expr):
        return None
    starts = [found.meta["start"] for found in node.walk() if found._meta and "start" in found._meta]
    return min(starts, default=None)


# ---------------------------------------------------------------- inside


def _tokens(script: str) -> list[Token]:
    try:
        tokens = list(Tocsin().tokenize(script))
    except (TokenError, RecursionError) as error:
        raise _token_error(script, error) from None
    return tokens


def _chunks(script: str) -> Iterator[list[Token]]:
    """Tokens up to each semicolon that stands outside of all brackets."""
    chunk: list[Token] = []
    open_brackets: list[Token] = []
    for token in _tokens(script):
        kind = token.token_type
        if kind in _OPENING:
            open_brackets.append(token)
            if len(open_brackets) > DEPTH_LIMIT:
                line, column = place(script, token.start)
                raise StatementError(f"brackets are nested more than {DEPTH_LIMIT} deep", line=line, column=column)
        elif kind in _CLOSING:
            if not open_brackets or open_brackets[-1].text != _CLOSING[kind]:
                expected = (
                    f"expected the end of {open_brackets[-1].text!r}" if open_brackets else "nothing is open here"
                )
                raise error_at(script, token.start, f"unexpected {token.text!r}: {expected}")
            open_brackets.pop()
        if kind == TokenType.SEMICOLON and not open_brackets:
            if chunk:
                yield chunk
            chunk = []
        else:
            chunk.append(token)
    if chunk:
        if open_brackets:
            last = open_brackets[-1]
            raise error_at(script, last.start, f"{last.text!r} is never closed")
        yield chunk


def _parser(script: str, tokens: list[Token]) -> StatementParser:
    parser = StatementParser(dialect=Tocsin())
    parser.begin(script, tokens)
    return parser


def _parse(script: str, tokens: list[Token]) -> Statement:
    parser = _parser(script, tokens)
    return _guarded(script, parser, parser.parse_one)


def _guarded(script: str, parser: StatementParser, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except ParseError as error:
        raise _syntax_error(script, parser, error) from None
    except RecursionError:
        raise StatementError("the statement is nested too deeply", hint="break it up with LET or WITH") from None
    except (AttributeError, TypeError, ValueError, KeyError, IndexError, AssertionError):
        # sqlglot trusts its callers here and there; what it stumbles over is a statement it cannot read.
        token = parser.here
        raise error_at(script, token.start if token else 0, f"cannot read the statement near {_shown(token)}") from None


def _syntax_error(script: str, parser: StatementParser, error: ParseError) -> StatementError:
    detail = error.errors[0] if error.errors else {}
    said = str(detail.get("description") or "cannot be read").split(" but got <Token")[0].rstrip(".")
    token = parser.here
    offset = token.start if token else len(script.rstrip())
    if said.startswith("Required keyword"):
        said = "Expected an expression"
    if said.startswith(("Invalid expression", "Expecting", "Expected")):
        said = {
            "Invalid expression / Unexpected token": "expected an operator, a clause or the end of the statement"
        }.get(said, said[0].lower() + said[1:])
    return error_at(script, offset, f"syntax error at {_shown(token)}: {said}")


def _shown(token: Token | None) -> str:
    if token is None:
        return "the end of the statement"
    text = token.text if len(token.text) <= 40 else token.text[:37] + "..."
    return repr(text)


def _token_error(script: str, error: Exception) -> StatementError:
    cause = error.__cause__ or error.__context__ or error
    quote = _unclosed_quote(script)
    if quote is not None:
        return error_at(script, quote, f"the string or name that begins with {script[quote]} is never closed")
    return error_at(script, 0, f"the script cannot be read: {str(cause).splitlines()[0]}")


def _unclosed_quote(script: str) -> int | None:
    """The first quote that no second one answers (outside of comments)."""
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
def parsed_body(text: str) -> exp.Expr:
    """`parse_query`, remembered: a function's body is parsed once, however often it is called."""
    return parse_query(text)
