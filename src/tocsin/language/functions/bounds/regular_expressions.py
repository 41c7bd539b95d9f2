"""Replaces Spark's regular expression functions by our own (`pipeline/regular_expressions.java`).

Spark's functions still serve for type analysis. At run time our functions replace them; they return the same results
but can be stopped. Java's matcher cannot be stopped, and a short expression can keep it busy forever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.types.typed_sql import build, constant_string, string

LIKE: Final = "tocsin_regexp_like"
EXTRACT: Final = "tocsin_regexp_extract"
EXTRACT_ALL: Final = "tocsin_regexp_extract_all"
POSITION: Final = "tocsin_regexp_instr"
REPLACE: Final = "tocsin_regexp_replace"
SPLIT: Final = "tocsin_split"

_Arguments = Sequence[exp.Expr]


def _call(name: str, texts: int, numbers: Sequence[int]) -> Callable[[_Arguments], exp.Expr]:
    """Returns a builder of a call with this number of texts, then numbers. `numbers` has their defaults."""

    def make_call(given: _Arguments) -> exp.Expr:
        rest = [*given[texts:], *map(_number, numbers[len(given) - texts :])]
        return exp.Anonymous(
            this=name, expressions=[*map(_text, given[:texts]), *(exp.cast(argument, "INT") for argument in rest)]
        )

    return make_call


def _number(value: int) -> exp.Expr:
    return exp.Literal.number(value)


def _text(value: exp.Expr) -> exp.Expr:
    return value if constant_string(value) is not None else exp.cast(value, "STRING")


def _count(given: _Arguments) -> exp.Expr:
    return exp.Anonymous(this="size", expressions=[_extract_all([*given, _number(0)])])


def _substring(given: _Arguments) -> exp.Expr:
    return exp.Anonymous(this="nullif", expressions=[_extract([*given, _number(0)]), string("")])


def _map(given: _Arguments) -> exp.Expr:
    """Rewrites str_to_map, whose delimiters are regular expressions."""
    text, pair_delimiter, key_delimiter = [*given, *map(string, (",", ":")[len(given) - 1 :])]
    return build(
        "if(_within IS NULL, NULL, map_from_entries(transform(_pairs,"
        " __pair -> named_struct('key', get(_parts, 0), 'value', get(_parts, 1)))))",
        _within=_text(key_delimiter), _pairs=_split([text, pair_delimiter]),
        _parts=_split([exp.column("__pair"), key_delimiter, _number(2)]),
    )  # fmt: skip


def _url_part(name: str) -> Callable[[_Arguments], exp.Expr]:
    """Rewrites parse_url. Spark takes its key for a regular expression, so quote the key."""

    def make_call(given: _Arguments) -> exp.Expr:
        texts = {"_q": string(r"\Q"), "_e": string(r"\E"), "_quoted": string(r"\E\\E\Q")}
        keys = [build("concat(_q, replace(_key, _e, _quoted), _e)", _key=_text(key), **texts) for key in given[2:]]
        return exp.Anonymous(this=name, expressions=[*given[:2], *keys])

    return make_call


_extract, _extract_all, _split = _call(EXTRACT, 2, [1]), _call(EXTRACT_ALL, 2, [1]), _call(SPLIT, 2, [-1])
_like = _call(LIKE, 2, [])
# The allowed numbers of arguments, and the builder.
REWRITES: Final[dict[str, tuple[range, Callable[[_Arguments], exp.Expr]]]] = {
    "rlike": (range(2, 3), _like),
    "regexp": (range(2, 3), _like),
    "regexp_like": (range(2, 3), _like),
    "regexp_count": (range(2, 3), _count),
    "regexp_extract": (range(2, 4), _extract),
    "regexp_extract_all": (range(2, 4), _extract_all),
    "regexp_instr": (range(2, 4), _call(POSITION, 2, [0])),
    "regexp_replace": (range(3, 5), _call(REPLACE, 3, [1])),
    "regexp_substr": (range(2, 3), _substring),
    "split": (range(2, 4), _split),
    "str_to_map": (range(1, 4), _map),
    "parse_url": (range(2, 4), _url_part("parse_url")),
    "try_parse_url": (range(2, 4), _url_part("try_parse_url")),
}
NAMES: Final = frozenset(REWRITES)
"""Spark functions that take a regular expression."""
