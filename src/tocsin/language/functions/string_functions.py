"""Implements SQL++'s functions of text that Spark lacks or has with other arguments. They follow `text_functions.py`:
a value that is no text gives NULL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.functions.collections.array_arguments import items_of, whole_number
from tocsin.language.functions.text_functions import as_text
from tocsin.language.types.typed_sql import FunctionError, TypedSql, build, string
from tocsin.language.types.variant import values
from tocsin.language.types.variant.values import once
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, Type

StringFunction = Callable[[str, Sequence[TypedSql]], TypedSql | None]
_NO_WORD: Final = r"[^\p{L}\p{N}]+"


def _texts(make: Callable[..., exp.Expr], counts: Sequence[int], result: Type) -> StringFunction:
    """A function of texts only."""

    def call(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
        if len(arguments) not in counts:
            expected = " or ".join(map(str, counts))
            raise FunctionError(
                f"{name} takes {expected} argument{'' if expected == '1' else 's'}, got {len(arguments)}"
            )
        return TypedSql(make(*(as_text(argument).sql for argument in arguments)), result)

    return call


def _formula(template: str) -> Callable[..., exp.Expr]:
    return lambda *parts: build(template, **dict(zip(("_s", "_p"), parts, strict=False)))


def _trim(spark: str, *, text_first: bool) -> StringFunction:
    """SQL++ takes the text first, and then the characters to remove."""

    def make(text: exp.Expr, letters: exp.Expr) -> exp.Expr:
        return values.call(spark, *((text, letters) if text_first else (letters, text)))

    two = _texts(make, (2,), t.STRING)
    return lambda name, arguments: two(name, arguments) if len(arguments) == 2 else None


def _items(value: TypedSql) -> exp.Expr:
    """Returns the texts of an array; SQL NULL for an item that is no text."""
    text = as_text(TypedSql(exp.column("__x"), t.ANY)).sql
    return build("transform(_v, __x -> _text)", _v=items_of(value, t.ANY), _text=text)


def _join(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    """Joins the texts of an array; NULL if an item is no text."""
    most = 2 if name == "string_join" else 1
    if len(arguments) != most:
        raise FunctionError(f"{name} takes {most} argument{'s' if most > 1 else ''}, got {len(arguments)}")
    separator = as_text(arguments[1]).sql if most == 2 else exp.Literal.string("")

    def join(texts: exp.Expr) -> exp.Expr:
        return build(
            "if(exists(_v, __x -> __x IS NULL), NULL, _joined)",
            _v=texts, _joined=values.call("array_join", texts, separator),
        )  # fmt: skip

    return TypedSql(once(_items(arguments[0]), "__t", join), t.STRING)


def _replace(name: str, arguments: Sequence[TypedSql]) -> TypedSql | None:
    """Replaces the first occurrences, as many as the fourth argument says; Spark replaces all with three arguments."""
    if len(arguments) != 4:
        if len(arguments) not in (2, 3):
            raise FunctionError(f"{name} takes 2 to 4 arguments, got {len(arguments)}")
        return None
    text, old, new = (as_text(argument).sql for argument in arguments[:3])
    fields = [("s", text), ("o", old), ("n", new), ("c", whole_number(arguments[3]))]
    count = build("CAST(least(__r.c, 2147483647L) AS INT)")
    head = values.call("substring_index", build("__r.s"), build("__r.o"), count)
    body = build(
        "CASE WHEN __r.s IS NULL OR __r.o IS NULL OR __r.n IS NULL OR __r.c IS NULL THEN NULL"
        " WHEN __r.c = 0 OR __r.o = '' THEN __r.s WHEN __r.c < 0 OR _head = __r.s THEN replace(__r.s, __r.o, __r.n)"
        " ELSE concat(replace(_head, __r.o, __r.n), __r.n, substring(__r.s, length(_head) + length(__r.o) + 1)) END",
        _head=head,
    )
    return TypedSql(once(values.record(fields), "__r", lambda _: body), t.STRING)


def _words(text: exp.Expr) -> exp.Expr:
    parts = values.call("split", values.call("lower", text), string(_NO_WORD))
    return build("filter(_v, __x -> __x <> '')", _v=parts)


def _codepoints(text: exp.Expr) -> exp.Expr:
    letters = values.call("split", text, exp.Literal.string(""))
    return build(
        "transform(filter(_v, __x -> __x <> ''), __x -> CAST(_code AS BIGINT))",
        _v=letters, _code=values.call("ascii", exp.column("__x")),
    )  # fmt: skip


def _from_codepoints(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    if len(arguments) != 1:
        raise FunctionError(f"{name} takes 1 argument, got {len(arguments)}")
    number = whole_number(TypedSql(exp.column("__x"), t.ANY))
    codes = build("transform(_v, __x -> _n)", _v=items_of(arguments[0], t.ANY), _n=number)
    padded = values.call("lpad", values.call("hex", exp.column("__x")), exp.Literal.number(8), exp.Literal.string("0"))
    digits = build("array_join(transform(__c, __x -> _padded), '')", _padded=padded)
    text = values.call("decode", values.call("unhex", digits), exp.Literal.string("UTF-32"))
    # Half of a surrogate pair is no character.
    is_code = "__x >= 0 AND __x < 1114112 AND NOT (__x >= 55296 AND __x < 57344)"
    body = build(f"if(forall(__c, __x -> __x IS NOT NULL AND {is_code}), _text, NULL)", _text=text)
    return TypedSql(once(codes, "__c", lambda _: body), t.STRING)


_NUMBERS: Final = ArrayType(t.BIGINT)
_TEXTS: Final = ArrayType(t.STRING)
FUNCTIONS: Final[dict[str, StringFunction]] = {
    "codepoint_to_string": _from_codepoints,
    "ltrim": _trim("ltrim", text_first=False),
    "regexp_matches": _texts(
        lambda text, pattern: values.call("regexp_extract_all", text, pattern, exp.Literal.number(0)), (2,), _TEXTS
    ),
    "regexp_position": _texts(
        lambda text, pattern: build("CAST(_at - 1 AS BIGINT)", _at=values.call("regexp_instr", text, pattern)),
        (2,),
        t.BIGINT,
    ),
    "regexp_split": _texts(lambda text, pattern: values.call("split", text, pattern), (2,), _TEXTS),
    "replace": _replace,
    "rtrim": _trim("rtrim", text_first=False),
    "string_concat": _join,
    "string_join": _join,
    "string_to_codepoint": _texts(_codepoints, (1,), _NUMBERS),
    "substring_after": _texts(
        _formula("if(locate(_p, _s) = 0, '', substring(_s, locate(_p, _s) + length(_p)))"), (2,), t.STRING
    ),
    "substring_before": _texts(
        _formula("if(locate(_p, _s) = 0, '', substring(_s, 1, locate(_p, _s) - 1))"), (2,), t.STRING
    ),
    "trim": _trim("btrim", text_first=True),
    "word_tokens": _texts(_words, (1,), _TEXTS),
}
