"""The JSON schemas of a broker's requests and answers, for its OpenAPI and AsyncAPI documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tocsin.wire.cursors import CURSOR_PATTERN
from tocsin.wire.envelopes import AVAILABLE, ENDED, RESULTS


def obj(properties: Mapping[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    needed = list(properties) if required is None else list(required)
    return {"type": "object", "properties": dict(properties), "required": needed}


def array(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": dict(items)}


def nullable(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": [kind, "null"], **more}


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


TEXT: Final = {"type": "string"}
NAME: Final = {"type": "string", "minLength": 1, "maxLength": 128}
CURSOR: Final = {"type": "string", "pattern": CURSOR_PATTERN}
INTEREST: Final = {"type": "string", "pattern": "^[0-9]{1,19}$"}
MODE: Final = {"enum": ["inline", "notify"]}

CREDENTIALS: Final = obj({"user": NAME, "password": TEXT, "application": NAME}, ("user", "password"))
LOGGED_IN: Final = obj({"token": TEXT, "expires_at": TEXT, "user": TEXT, "application": TEXT})
SUBSCRIBE: Final = obj(
    {
        "channel": {"type": "string", "minLength": 1, "description": "`dataverse.channel`"},
        "parameters": {"type": "array", "description": "One value for each of the channel's parameters."},
        "since": {**CURSOR, "description": "Everything after this cursor; else what is made from now on."},
        "mode": {**MODE, "description": "The results themselves, or only word that there are some."},
        "group": {**NAME, "description": "For all members of this group."},
    },
    ("channel",),
)
ACK_BODY: Final = {"type": "object", "additionalProperties": CURSOR, "description": "A cursor for each interest."}
ACKS: Final = obj({"acks": ACK_BODY})

_ERROR: Final = obj(
    {
        "code": TEXT,
        "message": TEXT,
        "hint": nullable("string"),
        "retry": {"type": "boolean"},
        "id": {"type": "string", "description": "Of an internal error: what to look for in the log."},
    },
    ("code", "message"),
)
_SUBSCRIPTION: Final = obj(
    {
        "id": TEXT,
        "channel": TEXT,
        "parameters": {"type": "array"},
        "interest": INTEREST,
        "since": CURSOR,
        "mode": MODE,
        "marker": {**CURSOR, "description": "What was acknowledged."},
        "group": TEXT,
        "recovered": {"type": "boolean", "description": "False where something after `since` is gone for good."},
        "since_applied": {
            "type": "boolean",
            "description": "Where `since` was asked for: false when the subscription was there, and stays as it is.",
        },
    },
    ("id", "channel", "parameters", "interest", "since", "mode"),
)
APPLICATION: Final = obj(
    {
        "name": TEXT,
        "channels": nullable("array", items=TEXT),
        "feeds": nullable("array", items=TEXT),
        "limits": {"type": "object"},
        "subscribers": {"type": "integer"},
        "created_at": TEXT,
        "token": {"type": "string", "description": "Where it is a new one; it is never told again."},
    },
    ("name", "channels", "feeds", "limits", "subscribers", "created_at"),
)
GROUP: Final = obj(
    {
        "name": TEXT,
        "created_at": TEXT,
        "members": array(TEXT),
        "next": nullable("string"),
        "subscriptions": array(obj({"id": TEXT, "interest": INTEREST, "mode": MODE})),
    }
)
_DATA: Final = {
    RESULTS: obj(
        {
            "after": CURSOR,
            "to": CURSOR,
            "results": array(obj({"cursor": CURSOR, "executed_at": TEXT, "result": {}})),
            "recovered": {"type": "boolean"},
            "gap": {"anyOf": [CURSOR, {"type": "null"}]},
            "more": {"type": "boolean"},
        }
    ),
    AVAILABLE: obj({"to": CURSOR}),
    ENDED: obj({"reason": TEXT}),
}


def envelope(kind: str) -> dict[str, Any]:
    """The schema of a CloudEvents 1.0 event of this type."""
    return obj(
        {
            "specversion": {"const": "1.0"},
            "type": {"const": kind},
            "source": TEXT,
            "id": TEXT,
            "time": TEXT,
            "datacontenttype": {"const": "application/json"},
            "channel": TEXT,
            "interest": INTEREST,
            "data": _DATA[kind],
        }
    )


KINDS: Final = {RESULTS: "Results", AVAILABLE: "Available", ENDED: "Ended"}
EVENTS: Final = array({"anyOf": [ref(name) for name in KINDS.values()]})
SCHEMAS: Final[dict[str, Any]] = {
    "Error": _ERROR,
    "Subscription": _SUBSCRIPTION,
    "Application": APPLICATION,
    **{name: envelope(kind) for kind, name in KINDS.items()},
}
