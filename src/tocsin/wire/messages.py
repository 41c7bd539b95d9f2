"""Derives the parser, the writer and the JSON schema of a message from one dataclass.

The fields of a message are texts, numbers, flags, cursors, positions, times, other messages, and `X | None`,
`tuple[X, ...]` and `dict[K, V]` of these. A `Mark` in `Annotated` adds a description, a limit or another text form.
Clients use this, too, so it is not pydantic: importing that takes as long as all the rest of a client.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from inspect import cleandoc
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from tocsin.rules.model.cursors import Cursor, InterestId, Position
from tocsin.wire import cursors
from tocsin.wire.errors import InputError, LimitError

NAME_LIMIT: Final = 200

JsonObject = dict[str, Any]
Convert = Callable[[Any], Any]


class Message:
    """The base of all messages. A message with a `SHAPE` is a request: it has no other fields than these, and a refusal
    shows the shape. An answer may have more fields, so that an older client understands a newer server."""

    __slots__ = ()
    SHAPE: ClassVar[str] = ""

    @classmethod
    def parse(cls, said: object) -> Self:
        """Raises InputError, or LimitError; the message names the field."""
        kind: Any = cls
        message: Self = _form(kind).read(said)
        return message

    def to_json(self) -> JsonObject:
        """A field whose default is None is left out while it has no value."""
        kind: Any = type(self)
        written: JsonObject = _form(kind).write(self)
        return written


# --- the types of fields


class MessageForm(NamedTuple):
    """How a value is read and written, and its schema."""

    read: Convert
    write: Convert
    schema: JsonObject


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """What a field adds to the form of its type. `read` and `write` replace those of the type; `check` follows them."""

    description: str = ""
    read: Convert | None = None
    write: Convert | None = None
    check: Callable[[Any], None] | None = None
    schema: JsonObject = field(default_factory=dict)

    def applied(self, form: MessageForm) -> MessageForm:
        read, check = self.read or form.read, self.check

        def checked(value: Any) -> Any:
            found = read(value)
            if check is not None and found is not None:
                check(found)
            return found

        schema = {**form.schema, **self.schema, **({"description": self.description} if self.description else {})}
        return MessageForm(read if check is None else checked, self.write or form.write, schema)


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


def parse_name(given: object) -> str:
    """Checks a name: text that is neither empty nor very long, without control characters."""
    if not isinstance(given, str) or not given.strip() or not given.isprintable():
        raise InputError("must be a text that is not empty, without control characters")
    if len(given) > NAME_LIMIT:
        raise LimitError(f"longer than {NAME_LIMIT} characters", status=400)
    return given


def _parse_moment(text: Any) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise InputError("must be a time such as 2026-11-15T09:30:00Z") from None


def _moment_text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _same(value: Any) -> Any:
    return value


def _typed(kind: type, words: str) -> Convert:
    def read(value: Any) -> Any:
        if value.__class__ is not kind:
            raise InputError(f"must be {words}")
        return value

    return read


_ANY: Final = MessageForm(_same, _same, {})
_FORMS: Final[dict[Any, MessageForm]] = {
    Any: _ANY,
    str: MessageForm(_typed(str, "a text"), _same, {"type": "string"}),
    int: MessageForm(_typed(int, "a whole number"), _same, {"type": "integer"}),
    bool: MessageForm(_typed(bool, "true or false"), _same, {"type": "boolean"}),
    datetime: MessageForm(_parse_moment, _moment_text, {"type": "string", "format": "date-time"}),
    Cursor: MessageForm(
        cursors.parse_cursor, cursors.cursor_text, {"type": "string", "pattern": cursors.CURSOR_PATTERN}
    ),
    Position: MessageForm(
        cursors.parse_position, cursors.position_text, {"type": "string", "pattern": cursors.POSITION_PATTERN}
    ),
}
NameText = Annotated[
    str, Mark(read=parse_name, write=_same, schema={"type": "string", "minLength": 1, "maxLength": NAME_LIMIT})
]
InterestText = Annotated[
    InterestId, Mark(read=parse_interest, write=str, schema={"type": "string", "pattern": "^[0-9]{1,19}$"})
]


@functools.cache
def _form(hint: Any) -> MessageForm:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _FORMS:
        return _FORMS[hint]
    if origin is Annotated:
        first = arguments[1]
        form = _ANY if first.read is not None and first.schema else _form(arguments[0])
        for mark in arguments[1:]:
            form = mark.applied(form)
        return form
    if origin is Literal:
        return MessageForm(_choice(arguments), _same, {"enum": list(arguments)})
    if origin in (typing.Union, types.UnionType):
        return _optional(_form(arguments[0]))
    if origin is tuple:
        return _array(_form(arguments[0]))
    return _message(hint) if origin is None else _mapping(_form(arguments[0]), _form(arguments[1]))


def _choice(values: tuple[str, ...]) -> Convert:
    words = " or ".join(f'"{value}"' for value in values)

    def read(value: Any) -> Any:
        if value not in values:
            raise InputError(f"must be {words}")
        return value

    return read


def _optional(form: MessageForm) -> MessageForm:
    return MessageForm(
        lambda value: None if value is None else form.read(value),
        lambda value: None if value is None else form.write(value),
        {"anyOf": [form.schema, {"type": "null"}]},
    )


def _array(item: MessageForm) -> MessageForm:
    check = _typed(list, "an array")

    def read(value: Any) -> Any:
        items = []
        for index, each in enumerate(check(value)):
            try:
                items.append(item.read(each))
            except InputError as error:
                raise _at(f" {index}", error) from None
        return tuple(items)

    def write(items: Any) -> Any:
        return [item.write(each) for each in items]

    return MessageForm(read, write, {"type": "array", "items": item.schema})


def _mapping(key: MessageForm, value: MessageForm) -> MessageForm:
    check = _typed(dict, "an object")

    def read(said: Any) -> Any:
        found = {}
        for name, each in check(said).items():
            try:
                found[key.read(name)] = value.read(each)
            except InputError as error:
                raise _at(f" of {name[:60]}", error) from None
        return found

    def write(items: Any) -> Any:
        return {key.write(name): value.write(each) for name, each in items.items()}

    schema = {"type": "object", "additionalProperties": value.schema, "propertyNames": key.schema}
    return MessageForm(read, write, schema)


def _at(place: str, error: InputError) -> InputError:
    """Names the place of an error. One that begins with a space is an item: of `acks`, ` of 17` is `ack of 17`."""
    is_item = error.message.startswith(" ")
    error.message = f"{place.removesuffix('s')}{error.message}" if is_item else f"{place}: {error.message}"
    return error


# --- messages


@functools.cache
def _fields(kind: Any) -> list[tuple[str, MessageForm, bool, bool]]:
    """Of each field, its name and form, whether it is required, and whether it is left out while it is None."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        (each.name, _form(hints[each.name]), each.default is each.default_factory is MISSING, each.default is None)
        for each in fields(kind)
    ]


def _message(kind: Any) -> MessageForm:
    shape = f"expected {kind.SHAPE}" if kind.SHAPE else None
    parts = _fields(kind)
    readers = [(name, form.read) for name, form, _, _ in parts]

    def read(said: Any) -> Any:
        if said.__class__ is not dict:
            raise InputError(shape or f"this is not a {kind.__name__}")
        if len(said) == len(readers):
            try:
                return kind(*[reader(said[name]) for name, reader in readers])
            except (KeyError, InputError):
                pass  # What is wrong is found below: messages that have all fields, and right ones, are read quickly.
        found = {}
        for name, form, is_required, _ in parts:
            if name in said:
                try:
                    found[name] = form.read(said[name])
                except InputError as error:
                    raise _at(name, error) from None
            elif is_required:
                raise InputError(f"{name} is missing", hint=shape)
        if shape and len(found) < len(said):
            raise InputError(f"{min(said.keys() - found.keys())[:60]!r} is not known here", hint=shape)
        return kind(**found)

    def write(message: Any) -> JsonObject:
        written = {}
        for name, form, _, is_omitted in parts:
            value = getattr(message, name)
            if value is not None or not is_omitted:
                written[name] = form.write(value)
        return written

    return MessageForm(read, write, {"$ref": f"#/components/schemas/{kind.__name__}"})


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
