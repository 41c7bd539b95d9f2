"""The broker's two documents say what its routes and its wire are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest
import schemathesis

from tests.support.in_process_broker import broker
from tocsin.broker.core import actions as ac
from tocsin.broker.delivery.event_encoder import EventEncoder, to_broker_result
from tocsin.broker.http.asyncapi import OK
from tocsin.broker.http.asyncapi import document as asyncapi
from tocsin.broker.http.openapi import document as openapi
from tocsin.rules.model.cursors import Cursor
from tocsin.wire import subscriber
from tocsin.wire.results import FetchedResult


def test_the_openapi_document_is_one() -> None:
    schemathesis.openapi.from_dict(openapi()).validate()


async def test_the_openapi_document_has_exactly_the_routes(tmp_path: Path) -> None:
    async with broker(tmp_path, "http://127.0.0.1:1") as made:
        served = {
            (route.resource.canonical, route.method.lower())
            for route in made.running.app.router.routes()
            if route.resource is not None and route.method != "HEAD"
        }
        status, said = await made.ask("GET", "/")
        assert status == 200
        assert set(said.values()) - {"tocsin broker", "Default.b"} <= openapi()["paths"].keys()
        assert (await made.ask("GET", "/v1/openapi.json"))[1] == openapi()
        assert (await made.ask("GET", "/v1/asyncapi.json"))[1] == asyncapi()
    assert served == {(path, method) for path, methods in openapi()["paths"].items() for method in methods}


def checked(schema: dict[str, Any]) -> Any:
    return jsonschema_rs.validator_for({**schema, "components": asyncapi()["components"]})


def test_the_asyncapi_document_knows_exactly_the_requests_that_are_taken() -> None:
    assert subscriber.REQUESTS.keys() == OK.keys() <= asyncapi()["channels"]["stream"]["messages"].keys()
    assert {channel["address"] for channel in asyncapi()["channels"].values()} <= openapi()["paths"].keys()


def test_the_asyncapi_document_tells_why_connections_are_closed() -> None:
    assert set(asyncapi()["channels"]["stream"]["x-close-codes"]) == {"1001", "1008", "1009", "4401", "4429"}


@pytest.mark.parametrize(
    "body",
    [
        subscriber.LoginRequest("t"),
        subscriber.SubscribeRequest("v.c", (1, "x"), Cursor(1, 2, 3), "notify", "g"),
        subscriber.UnsubscribeRequest("sub_1"),
        subscriber.PullRequest(17, Cursor(1, 2, 3), 5),
        subscriber.AckRequest({17: Cursor(1, 2, 3)}),
        subscriber.ListRequest("12"),
    ],
    ids=lambda body: type(body).__name__,
)
def test_what_clients_send_is_what_the_document_says(body: subscriber.Body) -> None:
    said = orjson.loads(subscriber.Request(body, 1).to_bytes())
    word = next(word for word in said if word != "ref")
    message = asyncapi()["channels"]["stream"]["messages"][word]
    checked(message["payload"]).validate(said)
    assert isinstance(subscriber.parse_request(orjson.dumps(said)), subscriber.Request)


def test_what_brokers_send_is_what_the_document_says() -> None:
    encoder = EventEncoder("v.b", lambda _: "v.c", page_results=2, page_bytes=1_000)
    results = tuple(
        to_broker_result(FetchedResult(Cursor(1, n, 0), 1_763_200_000_000_000, b'{"n":1}')) for n in range(1, 6)
    )
    deliver = ac.Deliver(17, Cursor(1, 0, 0), Cursor(1, 9, 0), results, (1,), ac.DeliveryReason.LIVE, Cursor(1, 3, 0))
    told = encoder.results(deliver)
    events = [orjson.loads(item.envelope) for item in told]
    for event in events:
        checked({"$ref": "#/components/schemas/Results"}).validate(event)
    # They follow each other, and the gap is told where it is.
    assert [event["data"]["after"] for event in events] == ["1-0-0", *[event["data"]["to"] for event in events[:-1]]]
    assert [event["data"]["more"] for event in events] == [True, True, False]
    assert [event["data"]["gap"] for event in events] == ["1-3-0", "1-3-0", None]
    assert events[-1]["data"]["to"] == "1-9-0"
    available = encoder.available(ac.NotifyAvailable(17, Cursor(1, 9, 0), (1,)))
    checked({"$ref": "#/components/schemas/Available"}).validate(orjson.loads(available.envelope))
    ended = encoder.encode_end(ac.EndSubscriptions(17, (1,), "gone"))
    checked({"$ref": "#/components/schemas/Ended"}).validate(orjson.loads(ended.envelope))
