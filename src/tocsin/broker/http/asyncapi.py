"""The broker's streams as an AsyncAPI 3.0 document. A test compares it with the messages on the wire."""

from __future__ import annotations

from typing import Any, Final

from tocsin.broker.http.schemas import (
    ACK_BODY,
    CURSOR,
    INTEREST,
    KINDS,
    SCHEMAS,
    SUBSCRIBE,
    TEXT,
    array,
    nullable,
    obj,
    ref,
)
from tocsin.broker.transports.websocket import CLOSES
from tocsin.wire.version import version

_REF: Final = {"type": "integer", "minimum": 0, "description": "The reply repeats it."}

# The requests of a WebSocket client: the keyword and the schema of its value.
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "login": obj({"token": TEXT}),
    "subscribe": SUBSCRIBE,
    "unsubscribe": obj({"id": TEXT}),
    "pull": obj({"interest": INTEREST, "after": CURSOR, "limit": {"type": "integer", "minimum": 1}}, ("interest",)),
    "ack": ACK_BODY,
    "list": obj({"after": TEXT}, ()),
}
# The schemas of the answers in `ok`.
OK: Final[dict[str, dict[str, Any]]] = {
    "login": obj({"user": TEXT, "application": TEXT}),
    "subscribe": ref("Subscription"),
    "unsubscribe": obj({}),
    "pull": obj({"events": array({"anyOf": [ref(name) for name in KINDS.values()]}), "more": {"type": "boolean"}}),
    "ack": obj({"acknowledged": {"type": "integer"}}),
    "list": obj({"subscriptions": array(ref("Subscription")), "next": nullable("string")}),
}


def document() -> dict[str, Any]:
    requests = {word: {"name": word, "payload": _request(word)} for word in REQUESTS}
    events = {name: {"name": kind, "payload": ref(name)} for kind, name in KINDS.items()}
    replies = {f"{word}Reply": {"name": f"{word}Reply", "payload": _reply(word)} for word in OK}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tocsin broker",
            "version": version(),
            "description": "Events of subscriptions, each at least once and in order, and requests beside them.",
        },
        "channels": {
            "stream": {
                "address": "/v1/stream",
                "description": "A WebSocket. The first message is a login, unless the upgrade carried the token.",
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
        "components": {"schemas": SCHEMAS},
    }


def _request(word: str) -> dict[str, Any]:
    return obj({"ref": _REF, word: REQUESTS[word]}, (word,))


def _reply(word: str) -> dict[str, Any]:
    return {"anyOf": [obj({"ref": _REF, "ok": OK[word]}), obj({"ref": _REF, "error": ref("Error")}, ("error",))]}
