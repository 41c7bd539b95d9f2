"""Derives the parser, the writer and the JSON schema of a message from one dataclass.

The fields of a message are texts, numbers, flags, cursors, positions, times, other messages, and `X | None`,
`tuple[X, ...]`, `Sequence[X]` and `dict[K, V]` of these. A `Mark` in `Annotated` adds a description, a limit or another
text form. Clients use this, too, so it is not pydantic: importing that takes as long as all the rest of a client.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from inspect import cleandoc
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from tocsin.rules.model.cursors import Cursor, InterestId, Position
from tocsin.rules.model.values import datetime_text
from tocsin.wire import cursors
from tocsin.wire.errors import InputError, LimitError

_NAME_LIMIT: Final = 200

JsonObject = dict[str, Any]
_Convert = Callable[[Any], Any]


class Message:
    """The base of all messages. A message with a `SHAPE` is a request: it has no other fields than these, and a refusal
    shows the shape. An answer may have more fields, so that an older client understands a newer server."""

    __slots__ = ()
    SHAPE: ClassVar[str] = ""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises InputError, or LimitError; the message names the field."""
        kind: Any = cls
        message: Self = _form(kind).read(value)
        return message

    def to_json(self) -> JsonObject:
        """A field whose default is None is left out while it has no value."""
        kind: Any = type(self)
        written: JsonObject = _form(kind).write(self)
        return written


# --- the types of fields


class _MessageForm(NamedTuple):
    """How a value is read and written, and its schema."""

    read: _Convert
    write: _Convert
    schema: JsonObject


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """What a field adds to the form of its type. `read` and `write` replace those of the type; `check` follows them."""

    description: str = ""
    read: _Convert | None = None
    write: _Convert | None = None
    check: Callable[[Any], None] | None = None
    schema: JsonObject = field(default_factory=dict)

    def apply(self, form: _MessageForm) -> _MessageForm:
        read, check = self.read or form.read, self.check

        def check_value(value: Any) -> Any:
            found = read(value)
            if check is not None and found is not None:
                check(found)
            return found

        schema = {**form.schema, **self.schema, **({"description": self.description} if self.description else {})}
        return _MessageForm(read if check is None else check_value, self.write or form.write, schema)


def at_most(limit: int, keyword: str = "maxItems", *, status: int = 400, hint: str | None = None) -> Mark:
    """Limits the length of an array (of an object, of a text, by another keyword)."""

    def check(value: Any) -> None:
        if len(value) > limit:
            raise LimitError(f"{len(value)}, at most {limit}", status=status, hint=hint)

    return Mark(check=check, schema={keyword: limit})


def positive(limit: int) -> Mark:
    """A whole number above 0 and below the limit."""

    def check(number: int) -> None:
        if not 0 < number < limit:
            raise InputError("must be a whole number above 0")

    return Mark(check=check, schema={"minimum": 1})


def parse_interest(text: object) -> InterestId:
    """On the subscriber's wire an interest is a text of digits, because JavaScript cannot represent 64-bit numbers."""
    if not isinstance(text, str) or not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise InputError("an interest is a text of digits", hint='such as "17"')
    return InterestId(int(text))


_DEFAULT_DATAVERSE: Final = "Default"


def qualify(name: str) -> str:
    """Returns `dataverse.name`; a name without a dataverse is in the dataverse Default."""
    return name if "." in name else f"{_DEFAULT_DATAVERSE}.{name}"


def parse_name(value: object) -> str:
    """Checks a name: text that is neither empty nor very long, without control characters."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InputError("must be a text that is not empty, without control characters")
    if len(value) > _NAME_LIMIT:
        raise LimitError(f"longer than {_NAME_LIMIT} characters", status=400)
    return value


def _parse_moment(text: Any) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise InputError("must be a time such as 2026-11-15T09:30:00Z") from None


def _same(value: Any) -> Any:
    return value


def _make_type_check(words: str, *kinds: type) -> _Convert:
    def read(value: Any) -> Any:
        if value.__class__ not in kinds:
            raise InputError(f"must be {words}")
        return value

    return read


_ANY: Final = _MessageForm(_same, _same, {})
_FORMS: Final[dict[Any, _MessageForm]] = {
    Any: _ANY,
    str: _MessageForm(_make_type_check("a text", str), _same, {"type": "string"}),
    int: _MessageForm(_make_type_check("a whole number", int), _same, {"type": "integer"}),
    float: _MessageForm(_make_type_check("a number", float, int), _same, {"type": "number"}),
    bool: _MessageForm(_make_type_check("true or false", bool), _same, {"type": "boolean"}),
    # Between brokers and clusters, an interest is a number.
    InterestId: _MessageForm(_make_type_check("a whole number", int), _same, {"type": "integer", "minimum": 0}),
    datetime: _MessageForm(_parse_moment, datetime_text, {"type": "string", "format": "date-time"}),
    Cursor: _MessageForm(
        cursors.parse_cursor, cursors.cursor_text, {"type": "string", "pattern": cursors.CURSOR_PATTERN}
    ),
    Position: _MessageForm(
        cursors.parse_position, cursors.position_text, {"type": "string", "pattern": cursors.POSITION_PATTERN}
    ),
}
NameText = Annotated[
    str, Mark(read=parse_name, write=_same, schema={"type": "string", "minLength": 1, "maxLength": _NAME_LIMIT})
]
InterestText = Annotated[
    InterestId, Mark(read=parse_interest, write=str, schema={"type": "string", "pattern": "^[0-9]{1,19}$"})
]


@functools.cache
def _form(hint: Any) -> _MessageForm:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _FORMS:
        return _FORMS[hint]
    if origin is Annotated:
        first = arguments[1]
        form = _ANY if first.read is not None and first.schema else _form(arguments[0])
        for mark in arguments[1:]:
            form = mark.apply(form)
        return form
    if origin is Literal:
        return _MessageForm(_choice(arguments), _same, {"enum": list(arguments)})
    if origin in (typing.Union, types.UnionType):
        return _optional(_form(arguments[0]))
    if origin in (tuple, Sequence):
        return _array(_form(arguments[0]))
    return _message(hint) if origin is None else _mapping(_form(arguments[0]), _form(arguments[1]))


def _choice(values: tuple[str, ...]) -> _Convert:
    words = " or ".join(f'"{value}"' for value in values)

    def read(value: Any) -> Any:
        if value not in values:
            raise InputError(f"must be {words}")
        return value

    return read


def _optional(form: _MessageForm) -> _MessageForm:
    return _MessageForm(
        lambda value: None if value is None else form.read(value),
        lambda value: None if value is None else form.write(value),
        {"anyOf": [form.schema, {"type": "null"}]},
    )


def _array(item: _MessageForm) -> _MessageForm:
    check, read_item, write_item = _make_type_check("an array", list), item.read, item.write

    def read(json: Any) -> Any:
        items = []
        for index, value in enumerate(check(json)):
            try:
                items.append(read_item(value))
            except InputError as error:
                raise _ItemError(str(index), error) from None
        return tuple(items)

    def write(values: Any) -> Any:
        return [write_item(value) for value in values]

    return _MessageForm(read, write, {"type": "array", "items": item.schema})


def _mapping(key: _MessageForm, value: _MessageForm) -> _MessageForm:
    check = _make_type_check("an object", dict)

    def read(json: Any) -> Any:
        found = {}
        for name, item in check(json).items():
            try:
                found[key.read(name)] = value.read(item)
            except InputError as error:
                raise _ItemError(f"of {name[:60]}", error) from None
        return found

    def write(items: Any) -> Any:
        return {key.write(name): value.write(item) for name, item in items.items()}

    schema = {"type": "object", "additionalProperties": value.schema, "propertyNames": key.schema}
    return _MessageForm(read, write, schema)


class _ItemError(Exception):
    """An error in an item of a field. The field names the item: `of 17` in `acks` is `ack of 17`."""

    def __init__(self, item: str, error: InputError) -> None:
        super().__init__(item)
        self.item = item
        self.error = error


def _at(place: str, error: InputError) -> InputError:
    error.message = f"{place}: {error.message}"
    return error


# --- messages


@functools.cache
def _fields(kind: Any) -> list[tuple[str, _MessageForm, bool, bool]]:
    """Returns the name and form of each field, whether it is required, and whether it is left out while it is None."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        (part.name, _form(hints[part.name]), part.default is part.default_factory is MISSING, part.default is None)
        for part in fields(kind)
    ]


def _message(kind: Any) -> _MessageForm:
    shape = f"expected {kind.SHAPE}" if kind.SHAPE else None
    parts = _fields(kind)
    readers = {name: form.read for name, form, _, _ in parts}

    def read(json: Any) -> Any:
        if json.__class__ is not dict:
            raise InputError(shape or f"this is not a {kind.__name__}")
        try:
            return kind(**{name: readers[name](value) for name, value in json.items()})
        except (KeyError, TypeError, InputError, _ItemError):
            pass  # This is the fast way for valid messages. The code below finds the error, and passes unknown fields.
        found = {}
        for name, form, is_required, _ in parts:
            if name in json:
                try:
                    found[name] = form.read(json[name])
                except _ItemError as wrong:
                    raise _at(f"{name.removesuffix('s')} {wrong.item}", wrong.error) from None
                except InputError as error:
                    raise _at(name, error) from None
            elif is_required:
                raise InputError(f"{name} is missing", hint=shape)
        if shape and len(found) < len(json):
            raise InputError(f"{min(json.keys() - found.keys())[:60]!r} is not known here", hint=shape)
        return kind(**found)

    def write(message: Any) -> JsonObject:
        written = {}
        for name, form, _, is_omitted in parts:
            value = getattr(message, name)
            if value is not None or not is_omitted:
                written[name] = form.write(value)
        return written

    return _MessageForm(read, write, {"$ref": f"#/components/schemas/{kind.__name__}"})


# --- schemas


def schema_of(kind: Any) -> JsonObject:
    """The schema of a type; that of a message is a reference to its component."""
    return _form(kind).schema


def object_schema(kind: Any) -> JsonObject:
    """The schema of a message itself."""
    schema = {
        "type": "object",
        "description": cleandoc(kind.__doc__ or ""),
        "properties": {name: form.schema for name, form, _, _ in _fields(kind)},
        "required": [name for name, _, is_required, _ in _fields(kind) if is_required],
    }
    return {**schema, "additionalProperties": False} if kind.SHAPE else schema


def components(*kinds: Any) -> dict[str, JsonObject]:
    """The schemas of the messages in these types, and of all messages within them, by name."""
    found: dict[str, JsonObject] = {}
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        waiting += typing.get_args(kind)
        if isinstance(kind, type) and issubclass(kind, Message) and kind.__name__ not in found:
            found[kind.__name__] = object_schema(kind)
            waiting += typing.get_type_hints(kind, include_extras=True).values()
    return dict(sorted(found.items()))
