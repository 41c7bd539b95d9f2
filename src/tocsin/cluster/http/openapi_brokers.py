"""The brokers' part of the cluster's OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tocsin.cluster.channels.subscriptions import PAGE_LIMIT, SUBSCRIPTIONS_LIMIT
from tocsin.cluster.http.broker_routes import CURSORS_LIMIT, WAIT_LIMIT_S
from tocsin.store.channels.rows import STORE_ID_LIMIT, SUBSCRIPTION_ID_LIMIT
from tocsin.store.cluster.interface import NAME_LIMIT
from tocsin.wire.cursors import CURSOR_PATTERN, POSITION_PATTERN
from tocsin.wire.results import FRAMES, RANGES_LIMIT

Refusals = Callable[..., dict[str, Any]]

_CURSOR: Final = {"type": "string", "pattern": CURSOR_PATTERN, "examples": ["0-0-0"]}
_POSITION: Final = {"type": "string", "pattern": POSITION_PATTERN, "examples": ["0-0"]}
_WHOLE: Final = {"type": "integer", "minimum": 0}
_ID: Final = {"type": "string", "minLength": 1, "maxLength": SUBSCRIPTION_ID_LIMIT}
_NAME: Final = {"type": "string", "minLength": 1, "examples": ["v.b"]}

_RANGE: Final = {
    "type": "object",
    "required": ["interest", "after"],
    "additionalProperties": False,
    "properties": {
        "interest": {"type": "integer"},
        "after": {**_CURSOR, "description": "`0-0-0` asks for all that is kept."},
        "to": {**_CURSOR, "description": "Up to and with this one."},
        "limit": {"type": "integer", "minimum": 1},
        "limit_bytes": {"type": "integer", "minimum": 1},
    },
}
_SUBSCRIPTION: Final = {
    "type": "object",
    "required": ["id", "interest", "parameters", "broker", "since", "created_at"],
    "properties": {
        "id": {"type": "string"},
        "interest": _WHOLE,
        "parameters": {"type": "array", "items": {}},
        "broker": {"type": "string"},
        "application": {"type": "string", "description": "One of the broker's; empty where it does not say."},
        "since": {**_CURSOR, "description": "It sees results after this cursor."},
        "created_at": {"type": "string"},
        "channel": {"type": ["string", "null"]},
    },
}
_BROKER: Final = {
    "type": "object",
    "required": ["broker", "url", "position", "dropped"],
    "properties": {
        "broker": {"type": "string"},
        "url": {"type": ["string", "null"]},
        "position": {"type": ["string", "null"], "description": "It has been told of everything up to there."},
        "dropped": {"type": "integer", "description": "How many channels were ever dropped."},
        "secret": {"type": "string", "description": "What announcements are signed with; told once."},
        "generation": {
            "type": ["string", "null"],
            "description": "Of the process that has the name. It names it with every request, in the header "
            "Tocsin-Broker; a process with an older one is refused (`fenced`).",
        },
    },
}
_CHANNEL: Final = {
    "type": "object",
    "required": ["name", "parameters", "continuous", "push"],
    "properties": {
        "name": {"type": "string"},
        "parameters": {
            "type": "array",
            "items": {"type": "object", "required": ["name", "type"], "properties": {"name": {"type": "string"}}},
        },
        "continuous": {"type": "boolean"},
        "push": {"type": "boolean"},
    },
}
_FETCHED: Final = {
    "type": "object",
    "required": ["interest", "known", "gap", "results", "more"],
    "properties": {
        "interest": _WHOLE,
        "known": {"type": "boolean", "description": "False when there is no such interest, or no more."},
        "gap": {"type": ["string", "null"], "description": "Results up to this cursor are gone."},
        "more": {"type": "boolean", "description": "Ask again after the last cursor."},
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["cursor", "executed_us", "result"],
                "properties": {"cursor": _CURSOR, "executed_us": {"type": "integer"}, "result": {}},
            },
        },
    },
}

SCHEMAS: Final = {"Range": _RANGE, "Subscription": _SUBSCRIPTION, "Broker": _BROKER, "Fetched": _FETCHED}


def broker_paths(refusals: Refusals) -> dict[str, Any]:
    def operation(
        name: str, summary: str, statuses: str, *, answers: dict[str, Any], asks: Any = None, parameters: Any = ()
    ) -> dict[str, Any]:
        described: dict[str, Any] = {
            "operationId": name,
            "summary": summary,
            "parameters": list(parameters),
            "responses": {**answers, **refusals("400", "401", "403", "409", *statuses.split())},
        }
        if asks is not None:
            described["requestBody"] = {"required": True, "content": {"application/json": {"schema": asks}}}
        return described

    body = "408 413 415"
    channel, broker = _path("name", "`dataverse.channel`", "v.c"), _path("name", "`dataverse.broker`", "v.b")
    subscription = _path("id", "The subscription's id.", "s1")
    made = {
        "type": "object",
        "required": ["subscriptions", "made"],
        "properties": {
            "made": {**_WHOLE, "description": "How many were not there before."},
            "subscriptions": {"type": "array", "items": _made()},
        },
    }
    return {
        "/v1/results:fetch": {
            "post": operation(
                "fetchResults", "Results of many interests in one answer; needs the role reader.",
                f"{body} 429 500 503",
                asks=_object({"ranges": {"type": "array", "maxItems": RANGES_LIMIT, "items": _ref("Range")}}, "ranges"),
                answers={"200": {"description": "Frames.", "content": {FRAMES: {"schema": {}}}}},
            )
        },
        "/v1/results/{interest}": {
            "get": operation(
                "fetchResultsOfOne", "Results of one interest; needs the role reader.", "429 500 503",
                parameters=[
                    _path("interest", "Its number.", 1, {"type": "integer", "minimum": 0}),
                    {**_query("after", _CURSOR), "required": True},
                    _query("to", _CURSOR),
                    _query("limit", {"type": "integer", "minimum": 1, "maximum": 100_000}),
                ],
                answers=_json(_ref("Fetched")),
            )
        },
        "/v1/channels": {
            "get": operation(
                "listChannels", "What can be subscribed to; needs the role reader.", "500 503",
                answers=_json(_object({"channels": {"type": "array", "items": _CHANNEL}}, "channels")),
            )
        },
        "/v1/channels/{name}/subscriptions": {
            "post": operation(
                "subscribe", "Make subscriptions, all or none; needs the role broker.",
                f"404 409 {body} 500 503 507", parameters=[channel], answers=_json(made),
                asks=_object(
                    {
                        "broker": _NAME,
                        "subscriptions": {"type": "array", "maxItems": SUBSCRIPTIONS_LIMIT, "items": _wanted()},
                    },
                    "broker", "subscriptions",
                ),
            ),
            "get": operation(
                "listSubscriptions", "A channel's subscriptions in the order of ids; needs the role reader.",
                "404 500 503", parameters=[channel, _query("after", {"type": "string"}), _limit()], answers=_page(),
            ),
        },
        "/v1/channels/{name}/subscriptions:remove": {
            "post": operation(
                "unsubscribeMany", "End all of these that are there; needs the role broker.", f"404 {body} 500 503 507",
                parameters=[channel], answers=_removed(),
                asks=_object({"ids": {"type": "array", "maxItems": SUBSCRIPTIONS_LIMIT, "items": _ID}}, "ids"),
            )
        },
        "/v1/channels/{name}/subscriptions/{id}": {
            "get": operation(
                "showSubscription", "One subscription; needs the role reader.", "404 500 503",
                parameters=[channel, subscription], answers=_json(_ref("Subscription")),
            ),
            "patch": operation(
                "changeBroker", "Move a subscription to another broker; needs the role broker.",
                f"404 {body} 500 503 507", parameters=[channel, subscription],
                asks=_object({"broker": _NAME}, "broker"), answers=_json(_ref("Subscription")),
            ),
            "delete": operation(
                "unsubscribe", "End a subscription; needs the role broker.", "404 500 503 507",
                parameters=[channel, subscription], answers=_removed(),
            ),
        },
        "/v1/brokers/{name}": {
            "put": operation(
                "registerBroker", "Register a broker, or tell its new address; needs the role broker.",
                f"404 409 {body} 500 503 507", parameters=[broker],
                asks=_object(
                    {
                        "url": {"type": ["string", "null"], "examples": ["http://127.0.0.1:1/"]},
                        "store": {
                            "type": "string", "minLength": 1, "maxLength": STORE_ID_LIMIT,
                            "description": "The id of the broker's store; whoever gives one is given a generation.",
                        },
                        "generation": {
                            "type": ["string", "null"], "pattern": POSITION_PATTERN,
                            "description": "The last that this store was given; without one it takes the name over.",
                        },
                        "starts": {"type": "boolean", "description": "The process has not been given one yet."},
                    },
                    "url",
                ),
                answers={**_json(_ref("Broker")), **_json(_ref("Broker"), "201", "It was not known before.")},
            ),
            "get": operation(
                "showBroker", "A broker; needs the role reader.", "404 500 503", parameters=[broker],
                answers=_json(_ref("Broker")),
            ),
            "delete": operation(
                "removeBroker", "A broker and its subscriptions go; needs the role broker.", "404 409 500 503 507",
                parameters=[broker], answers=_json(_object({"removed": {"type": "string"}}, "removed")),
            ),
        },
        "/v1/brokers/{name}/secret": {
            "post": operation(
                "renewSecret", "A new secret for signatures; needs the role broker.", "404 500 503 507",
                parameters=[broker], answers=_json(_object({"secret": {"type": "string"}}, "secret")),
            )
        },
        "/v1/brokers/{name}/announcements": {
            "get": operation(
                "announcements", "What a broker would be told after a position; needs the role broker.", "404 500 503",
                parameters=[
                    broker, _query("after", _POSITION),
                    {
                        **_query("wait", {"type": "number", "minimum": 0}),
                        "description": f"Seconds to wait for something to come; at most {WAIT_LIMIT_S:g} are granted.",
                    },
                ],
                answers={"200": {"description": "An announcement.", "content": {FRAMES: {"schema": {}}}}},
            )
        },
        "/v1/brokers/{name}/acks": {
            "post": operation(
                "acknowledge", "Say what is not needed any more; needs the role broker.", f"404 {body} 500 503 507",
                parameters=[broker], answers=_json(_object({"acknowledged": _WHOLE}, "acknowledged")),
                asks=_object(
                    {
                        "cursors": {
                            "type": "object", "maxProperties": CURSORS_LIMIT, "additionalProperties": _CURSOR,
                            "propertyNames": {"pattern": "^[0-9]{1,18}$"},
                        },
                        "position": _POSITION,
                        "trim": {"type": "boolean", "description": "What all its holders acknowledged may go."},
                    }
                ),
            )
        },
        "/v1/brokers/{name}/subscriptions": {
            "get": operation(
                "listSubscriptionsOfBroker", "A broker's subscriptions in all channels; needs the role broker.",
                "404 500 503", parameters=[broker, _query("after", {"type": "string"}), _limit()], answers=_page(),
            )
        },
    }  # fmt: skip


def _made() -> dict[str, Any]:
    return _object({"id": {"type": "string"}, "interest": _WHOLE, "since": _CURSOR}, "id", "interest", "since")


def _wanted() -> dict[str, Any]:
    values = {"type": "array", "items": {}, "description": "Values as JSON, in the order of the parameters."}
    return _object(
        {
            "parameters": values,
            "id": {**_ID, "description": "Yours; one is made up if absent."},
            "application": {
                "type": "string",
                "maxLength": NAME_LIMIT,
                "description": "One of the broker's, which shares what channels keep with others.",
            },
        },
        "parameters",
    )


def _page() -> dict[str, Any]:
    return _json(
        {
            "type": "object",
            "required": ["subscriptions", "next"],
            "properties": {
                "subscriptions": {"type": "array", "items": _ref("Subscription")},
                "next": {"type": ["string", "null"], "description": "`after` of the next page, if there is one."},
            },
        }
    )


def _removed() -> dict[str, Any]:
    removed = {"type": "array", "items": {"type": "string"}, "description": "Those that were there."}
    return _json(_object({"removed": removed}, "removed"))


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "additionalProperties": False,
        "properties": properties,
    }


def _json(schema: dict[str, Any], status: str = "200", description: str = "Done.") -> dict[str, Any]:
    return {status: {"description": description, "content": {"application/json": {"schema": schema}}}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _path(name: str, description: str, example: Any, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema or {"type": "string", "minLength": 1},
        "example": example,
    }


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


def _limit() -> dict[str, Any]:
    return _query("limit", {"type": "integer", "minimum": 1, "maximum": PAGE_LIMIT})
