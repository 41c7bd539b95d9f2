"""The parser, the writer and the schema that a message's dataclass yields agree with each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import jsonschema_rs
import orjson
import pytest

from tocsin.rules.model.cursors import Cursor, Position
from tocsin.wire.answers import ErrorFields
from tocsin.wire.errors import InputError, LimitError, StatementError
from tocsin.wire.messages import InterestText, Mark, Message, NameText, at_most, components, positive, schema_of


@dataclass(frozen=True, slots=True)
class Part(Message):
    """A part."""

    cursor: Cursor
    value: Any = None


@dataclass(frozen=True, slots=True)
class Whole(Message):
    """A request with a field of every type."""

    SHAPE: ClassVar[str] = '{"name": "…"}'

    name: NameText
    parts: Annotated[tuple[Part, ...], Mark("Some parts."), at_most(2)] = ()
    acks: dict[InterestText, Cursor] = field(default_factory=dict)
    position: Position | None = None
    number: Annotated[int | None, positive(100)] = None
    flag: bool = False
    mode: Literal["a", "b"] = "a"


WHOLE = Whole("n", (Part(Cursor(1, 2, 3), {"x": 1}), Part(Cursor(1, 2, 4))), {7: Cursor(1, 1, 1)}, Position(1, 2), 5)


def accepted(said: Any) -> bool:
    schema = {**schema_of(Whole), "components": {"schemas": components(Whole)}}
    return jsonschema_rs.validator_for(schema).is_valid(said)


@pytest.mark.parametrize("message", [WHOLE, Whole("n")], ids=["all fields", "only the required one"])
def test_what_is_written_fits_the_schema_and_is_read_again(message: Whole) -> None:
    said = orjson.loads(orjson.dumps(message.to_json()))
    assert accepted(said)
    assert Whole.parse(said) == message
    assert Whole.parse({**said, "position": None}) == Whole.parse({k: v for k, v in said.items() if k != "position"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": {}}, "parts: must be an array"),
        ({"parts": [{"cursor": "1-2-3"}, {"cursor": 7}]}, "part 1: cursor: expected a cursor, got 7"),
        ({"parts": [{}]}, "part 0: cursor is missing"),
        ({"parts": [[]]}, "part 0: this is not a Part"),
        ({"parts": [{"cursor": "1-2-3"}] * 3}, "parts: 3, at most 2"),
        ({"acks": []}, "acks: must be an object"),
        ({"acks": {"x": "1-2-3"}}, "ack of x: an interest is a text of digits"),
        ({"acks": {"7": "x"}}, "ack of 7: expected a cursor, got 'x'"),
        ({"position": 1}, "position: expected a position, got 1"),
        ({"number": 0}, "number: must be a whole number above 0"),
        ({"number": True}, "number: must be a whole number"),
        ({"number": 1.5}, "number: must be a whole number"),
        ({"flag": 1}, "flag: must be true or false"),
        ({"mode": "c"}, 'mode: must be "a" or "b"'),
        ({"mode": None}, 'mode: must be "a" or "b"'),
        ({"name": ""}, "name: must be a text that is not empty, without control characters"),
        ({"other": 1}, "'other' is not known here"),
    ],
)
def test_what_the_parser_refuses_the_schema_does_not_have_and_the_error_names_the_place(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        Whole.parse({"name": "n", **change})
    assert caught.value.message == message
    assert isinstance(caught.value, LimitError) == ("at most" in message)
    assert not accepted({"name": "n", **change})


@pytest.mark.parametrize("said", [None, [], 7, "x"])
def test_what_is_no_object_is_shown_the_shape(said: Any) -> None:
    with pytest.raises(InputError, match=r'expected {"name": "…"}'):
        Whole.parse(said)


def test_an_answer_may_have_more_fields_than_its_reader_knows() -> None:
    assert Part.parse({"cursor": "1-2-3", "newer": True}) == Part(Cursor(1, 2, 3))


def test_components_have_every_message_within_and_what_it_says_of_itself() -> None:
    found = components(tuple[Whole, ...])
    assert found.keys() == {"Part", "Whole"}
    assert found["Whole"]["properties"]["parts"] == {
        "type": "array", "items": {"$ref": "#/components/schemas/Part"}, "description": "Some parts.", "maxItems": 2,
    }  # fmt: skip
    assert (found["Whole"]["required"], found["Whole"]["additionalProperties"]) == (["name"], False)
    assert (found["Part"]["description"], "additionalProperties" in found["Part"]) == ("A part.", False)


def test_an_error_is_what_its_schema_says() -> None:
    said = StatementError("no", hint="do", statement=1, line=2, column=3).to_json()
    assert said.keys() <= components(ErrorFields)["ErrorFields"]["properties"].keys()
    assert ErrorFields.parse(said).message == "no"
