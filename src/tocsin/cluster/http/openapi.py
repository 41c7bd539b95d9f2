"""The cluster's HTTP API as an OpenAPI 3.1 document. It is written by hand; a test compares it with the routes."""

from __future__ import annotations

from typing import Any, Final

from tocsin.cluster.http.openapi_brokers import SCHEMAS, broker_paths
from tocsin.cluster.intake.frames import KEY_LIMIT_BYTES
from tocsin.serving.answers import REQUEST_ID_HEADER, REQUEST_ID_PATTERN
from tocsin.wire.version import version

_STATUS_TEXTS: Final = {
    "400": "The request or the script cannot be understood; the error names the place.",
    "401": "A token is needed, or the one given is not valid.",
    "403": "Not with this token, or not from this web page.",
    "404": "There is no such thing.",
    "408": "The time was up, or somebody cancelled the script.",
    "409": "A name or key is taken, or something is still in use.",
    "413": "Too large: the body, or an answer that is not streamed.",
    "415": "The body is not of a kind that is taken here: its media type, charset or compression.",
    "429": "Too much runs and waits already; Retry-After says when to ask again.",
    "500": "A fault of the cluster's; its log tells more under the id.",
    "503": "The cluster is starting, stopping or has no connection left, or the feed cannot go on.",
    "507": "No room on the disk; nothing acknowledged was lost.",
}

_ERROR: Final = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {
        "code": {"type": "string", "examples": ["bad_statement"]},
        "message": {"type": "string"},
        "statement": {"type": ["integer", "null"], "minimum": 1, "description": "Its place in the script, from 1."},
        "line": {"type": ["integer", "null"], "minimum": 1},
        "column": {"type": ["integer", "null"], "minimum": 1},
        "hint": {"type": ["string", "null"], "description": "What to do about it."},
        "retry": {"type": "boolean", "description": "Whether the same request may succeed later."},
        "id": {"type": "string", "description": "Of an internal error: what to look for in the log."},
    },
}

_RESULT: Final = {
    "type": "object",
    "required": ["statement", "kind"],
    "properties": {
        "statement": {"type": "integer", "minimum": 1},
        "kind": {"type": "string", "examples": ["query", "insert", "create_dataset"]},
        "rows": {"type": "array", "items": {}},
    },
    "description": "What one statement did. A query has rows; others say what they did, as in `inserted`.",
}

_RUNNING: Final = {
    "type": "object",
    "required": ["id", "state", "statement", "seconds", "token", "script"],
    "properties": {
        "id": {"type": "string"},
        "state": {"enum": ["running", "waiting"]},
        "statement": {"type": ["integer", "null"]},
        "seconds": {"type": "number"},
        "token": {"type": "string", "description": "The name of the token it was sent with."},
        "script": {"type": "string", "description": "Its first characters."},
    },
}

_PUBLISHED: Final = {
    "type": "object",
    "required": ["accepted", "rejected"],
    "properties": {
        "accepted": {"type": "integer", "minimum": 0, "description": "Records that are durable now."},
        "rejected": {
            "type": "array",
            "description": "The first thousand that were refused; all are in the dataset `<feed>Rejected`.",
            "items": {
                "type": "object",
                "required": ["index", "field", "reason"],
                "properties": {
                    "index": {"type": "integer", "minimum": 0, "description": "Its place in the body, from 0."},
                    "field": {"type": "string", "description": "Empty where it is the record as a whole."},
                    "reason": {"type": "string"},
                },
            },
        },
        "rejected_in_all": {"type": "integer", "description": "How many, where not all are listed."},
    },
}

_EXAMPLE_SCRIPT: Final = "USE emergency;\nSELECT VALUE r FROM Reports AS r WHERE r.severity > 3;"


def document() -> dict[str, Any]:
    """Returns the whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tocsin cluster",
            "version": version(),
            "description": "Takes scripts of statements, keeps data, answers queries.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": {
            "/": {"get": _get("index", "What there is.", {"type": "object"})},
            "/healthz": {
                "get": {
                    **_get("health", "Whether the process lives and watches its engine.", _status("alive"), "503"),
                    "security": [],
                }
            },
            "/readyz": {
                "get": {
                    **_get("ready", "Whether scripts can be run now.", _status("ready"), "503"),
                    "security": [],
                }
            },
            "/metrics": {
                "get": {
                    "operationId": "metrics",
                    "summary": "Numbers for Prometheus.",
                    "responses": {
                        "200": {"description": "Prometheus text.", "content": {"text/plain": {"schema": {}}}},
                        **_refusals("401", "403"),
                    },
                }
            },
            "/v1/openapi.json": {"get": _get("openapi", "This document.", {"type": "object"})},
            "/v1/statements": {"post": _run(), "get": _list()},
            "/v1/statements/{id}": {"delete": _cancel()},
            "/v1/feeds/{name}": {"post": _publish(), "get": _describe()},
            **broker_paths(_refusals),
            "/v1/backup": {"post": _back_up()},
            "/v1/clock:accept": {"post": _accept_clock()},
        },
        "components": {
            "schemas": {"Error": _ERROR, "Result": _RESULT, "Running": _RUNNING, "Published": _PUBLISHED, **SCHEMAS},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "From `tocsin token create`. Not asked for on loopback unless the settings say so.",
                }
            },
        },
    }


_FEED_NAME: Final[dict[str, Any]] = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "`dataverse.feed`, or the feed's name alone in the dataverse Default.",
    "schema": {"type": "string", "minLength": 1},
}


def _describe() -> dict[str, Any]:
    described = {
        "type": "object",
        "required": ["feed", "adapter", "format"],
        "properties": {
            "feed": {"type": "string"},
            "adapter": {"type": "string"},
            "format": {"type": "string"},
            "header": {"type": "boolean", "description": "Whether the first line of a body names the columns."},
            "quote": {"type": "string", "description": "What cells are quoted with; empty for nothing."},
        },
    }
    return {
        "operationId": "describeFeed",
        "summary": "How a feed's records are written; needs the role writer, or broker with this feed.",
        "parameters": [_FEED_NAME],
        "responses": {
            "200": {"description": "The feed.", "content": {"application/json": {"schema": described}}},
            **_refusals("401", "403", "404"),
        },
    }


def _publish() -> dict[str, Any]:
    published = {"application/json": {"schema": {"$ref": "#/components/schemas/Published"}}}
    body = {"schema": {"type": "string"}, "example": '{"id": 1}\n{"id": 2}\n'}
    return {
        "operationId": "publish",
        "summary": "Send records to a feed; needs the role writer, or broker with this feed.",
        "description": (
            "One record, an array or one per line, in the feed's own format whatever the media type says. Each is "
            "judged by itself. When the answer comes, the accepted ones are durable."
        ),
        "parameters": [
            _FEED_NAME,
            {
                "name": "wait",
                "in": "query",
                "description": "`visible`: answer only when a query sees the records.",
                "schema": {"enum": ["visible"]},
            },
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "Makes it harmless to send the same again: a key that was seen gets its first answer.",
                "schema": {"type": "string", "maxLength": KEY_LIMIT_BYTES},
            },
            {
                "name": "Content-Encoding",
                "in": "header",
                "schema": {"enum": ["identity", "gzip"]},
            },
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {}}, "text/plain": body},
        },
        "responses": {
            "200": {"description": "Kept; some may have been refused.", "content": published},
            "422": {
                "description": "No record was accepted, or the Idempotency-Key was sent before with another body.",
                "content": {
                    "application/json": {
                        "schema": {
                            "anyOf": [
                                {"$ref": "#/components/schemas/Published"},
                                {"type": "object", "properties": {"error": {"$ref": "#/components/schemas/Error"}}},
                            ]
                        }
                    }
                },
            },
            **_refusals("400", "401", "403", "404", "408", "409", "413", "415", "429", "500", "503", "507"),
        },
    }


def _back_up() -> dict[str, Any]:
    request_schema = {
        "type": "object",
        "required": ["to"],
        "properties": {
            "to": {"type": "string", "description": "An absolute path on the cluster's machine, not yet there."}
        },
    }
    response_schema = {
        "type": "object",
        "description": "What the backup holds: datasets, rows, brokers, files, size_bytes, created_at.",
    }
    return {
        "operationId": "backUp",
        "summary": "Write a backup of everything; needs the role admin.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": request_schema}}},
        "responses": {
            "200": {
                "description": "Written and checked.",
                "content": {"application/json": {"schema": response_schema}},
            },
            **_refusals("400", "401", "403", "408", "409", "413", "507"),
        },
    }


def _accept_clock() -> dict[str, Any]:
    response_schema = {
        "type": "object",
        "required": ["now"],
        "properties": {"now": {"type": "string", "format": "date-time", "description": "What the clock says."}},
    }
    return {
        "operationId": "acceptClock",
        "summary": "Say that the cluster's wall clock is right, so that it deletes by age again; needs the role admin.",
        "responses": {
            "200": {"description": "Accepted.", "content": {"application/json": {"schema": response_schema}}},
            **_refusals("401", "403"),
        },
    }


def _run() -> dict[str, Any]:
    results = {"type": "array", "items": {"$ref": "#/components/schemas/Result"}}
    whole = {"type": "object", "required": ["results"], "properties": {"results": results}}
    return {
        "operationId": "runScript",
        "summary": "Run a script of statements.",
        "description": (
            "Statements run one by one, each atomic; the first failing one ends the script. With "
            '`Accept: application/x-ndjson` rows come one per line as `{"statement":1,"row":…}`, each statement '
            'ends with a line `{"statement":1,"kind":"query","rows":n}`, and an error after the start is the '
            'last line, `{"error":…}`. Closing the connection cancels the script.'
        ),
        "parameters": [
            {
                "name": "timeout",
                "in": "query",
                "description": "Seconds the script may take, at most what the cluster's settings allow.",
                "schema": {"type": "number", "exclusiveMinimum": 0},
            },
            {
                "name": REQUEST_ID_HEADER,
                "in": "header",
                "description": "An id of your choice, to cancel the script by. Answered back; made up if absent.",
                "schema": {"type": "string", "pattern": REQUEST_ID_PATTERN},
            },
        ],
        "requestBody": {
            "required": True,
            "content": {
                "text/plain": {"schema": {"type": "string"}, "example": _EXAMPLE_SCRIPT},
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["script"],
                        "additionalProperties": False,
                        "properties": {"script": {"type": "string"}},
                    }
                },
            },
        },
        "responses": {
            "200": {
                "description": "Every statement is done.",
                "content": {
                    "application/json": {"schema": whole},
                    "application/x-ndjson": {"schema": {"type": "string"}},
                },
            },
            **_refusals(
                "400", "401", "403", "404", "408", "409", "413", "415", "429", "500", "503", "507", results=results
            ),
        },
    }


def _list() -> dict[str, Any]:
    running = {"type": "array", "items": {"$ref": "#/components/schemas/Running"}}
    return _get(
        "listScripts",
        "The scripts that run or wait now: all for an admin token, else those of the same token.",
        {"type": "object", "required": ["running"], "properties": {"running": running}},
    )


def _cancel() -> dict[str, Any]:
    stopping = {"type": "object", "required": ["stopping"], "properties": {"stopping": {"type": "string"}}}
    return {
        "operationId": "cancelScript",
        "summary": "Stop a running script. Its own request is answered with 408.",
        "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}],
        "responses": {
            "202": {"description": "It is being stopped.", "content": {"application/json": {"schema": stopping}}},
            **_refusals("400", "401", "403", "404"),
        },
    }


def _get(operation: str, summary: str, schema: dict[str, Any], *more: str) -> dict[str, Any]:
    return {
        "operationId": operation,
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": {"application/json": {"schema": schema}}},
            **_refusals("400", "401", "403", *more),
        },
    }


def _status(word: str) -> dict[str, Any]:
    return {"type": "object", "required": ["status"], "properties": {"status": {"const": word}}}


def _refusals(*statuses: str, **beside: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"$ref": "#/components/schemas/Error"}, **beside},
    }
    return {
        status: {"description": _STATUS_TEXTS[status], "content": {"application/json": {"schema": schema}}}
        for status in statuses
    }
