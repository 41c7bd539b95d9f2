"""Matches LIKE in linear time, without backtracking.

Spark turns each `%` into `.*`, and Java's regular expressions then try every way to divide the text among them: six
`%e` over a page of English would take years. But the first match of the text between two `%` is as good as any later
one. So each `%` and the text after it becomes an atomic group, `(?>.*?…)`, which never backtracks.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from sqlglot import exp

from tocsin.language.types.typed_sql import FunctionError, build, constant_string, enclose, string
from tocsin.language.types.variant import values


class Wildcard(Enum):
    """A wildcard in a pattern; other parts of a pattern are plain texts."""

    MANY = "%"
    ONE = "_"


_ESCAPE: Final = "\\"
_WILDCARDS: Final = 1_000
"""The most % and _ in a pattern: Java's matcher uses a stack frame for each of them."""
LETTERS: Final = 10_000
"""The longest pattern: a match may take as many steps as the text has characters times those of the pattern."""

_TOO_LONG: Final = f"a pattern of LIKE has at most {LETTERS:,} characters"
_TOO_MANY: Final = f"a pattern of LIKE has at most {_WILDCARDS} wildcards"
_LIMITS: Final = {"_letters": exp.Literal.number(LETTERS), "_limit": exp.Literal.number(_WILDCARDS)}
_OPENING, _NEXT, _CLOSING = r"(?s)\A(?>", r")(?>.*?", r"\z)"
_QUOTE, _UNQUOTE = r"\Q", r"\E"
_QUOTED_UNQUOTE: Final = r"\E\\E\Q"  # \E inside of a quoted text


_REGEX: Final = {Wildcard.MANY: _NEXT, Wildcard.ONE: "."}


def rewrite_like(node: exp.Expr) -> exp.Expr:
    """Returns the Spark SQL for a LIKE or an ILIKE, with or without ESCAPE."""
    like = node.this if isinstance(node, exp.Escape) else node
    escape = escape_of(node)
    text: exp.Expr = exp.cast(like.this.copy(), "STRING")
    pattern = like.expression
    constant = constant_string(pattern)
    if isinstance(like, exp.ILike):
        text = values.call("lower", text)
        if constant is not None and constant.isascii():
            constant = constant.lower()
        else:
            constant, pattern = None, values.call("lower", pattern)
    if constant is not None:
        return _of_constant(text, list(split_pattern(constant, escape)))
    return exp.RegexpLike(this=enclose(text), expression=enclose(_to_regex(pattern, escape)))


def escape_of(node: exp.Expr) -> str:
    """Returns the escape character."""
    if not isinstance(node, exp.Escape):
        return _ESCAPE
    escape = constant_string(node.expression)
    if escape is None or len(escape) != 1 or ord(escape) > 0xFFFF:
        raise FunctionError("ESCAPE takes one character, such as '!'")
    return escape


def split_pattern(pattern: str, escape: str) -> Iterator[Wildcard | str]:
    """Yields the wildcards (`%` once for several in a row) and the plain texts between them."""
    if len(pattern) > LETTERS:
        raise FunctionError(_TOO_LONG)
    plain, after_percent = "", False
    letters = iter(pattern)
    count = 0
    for letter in letters:
        if letter == escape:
            letter = next(letters, "")
            if letter not in ("%", "_", escape) or not letter:
                raise FunctionError(f"in the pattern {pattern[:100]!r}, {escape} must stand before %, _ or {escape}")
        elif letter in ("%", "_"):
            count += 1
            if count > _WILDCARDS:
                raise FunctionError(_TOO_MANY)
            if plain:
                yield plain
                plain = ""
            if letter == "_" or not after_percent:
                yield Wildcard(letter)
            after_percent = letter == "%"
            continue
        plain += letter
        after_percent = False
    if plain:
        yield plain


def _of_constant(text: exp.Expr, parts: list[Wildcard | str]) -> exp.Expr:
    """Matches a constant pattern, by a plain text function if possible."""
    # Spark evaluates these cases without a regular expression, and can skip files for some of them.
    match parts:
        case []:
            return exp.EQ(this=text, expression=string(""))
        case [Wildcard.MANY]:
            return values.call("startswith", text, string(""))
        case [str(plain)]:
            return exp.EQ(this=text, expression=string(plain))
        case [str(plain), Wildcard.MANY]:
            return values.call("startswith", text, string(plain))
        case [Wildcard.MANY, str(plain)]:
            return values.call("endswith", text, string(plain))
        case [Wildcard.MANY, str(plain), Wildcard.MANY]:
            return values.call("contains", text, string(plain))
    closing = _CLOSING
    if parts[-1] is Wildcard.MANY:  # any rest matches
        parts, closing = parts[:-1], ")"
    body = "".join(_quote(part) if isinstance(part, str) else _REGEX[part] for part in parts)
    return exp.RegexpLike(this=enclose(text), expression=string(f"{_OPENING}{body}{closing}"))


def _quote(text: str) -> str:
    return f"{_QUOTE}{text.replace(_UNQUOTE, _QUOTED_UNQUOTE)}{_UNQUOTE}"


def _to_regex(pattern: exp.Expr, escape: str) -> exp.Expr:
    """Returns the regular expression of a pattern that is known only at run time."""
    texts = {
        "_open": string(_OPENING + _QUOTE),
        "_close": string(_UNQUOTE + _CLOSING),
        "_next": string(_UNQUOTE + _NEXT + _QUOTE),
        "_any": string(f"{_UNQUOTE}.{_QUOTE}"),
        "_q": string(_QUOTE),
        "_u": string(_UNQUOTE),
        "_quoted": string(_QUOTED_UNQUOTE),
        "_e": string(escape),
        "_rest": string(_UNQUOTE + _NEXT + _QUOTE + _UNQUOTE + _CLOSING),  # a final %: any rest matches
        "_end": string(f"{_UNQUOTE})"),
        "_wrong": string(f"in a pattern of LIKE, {escape} must stand before %, _ or {escape}"),
        "_many": string(_TOO_MANY),
        "_long": string(_TOO_LONG),
    }
    plain = build("replace(replace(replace(_p, _u, _quoted), '%', _next), '_', _any)", _p=pattern, **texts)
    piece_regex = build(
        "CASE WHEN startswith(__t, _e) THEN"
        " if(length(__t) = 2 AND substring(__t, 2, 1) IN (_e, '%', '_'),"
        " concat(_u, _q, substring(__t, 2, 1), _u, _q), raise_error(_wrong))"
        " WHEN startswith(__t, '%') THEN _next WHEN __t = '_' THEN _any ELSE replace(__t, _u, _quoted) END",
        **texts,
    )
    pieces = values.call("regexp_extract_all", pattern, string(_pieces(escape)), exp.Literal.number(0))
    escaped = build("array_join(transform(_found, __t -> _each), '')", _found=pieces, _each=piece_regex)
    body = build("if(contains(_p, _e), _escaped, _plain)", _p=pattern, _escaped=escaped, _plain=plain, **texts)
    regex = build("replace(concat(_open, _body, _close), _rest, _end)", _body=body, **texts)
    return build(
        "CASE WHEN length(_p) > _letters THEN raise_error(_long) WHEN _n > _limit THEN raise_error(_many)"
        " ELSE _made END",
        _p=pattern, _n=_wildcards(pattern), _made=regex, **_LIMITS, **texts,
    )  # fmt: skip


def _wildcards(pattern: exp.Expr) -> exp.Expr:
    return build("length(_p) - length(translate(_p, '%_', ''))", _p=pattern)


def _pieces(escape: str) -> str:
    quoted = f"\\{escape}" if not escape.isalnum() else escape
    return rf"(?s){quoted}.?|%+|_|[^{quoted}%_]+"


def readable(pattern: exp.Expr, escape: str) -> exp.Expr:
    """Returns the pattern, or NULL if matching with it would fail."""
    quoted = f"\\{escape}" if not escape.isalnum() else escape
    rest = values.call("regexp_replace", pattern, string(rf"{quoted}[{quoted}%_]"), string(""))
    return build(
        "if(length(_p) <= _letters AND _n <= _limit AND NOT contains(_rest, _e), _p, NULL)",
        _p=pattern, _rest=rest, _e=string(escape), _n=_wildcards(pattern), **_LIMITS,
    )  # fmt: skip
