"""The broker's HTTP API as an OpenAPI 3.1 document. A test compares it with the routes, and answers with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tocsin.broker.http.schemas import (
    ACKS,
    APPLICATION,
    CREDENTIALS,
    EVENTS,
    GROUP,
    LOGGED_IN,
    NAME,
    SCHEMAS,
    SUBSCRIBE,
    TEXT,
    array,
    nullable,
    obj,
    ref,
)
from tocsin.wire.cursors import CURSOR_PATTERN
from tocsin.wire.version import version

_STATUS_TEXTS: Final = {
    "400": "The request cannot be understood; the error names the place.",
    "401": "A token is needed, or the one given is not valid.",
    "403": "Not with this token, or not from this web page.",
    "404": "There is no such thing.",
    "408": "The body took too long to arrive.",
    "409": "A name is taken, or something is still in use.",
    "413": "The body is too large.",
    "415": "The body is compressed in a way that is not taken here.",
    "422": "The cluster accepted no record.",
    "429": "Too many, or too fast; Retry-After says when to ask again.",
    "500": "A fault of the broker's; its log tells more under the id.",
    "503": "The broker is starting or stopping, or the cluster is away.",
    "507": "No room on the disk; nothing acknowledged was lost.",
}
_ALWAYS: Final = ("400", "401", "403", "429", "503", "507")
_BODY: Final = ("408", "413", "415")


def document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in _operations():
        paths.setdefault(operation.pop("path"), {})[operation.pop("method")] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tocsin broker",
            "version": version(),
            "description": "Subscribers log in, subscribe to channels, and get every result, whenever they come.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A subscriber's from POST /v1/login; an application's; or the operator's.",
                }
            },
        },
    }


def _operations() -> list[dict[str, Any]]:
    return [*_own(), *_people(), *_groups(), *_applications(), *_subscriptions(), *_others()]


def _own() -> list[dict[str, Any]]:
    policies = obj({"policy": TEXT, "settings": {"type": "object"}, "resident_bytes": {"type": "integer"},
                   "figures": {"type": "object"}})  # fmt: skip
    return [
        _op("get", "/", "index", "What there is.", {"type": "object"}, open_=True),
        _op("get", "/healthz", "health", "Whether the process is alive.", obj({"status": TEXT}), open_=True),
        _op("get", "/readyz", "ready", "Whether subscribers are served, and whether the cluster is here or away.",
            obj({"status": TEXT, "cluster": TEXT}), open_=True,
            parameters=[_query("cluster", TEXT, "1: only where the cluster answers; 503 otherwise.")]),
        {
            **_op("get", "/metrics", "metrics", "Numbers for Prometheus; for the operator.", {}),
            "responses": {
                "200": {"description": "Prometheus text.", "content": {"text/plain": {"schema": {}}}},
                **_refusals("401", "403", "503"),
            },
        },
        _op("get", "/v1/openapi.json", "openapi", "This document.", {"type": "object"}, open_=True),
        _op("get", "/v1/asyncapi.json", "asyncapi", "The same for streams.", {"type": "object"}, open_=True),
        {
            **_op("get", "/v1/tocsin.js", "javascript", "The client for web pages.", {}, open_=True),
            "responses": {
                "200": {"description": "A module.", "content": {"text/javascript": {"schema": {"type": "string"}}}},
                **_refusals("503"),
            },
        },
        _op("post", "/v1/announcements", "announce", "The cluster's signed word.", obj({}), raw=True, open_=True),
        _op("get", "/v1/policies", "policies", "The caching policies and their figures; for the operator.", policies),
        _op("put", "/v1/policies", "choosePolicies", "Other caching policies from now on; for the operator.", policies,
            body={"type": "object"}),
    ]  # fmt: skip


def _people() -> list[dict[str, Any]]:
    subscriber = obj({"user": TEXT, "created_at": TEXT})
    whole = obj({"user": TEXT, "created_at": TEXT, "online": {"type": "boolean"}, "more": {"type": "boolean"},
                 "subscriptions": array(ref("Subscription")), "webhook": nullable("string")})  # fmt: skip
    of = [_query("application", TEXT)]
    return [
        _op("post", "/v1/register", "register", "A new subscriber.", obj({"user": TEXT, "application": TEXT}),
            body=CREDENTIALS, status="201", also=("409", "404"), open_=True),
        _op("post", "/v1/login", "login", "A token for a user and password.", LOGGED_IN, body=CREDENTIALS, open_=True),
        _op("post", "/v1/token", "renewToken", "A fresh token before the old one ends.", LOGGED_IN),
        _op("post", "/v1/logout", "logout", "Ends this token and its connections.", obj({})),
        _op("get", "/v1/subscribers", "subscribers", "An application's subscribers; for its manager.",
            obj({"subscribers": array(subscriber), "next": nullable("string")}),
            parameters=[*of, _query("after", TEXT), _limit()], also=("404",)),
        _op("get", "/v1/subscribers/{user}", "subscriber", "One of them, with its subscriptions.", whole, parameters=of,
            also=("404",)),
        _op("delete", "/v1/subscribers/{user}", "removeSubscriber", "It goes, with all it has.", obj({}), parameters=of,
            also=("404",)),
        _op("put", "/v1/subscribers/{user}/password", "setPassword", "Another password; all its tokens end.", obj({}),
            parameters=of, body=obj({"password": TEXT, "old": TEXT}, ("password",)), also=("404",)),
    ]  # fmt: skip


def _groups() -> list[dict[str, Any]]:
    of = [_query("application", TEXT)]
    members = obj({"members": array(NAME)})
    return [
        _op("post", "/v1/groups", "createGroup", "A group of users; for the application's manager.",
            obj({"name": TEXT, "members": array(TEXT)}), body=obj({"name": NAME, "members": array(NAME)}, ("name",)),
            status="201", parameters=of, also=("404", "409")),
        _op("get", "/v1/groups", "groups", "The groups: a manager's, or those that a subscriber is in.",
            obj({"groups": array(obj({"name": TEXT, "created_at": TEXT})), "next": nullable("string")}),
            parameters=[*of, _query("after", TEXT), _limit()], also=("404",)),
        _op("get", "/v1/groups/{name}", "group", "One group, its members and what it holds.", GROUP,
            parameters=[*of, _query("after", TEXT)], also=("404",)),
        _op("delete", "/v1/groups/{name}", "removeGroup", "It goes, with what it holds.", obj({}), parameters=of,
            also=("404",)),
        _op("post", "/v1/groups/{name}/members", "addMembers", "They get what the group holds from now on.", members,
            body=members, parameters=of, also=("404",)),
        _op("delete", "/v1/groups/{name}/members/{user}", "removeMember", "It leaves the group.", obj({}),
            parameters=of, also=("404",)),
        _op("delete", "/v1/groups/{name}/subscriptions/{id}", "unsubscribeGroup", "The group holds it no more.",
            obj({}), parameters=of, also=("404",)),
    ]  # fmt: skip


def _applications() -> list[dict[str, Any]]:
    rights = {"channels": nullable("array", items=TEXT), "feeds": nullable("array", items=TEXT),
              "limits": {"type": "object", "additionalProperties": {"type": "integer"}}}  # fmt: skip
    return [
        _op("post", "/v1/applications", "createApplication", "A new application, and its token; for the operator.",
            ref("Application"), body=obj({"name": NAME, **rights}, ("name",)), status="201", also=("409",)),
        _op("get", "/v1/applications", "applications", "All of them; for the operator.",
            obj({"applications": array(ref("Application"))})),
        _op("get", "/v1/applications/{name}", "application", "One of them.", APPLICATION, also=("404",)),
        _op("patch", "/v1/applications/{name}", "changeApplication", "What it may use, and its limits.",
            ref("Application"), body=obj(rights, ()), also=("404",)),
        _op("delete", "/v1/applications/{name}", "removeApplication", "It goes, with its subscribers.", obj({}),
            also=("404", "409")),
        _op("post", "/v1/applications/{name}/token", "renewApplicationToken", "A new token; the old one ends.",
            ref("Application"), also=("404",)),
    ]  # fmt: skip


def _subscriptions() -> list[dict[str, Any]]:
    wait = _query("wait", {"type": "number", "minimum": 0}, "Seconds to wait until there is something.")
    cursor = {"type": "string", "pattern": CURSOR_PATTERN}
    subscribe = _op(
        "post", "/v1/subscriptions", "subscribe", "Subscribe to a channel with these values.", ref("Subscription"),
        body=SUBSCRIBE, status="201", also=("404", "409"),
    )  # fmt: skip
    subscribe["responses"]["200"] = {**subscribe["responses"]["201"], "description": "It was there already."}
    return [
        subscribe,
        _op("get", "/v1/subscriptions", "subscriptions", "One's own subscriptions.",
            obj({"subscriptions": array(ref("Subscription")), "next": nullable("string")}),
            parameters=[_query("after", TEXT), _limit(500)]),
        _op("get", "/v1/subscriptions/{id}", "subscription", "One of them.", ref("Subscription"), also=("404",)),
        _op("delete", "/v1/subscriptions/{id}", "unsubscribe", "It ends.", obj({}), also=("404", "409")),
        _op("get", "/v1/subscriptions/{id}/results", "results", "Results after what was acknowledged.",
            obj({"events": EVENTS, "more": {"type": "boolean"}}), parameters=[_query("after", cursor), _limit(), wait],
            also=("404",)),
        _op("get", "/v1/poll", "poll", "All that is not acknowledged, of all subscriptions.", obj({"events": EVENTS}),
            parameters=[wait]),
        _op("post", "/v1/acks", "acknowledge", "Everything up to these cursors has arrived.",
            obj({"acknowledged": {"type": "integer"}}), body=ACKS),
        {
            **_op("get", "/v1/stream", "stream", "A WebSocket; see /v1/asyncapi.json.", {}, open_=True),
            "responses": {"101": {"description": "A WebSocket."}, **_refusals("400", "401", "403", "503")},
        },
        {
            **_op("get", "/v1/events", "events", "Server-sent events; see /v1/asyncapi.json.", {},
                  parameters=[_query("access_token", TEXT, "For browsers, which cannot send a header here.")]),
            "responses": {
                "200": {"description": "Events without end.", "content": {"text/event-stream": {"schema": TEXT}}},
                **_refusals("400", "401", "403", "429", "503"),
            },
        },
    ]  # fmt: skip


def _others() -> list[dict[str, Any]]:
    channel = obj({"name": TEXT, "parameters": array(obj({"name": TEXT, "type": {}}))}, ("name",))
    published = _op(
        "post", "/v1/feeds/{name}", "publish", "Records for a feed of the cluster, which answers.", {"type": "object"},
        raw=True, also=("404", "409", "422"), parameters=[_query("wait", {"enum": ["visible"]})],
    )  # fmt: skip
    published["responses"]["422"] = {**published["responses"]["200"], "description": _STATUS_TEXTS["422"]}
    return [
        _op("get", "/v1/channels", "channels", "What may be subscribed to.", obj({"channels": array(channel)})),
        _op("put", "/v1/webhook", "putWebhook", "Results are posted there from now on.",
            obj({"url": TEXT, "secret": TEXT}), body=obj({"url": TEXT})),
        _op("get", "/v1/webhook", "webhook", "Where results are posted.", obj({"url": TEXT}), also=("404",)),
        _op("delete", "/v1/webhook", "removeWebhook", "Nowhere any more.", obj({}), also=("404",)),
        published,
    ]  # fmt: skip


# ---------------------------------------------------------------- building blocks


def _op(
    method: str,
    path: str,
    identity: str,
    summary: str,
    answered: Mapping[str, Any],
    *,
    body: Mapping[str, Any] | None = None,
    raw: bool = False,
    status: str = "200",
    also: tuple[str, ...] = (),
    parameters: list[dict[str, Any]] | None = None,
    open_: bool = False,
) -> dict[str, Any]:
    """One operation of the document, with its parameters, body, answer and errors."""
    all_parameters = [_in_path(name) for name in _names_in(path)] + (parameters or [])
    refusals = (*_ALWAYS, *(_BODY if body is not None or raw else ()), *also)
    content = {"application/json": {"schema": dict(answered)}}
    operation: dict[str, Any] = {
        "method": method,
        "path": path,
        "operationId": identity,
        "summary": summary,
        "responses": {status: {"description": summary, "content": content}, **_refusals(*refusals)},
    }
    if all_parameters:
        operation["parameters"] = all_parameters
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": dict(body)}}}
    elif raw:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string"}}},
        }
    if open_:
        operation["security"] = []
    return operation


def _names_in(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query(name: str, schema: Mapping[str, Any], description: str = "") -> dict[str, Any]:
    parameter = {"name": name, "in": "query", "schema": dict(schema)}
    return {**parameter, "description": description} if description else parameter


def _limit(most: int = 1_000) -> dict[str, Any]:
    return _query("limit", {"type": "integer", "minimum": 1, "maximum": most})


def _refusals(*statuses: str) -> dict[str, Any]:
    schema = {"schema": obj({"error": ref("Error")})}
    return {
        status: {"description": _STATUS_TEXTS[status], "content": {"application/json": schema}} for status in statuses
    }
