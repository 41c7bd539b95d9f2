"""Records are cut out of a stream whatever its pieces, within bounds of memory and time."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from tocsin.rules.model.record_frames import Braces, FrameError, Lines, RecordFraming


def test_lines_are_records_without_their_ends_and_blank_ones_are_none() -> None:
    lines = Lines(100)
    assert lines.feed(b"a\r\n\n  \nb") == [b"a"]
    assert lines.feed(b"c\n") == [b"bc"]
    assert lines.finish() is None
    assert lines.feed(b" d ") == []
    assert lines.finish() == b"d"


@pytest.mark.parametrize(
    ("stream", "records"),
    [
        (b'{"a":1}{"b":2}', [b'{"a":1}', b'{"b":2}']),
        (b'\n{"a":\n1} ,\r\n\t{"b":{"c":{}}}\n', [b'{"a":\n1}', b'{"b":{"c":{}}}']),
        (b'[{"a":1},{"b":2}]', [b'{"a":1}', b'{"b":2}']),
        (rb'{"a":"}{\"}\\"}{"b":"\\\\\""}', [rb'{"a":"}{\"}\\"}', rb'{"b":"\\\\\""}']),
        (b'{{ {"a": 1} }}{"b": point("1,2")}', [b'{{ {"a": 1} }}', b'{"b": point("1,2")}']),
        ('{"é": "}ü\\""}{}'.encode(), ['{"é": "}ü\\""}'.encode(), b"{}"]),
        (b"", []),
        (b" ,\n", []),
    ],
)
def test_braces_balance_outside_of_strings_wherever_the_bytes_are_cut(stream: bytes, records: list[bytes]) -> None:
    for size in range(1, len(stream) + 2):
        braces = Braces(1000)
        found = [record for at in range(0, len(stream), size) for record in braces.feed(stream[at : at + size])]
        assert found == records
        assert braces.finish() is None


def test_each_record_has_the_line_on_which_it_begins() -> None:
    braces = Braces(1000)
    assert braces.feed_numbered(b'\n{"a":\n1}\n\n{"b') == [(2, b'{"a":\n1}')]
    assert braces.start_line == 5
    assert braces.finish() == b'{"b'
    assert braces.feed_numbered(b'":\n2}{}\n{}') == [(5, b'{"b":\n2}'), (6, b"{}"), (7, b"{}")]


@pytest.mark.parametrize(
    ("framing", "start", "rest"), [(Lines(10), b"12345678\n", b"x" * 12), (Braces(10), b'{"a": 12}\n', b'{"a": 12345')]
)
def test_a_record_above_the_limit_is_an_error_that_gives_what_was_whole_before(
    framing: RecordFraming, start: bytes, rest: bytes
) -> None:
    with pytest.raises(FrameError, match="line 2: a record is longer than 10 bytes") as caught:
        framing.feed(start + rest)
    assert caught.value.numbered == [(1, start.strip())]


def test_a_record_of_exactly_the_limit_passes() -> None:
    assert Lines(3).feed(b"abc\r\n") == [b"abc"]
    assert Braces(7).feed(b'{"a":1}') == [b'{"a":1}']
    with pytest.raises(FrameError):
        Lines(2).feed(b"abc\n")
    with pytest.raises(FrameError):
        Braces(6).feed(b'{"a":1}')


@pytest.mark.parametrize("junk", [b"hello", b"7", b"}", b'"{}"', b"\x00", b"\xff"])
def test_what_is_no_record_ends_the_stream(junk: bytes) -> None:
    braces = Braces(100)
    with pytest.raises(FrameError, match="line 2: expected a record that begins with") as caught:
        braces.feed(b'{"a":1}\n' + junk)
    assert caught.value.numbered == [(1, b'{"a":1}')]


@pytest.mark.parametrize(
    "record",
    [b'{"a":"' + b"x" * 300_000 + b'"}', b'{"a":"' + b"\\n" * 150_000 + b'"}', b'{"a":' + b" " * 300_000 + b"1}"],
)
@pytest.mark.parametrize("kind", [Lines, Braces])
def test_a_large_record_in_tiny_pieces_takes_linear_time_and_no_more_memory_than_itself(
    kind: type[Lines | Braces], record: bytes
) -> None:
    framing = kind(400_000)
    began_s = time.process_time()
    for at in range(0, len(record), 2):
        assert not (found := framing.feed(record[at : at + 2])) or found == [record]
    # Quadratic, this would be 20 thousand million bytes looked at.
    assert time.process_time() - began_s < 5


def test_a_stream_without_an_end_is_not_kept() -> None:
    braces = Braces(1000)
    piece = b'{"a": "some text"}\n' * 50 + b" \n," * 300
    tracemalloc.start()
    try:
        for _ in range(200):
            assert len(braces.feed(piece)) == 50
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_a_record_of_many_braces_is_whole_wherever_the_bytes_are_cut() -> None:
    record = b'{"a": [\n' + rb'{"}": "{\\\""}, ' * 3_000 + b"{}]}"
    stream = b"\n".join([record, b"{}", record])
    for size in (997, 16_384, len(stream)):
        braces = Braces(len(stream))
        found = [row for at in range(0, len(stream), size) for row in braces.feed_numbered(stream[at : at + size])]
        assert found == [(1, record), (3, b"{}"), (4, record)]
        assert braces.finish() is None


def test_a_record_with_too_many_levels_of_braces_ends_the_stream() -> None:
    assert Braces(1_000, max_depth=3).feed(b'{"a":{"a":{}}}') == [b'{"a":{"a":{}}}']
    for wide in (b"", b"{}," * 2_000):
        with pytest.raises(FrameError, match="line 2: a record is nested more than 3 levels deep") as caught:
            Braces(100_000, max_depth=3).feed(b'{}\n{"a":[' + wide + b'{"a":{"a":{')
        assert caught.value.numbered == [(1, b"{}")]
