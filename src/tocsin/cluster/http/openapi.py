"""The cluster's HTTP API as an OpenAPI 3.1 document. A test compares it with the routes, another with the answers.

Its schemas come from the messages in `wire`, with which the routes and the brokers' client parse and write.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from tocsin.cluster.channels.subscriptions import PAGE_LIMIT
from tocsin.cluster.http.answer_formats import NDJSON
from tocsin.cluster.http.broker_api import WAIT_LIMIT_S
from tocsin.cluster.intake.frames import KEY_LIMIT_BYTES
from tocsin.rules.model.cursors import Cursor, Position
from tocsin.serving.answers import REQUEST_ID_HEADER, REQUEST_ID_PATTERN
from tocsin.serving.openapi import Media, Operation, fields_schema, path_parameter, query_parameter
from tocsin.serving.openapi import document as build_document
from tocsin.wire.accounts import PublishAnswer
from tocsin.wire.answers import ErrorFields
from tocsin.wire.cluster import (
    BrokerAcks,
    BrokerChange,
    BrokerInfo,
    BrokerSubscription,
    ChannelInfo,
    FeedInfo,
    GrantedSubscription,
    RegistrationRequest,
    RunningScriptInfo,
    ScriptRequest,
    ServiceAnswer,
    ServiceRequest,
    StatementResult,
    SubscriptionIds,
    SubscriptionInfo,
    SubscriptionRequests,
)
from tocsin.wire.messages import JsonObject, Mark, components, schema_of
from tocsin.wire.results import FRAMES, FetchedPage, FetchRequest

_EXAMPLE_SCRIPT: Final = "USE emergency;\nSELECT VALUE r FROM Reports AS r WHERE r.severity > 3;"
_EXAMPLE_RECORDS: Final = '{"id": 1}\n{"id": 2}\n'

_SCRIPT: Final = Media(
    {"text/plain": {"type": "string", "examples": [_EXAMPLE_SCRIPT]}, "application/json": schema_of(ScriptRequest)}
)
_RESULTS: Final = {"results": tuple[StatementResult, ...]}
_SCRIPT_ANSWER: Final = Media({"application/json": fields_schema(_RESULTS), NDJSON: {"type": "string"}})
_SERVICE_REQUEST: Final = Media({
    "application/json": schema_of(ServiceRequest),
    "application/x-www-form-urlencoded": schema_of(ServiceRequest),
})  # fmt: skip
_SERVICE_PARAMETERS: Final = (
    query_parameter("statement", str, "The script, if it is not in the body."),
    query_parameter("client_context_id", str, "A text of the client's, which the answer repeats."),
)
_RECORDS: Final = Media({"application/json": {}, "text/plain": {"type": "string", "examples": [_EXAMPLE_RECORDS]}})
_NOTHING_PUBLISHED: Final = Media(
    {"application/json": {"anyOf": [schema_of(PublishAnswer), fields_schema({"error": ErrorFields})]}}
)
_FRAMES: Final = Media({FRAMES: {}})
_MOMENT: Final = Annotated[str, Mark("The time of the cluster's clock.", schema={"format": "date-time"})]
_REMOVED: Final = {"removed": Annotated[tuple[str, ...], Mark("The ids of the subscriptions that existed.")]}
_COUNT: Final = Annotated[int, Mark(schema={"minimum": 0})]
_NEXT: Final = Annotated[str | None, Mark("`after` of the next page, if there is one.")]

_FEED: Final = path_parameter("name", "`dataverse.feed`, or the name of a feed in the dataverse Default.")
_CHANNEL: Final = path_parameter("name", "`dataverse.channel`", "v.c")
_BROKER: Final = path_parameter("name", "`dataverse.broker`", "v.b")
_SUBSCRIPTION: Final = path_parameter("id", "The subscription's id.", "s1")
_PAGE: Final = (
    query_parameter("after", str, "The `next` of the page before."),
    query_parameter("limit", Annotated[int, Mark(schema={"minimum": 1, "maximum": PAGE_LIMIT})]),
)

# The errors of operations that read the store, and of those that write to it.
_READS: Final = "409 500 503"
_WRITES: Final = f"{_READS} 507"

_OPERATIONS: Final = (
    # --- the cluster itself
    Operation("get", "/", "index", "List the endpoints.", JsonObject),
    Operation("get", "/healthz", "health", "Tell whether the process is alive and watches its engine.",
              {"status": Literal["alive"]}, errors="503", is_open=True),
    Operation("get", "/readyz", "ready", "Tell whether scripts can run now.", {"status": Literal["ready"]},
              errors="503", is_open=True),
    Operation("get", "/metrics", "metrics", "Get the metrics in the text format of Prometheus.",
              Media({"text/plain": {}})),
    Operation("get", "/v1/openapi.json", "openapi", "Get this document.", JsonObject),
    Operation("post", "/v1/backup", "backUp", "Write a backup of the whole cluster.",
              Annotated[JsonObject, Mark("What the backup holds: datasets, rows, brokers, files, size_bytes, "
                                         "created_at.")],
              {"to": Annotated[str, Mark("An absolute path on the cluster's machine that does not exist yet.")]},
              "409 507", role="admin"),
    Operation("post", "/v1/clock:accept", "acceptClock",
              "Confirm that the cluster's clock is right, so that it deletes by age again.", {"now": _MOMENT},
              role="admin"),
    # --- scripts and feeds
    Operation("post", "/v1/statements", "runScript", "Run a script of statements.", _SCRIPT_ANSWER, _SCRIPT,
              "404 409 429 500 503 507", beside=_RESULTS,
              description="Statements run in order, each atomic; the first error ends the script. With "
              f'`Accept: {NDJSON}` each row is a line `{{"statement":1,"row":…}}`, a statement ends with a line '
              '`{"statement":1,"kind":"query","rows":n}`, and an error after the first row is the last line, '
              '`{"error":…}`. A client that closes the connection cancels the script.',
              parameters=[
                  query_parameter("timeout", Annotated[float, Mark(schema={"exclusiveMinimum": 0})],
                                  "The time limit in seconds; the cluster's settings may set a lower one."),
                  query_parameter(REQUEST_ID_HEADER, Annotated[str, Mark(schema={"pattern": REQUEST_ID_PATTERN})],
                                  "An id of your choice, by which the script can be cancelled. The answer repeats it; "
                                  "without it the cluster makes one.", where="header"),
              ]),
    Operation("post", "/query/service", "runQueryService",
              "Run a script of statements, with the request and the answer of AsterixDB's query service.",
              ServiceAnswer, _SERVICE_REQUEST, "404 409 429 500 503 507", parameters=_SERVICE_PARAMETERS,
              description="Parameters are in the address, in a form or in a JSON object. `$name` gives a statement "
              "parameter its value. Errors of the script have the form of the answer, with `errors` and `status`.",
              error_form=ServiceAnswer),
    Operation("get", "/query/service", "runReadOnlyQueryService",
              "Run queries, with the request and the answer of AsterixDB's query service; it may only read.",
              ServiceAnswer, errors="404 409 413 429 500 503 507", parameters=_SERVICE_PARAMETERS,
              error_form=ServiceAnswer),
    Operation("get", "/v1/statements", "listScripts",
              "List the scripts that run or wait: all for an admin's token, otherwise those of the same token.",
              {"running": tuple[RunningScriptInfo, ...]}),
    Operation("delete", "/v1/statements/{id}", "cancelScript",
              "Cancel a running script; its own request is answered with 408.", {"stopping": str}, errors="404",
              status="202"),
    Operation("post", "/v1/feeds/{name}", "publish", "Send records to a feed.", PublishAnswer, _RECORDS,
              "404 409 429 500 503 507", role="writer, or broker with this feed",
              description="The body is one record, an array of records, or a record per line, in the format of the "
              "feed; the media type does not matter. Each record is accepted or rejected by itself. The accepted "
              "records are durable when the answer arrives.",
              parameters=[
                  _FEED,
                  query_parameter("wait", Literal["visible"],
                                  "`visible`: wait with the answer until queries see the records."),
                  query_parameter("Idempotency-Key", Annotated[str, Mark(schema={"maxLength": KEY_LIMIT_BYTES})],
                                  "Makes a repeated request harmless: it gets the answer of the first request with "
                                  "this key.", where="header"),
                  query_parameter("Content-Encoding", Literal["identity", "gzip"], where="header"),
              ],
              others={
                  "200": ("The accepted records are durable; rejected ones are listed.", PublishAnswer),
                  "422": ("No record was accepted, or the Idempotency-Key belongs to another body.",
                          _NOTHING_PUBLISHED),
              }),
    Operation("get", "/v1/feeds/{name}", "describeFeed", "Get the format of a feed's records.", FeedInfo,
              errors="404", role="writer, or broker with this feed", parameters=[_FEED]),
    # --- results
    Operation("post", "/v1/results:fetch", "fetchResults", "Fetch results of many interests in one answer of frames.",
              _FRAMES, FetchRequest, f"429 {_READS}", role="reader"),
    Operation("get", "/v1/results/{interest}", "fetchResultsOfOne", "Fetch results of one interest.", FetchedPage,
              errors=f"429 {_READS}", role="reader",
              parameters=[
                  path_parameter("interest", "The interest's number.", 1, _COUNT),
                  {**query_parameter("after", Cursor), "required": True},
                  query_parameter("to", Cursor),
                  query_parameter("limit", Annotated[int, Mark(schema={"minimum": 1, "maximum": 100_000})]),
              ]),
    # --- channels and backend subscriptions
    Operation("get", "/v1/channels", "listChannels", "List the channels with their parameters.",
              {"channels": tuple[ChannelInfo, ...]}, errors=_READS, role="reader"),
    Operation("post", "/v1/channels/{name}/subscriptions", "subscribe",
              "Make subscriptions to a channel: all of them, or none if one is invalid.",
              {"subscriptions": tuple[GrantedSubscription, ...],
               "made": Annotated[_COUNT, Mark("How many of them are new.")]},
              SubscriptionRequests, f"404 {_WRITES}", role="broker", parameters=[_CHANNEL]),
    Operation("get", "/v1/channels/{name}/subscriptions", "listSubscriptions",
              "List a channel's subscriptions in the order of their ids.",
              {"subscriptions": tuple[SubscriptionInfo, ...], "next": _NEXT}, errors=f"404 {_READS}", role="reader",
              parameters=[_CHANNEL, *_PAGE]),
    Operation("post", "/v1/channels/{name}/subscriptions:remove", "unsubscribeMany",
              "End those of these subscriptions that exist.", _REMOVED, SubscriptionIds, f"404 {_WRITES}",
              role="broker", parameters=[_CHANNEL]),
    Operation("get", "/v1/channels/{name}/subscriptions/{id}", "showSubscription", "Get a subscription.",
              SubscriptionInfo, errors=f"404 {_READS}", role="reader", parameters=[_CHANNEL, _SUBSCRIPTION]),
    Operation("patch", "/v1/channels/{name}/subscriptions/{id}", "changeBroker",
              "Move a subscription to another broker.", SubscriptionInfo, BrokerChange, f"404 {_WRITES}",
              role="broker", parameters=[_CHANNEL, _SUBSCRIPTION]),
    Operation("delete", "/v1/channels/{name}/subscriptions/{id}", "unsubscribe", "End a subscription.", _REMOVED,
              errors=f"404 {_WRITES}", role="broker", parameters=[_CHANNEL, _SUBSCRIPTION]),
    # --- brokers
    Operation("put", "/v1/brokers/{name}", "registerBroker", "Register a broker, or change its address.", BrokerInfo,
              RegistrationRequest, f"404 {_WRITES}", role="broker", parameters=[_BROKER],
              others={"201": ("The broker is new.", BrokerInfo)}),
    Operation("get", "/v1/brokers/{name}", "showBroker", "Get a broker.", BrokerInfo, errors=f"404 {_READS}",
              role="reader", parameters=[_BROKER]),
    Operation("delete", "/v1/brokers/{name}", "removeBroker", "Delete a broker and its subscriptions.",
              {"removed": str}, errors=f"404 {_WRITES}", role="broker", parameters=[_BROKER]),
    Operation("post", "/v1/brokers/{name}/secret", "renewSecret", "Make a new key that signs announcements.",
              {"secret": str}, errors=f"404 {_WRITES}", role="broker", parameters=[_BROKER]),
    Operation("get", "/v1/brokers/{name}/announcements", "announcements",
              "Get the announcement of everything after a position.", _FRAMES, errors=f"404 {_READS}", role="broker",
              parameters=[
                  _BROKER,
                  query_parameter("after", Position),
                  query_parameter("wait", Annotated[float, Mark(schema={"minimum": 0})],
                                  f"Seconds to wait if there is nothing to announce; at most {WAIT_LIMIT_S:g}."),
              ]),
    Operation("post", "/v1/brokers/{name}/acks", "acknowledge", "Acknowledge results and announcements.",
              {"acknowledged": _COUNT}, BrokerAcks, f"404 {_WRITES}", role="broker", parameters=[_BROKER]),
    Operation("get", "/v1/brokers/{name}/subscriptions", "listSubscriptionsOfBroker",
              "List a broker's subscriptions in all channels.",
              {"subscriptions": tuple[BrokerSubscription, ...], "next": _NEXT}, errors=f"404 {_READS}", role="broker",
              parameters=[_BROKER, *_PAGE]),
)  # fmt: skip


def document() -> JsonObject:
    return build_document(
        _OPERATIONS,
        {"title": "Tocsin cluster", "description": "Runs scripts of statements, stores data and answers queries."},
        errors="400 401 403",
        body_errors="408 413 415",
        security=[{}, {"token": []}],
        bearer="From `tocsin token create`. Needed on loopback only if the settings say so.",
        schemas=components(ScriptRequest, StatementResult),
    )
