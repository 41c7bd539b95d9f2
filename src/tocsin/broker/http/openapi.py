"""The broker's HTTP API as an OpenAPI 3.1 document. A test compares it with the routes, another with the answers.

Its schemas come from the messages in `wire`, with which the routes and the clients parse and write.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from tocsin.rules.model.cursors import Cursor
from tocsin.serving.openapi import Media, Operation, query_parameter
from tocsin.serving.openapi import document as build_document
from tocsin.wire.accounts import (
    Application,
    GroupMembers,
    GroupPage,
    ListedGroup,
    ListedSubscriber,
    NewApplication,
    NewGroup,
    PasswordChange,
    RightsChange,
    Subscriber,
    Webhook,
    WebhookRequest,
)
from tocsin.wire.answers import LoginAnswer, Subscription, SubscriptionsPage
from tocsin.wire.cluster import ChannelInfo
from tocsin.wire.envelopes import AVAILABLE, ENDED, RESULTS, ResultItem, envelope_schema
from tocsin.wire.messages import JsonObject, Mark, components
from tocsin.wire.subscriber import AckRequest, Credentials, SubscribeRequest

# The components of events: they are CloudEvents, which are written from bytes and never as messages.
KINDS: Final = {RESULTS: "Results", AVAILABLE: "Available", ENDED: "Ended"}
EVENT_SCHEMAS: Final = {**components(ResultItem), **{name: envelope_schema(kind) for kind, name in KINDS.items()}}
_Events = tuple[
    Annotated[Any, Mark(schema={"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in KINDS.values()]})], ...
]
EventsPage: Final = {"events": _Events, "more": bool}
_Number = Annotated[float, Mark(read=float, schema={"type": "number", "minimum": 0})]

_NOTHING: Final[dict[str, Any]] = {}
_RECORDS: Final = Media({"application/octet-stream": {"type": "string"}})
_POLICIES: Final = {"policy": str, "settings": JsonObject, "resident_bytes": int, "counters": JsonObject}
_OF: Final = query_parameter("application", str)
_AFTER: Final = query_parameter("after", str)
_WAIT: Final = query_parameter("wait", _Number, "Seconds to wait if there are no results.")


def _limit(most: int = 1_000) -> JsonObject:
    return query_parameter("limit", Annotated[int, Mark(schema={"minimum": 1, "maximum": most})])


_OPERATIONS: Final = (
    # --- the broker itself
    Operation("get", "/", "index", "List the endpoints.", JsonObject, is_open=True),
    Operation("get", "/healthz", "health", "Tell whether the process is alive.", {"status": str}, is_open=True),
    Operation("get", "/readyz", "ready", "Tell whether subscribers are served, and whether the cluster answers.",
              {"status": str, "cluster": str}, is_open=True,
              parameters=[query_parameter("cluster", str, "1: answer 503 if the cluster does not answer.")]),
    Operation("get", "/metrics", "metrics", "Get the metrics for Prometheus; operator only.",
              Media({"text/plain": {}})),
    Operation("get", "/v1/openapi.json", "openapi", "Get this document.", JsonObject, is_open=True),
    Operation("get", "/v1/asyncapi.json", "asyncapi", "Get the AsyncAPI document of the streams.", JsonObject,
              is_open=True),
    Operation("get", "/v1/tocsin.js", "javascript", "Get the JavaScript client, a module for web pages.",
              Media({"text/javascript": {"type": "string"}}), is_open=True),
    Operation("post", "/v1/announcements", "announce", "Receive a signed announcement of the cluster.", _NOTHING,
              _RECORDS, is_open=True),
    Operation("get", "/v1/policies", "policies", "Get the caching policies and their counters; operator only.",
              _POLICIES),
    Operation("put", "/v1/policies", "choosePolicies", "Change the caching policies; operator only.",
              _POLICIES, JsonObject),
    # --- subscribers
    Operation("post", "/v1/register", "register", "Register a subscriber.", {"user": str, "application": str},
              Credentials, "404 409", status="201", is_open=True),
    Operation("post", "/v1/login", "login", "Get a token for a user and password.", LoginAnswer, Credentials,
              is_open=True),
    Operation("post", "/v1/token", "renewToken", "Renew a token before it expires.", LoginAnswer),
    Operation("post", "/v1/logout", "logout", "Revoke this token and close its connections.", _NOTHING),
    Operation("get", "/v1/subscribers", "subscribers",
              "List an application's subscribers; needs the application's token.",
              {"subscribers": tuple[ListedSubscriber, ...], "next": str | None}, errors="404",
              parameters=[_OF, _AFTER, _limit()]),
    Operation("get", "/v1/subscribers/{user}", "subscriber", "Get a subscriber with its subscriptions.", Subscriber,
              errors="404", parameters=[_OF]),
    Operation("delete", "/v1/subscribers/{user}", "removeSubscriber",
              "Delete a subscriber, its subscriptions and its webhook.", _NOTHING, errors="404", parameters=[_OF]),
    Operation("put", "/v1/subscribers/{user}/password", "setPassword",
              "Change a subscriber's password and revoke its tokens.", _NOTHING, PasswordChange, "404",
              parameters=[_OF]),
    # --- groups
    Operation("post", "/v1/groups", "createGroup", "Create a group of users; needs the application's token.",
              {"name": str, "members": tuple[str, ...]}, NewGroup, "404 409", status="201", parameters=[_OF]),
    Operation("get", "/v1/groups", "groups", "List the groups of an application, or those of the subscriber.",
              {"groups": tuple[ListedGroup, ...], "next": str | None}, errors="404",
              parameters=[_OF, _AFTER, _limit()]),
    Operation("get", "/v1/groups/{name}", "group", "Get a group with its members and subscriptions.", GroupPage,
              errors="404", parameters=[_OF, _AFTER]),
    Operation("delete", "/v1/groups/{name}", "removeGroup", "Delete a group and its subscriptions.", _NOTHING,
              errors="404", parameters=[_OF]),
    Operation("post", "/v1/groups/{name}/members", "addMembers",
              "Add users to a group; they get its subscriptions from now on.", {"members": tuple[str, ...]},
              GroupMembers, "404", parameters=[_OF]),
    Operation("delete", "/v1/groups/{name}/members/{user}", "removeMember", "Remove a user from a group.", _NOTHING,
              errors="404", parameters=[_OF]),
    Operation("delete", "/v1/groups/{name}/subscriptions/{id}", "unsubscribeGroup", "End a subscription of a group.",
              _NOTHING, errors="404", parameters=[_OF]),
    # --- applications
    Operation("post", "/v1/applications", "createApplication", "Create an application and its token; operator only.",
              Application, NewApplication, "409", status="201"),
    Operation("get", "/v1/applications", "applications",
              "List the applications: all for the operator, otherwise the one of the token.",
              {"applications": tuple[Application, ...]}),
    Operation("get", "/v1/applications/{name}", "application",
              "Get an application; needs its token or the operator's.", Application, errors="404"),
    Operation("patch", "/v1/applications/{name}", "changeApplication",
              "Change what an application may use, and its limits; operator only.", Application, RightsChange, "404"),
    Operation("delete", "/v1/applications/{name}", "removeApplication",
              "Delete an application and its subscribers; operator only.", _NOTHING, errors="404 409"),
    Operation("post", "/v1/applications/{name}/token", "renewApplicationToken",
              "Make a new token of an application; the old one ends.", Application, errors="404"),
    # --- subscriptions and results
    Operation("post", "/v1/subscriptions", "subscribe", "Subscribe to a channel with parameter values.", Subscription,
              SubscribeRequest, "404 409", status="201",
              others={"200": ("The subscription existed already.", Subscription)}),
    Operation("get", "/v1/subscriptions", "subscriptions", "List the subscriber's subscriptions.", SubscriptionsPage,
              parameters=[_AFTER, _limit(500)]),
    Operation("get", "/v1/subscriptions/{id}", "subscription", "Get a subscription.", Subscription, errors="404"),
    Operation("delete", "/v1/subscriptions/{id}", "unsubscribe", "End a subscription.", _NOTHING, errors="404 409"),
    Operation("get", "/v1/subscriptions/{id}/results", "results", "Get the results after the last acknowledgement.",
              EventsPage, errors="404", parameters=[query_parameter("after", Cursor), _limit(), _WAIT]),
    Operation("get", "/v1/poll", "poll", "Get the unacknowledged events of all subscriptions.", {"events": _Events},
              parameters=[_WAIT]),
    Operation("post", "/v1/acks", "acknowledge", "Acknowledge everything up to these cursors.",
              {"acknowledged": int}, AckRequest),
    Operation("get", "/v1/stream", "stream", "Open a WebSocket; see /v1/asyncapi.json.", status="101", is_open=True),
    Operation("get", "/v1/events", "events", "Open a stream of server-sent events; see /v1/asyncapi.json.",
              Media({"text/event-stream": {"type": "string"}}),
              parameters=[query_parameter("access_token", str, "The token, for browsers that cannot send a header.")]),
    # --- channels, webhooks and feeds
    Operation("get", "/v1/channels", "channels", "List the channels that the subscriber may use.",
              {"channels": tuple[ChannelInfo, ...]}),
    Operation("put", "/v1/webhook", "putWebhook", "Set the webhook that results are posted to.", Webhook,
              WebhookRequest),
    Operation("get", "/v1/webhook", "webhook", "Get the webhook.", Webhook, errors="404"),
    Operation("delete", "/v1/webhook", "removeWebhook", "Stop posting results to the webhook.", _NOTHING, errors="404"),
    Operation("post", "/v1/feeds/{name}", "publish",
              "Forward records to a feed of the cluster, and its answer to the client.", JsonObject, _RECORDS,
              "404 409", parameters=[query_parameter("wait", Literal["visible"])],
              others={"422": ("The cluster accepted no record.", JsonObject)}),
)  # fmt: skip


def document() -> JsonObject:
    description = "Subscribers log in, subscribe to channels, and get every result at least once."
    return build_document(
        _OPERATIONS,
        {"title": "Tocsin broker", "description": description},
        errors="400 401 403 429 503 507",
        body_errors="408 413 415",
        security=[{"token": []}],
        bearer="A subscriber's token from POST /v1/login, an application's token, or the operator's.",
        schemas=EVENT_SCHEMAS,
    )
