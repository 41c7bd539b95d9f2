"""Values whose type is known only at run time. In a query they are Spark VARIANTs of the open form:

    MISSING is SQL NULL · NULL is the variant null · {"$point": [x, y]}, {"$datetime": "…"}, … are what JSON cannot say

Compared with a typed value, an untyped one is taken as that type, and as unknown when it is not one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.typed import SPARK_TYPES, FunctionError, Typed, build, constant_number, string
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.openform import field_key
from tocsin.rules.model.types import ArrayType, MultisetType, ObjectType, Primitive, Type

VOID: Final = Primitive("void")  # the type of a bare NULL


def spark_type(type_: Type) -> str:
    """The type a value has while a query runs."""
    match type_:
        case t.AnyType():
            return "VARIANT"
        case ArrayType(item) | MultisetType(item):
            return f"ARRAY<{spark_type(item)}>"
        case ObjectType():
            columns = [f"`{physical(one.name)}`: {spark_type(one.type)}" for one in type_.fields]
            columns += [f"`{OPEN}`: STRING"] if keeps_open(type_) else []
            return f"STRUCT<{', '.join(columns)}>"
    # Inside of a collection nothing is known of NULLs: Spark turns them into whatever stands beside them.
    return "VARIANT" if type_ == VOID else SPARK_TYPES.get(type_, type_.name)


def null(type_: Type) -> exp.Expr:
    if type_ == VOID:
        return exp.null()
    return exp.cast(exp.null(), spark_type(type_), dialect="spark")


def void_as(sql: exp.Expr, type_: Type) -> exp.Expr:
    """What is NULL whenever it has a value, as one of that type. It is kept: raise_error('…') never gets so far."""
    if isinstance(sql, exp.Null) or type_ == VOID:
        return null(type_) if isinstance(sql, exp.Null) else sql
    kept = exp.cast(sql.copy(), "STRING") if type_ == t.ANY else sql.copy()
    return exp.cast(kept, spark_type(type_), dialect="spark")


def call(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])


def record(fields: Sequence[tuple[str, exp.Expr]]) -> exp.Expr:
    """A struct whose field names need no quoting."""
    return call("named_struct", *(part for name, sql in fields for part in (exp.Literal.string(name), sql)))


def contains_any(type_: Type) -> bool:
    match type_:
        case t.AnyType():
            return True
        case ArrayType(item) | MultisetType(item):
            return contains_any(item)
        case ObjectType(fields):
            return any(contains_any(one.type) for one in fields)
    return False


# ---------------------------------------------------------------- reading


def step(value: exp.Expr, key: str | int) -> exp.Expr:
    """A field or an element of an untyped value; MISSING where there is none."""
    if isinstance(key, str):
        key = field_key(key)
        quote = "'" if '"' in key else '"'
        if quote in key:
            raise FunctionError(f"a field name with both kinds of quotes cannot be asked for: {key}")
        path = f"[{quote}{key}{quote}]"
    else:
        path = f"[{key}]"
    if isinstance(value, exp.Anonymous) and value.this == "try_variant_get" and len(value.expressions) == 3:
        inner, before, kind = value.expressions
        if kind.name == "variant" and isinstance(before, exp.Literal):
            return call("try_variant_get", inner, string(str(before.this) + path), kind)
    return call("try_variant_get", value, string(f"${path}"), exp.Literal.string("variant"))


def is_explicit_null(value: exp.Expr) -> exp.Expr:
    return call("is_variant_null", value)


def _get(value: exp.Expr, path: str, kind: str) -> exp.Expr:
    return call("try_variant_get", value, string(f"${path}"), exp.Literal.string(kind))


_PLAIN_TEXT: Final = {t.DATETIME: ("datetime", "timestamp"), t.DATE: ("date", "date"), t.UUID: ("uuid", "string")}
_CORNERS: Final = ("x1", "y1", "x2", "y2")


def as_type(value: exp.Expr, type_: Type) -> exp.Expr:
    """An untyped value as a value of that type, SQL NULL where it is none."""
    if type_ in (t.ANY, VOID):
        return value
    if type_ in _PLAIN_TEXT:
        tag, kind = _PLAIN_TEXT[type_]
        return call("coalesce", _get(value, f'["${tag}"]', kind), _if_kind("STRING", value, _get(value, "", kind)))
    match type_:
        case t.TIME:
            text = call("coalesce", _get(value, '["$time"]', "string"), _get(value, "", "string"))
            return build("unix_micros(try_cast(concat('1970-01-01 ', _text) AS TIMESTAMP))", _text=text)
        case t.DURATION:
            return _when(
                _get(value, '["$duration"][0]', "int"),
                record(
                    (
                        ("months", _get(value, '["$duration"][0]', "int")),
                        ("micros", _get(value, '["$duration"][1]', "bigint")),
                    )
                ),
            )
        case t.POINT:
            return _either(value, ("x", "y"), ('["$point"][0]', '["$point"][1]'), ("[0]", "[1]"))
        case t.CIRCLE:
            tagged = tuple(f'["$circle"][{i}]' for i in range(3))
            return _either(value, ("x", "y", "radius"), tagged, ('["center"][0]', '["center"][1]', '["radius"]'))
        case t.LINE | t.RECTANGLE:
            tagged = tuple(f'["${type_}"][{i}][{j}]' for i in (0, 1) for j in (0, 1))
            return _either(value, _CORNERS, tagged, tuple(f"[{i}][{j}]" for i in (0, 1) for j in (0, 1)))
        case t.POLYGON:
            points = call(
                "coalesce", _get(value, '["$polygon"]', "array<array<double>>"), _get(value, "", "array<array<double>>")
            )
            return build("transform(_points, __p -> named_struct('x', get(__p, 0), 'y', get(__p, 1)))", _points=points)
        case ArrayType(item) | MultisetType(item):
            items = call("coalesce", _get(value, '["$multiset"]', "array<variant>"), _get(value, "", "array<variant>"))
            if item == t.ANY:
                return items
            inner = as_type(exp.column("__item"), item)
            return build("transform(_items, __item -> _inner)", _items=items, _inner=inner)
        case ObjectType():
            raise FunctionError(f"an untyped value cannot be taken as {type_}")
    return _get(value, "", spark_type(type_).lower())


def exactly(value: exp.Expr, type_: Type) -> exp.Expr:
    """`as_type`, but no text is taken as a number, no number as text, and neither as a truth."""
    kind = (
        "BOOLEAN" if type_ == t.BOOLEAN else "STRING" if type_ == t.STRING else _NUMBER if type_ in t.NUMBERS else None
    )
    made = as_type(value, type_)
    return made if kind is None else _if_kind(kind, value, made)


_NUMBER: Final = "BIGINT|DOUBLE|FLOAT|DECIMAL.*"


def _if_kind(kind: str, value: exp.Expr, then: exp.Expr) -> exp.Expr:
    found = call("schema_of_variant", value)
    test = call("rlike", found, string(f"^({kind})$")) if "|" in kind else exp.EQ(this=found, expression=string(kind))
    return exp.If(this=test, true=then.copy(), false=exp.null())


def number_as(value: exp.Expr, kind: str) -> exp.Expr:
    """An untyped number as one of Spark's types, SQL NULL where it is no number."""
    return _if_kind(_NUMBER, value, _get(value, "", kind))


def items(value: Typed) -> Typed:
    """A collection as a Spark array."""
    if isinstance(value.type, ArrayType | MultisetType):
        return Typed(value.sql, ArrayType(value.type.item))
    if value.type == t.ANY:
        return Typed(as_type(value.sql, ArrayType(t.ANY)), ArrayType(t.ANY))
    raise FunctionError(f"expected an array, got {value.type}")


def key(value: exp.Expr) -> exp.Expr:
    """A text that is equal for equal untyped values, so that they can be joined, grouped and compared."""
    # 1 and 1.0 are equal, 1 and "1" are not; and no rounding makes numbers equal that are not.
    return build(
        "CASE WHEN schema_of_variant(_v) = 'BIGINT' THEN concat('n', try_variant_get(_v, '$', 'bigint'))"
        " WHEN _d = floor(_d) AND abs(_d) < 9.2E18 THEN concat('n', CAST(_d AS BIGINT))"
        " WHEN _d IS NOT NULL THEN concat('d', _d) ELSE nullif(to_json(_v), 'null') END",
        _v=value,
        _d=number_as(value, "double"),
    )


# ---------------------------------------------------------------- writing


def to_any(value: Typed) -> exp.Expr:
    """A typed value as an untyped one."""
    if value.type == t.ANY:
        return value.sql
    if value.type == VOID:
        null_ = call("parse_json", exp.Literal.string("null"))
        # What is always NULL, like raise_error('…'), may still have something to say while it is evaluated.
        said = exp.cast(exp.cast(value.sql.copy(), "STRING"), "VARIANT", dialect="spark")
        return null_ if isinstance(value.sql, exp.Null) else call("coalesce", said, null_)
    if value.type in (*t.INTEGERS, t.DOUBLE, t.STRING, t.BOOLEAN):
        plain = exp.cast(value.sql.copy(), "VARIANT", dialect="spark")
        if value.type != t.DOUBLE or constant_number(value.sql) is not None:
            return plain
        # JSON has no NaN and no infinities: the open form says them in its own way.
        odd = "isnan(_v) OR abs(_v) = double('Infinity')"
        return build(f"if({odd}, parse_json(_text), _plain)", _v=value.sql, _text=json_text(value), _plain=plain)
    if contains_any(value.type):
        return _variant_of(value)
    return call("parse_json", json_text(value))


def _variant_of(value: Typed) -> exp.Expr:
    """A collection or object with untyped values in it: written as text and read again, their 7.0 would become 7."""
    sql, type_ = value.sql, value.type
    if isinstance(type_, ArrayType | MultisetType):
        inner = to_any(Typed(exp.column("__item"), type_.item))
        items_ = build("transform(_v, __item -> _inner)", _v=sql, _inner=inner)
        if isinstance(type_, ArrayType):
            return call("to_variant_object", items_)
        return _when(sql, call("to_variant_object", record([("$multiset", items_)])))
    assert isinstance(type_, ObjectType)

    def part(name: str) -> exp.Expr:
        return exp.Dot(this=_boxed(sql), expression=exp.to_identifier(name, quoted=True))

    members = [
        record([("k", string(field_key(one.name))), ("v", to_any(Typed(part(physical(one.name)), one.type)))])
        for one in type_.fields
    ]
    made = build("map_from_entries(filter(_m, __e -> __e.v IS NOT NULL))", _m=call("array", *members))
    if keeps_open(type_):
        rest = _get(call("parse_json", part(OPEN)), "", "map<string,variant>")
        made = build(
            "map_concat(_made, coalesce(_rest, map_filter(_made, (__k, __v) -> false)))", _made=made, _rest=rest
        )
    return _when(sql, call("to_variant_object", made))


def json_text(value: Typed) -> exp.Expr:
    """The open form of a value as text, SQL NULL where it is MISSING (or NULL: the typed value cannot tell)."""
    sql, type_ = value.sql, value.type
    match type_:
        case t.AnyType():
            return call("to_json", sql)
        case t.BOOLEAN | t.TINYINT | t.SMALLINT | t.INTEGER | t.BIGINT:
            return exp.cast(sql.copy(), "STRING")
        case t.FLOAT | t.DOUBLE:
            return build(
                "CASE WHEN isnan(_v) OR abs(_v) = double('Infinity') THEN concat('{\"$double\":\"', string(_v), '\"}')"
                " WHEN contains(string(_v), 'E') THEN string(_v) ELSE concat(string(_v), 'E0') END",
                _v=exp.cast(sql.copy(), "DOUBLE"),
            )
        case t.STRING:
            return _quoted(sql)
        case t.DATETIME:
            return _tagged("datetime", build("date_format(_v, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'\")", _v=sql))
        case t.DATE:
            return _tagged("date", exp.cast(sql.copy(), "STRING"))
        case t.TIME:
            return _tagged("time", build("date_format(timestamp_micros(_v), 'HH:mm:ss.SSSSSS')", _v=sql))
        case t.UUID:
            return _tagged("uuid", sql)
        case t.DURATION:
            return build("concat('{\"$duration\":[', _v.months, ',', _v.micros, ']}')", _v=sql)
        case t.POINT:
            return _numbers("point", sql, "[%x,%y]")
        case t.CIRCLE:
            return _numbers("circle", sql, "[%x,%y,%radius]")
        case t.LINE | t.RECTANGLE:
            return _numbers(str(type_), sql, "[[%x1,%y1],[%x2,%y2]]")
        case t.POLYGON:
            x, y = (_coordinate(exp.Dot(this=exp.column("__p"), expression=exp.to_identifier(name))) for name in "xy")
            return build(
                "concat('{\"$polygon\":[', array_join(transform(_v, __p -> concat('[', _x, ',', _y, ']')), ','), ']}')",
                _v=sql, _x=x, _y=y,
            )  # fmt: skip
        case ArrayType(item) | MultisetType(item):
            inner = json_text(Typed(exp.column("__item"), item))
            text = build(
                "concat('[', array_join(transform(_v, __item -> coalesce(_inner, 'null')), ','), ']')",
                _v=sql,
                _inner=inner,
            )
            return text if isinstance(type_, ArrayType) else build("concat('{\"$multiset\":', _v, '}')", _v=text)
        case ObjectType():
            return _object_text(sql, type_)
    return _quoted(exp.cast(sql.copy(), "STRING"))


def _object_text(sql: exp.Expr, type_: ObjectType) -> exp.Expr:
    def member(one: t.Field) -> exp.Expr:
        text = json_text(
            Typed(exp.Dot(this=_boxed(sql), expression=exp.to_identifier(physical(one.name), quoted=True)), one.type)
        )
        return call("concat", string(_json_string(field_key(one.name)) + ":"), text)

    parts = [member(one) for one in type_.fields]
    if keeps_open(type_):
        open_ = exp.Dot(this=_boxed(sql), expression=exp.to_identifier(OPEN, quoted=True))
        parts.append(build("nullif(substring(_open, 2, length(_open) - 2), '')", _open=open_))
    joined = call("concat_ws", exp.Literal.string(","), *parts)
    return _when(sql, call("concat", exp.Literal.string("{"), joined, exp.Literal.string("}")))


def _numbers(tag: str, sql: exp.Expr, shape: str) -> exp.Expr:
    import re

    pieces = re.split(r"%(\w+)", f'{{"${tag}":{shape}}}')
    parts = [
        exp.Literal.string(piece)
        if i % 2 == 0
        else _coordinate(exp.Dot(this=_boxed(sql), expression=exp.to_identifier(piece)))
        for i, piece in enumerate(pieces)
    ]
    return call("concat", *parts)


def _coordinate(sql: exp.Expr) -> exp.Expr:
    # Without an exponent it would be read as a decimal, and -0.0 lose its sign.
    return build("if(contains(string(_v), 'E'), string(_v), concat(string(_v), 'E0'))", _v=sql)


def _tagged(tag: str, text: exp.Expr) -> exp.Expr:
    return call("concat", exp.Literal.string(f'{{"${tag}":"'), text, exp.Literal.string('"}'))


def _quoted(sql: exp.Expr) -> exp.Expr:
    # Of NULL this would make the text null, and a MISSING field would be there.
    return _when(sql, build("substring(to_json(array(_v)), 2, length(to_json(array(_v))) - 2)", _v=sql))


def _json_string(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)


def _boxed(sql: exp.Expr) -> exp.Expr:
    return sql.copy() if isinstance(sql, exp.Paren) else exp.Paren(this=sql.copy())


def _when(present: exp.Expr, then: exp.Expr) -> exp.Expr:
    return exp.If(
        this=exp.Not(this=exp.Is(this=exp.Paren(this=present.copy()), expression=exp.null())),
        true=then,
        false=exp.null(),
    )


def _either(value: exp.Expr, names: Sequence[str], tagged: Sequence[str], bare: Sequence[str]) -> exp.Expr:
    """A struct of doubles from the tagged form or, as people write JSON, from the bare one."""
    numbers = [
        call("coalesce", _get(value, a, "double"), _get(value, b, "double")) for a, b in zip(tagged, bare, strict=True)
    ]
    return _when(numbers[0], record(tuple(zip(names, numbers, strict=True))))


# ---------------------------------------------------------------- in and out of a query


def stored(sql: exp.Expr, type_: Type) -> exp.Expr:
    """A column as the dataset holds it (untyped values as text) → as queries use it."""
    return _mapped(sql, type_, lambda inner: call("parse_json", inner))


def exported(value: Typed) -> exp.Expr:
    """As queries use it → as answers leave Spark: untyped values as text of the open form."""
    return _mapped(value.sql, value.type, lambda inner: call("to_json", inner))


def _mapped(sql: exp.Expr, type_: Type, change: object) -> exp.Expr:
    assert callable(change)
    if not contains_any(type_):
        return sql
    match type_:
        case ArrayType(item) | MultisetType(item):
            inner = _mapped(exp.column("__item"), item, change)
            return build("transform(_v, __item -> _inner)", _v=sql, _inner=inner)
        case ObjectType():
            parts = [
                (
                    physical(one.name),
                    _mapped(
                        exp.Dot(this=_boxed(sql), expression=exp.to_identifier(physical(one.name), quoted=True)),
                        one.type,
                        change,
                    ),
                )
                for one in type_.fields
            ]
            if keeps_open(type_):
                parts.append((OPEN, exp.Dot(this=_boxed(sql), expression=exp.to_identifier(OPEN, quoted=True))))
            return _when(sql, record(parts))
    changed: exp.Expr = change(sql)
    return changed
