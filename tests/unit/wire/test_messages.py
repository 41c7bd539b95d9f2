"""What crosses between brokers and the cluster reads back as it was written; what was not written so is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.rules.model.cursors import Cursor, Position
from tocsin.wire.announcements import Announcement, PushedResults, parse_announcement
from tocsin.wire.cursors import cursor_text, parse_cursor, parse_position, position_text
from tocsin.wire.errors import InputError, UnauthorizedError, UnavailableError
from tocsin.wire.results import FetchedPart, FetchedResult, FrameReader, NextRange, end, frame
from tocsin.wire.signatures import SIGNATURE, TIMESTAMP, secret_text, sign, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'
SENT_S = 1614265330

numbers = st.integers(0, 2**63 - 1)
cursors = st.builds(Cursor, numbers, numbers, numbers)
positions = st.builds(Position, numbers, numbers)
payloads = st.sampled_from([b"{}", b'"\\n"', b"[1,\n2]", b"null"]) | st.binary(min_size=1, max_size=20)
results = st.lists(st.builds(FetchedResult, cursors, numbers, payloads), max_size=4)
parts = st.builds(FetchedPart, st.integers(0, 99), results, st.none() | cursors, st.booleans())


@given(cursor=cursors, position=positions)
def test_cursors_and_positions_are_read_as_they_were_written(cursor: Cursor, position: Position) -> None:
    assert parse_cursor(cursor_text(cursor)) == cursor
    assert parse_position(position_text(position)) == position


@pytest.mark.parametrize("text", ["", "1", "1-2", "1-2-3-4", "a-b-c", "1--2", "-1-2-3", "1-2-3 ", "1-2-²", 7, None, []])
def test_what_is_no_cursor_is_refused(text: Any) -> None:
    with pytest.raises(InputError):
        parse_cursor(text)


@given(
    frames=st.lists(st.lists(parts, max_size=4), max_size=4),
    stopped=st.none() | st.builds(NextRange, numbers, cursors),
    size=st.integers(1, 64),
)
def test_frames_are_read_as_they_were_written_however_they_arrive(
    frames: list[list[FetchedPart]], stopped: NextRange | None, size: int
) -> None:
    wire = b"".join(
        frame(
            (part.range, [(x.cursor, x.executed_us, x.payload) for x in part.results], part.gap, part.known)
            for part in each
        )
        for each in frames
    ) + end(stopped)
    reader = FrameReader()
    found = [part for at in range(0, len(wire), size) for part in reader.feed(wire[at : at + size])]
    assert found == [part for each in frames for part in each]
    assert reader.check() == stopped


def test_an_answer_that_was_cut_off_or_broke_is_not_taken_for_whole() -> None:
    reader = FrameReader()
    assert [part.range for part in reader.feed(frame([(3, [], None, True)]))] == [3]
    with pytest.raises(UnavailableError):
        reader.check()
    list(reader.feed(b'{"error":{"message":"no room"}}\n'))
    with pytest.raises(UnavailableError, match="no room"):
        reader.check()


@given(
    after=positions, position=positions, more=st.booleans(), gaps=st.lists(st.text(max_size=5), max_size=3),
    heads=st.dictionaries(st.text(max_size=5), st.lists(st.tuples(numbers, cursors), max_size=4), max_size=3),
    pushed=st.lists(st.builds(PushedResults, st.text(max_size=5), numbers, results), max_size=3),
)  # fmt: skip
def test_announcements_are_read_as_they_were_written(**fields: Any) -> None:
    said = Announcement("v.b", **fields)
    assert parse_announcement(said.to_bytes()) == said


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"x", b"null", b'{"broker": 1}', b"\xff"])
def test_what_is_no_announcement_is_refused(body: bytes) -> None:
    with pytest.raises(InputError):
        parse_announcement(body)


# --- signatures


def test_a_signature_is_that_of_standard_webhooks() -> None:
    headers = sign(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", SENT_S, BODY)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert verify(SECRET, headers, BODY, now_s=SENT_S + 1) == "msg_p5jXN8AQM9LWM0D4loKWxJek"


def test_one_of_several_signatures_is_enough() -> None:
    headers = sign(SECRET, "m", SENT_S, BODY)
    several = {**headers, SIGNATURE: f"v1a,xyz v1,AAAA {headers[SIGNATURE]}"}
    assert verify(SECRET, several, BODY, now_s=SENT_S) == "m"


@pytest.mark.parametrize(
    ("change", "body"),
    [
        ({}, BODY + b" "),
        ({"webhook-id": "other"}, BODY),
        ({"webhook-timestamp": str(SENT_S + 1)}, BODY),
        ({"webhook-timestamp": "²"}, BODY),
        ({"webhook-timestamp": "nan"}, BODY),
        ({"webhook-timestamp": "9" * 30}, BODY),
        ({"webhook-signature": "v1,AAAA"}, BODY),
        ({"webhook-signature": "v1,é\udcff"}, BODY),
        ({"webhook-signature": ""}, BODY),
        ({"webhook-id": ""}, BODY),
    ],
)
def test_a_forged_message_is_refused(change: dict[str, str], body: bytes) -> None:
    headers = sign(SECRET, "m", SENT_S, BODY)
    with pytest.raises(UnauthorizedError):
        verify(SECRET, {**headers, **change}, body, now_s=SENT_S)
    with pytest.raises(UnauthorizedError):
        verify(secret_text(b"k" * 32), headers, BODY, now_s=SENT_S)


@pytest.mark.parametrize("late_s", [-301, 301, 10**9])
def test_a_message_sent_again_later_is_refused(late_s: int) -> None:
    headers = sign(SECRET, "m", SENT_S, BODY)
    with pytest.raises(UnauthorizedError, match="not of now"):
        verify(SECRET, headers, BODY, now_s=SENT_S + late_s)
    assert TIMESTAMP in headers


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!!!", "whsec_AAAA", "whsec_" + "A" * 200])
def test_what_is_no_secret_signs_nothing(secret: str) -> None:
    with pytest.raises(InputError):
        sign(secret, "m", SENT_S, BODY)
