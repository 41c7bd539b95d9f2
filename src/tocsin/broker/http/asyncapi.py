"""The broker's streams as an AsyncAPI 3.0 document. A test compares it with the messages on the wire.

OpenAPI cannot describe WebSockets and server-sent events.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from tocsin.broker.http.openapi import EVENT_SCHEMAS, KINDS, EventsPage
from tocsin.broker.transports.websocket import CLOSES
from tocsin.serving.openapi import fields_schema
from tocsin.wire.answers import ErrorFields, Subscription, SubscriptionsPage
from tocsin.wire.messages import Mark, components, object_schema, schema_of
from tocsin.wire.subscriber import REQUESTS, AckRequest
from tocsin.wire.version import version

# The types of the answers in `ok`.
OK: Final[dict[str, Any]] = {
    "login": {"user": str, "application": str},
    "subscribe": Subscription,
    "unsubscribe": {},
    "pull": EventsPage,
    "ack": {"acknowledged": int},
    "list": SubscriptionsPage,
}
_REF: Final = Annotated[int, Mark("A number of the client's choice; the reply repeats it.", schema={"minimum": 0})]


def document() -> dict[str, Any]:
    requests = {word: {"name": word, "payload": _request(word)} for word in REQUESTS}
    events = {name: {"name": kind, "payload": {"$ref": f"#/components/schemas/{name}"}} for kind, name in KINDS.items()}
    replies = {f"{word}Reply": {"name": f"{word}Reply", "payload": _reply(word)} for word in OK}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tocsin broker",
            "version": version(),
            "description": "Events of subscriptions, in order and at least once, and requests of the client.",
        },
        "channels": {
            "stream": {
                "address": "/v1/stream",
                "description": "A WebSocket. The first message is a login, unless the upgrade request had the token.",
                "x-close-codes": {str(int(code)): why for code, why in CLOSES.items()},
                "messages": {**requests, **replies, **events},
            },
            "events": {"address": "/v1/events", "description": "Server-sent events.", "messages": events},
        },
        "operations": {
            **{
                f"on{word.capitalize()}": {
                    "action": "receive",
                    "channel": {"$ref": "#/channels/stream"},
                    "messages": [{"$ref": f"#/channels/stream/messages/{word}"}],
                    "reply": {
                        "channel": {"$ref": "#/channels/stream"},
                        "messages": [{"$ref": f"#/channels/stream/messages/{word}Reply"}],
                    },
                }
                for word in REQUESTS
            },
            "tell": {
                "action": "send",
                "channel": {"$ref": "#/channels/stream"},
                "messages": [{"$ref": f"#/channels/stream/messages/{name}"} for name in events],
            },
            "tellServerSent": {
                "action": "send",
                "channel": {"$ref": "#/channels/events"},
                "messages": [{"$ref": f"#/channels/events/messages/{name}"} for name in events],
            },
        },
        "components": {"schemas": {**components(ErrorFields, *REQUESTS.values(), *OK.values()), **EVENT_SCHEMAS}},
    }


def _request(word: str) -> dict[str, Any]:
    kind = REQUESTS[word]
    # On a WebSocket the keyword is name enough for the acknowledgements.
    value = object_schema(kind)["properties"]["acks"] if kind is AckRequest else schema_of(kind)
    return fields_schema({"ref": _REF, word: Annotated[Any, Mark(schema=value)]}, (word,))


def _reply(word: str) -> dict[str, Any]:
    answer = OK[word]
    schema = fields_schema(answer) if isinstance(answer, dict) else schema_of(answer)
    error = fields_schema({"ref": _REF, "error": ErrorFields}, ("error",))
    return {"anyOf": [fields_schema({"ref": _REF, "ok": Annotated[Any, Mark(schema=schema)]}), error]}
