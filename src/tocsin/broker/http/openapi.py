"""The broker's HTTP API as an OpenAPI 3.1 document. A test compares it with the routes, and answers with it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from tocsin.rules.model.cursors import Cursor
from tocsin.serving.openapi import Media, Operation, query_parameter
from tocsin.serving.openapi import document as build_document
from tocsin.wire.accounts import (
    Application,
    Group,
    GroupMembers,
    GroupPage,
    NewApplication,
    NewGroup,
    PasswordChange,
    RightsChange,
    Subscriber,
    Webhook,
    WebhookRequest,
)
from tocsin.wire.answers import LoginAnswer, Subscription, SubscriptionsPage
from tocsin.wire.envelopes import AVAILABLE, ENDED, RESULTS, ResultItem, envelope_schema
from tocsin.wire.messages import JsonObject, Mark, components, schema_of
from tocsin.wire.subscriber import AckRequest, Credentials, SubscribeRequest

# The components of events: they are CloudEvents, which are written from bytes and never as messages.
KINDS: Final = {RESULTS: "Results", AVAILABLE: "Available", ENDED: "Ended"}
EVENT_SCHEMAS: Final = {
    **components(ResultItem),
    **{name: envelope_schema(kind) for kind, name in KINDS.items()},
}
Events = tuple[
    Annotated[Any, Mark(schema={"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in KINDS.values()]})], ...
]
EventsPage: Final = {"events": Events, "more": bool}
Channel = Annotated[
    Any,
    Mark(
        schema={
            "type": "object",
            "properties": {"name": {"type": "string"}, "parameters": schema_of(tuple[JsonObject, ...])},
            "required": ["name"],
        }
    ),
]
JsonNumber = Annotated[float, Mark(read=float, schema={"type": "number", "minimum": 0})]

_NOTHING: Final[dict[str, Any]] = {}
_RECORDS: Final = Media({"application/octet-stream": {"type": "string"}})
_POLICIES: Final = {"policy": str, "settings": JsonObject, "resident_bytes": int, "figures": JsonObject}
_OF: Final = query_parameter("application", str)
_AFTER: Final = query_parameter("after", str)
_WAIT: Final = query_parameter("wait", JsonNumber, "Seconds to wait until there is something.")


def _limit(most: int = 1_000) -> JsonObject:
    return query_parameter("limit", Annotated[int, Mark(schema={"minimum": 1, "maximum": most})])


_OPERATIONS: Final = (
    # --- the broker itself
    Operation("get", "/", "index", "What there is.", JsonObject, is_open=True),
    Operation("get", "/healthz", "health", "Whether the process is alive.", {"status": str}, is_open=True),
    Operation("get", "/readyz", "ready", "Whether subscribers are served, and whether the cluster is here or away.",
              {"status": str, "cluster": str}, is_open=True,
              parameters=[query_parameter("cluster", str, "1: only where the cluster answers; 503 otherwise.")]),
    Operation("get", "/metrics", "metrics", "Numbers for Prometheus; for the operator.", Media({"text/plain": {}})),
    Operation("get", "/v1/openapi.json", "openapi", "This document.", JsonObject, is_open=True),
    Operation("get", "/v1/asyncapi.json", "asyncapi", "The same for streams.", JsonObject, is_open=True),
    Operation("get", "/v1/tocsin.js", "javascript", "The client for web pages, a module.",
              Media({"text/javascript": {"type": "string"}}), is_open=True),
    Operation("post", "/v1/announcements", "announce", "The cluster's signed announcements.", _NOTHING, _RECORDS,
              is_open=True),
    Operation("get", "/v1/policies", "policies", "The caching policies and their figures; for the operator.",
              _POLICIES),
    Operation("put", "/v1/policies", "choosePolicies", "Other caching policies from now on; for the operator.",
              _POLICIES, JsonObject),
    # --- subscribers
    Operation("post", "/v1/register", "register", "A new subscriber.", {"user": str, "application": str}, Credentials,
              "404 409", status="201", is_open=True),
    Operation("post", "/v1/login", "login", "A token for a user and password.", LoginAnswer, Credentials,
              is_open=True),
    Operation("post", "/v1/token", "renewToken", "A fresh token before the old one ends.", LoginAnswer),
    Operation("post", "/v1/logout", "logout", "Ends this token and its connections.", _NOTHING),
    Operation("get", "/v1/subscribers", "subscribers", "An application's subscribers; for its manager.",
              {"subscribers": tuple[Subscriber, ...], "next": str | None}, errors="404",
              parameters=[_OF, _AFTER, _limit()]),
    Operation("get", "/v1/subscribers/{user}", "subscriber", "One of them, with its subscriptions.", Subscriber,
              errors="404", parameters=[_OF]),
    Operation("delete", "/v1/subscribers/{user}", "removeSubscriber", "It goes, with all it has.", _NOTHING,
              errors="404", parameters=[_OF]),
    Operation("put", "/v1/subscribers/{user}/password", "setPassword", "Another password; all its tokens end.",
              _NOTHING, PasswordChange, "404", parameters=[_OF]),
    # --- groups
    Operation("post", "/v1/groups", "createGroup", "A group of users; for the application's manager.",
              {"name": str, "members": tuple[str, ...]}, NewGroup, "404 409", status="201", parameters=[_OF]),
    Operation("get", "/v1/groups", "groups", "The groups: a manager's, or those that a subscriber is in.",
              {"groups": tuple[Group, ...], "next": str | None}, errors="404", parameters=[_OF, _AFTER, _limit()]),
    Operation("get", "/v1/groups/{name}", "group", "One group, its members and what it holds.", GroupPage,
              errors="404", parameters=[_OF, _AFTER]),
    Operation("delete", "/v1/groups/{name}", "removeGroup", "It goes, with what it holds.", _NOTHING, errors="404",
              parameters=[_OF]),
    Operation("post", "/v1/groups/{name}/members", "addMembers", "They get what the group holds from now on.",
              {"members": tuple[str, ...]}, GroupMembers, "404", parameters=[_OF]),
    Operation("delete", "/v1/groups/{name}/members/{user}", "removeMember", "It leaves the group.", _NOTHING,
              errors="404", parameters=[_OF]),
    Operation("delete", "/v1/groups/{name}/subscriptions/{id}", "unsubscribeGroup", "The group holds it no more.",
              _NOTHING, errors="404", parameters=[_OF]),
    # --- applications
    Operation("post", "/v1/applications", "createApplication", "A new application, and its token; for the operator.",
              Application, NewApplication, "409", status="201"),
    Operation("get", "/v1/applications", "applications", "All of them; for the operator.",
              {"applications": tuple[Application, ...]}),
    Operation("get", "/v1/applications/{name}", "application", "One of them.", Application, errors="404"),
    Operation("patch", "/v1/applications/{name}", "changeApplication", "What it may use, and its limits.", Application,
              RightsChange, "404"),
    Operation("delete", "/v1/applications/{name}", "removeApplication", "It goes, with its subscribers.", _NOTHING,
              errors="404 409"),
    Operation("post", "/v1/applications/{name}/token", "renewApplicationToken", "A new token; the old one ends.",
              Application, errors="404"),
    # --- subscriptions and results
    Operation("post", "/v1/subscriptions", "subscribe", "Subscribe to a channel with these values.", Subscription,
              SubscribeRequest, "404 409", status="201", others={"200": ("It was there already.", Subscription)}),
    Operation("get", "/v1/subscriptions", "subscriptions", "One's own subscriptions.", SubscriptionsPage,
              parameters=[_AFTER, _limit(500)]),
    Operation("get", "/v1/subscriptions/{id}", "subscription", "One of them.", Subscription, errors="404"),
    Operation("delete", "/v1/subscriptions/{id}", "unsubscribe", "It ends.", _NOTHING, errors="404 409"),
    Operation("get", "/v1/subscriptions/{id}/results", "results", "Results after what was acknowledged.", EventsPage,
              errors="404", parameters=[query_parameter("after", Cursor), _limit(), _WAIT]),
    Operation("get", "/v1/poll", "poll", "All that is not acknowledged, of all subscriptions.", {"events": Events},
              parameters=[_WAIT]),
    Operation("post", "/v1/acks", "acknowledge", "Everything up to these cursors has arrived.",
              {"acknowledged": int}, AckRequest),
    Operation("get", "/v1/stream", "stream", "A WebSocket; see /v1/asyncapi.json.", status="101", is_open=True),
    Operation("get", "/v1/events", "events", "Server-sent events; see /v1/asyncapi.json.",
              Media({"text/event-stream": {"type": "string"}}),
              parameters=[query_parameter("access_token", str, "For browsers, which cannot send a header here.")]),
    # --- channels, webhooks and feeds
    Operation("get", "/v1/channels", "channels", "What may be subscribed to.", {"channels": tuple[Channel, ...]}),
    Operation("put", "/v1/webhook", "putWebhook", "Results are posted there from now on.", Webhook, WebhookRequest),
    Operation("get", "/v1/webhook", "webhook", "Where results are posted.", Webhook, errors="404"),
    Operation("delete", "/v1/webhook", "removeWebhook", "Nowhere any more.", _NOTHING, errors="404"),
    Operation("post", "/v1/feeds/{name}", "publish", "Records for a feed of the cluster, which answers.", JsonObject,
              _RECORDS, "404 409", parameters=[query_parameter("wait", Literal["visible"])],
              others={"422": ("The cluster accepted no record.", JsonObject)}),
)  # fmt: skip


def document() -> JsonObject:
    description = "Subscribers log in, subscribe to channels, and get every result, whenever they come."
    return build_document(
        _OPERATIONS,
        {"title": "Tocsin broker", "description": description},
        errors="400 401 403 429 503 507",
        body_errors="408 413 415",
        security=[{"token": []}],
        bearer="A subscriber's from POST /v1/login; an application's; or the operator's.",
        schemas=EVENT_SCHEMAS,
    )
