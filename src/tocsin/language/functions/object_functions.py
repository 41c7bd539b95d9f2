"""Implements SQL++'s functions of objects, declared or not. All of them answer untyped values.

They are MISSING if an argument is MISSING, and NULL if an argument is NULL or has the wrong type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.functions.collections.array_arguments import answer, is_absent
from tocsin.language.functions.text_functions import as_text
from tocsin.language.types.typed_sql import FunctionError, TypedSql, build
from tocsin.language.types.variant import encoder, values
from tocsin.language.types.variant.values import VOID, once
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, ObjectType, Type

ObjectFunction = Callable[[str, Sequence[TypedSql]], TypedSql]
_ANY_ARRAY: Final = ArrayType(t.ANY)
# A name that begins with $ has one $ more inside of an object.
_NAME: Final = "if(startswith(_k, '$'), substring(_k, 2), _k)"
_KEY: Final = "if(startswith(_n, '$'), concat('$', _n), _n)"


def _fields_of(value: TypedSql) -> exp.Expr:
    """Returns the fields of an object as a map; SQL NULL for any other value."""
    if value.type != t.ANY and not isinstance(value.type, ObjectType):
        return exp.cast(exp.null(), "MAP<STRING, VARIANT>", dialect="spark")
    untyped = encoder.to_any(value)
    is_object = "startswith(_s, 'OBJECT<') AND (NOT startswith(_s, 'OBJECT<`$') OR startswith(_s, 'OBJECT<`$$'))"
    return exp.If(
        this=build(is_object, _s=values.call("schema_of_variant", untyped)),
        true=values.get(untyped, "", "map<string,variant>"),
        false=exp.null(),
    )


def _text(value: TypedSql) -> exp.Expr:
    return as_text(value).sql


def _function(
    counts: range, make: Callable[[Sequence[exp.Expr]], exp.Expr], result: Type, *, objects: bool = False
) -> ObjectFunction:
    """A function of an object, of names and of values; or of `objects` only. It gets fields `__o.p0`, `__o.p1` …"""

    def call(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
        if len(arguments) not in counts:
            most = counts[-1]
            expected = (
                f"{counts[0]} or more" if most > 9 else str(most) if len(counts) == 1 else f"{counts[0]} or {most}"
            )
            raise FunctionError(
                f"{name} takes {expected} argument{'' if expected == '1' else 's'}, got {len(arguments)}"
            )
        if any(argument.type == VOID for argument in arguments[:1]):
            return TypedSql(values.NULL.copy() if result == t.ANY else values.null(result), result)
        parts = [
            _fields_of(argument) if at == 0 or objects else _text(argument) if at == 1 or name == "object_rename"
            else encoder.to_any(argument)
            for at, argument in enumerate(arguments)
        ]  # fmt: skip
        names = [f"p{at}" for at in range(len(parts))]
        bound = [exp.column(part, table="__o") for part in names]
        needed = bound if objects else bound[: 3 if name == "object_rename" else 2]
        body = exp.If(this=exp.or_(*map(is_absent, needed)), true=exp.null(), false=make(bound))
        found = once(values.record(list(zip(names, parts, strict=True))), "__o", lambda _: body)
        # A MISSING value of object_add and object_put has a meaning.
        return answer(found, result, arguments if objects else arguments[:2])

    return call


def _object(fields: exp.Expr) -> exp.Expr:
    return values.call("to_variant_object", fields)


def _has(fields: exp.Expr, key: exp.Expr) -> exp.Expr:
    return values.call("map_contains_key", fields, key)


def _without(fields: exp.Expr, name: exp.Expr) -> exp.Expr:
    return build(f"map_filter(_m, (__k, __v) -> __k <> {_KEY})", _m=fields, _n=name)


def _with(fields: exp.Expr, name: exp.Expr, value: exp.Expr) -> exp.Expr:
    return values.call("map_concat", _without(fields, name), values.call("map", build(_KEY, _n=name), value))


def _add(parts: Sequence[exp.Expr]) -> exp.Expr:
    fields, name, value = parts
    has_field = exp.or_(is_absent(value), _has(fields, build(_KEY, _n=name)))
    return _object(exp.If(this=has_field, true=fields, false=_with(fields, name, value)))


def _put(parts: Sequence[exp.Expr]) -> exp.Expr:
    fields, name, value = parts
    without = _without(fields, name)
    return _object(exp.If(this=is_absent(value), true=without, false=_with(fields, name, value)))


def _rename(parts: Sequence[exp.Expr]) -> exp.Expr:
    fields, old, new = parts
    has_field = _has(fields, build(_KEY, _n=old))
    value = values.call("try_element_at", fields, build(_KEY, _n=old))
    return _object(exp.If(this=has_field, true=_with(_without(fields, old), new, value), false=fields))


def _concat(parts: Sequence[exp.Expr]) -> exp.Expr:
    """Joins the fields. A field of a later object replaces an earlier one."""
    made = parts[0]
    for fields in parts[1:]:
        kept = build("map_filter(_m, (__k, __v) -> NOT _has)", _m=made, _has=_has(fields, exp.column("__k")))
        made = values.call("map_concat", kept, fields)
    return _object(made)


def _pairs(parts: Sequence[exp.Expr]) -> exp.Expr:
    pair = values.record([("name", build(_NAME, _k=exp.column("key", table="__e"))),
                          ("value", exp.column("value", table="__e"))])  # fmt: skip
    return build("transform(map_entries(_m), __e -> _pair)", _m=parts[0], _pair=values.call("to_variant_object", pair))


FUNCTIONS: Final[dict[str, ObjectFunction]] = {
    "object_add": _function(range(3, 4), _add, t.ANY),
    "object_concat": _function(range(1, 100), _concat, t.ANY, objects=True),
    "object_length": _function(range(1, 2), lambda parts: build("CAST(size(_m) AS BIGINT)", _m=parts[0]), t.BIGINT),
    "object_merge": _function(range(2, 3), _concat, t.ANY, objects=True),
    "object_names": _function(
        range(1, 2),
        lambda parts: build(f"transform(map_keys(_m), __k -> {_NAME.replace('_k', '__k')})", _m=parts[0]),
        ArrayType(t.STRING),
    ),
    "object_pairs": _function(range(1, 2), _pairs, _ANY_ARRAY),
    "object_put": _function(range(3, 4), _put, t.ANY),
    "object_remove": _function(range(2, 3), lambda parts: _object(_without(*parts)), t.ANY),
    "object_rename": _function(range(3, 4), _rename, t.ANY),
    "object_values": _function(range(1, 2), lambda parts: values.call("map_values", parts[0]), _ANY_ARRAY),
}
