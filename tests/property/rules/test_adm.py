"""ADM text goes both ways for every value, and no text at all breaks its reader."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.strategies import open_values, same, typed_records
from tocsin.rules.model.adm import AdmError, dumps, loads
from tocsin.rules.model.json_form import reader
from tocsin.rules.model.record_frames import Braces, FrameError, Lines
from tocsin.rules.model.types import ObjectType

_BITS = st.sampled_from([*'{}[]",:\\() \n', "{{", "}}", '"a"', "1", "1.5f", "7i8", "null", "point", '("1,2")', "é"])


@given(open_values())
def test_every_value_comes_back_from_its_text(value: Any) -> None:
    assert same(loads(dumps(value)), value)


@given(typed_records())
def test_records_come_back_as_their_type_has_them(made: tuple[ObjectType, list[dict[str, Any]]]) -> None:
    kind, records = made
    read = reader(kind)
    for record in records:
        assert same(read(loads(dumps(record))), record)


@given(st.lists(_BITS, max_size=30).map("".join) | st.text(max_size=30))
def test_any_text_is_a_value_or_an_error_with_a_place_in_it(text: str) -> None:
    try:
        value, offset = loads(text), 0
    except AdmError as error:
        value, offset = None, error.offset
    assert 0 <= offset <= len(text)
    assert same(loads(dumps(value)), value)


@given(
    records=st.lists(st.dictionaries(st.text(max_size=3), open_values(), max_size=3), max_size=5),
    between=st.lists(st.sampled_from(["\n", " ", ",", "\r\n\t", ""]), min_size=6, max_size=6),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_records_are_cut_out_alike_however_their_bytes_arrive(
    records: list[dict[str, Any]], between: list[str], cuts: list[int]
) -> None:
    texts = [dumps(record).encode("utf-8", "surrogatepass") for record in records]
    stream = b"".join(gap.encode() + text for gap, text in zip(between, texts, strict=False))
    braces = Braces(1 << 20)
    assert [record for piece in pieces(stream, cuts) for record in braces.feed(piece)] == texts
    assert braces.finish() is None


@given(stream=st.lists(_BITS, max_size=40).map("".join), cuts=st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_any_bytes_are_cut_alike_however_they_arrive(stream: str, cuts: list[int]) -> None:
    for framing in (Braces, Lines):
        assert cut(framing(30), [stream.encode()]) == cut(framing(30), pieces(stream.encode(), cuts))


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    found, at, turn = [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found.append(stream[at : at + size])
        at, turn = at + size, turn + 1
    return found


def cut(framing: Braces | Lines, arriving: list[bytes]) -> tuple[list[bytes], bytes | None, int]:
    """The records, what is left, and the line of an error (0 for none)."""
    records: list[bytes] = []
    for piece in arriving:
        try:
            records += framing.feed(piece)
        except FrameError as error:
            return records + [record for _, record in error.numbered], None, error.line
    return records, framing.finish(), 0
