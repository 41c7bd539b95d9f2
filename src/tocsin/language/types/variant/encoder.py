"""Encodes values in the open form (see `values.py`): as untyped values in a query, as text in its answer.

Values that contain untyped ones are converted part by part and not through JSON text, which would turn 7.0 into 7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from sqlglot import exp

from tocsin.language.types.typed_sql import TypedSql, build, constant_number, string
from tocsin.language.types.variant.values import VOID, call, contains_any, get, parenthesize, record, when
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.open_form import field_key
from tocsin.rules.model.types import ArrayType, MultisetType, ObjectType, Type


def to_any(value: TypedSql) -> exp.Expr:
    """Converts a typed value to an untyped one."""
    if value.type == t.ANY:
        return value.sql
    if value.type == VOID:
        null_ = call("parse_json", exp.Literal.string("null"))
        # An expression that is always NULL may still fail during evaluation, as raise_error('…') does.
        evaluated = exp.cast(exp.cast(value.sql.copy(), "STRING"), "VARIANT", dialect="spark")
        return null_ if isinstance(value.sql, exp.Null) else call("coalesce", evaluated, null_)
    if value.type in (*t.INTEGERS, t.DOUBLE, t.STRING, t.BOOLEAN):
        plain = exp.cast(value.sql.copy(), "VARIANT", dialect="spark")
        if value.type != t.DOUBLE or constant_number(value.sql) is not None:
            return plain
        # JSON has no NaN and no infinities; the open form has tags for them.
        is_special = "isnan(_v) OR abs(_v) = double('Infinity')"
        # sqlglot would leave parse_json out of a template.
        tagged = call("parse_json", _json_text(value))
        return build(f"if({is_special}, _tagged, _plain)", _v=value.sql, _tagged=tagged, _plain=plain)
    if contains_any(value.type):
        return _variant_of(value)
    return call("parse_json", _json_text(value))


def _variant_of(value: TypedSql) -> exp.Expr:
    """Converts a collection or object that contains untyped values. A detour through text would turn 7.0 into 7."""
    sql, type_ = value.sql, value.type
    if isinstance(type_, ArrayType | MultisetType):
        inner = to_any(TypedSql(exp.column("__item"), type_.item))
        items_ = build("transform(_v, __item -> _inner)", _v=sql, _inner=inner)
        if isinstance(type_, ArrayType):
            return call("to_variant_object", items_)
        return when(sql, call("to_variant_object", record([("$multiset", items_)])))
    assert isinstance(type_, ObjectType)

    members = [
        record(
            [
                ("k", string(field_key(field.name))),
                ("v", to_any(TypedSql(_field(sql, physical(field.name)), field.type))),
            ]
        )
        for field in type_.fields
    ]
    entries = build("map_from_entries(filter(_m, __e -> __e.v IS NOT NULL))", _m=call("array", *members))
    if keeps_open(type_):
        rest = get(call("parse_json", _field(sql, OPEN)), "", "map<string,variant>")
        entries = build(
            "map_concat(_made, coalesce(_rest, map_filter(_made, (__k, __v) -> false)))", _made=entries, _rest=rest
        )
    return when(sql, call("to_variant_object", entries))


def _json_text(value: TypedSql) -> exp.Expr:
    """Returns the open form of a value as text; SQL NULL for MISSING, and for NULL, which typed values cannot tell."""
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
            return _quote_text(sql)
        case t.DATETIME:
            form = "yyyy-MM-dd'T'HH:mm:ss"
            return _tag_text("datetime", _without_zero_fraction("_v", "unix_micros(_v)", form, "'Z'", sql))
        case t.DATE:
            return _tag_text("date", exp.cast(sql.copy(), "STRING"))
        case t.TIME:
            return _tag_text("time", _without_zero_fraction("timestamp_micros(_v)", "_v", "HH:mm:ss", "", sql))
        case t.UUID:
            return _tag_text("uuid", sql)
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
            inner = _json_text(TypedSql(exp.column("__item"), item))
            text = build(
                "concat('[', array_join(transform(_v, __item -> coalesce(_inner, 'null')), ','), ']')",
                _v=sql,
                _inner=inner,
            )
            return text if isinstance(type_, ArrayType) else build("concat('{\"$multiset\":', _v, '}')", _v=text)
        case ObjectType():
            return _object_text(sql, type_)
    return _quote_text(exp.cast(sql.copy(), "STRING"))


def _without_zero_fraction(moment: str, micros: str, form: str, end: str, sql: exp.Expr) -> exp.Expr:
    """Writes a moment as `rules.model.values` does, so that equal moments have equal texts: no fraction if it is 0."""
    whole, exact = (f'date_format({moment}, "{form}{fraction}{end}")' for fraction in ("", ".SSSSSS"))
    return build(f"if({micros} % 1000000 = 0, {whole}, {exact})", _v=sql)


def _field(sql: exp.Expr, name: str) -> exp.Expr:
    return exp.Dot(this=parenthesize(sql), expression=exp.to_identifier(name, quoted=True))


def _object_text(sql: exp.Expr, type_: ObjectType) -> exp.Expr:
    def member(field: t.Field) -> exp.Expr:
        text = _json_text(TypedSql(_field(sql, physical(field.name)), field.type))
        return call("concat", string(_json_string(field_key(field.name)) + ":"), text)

    parts = [member(field) for field in type_.fields]
    if keeps_open(type_):
        parts.append(build("nullif(substring(_open, 2, length(_open) - 2), '')", _open=_field(sql, OPEN)))
    joined = call("concat_ws", exp.Literal.string(","), *parts)
    return when(sql, call("concat", exp.Literal.string("{"), joined, exp.Literal.string("}")))


def _numbers(tag: str, sql: exp.Expr, shape: str) -> exp.Expr:
    pieces = re.split(r"%(\w+)", f'{{"${tag}":{shape}}}')
    parts = [
        exp.Literal.string(piece)
        if i % 2 == 0
        else _coordinate(exp.Dot(this=parenthesize(sql), expression=exp.to_identifier(piece)))
        for i, piece in enumerate(pieces)
    ]
    return call("concat", *parts)


def _coordinate(sql: exp.Expr) -> exp.Expr:
    # Without an exponent, readers would take the number for a decimal, and -0.0 would lose its sign.
    return build("if(contains(string(_v), 'E'), string(_v), concat(string(_v), 'E0'))", _v=sql)


def _tag_text(tag: str, text: exp.Expr) -> exp.Expr:
    return call("concat", exp.Literal.string(f'{{"${tag}":"'), text, exp.Literal.string('"}'))


def _quote_text(sql: exp.Expr) -> exp.Expr:
    # Without `when`, NULL would become the text "null", and a MISSING field would appear.
    return when(sql, build("substring(to_json(array(_v)), 2, length(to_json(array(_v))) - 2)", _v=sql))


def _json_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# ---------------------------------------------------------------- between stored data, queries and answers


def from_stored(sql: exp.Expr, type_: Type) -> exp.Expr:
    """Converts a column from the stored form (untyped values as text) to the form in queries."""
    return _map_untyped(sql, type_, lambda inner: call("parse_json", inner))


def to_stored(value: TypedSql) -> exp.Expr:
    """Converts a value from the form in queries to the stored form, which `from_stored` reads."""
    return _map_untyped(value.sql, value.type, _exact_text)


# The texts of JSON, and what stands between them; possessive, so that matching needs no stack.
_TEXT_OR_REST = r'"(?:[^"\\]|\\.)*+"|[^"]++'
_FRACTION = r"(-?[0-9]++\.[0-9]++)(?![eE])"


def _exact_text(variant: exp.Expr) -> exp.Expr:
    """Returns the text of an untyped value. Doubles get an exponent: without one, 7.0 would be read as 7."""
    return build(
        "get(transform(array(to_json(_v)), __j -> if(contains(__j, '.'), array_join(transform("
        "regexp_extract_all(__j, _parts, 0),"
        " __p -> if(startswith(__p, '\"'), __p, regexp_replace(__p, _number, _exact))), ''), __j)), 0)",
        _v=variant, _parts=string(_TEXT_OR_REST), _number=string(_FRACTION), _exact=string("$1E0"),
    )  # fmt: skip


# ---------------------------------------------------------------- undeclared fields, as the text of the column OPEN


def open_fields(variant: exp.Expr) -> exp.Expr:
    """Returns the fields of an untyped object as text; SQL NULL if the value is no object, or has no fields."""
    schema = call("schema_of_variant", variant)
    # A tag has one dollar sign, and a field whose name begins with one has two.
    is_object = "startswith(_s, 'OBJECT<') AND (NOT startswith(_s, 'OBJECT<`$') OR startswith(_s, 'OBJECT<`$$'))"
    return build(f"if({is_object}, nullif(_text, '{{}}'), NULL)", _s=schema, _text=_exact_text(variant))


def without_fields(text: exp.Expr, names: Sequence[str]) -> exp.Expr:
    """Returns the text without the fields of these names."""
    if not names:
        return text
    keys = [field_key(name) for name in names]
    # Most texts contain none of them, and need not be parsed.
    found = exp.or_(*(call("contains", text, string(_json_string(key) + ":")) for key in keys))
    kept = build(
        "map_filter(_fields, (__k, __v) -> array_position(_keys, __k) = 0)",
        _fields=_fields_of(text), _keys=call("array", *map(string, keys)),
    )  # fmt: skip
    return exp.If(this=found, true=_text_of(kept), false=text.copy())


def merge_fields(texts: Sequence[exp.Expr]) -> exp.Expr:
    """Merges the undeclared fields of several records into one text. Of equal names, the last one counts."""
    if not texts:
        return exp.cast(exp.null(), "STRING")
    merged = texts[0]
    for text in texts[1:]:
        both = build(
            "map_concat(map_filter(_a, (__k, __v) -> array_position(map_keys(_b), __k) = 0), _b)",
            _a=_fields_of(merged), _b=_fields_of(text),
        )  # fmt: skip
        merged = build(
            "CASE WHEN _a IS NULL THEN _b WHEN _b IS NULL THEN _a ELSE _both END", _a=merged, _b=text,
            _both=_text_of(both),
        )  # fmt: skip
    return merged


def _fields_of(text: exp.Expr) -> exp.Expr:
    return get(call("parse_json", text), "", "map<string,variant>")


def _text_of(fields: exp.Expr) -> exp.Expr:
    return build("nullif(_text, '{}')", _text=_exact_text(call("to_variant_object", fields)))


def to_answer(value: TypedSql) -> exp.Expr:
    """Converts a value from the form in queries to the form of answers (untyped values as text of the open form)."""
    return _map_untyped(value.sql, value.type, lambda inner: call("to_json", inner))


def _map_untyped(sql: exp.Expr, type_: Type, change: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Applies `change` to every untyped value inside of a value."""
    if not contains_any(type_):
        return sql
    match type_:
        case ArrayType(item) | MultisetType(item):
            inner = _map_untyped(exp.column("__item"), item, change)
            return build("transform(_v, __item -> _inner)", _v=sql, _inner=inner)
        case ObjectType():
            names = ((physical(field.name), field.type) for field in type_.fields)
            parts = [(name, _map_untyped(_field(sql, name), kind, change)) for name, kind in names]
            if keeps_open(type_):
                parts.append((OPEN, _field(sql, OPEN)))
            return when(sql, record(parts))
    return change(sql)
