"""What crosses between subscribers and brokers reads back as it was written; what was not written so is refused."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.rules.model.cursors import Cursor
from tocsin.wire import envelopes, subscriber
from tocsin.wire.answers import (
    LoginAnswer,
    Reply,
    Subscription,
    SubscriptionsPage,
    error_reply,
    events_page,
    ok_reply,
    parse_events_page,
    parse_message,
)
from tocsin.wire.envelopes import Available, Ended, EnvelopeWriter, ResultItem, ResultsEvent, item, server_sent
from tocsin.wire.errors import ConflictError, InputError, LimitError, UnauthorizedError
from tocsin.wire.subscriber import (
    AckRequest,
    BadRequest,
    Credentials,
    ListRequest,
    LoginRequest,
    PullRequest,
    Request,
    SubscribeRequest,
    UnsubscribeRequest,
    parse_request,
)

# The JSON event format of CloudEvents 1.0: required attributes, their types, and the names of extensions.
CLOUD_EVENT = {
    "type": "object",
    "required": ["specversion", "type", "source", "id"],
    "properties": {
        "specversion": {"const": "1.0"},
        "type": {"type": "string", "minLength": 1},
        "source": {"type": "string", "minLength": 1, "format": "uri-reference"},
        "id": {"type": "string", "minLength": 1},
        "time": {"type": "string", "format": "date-time"},
        "datacontenttype": {"type": "string", "minLength": 1},
        "dataschema": {"type": "string", "format": "uri"},
        "subject": {"type": "string", "minLength": 1},
        "data": {},
    },
    "patternProperties": {"^[a-z0-9]{1,20}$": {}},
    "additionalProperties": False,
    "allOf": [{"patternProperties": {"^(?!data$)": {"type": ["string", "integer", "boolean"]}}}],
}

NOW_US = 1_763_200_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

numbers = st.integers(0, 2**63 - 1)
cursors = st.builds(Cursor, numbers, numbers, numbers)
maybe_cursors = st.none() | cursors
moments_us = st.integers(0, 10**16)
names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
modes = st.sampled_from(["inline", "notify"])
bodies = st.one_of(
    st.builds(LoginRequest, names),
    st.builds(
        SubscribeRequest, names, st.lists(json_values, max_size=3).map(tuple), maybe_cursors, modes, st.none() | names
    ),
    st.builds(UnsubscribeRequest, names),
    st.builds(PullRequest, numbers, maybe_cursors, st.none() | st.integers(1, 1000)),
    st.builds(AckRequest, st.dictionaries(numbers, cursors, max_size=3)),
    st.builds(ListRequest, st.none() | names),
)
subscriptions = st.builds(
    Subscription,
    names,
    names,
    st.lists(json_values, max_size=3).map(tuple),
    numbers,
    cursors,
    modes,
    st.none() | names,
    maybe_cursors,
    st.none() | st.booleans(),
)


# --- envelopes


@given(
    broker=names, channel=names, interest=numbers, after=cursors, to=cursors, gap=maybe_cursors, more=st.booleans(),
    made=st.lists(st.tuples(cursors, moments_us, json_values), max_size=3), spaced=st.booleans(),
)  # fmt: skip
def test_an_envelope_of_results_is_a_cloud_event_and_is_read_as_it_was_written(
    broker: str,
    channel: str,
    interest: int,
    after: Cursor,
    to: Cursor,
    gap: Cursor | None,
    more: bool,
    made: list[tuple[Cursor, int, Any]],
    spaced: bool,
) -> None:
    written = [
        item(cursor, at_us, orjson.dumps(value, option=orjson.OPT_INDENT_2 if spaced else None))
        for cursor, at_us, value in made
    ]
    envelope = EnvelopeWriter(broker).results(channel, interest, after, to, written, at_us=NOW_US, gap=gap, more=more)
    results = tuple(ResultItem(cursor, EPOCH + timedelta(microseconds=at_us), value) for cursor, at_us, value in made)
    assert parse_message(envelope) == ResultsEvent(channel, interest, after, to, results, gap, more)
    assert_cloud_event(envelope)
    said = json.loads(envelope)
    assert said["data"]["recovered"] == (gap is None)
    sent = server_sent(envelopes.RESULTS, envelope, interest=interest, to=to).decode().removesuffix("\n\n").split("\n")
    assert [line.partition(": ")[0] for line in sent] == ["id", "event", "data"]
    assert json.loads(sent[2].partition(": ")[2]) == said


@given(broker=names, channel=names, interest=numbers, to=cursors, reason=st.text())
def test_the_other_envelopes_are_cloud_events_and_are_read_as_they_were_written(
    broker: str, channel: str, interest: int, to: Cursor, reason: str
) -> None:
    writer = EnvelopeWriter(broker)
    available = writer.available(channel, interest, to, at_us=NOW_US)
    ended = writer.end(channel, interest, reason, at_us=NOW_US)
    assert parse_message(available) == Available(channel, interest, to)
    assert parse_message(ended) == Ended(channel, interest, reason)
    assert_cloud_event(available)
    assert_cloud_event(ended)


def assert_cloud_event(envelope: bytes) -> None:
    said = json.loads(envelope)
    validator = jsonschema_rs.Draft202012Validator(CLOUD_EVENT, validate_formats=True)
    assert [str(error) for error in validator.iter_errors(said)] == []
    assert re.fullmatch(r"application/json", said["datacontenttype"])


def test_a_result_stays_the_bytes_that_came() -> None:
    result = b'{"n": 123456789012345678901234567890, "x": 1.10}'
    cursor = Cursor(1, 2, 3)
    envelope = EnvelopeWriter("v.b").results("v.c", 7, Cursor(0, 0, 0), cursor, [item(cursor, NOW_US, result)], at_us=0)
    assert result in envelope


def test_an_event_of_a_type_that_is_not_known_is_nothing() -> None:
    assert parse_message(b'{"specversion":"1.0","type":"tocsin.later","source":"/b","id":"1"}') is None


@pytest.mark.parametrize(
    "envelope",
    [
        b"",
        b"[]",
        b"7",
        b"{}",
        b'{"specversion":"0.3"}',
        b'{"specversion":"1.0","type":"tocsin.results","source":"/b","id":"1"}',
        b'{"specversion":"1.0","type":"tocsin.available","channel":"c","interest":17,"data":{"to":"1-2-3"}}',
        b'{"specversion":"1.0","type":"tocsin.available","channel":"c","interest":"17","data":{"to":"1-2"}}',
        b'{"specversion":"1.0","type":"tocsin.ended","channel":"c","interest":"17"}',
    ],
)
def test_what_is_no_envelope_is_refused(envelope: bytes) -> None:
    with pytest.raises(InputError):
        parse_message(envelope)


# --- requests


@given(body=bodies, ref=st.none() | st.integers(0, 2**53 - 1))
def test_a_request_is_read_as_it_was_written(body: subscriber.Body, ref: int | None) -> None:
    assert parse_request(Request(body, ref).to_bytes()) == Request(body, ref)


@given(frame=st.binary() | json_values.map(orjson.dumps))
def test_whatever_comes_there_is_something_to_answer(frame: bytes) -> None:
    assert isinstance(parse_request(frame), BadRequest)


@pytest.mark.parametrize(
    ("frame", "ref", "said"),
    [
        ('{"ref":1,"subscribe":{}}', 1, "subscribe: channel is missing"),
        ('{"ref":1,"subscribe":{"channel":"v.c","parametres":[]}}', 1, "'parametres' is not known here"),
        ('{"ref":1,"subscribe":{"channel":"v.c","parameters":{}}}', 1, "parameters: must be an array"),
        ('{"ref":1,"subscribe":{"channel":"v.c","mode":"later"}}', 1, 'mode: must be "inline" or "notify"'),
        ('{"ref":1,"subscribe":{"channel":"v.c","mode":[]}}', 1, 'mode: must be "inline" or "notify"'),
        ('{"ref":1,"subscribe":{"channel":"v.c","since":"now"}}', 1, "since: expected a cursor"),
        ('{"ref":2,"unsubscribe":{"id":7}}', 2, "id: must be a text"),
        ('{"ref":3,"pull":{"interest":17}}', 3, "an interest is a text of digits"),
        ('{"ref":3,"pull":{"interest":"17","limit":0}}', 3, "limit: must be a whole number above 0"),
        ('{"ack":{"17":"x"}}', None, "ack of 17: expected a cursor"),
        ('{"ack":[]}', None, "expected acks per interest"),
        ('{"ref":4,"list":null}', 4, "expected {}"),
        ('{"login":{"token":""}}', None, "token: must be a text"),
        ('{"ref":5}', 5, "one thing that is wanted"),
        ('{"ref":5,"list":{},"ack":{}}', 5, "one thing that is wanted"),
        ('{"ref":"x","list":{}}', None, "ref: must be a whole number"),
        ('{"ref":true,"list":{}}', None, "ref: must be a whole number"),
        ("{", None, "not JSON"),
        ("[]", None, "a JSON object"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong_and_keeps_its_ref(frame: str, ref: int | None, said: str) -> None:
    bad = parse_request(frame)
    assert isinstance(bad, BadRequest)
    assert bad.ref == ref
    assert said in bad.error.message


def test_what_is_left_out_has_a_default() -> None:
    assert SubscribeRequest.parse({"channel": "v.c"}) == SubscribeRequest("v.c", (), None, "inline", None)
    assert Credentials.parse({"user": "ann", "password": "x"}) == Credentials("ann", "x", "default")


@pytest.mark.parametrize(
    "said",
    [
        [],
        {"user": "ann"},
        {"user": "", "password": "x"},
        {"user": "a\nb", "password": "x"},
        {"user": 7, "password": "x"},
        {"user": "ann", "password": ""},
        {"user": "ann", "password": 7},
        {"user": "ann", "password": "\ud800"},
        {"user": "ann", "password": "x", "application": ""},
        {"user": "ann", "password": "x", "admin": True},
    ],
)
def test_what_are_no_credentials_is_refused(said: Any) -> None:
    with pytest.raises(InputError):
        Credentials.parse(said)


@pytest.mark.parametrize(
    ("parse", "said"),
    [
        (Credentials.parse, {"user": "a" * 201, "password": "x"}),
        (Credentials.parse, {"user": "ann", "password": "x" * 1025}),
        (SubscribeRequest.parse, {"channel": "v.c", "parameters": [0] * 1001}),
        (AckRequest.parse, {"acks": {str(each): "1-1-1" for each in range(10_001)}}),
    ],
)
def test_everything_has_a_limit(parse: Any, said: Any) -> None:
    with pytest.raises(LimitError):
        parse(said)


def test_secrets_are_not_shown() -> None:
    assert "hush" not in repr(Credentials("ann", "hush")) + repr(LoginRequest("hush")) + repr(
        Request(LoginRequest("hush"))
    )


# --- answers


@given(told=st.lists(subscriptions, max_size=3), following=st.none() | names)
def test_subscriptions_are_read_as_they_were_written(told: list[Subscription], following: str | None) -> None:
    assert [Subscription.parse(orjson.loads(orjson.dumps(entry.to_json()))) for entry in told] == told
    page = orjson.loads(orjson.dumps(SubscriptionsPage(tuple(told), following).to_json()))
    assert SubscriptionsPage.parse(page) == SubscriptionsPage(tuple(told), following)


@given(at=st.datetimes(timezones=st.just(UTC)), token=names, user=names)
def test_a_login_is_read_as_it_was_written(at: datetime, token: str, user: str) -> None:
    said = LoginAnswer(token, at, user, "default").to_json()
    assert said["expires_at"].endswith("Z")
    assert LoginAnswer.parse(said) == LoginAnswer(token, at, user, "default")


@pytest.mark.parametrize("more", [None, True, False])
def test_a_page_of_events_holds_the_envelopes_as_they_are(more: bool | None) -> None:
    writer = EnvelopeWriter("v.b")
    told = [writer.available("v.c", 1, Cursor(1, 1, each), at_us=0) for each in range(2)]
    page = events_page(told, more=more)
    assert all(each in page for each in told)
    events, left = parse_events_page(orjson.loads(page))
    assert events == [Available("v.c", 1, Cursor(1, 1, each)) for each in range(2)]
    assert left == bool(more)


@pytest.mark.parametrize("parse", [LoginAnswer.parse, Subscription.parse, SubscriptionsPage.parse, parse_events_page])
@pytest.mark.parametrize("said", [None, 7, [], {}, {"events": [7], "subscriptions": [7], "next": None}])
def test_what_is_no_answer_is_refused(parse: Any, said: Any) -> None:
    with pytest.raises(InputError):
        parse(said)


def test_a_reply_is_read_as_it_was_written() -> None:
    assert parse_message(ok_reply(7, {"a": 1})) == parse_message(ok_reply(7, b'{"a":1}')) == Reply(7, {"a": 1})
    error = LimitError("too many", status=429, hint="wait", retry_after_s=3)
    told = parse_message(error_reply(8, error))
    assert isinstance(told, Reply)
    assert told.ref == 8
    assert isinstance(told.error, LimitError)
    assert told.error.to_json() == error.to_json()
    assert parse_message(error_reply(None, ConflictError("x"))).ref is None  # type: ignore[union-attr]
    odd = parse_message(error_reply(None, UnauthorizedError("no \ud800 user")))
    assert isinstance(odd, Reply)
    assert isinstance(odd.error, UnauthorizedError)


@pytest.mark.parametrize("frame", [b"", b"[]", b"7", b"{}", b'{"ref":1}', b'{"ref":1,"error":7}'])
def test_what_is_no_message_of_a_broker_is_refused(frame: bytes) -> None:
    with pytest.raises(InputError):
        parse_message(frame)
