"""Builds a server's OpenAPI 3.1 document from the table of its operations and the types of their messages.

The schemas come from the types with which the servers parse and write, so that the document is true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tocsin.wire.answers import ErrorFields
from tocsin.wire.messages import JsonObject, components, schema_of
from tocsin.wire.version import version

_STATUS_TEXTS: Final = {
    "400": "The request is invalid; the error says where.",
    "401": "The token is missing or not valid.",
    "403": "The token or the origin of the web page does not allow this.",
    "404": "The named object does not exist.",
    "408": "The time limit passed, or the script was cancelled.",
    "409": "The name or key is taken, or the object is in use.",
    "413": "The body is too large, or an answer that is not streamed would be.",
    "415": "The media type, charset or compression of the body is not supported.",
    "429": "Too many requests, or too much work at once; Retry-After says when to try again.",
    "500": "The server failed; its log has the details under the error's id.",
    "503": "The server is starting, stopping or overloaded, or needs another server that does not answer.",
    "507": "The disk is full; everything acknowledged is safe.",
}


class Media(NamedTuple):
    """A body that is not a message: its media types and their schemas."""

    content: Mapping[str, JsonObject]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a server. `takes` and `answers` are types of messages, a type per field, or media.

    `errors`: the statuses of its errors besides those that all operations have. `others`: further answers by status,
    with their descriptions. `beside`: the fields of its errors besides the error. `error_form`: another form that its
    errors may have. `role`: the role that it requires.
    """

    method: str
    path: str
    id: str
    summary: str
    answers: Any = None
    takes: Any = None
    errors: str = ""
    status: str = "200"
    parameters: Sequence[JsonObject] = ()
    others: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    error_form: Any = None
    description: str = ""
    is_open: bool = False
    role: str = ""


def document(
    operations: Sequence[Operation],
    info: Mapping[str, str],
    *,
    errors: str,
    body_errors: str,
    security: Sequence[JsonObject],
    bearer: str,
    schemas: Mapping[str, JsonObject] | None = None,
) -> JsonObject:
    """`errors` are those of all operations, `body_errors` of those with a body. `schemas` are further components."""
    paths: dict[str, JsonObject] = {}
    for operation in operations:
        statuses = f"{errors} {body_errors if operation.takes is not None else ''} {operation.errors}".split()
        paths.setdefault(operation.path, {})[operation.method] = _describe(operation, statuses)
    kinds = [kind for operation in operations for kind in (operation.takes, operation.answers)]
    kinds += [kind for answer in kinds if isinstance(answer, dict) for kind in answer.values()]
    licence = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    return {
        "openapi": "3.1.0",
        "info": {**info, "version": version(), "license": licence},
        "servers": [{"url": "/"}],
        "security": list(security),
        "paths": paths,
        "components": {
            "schemas": {**components(ErrorFields, *kinds), **(schemas or {})},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": bearer}},
        },
    }


def _describe(operation: Operation, statuses: Sequence[str]) -> JsonObject:
    summary = operation.summary
    if operation.role:
        summary = f"{summary.removesuffix('.')}; needs the role {operation.role}."
    schema = fields_schema({"error": ErrorFields, **operation.beside}, ("error",))
    if operation.error_form is not None:
        schema = {"anyOf": [schema, schema_of(operation.error_form)]}
    error = {"application/json": {"schema": schema}}
    described: JsonObject = {
        "operationId": operation.id,
        "summary": summary,
        "responses": {
            operation.status: _answer(operation.summary, operation.answers),
            **{status: {"description": _STATUS_TEXTS[status], "content": error} for status in sorted(statuses)},
            **{status: _answer(*answer) for status, answer in operation.others.items()},
        },
    }
    names = [path_parameter(name) for name in re.findall(r"{(\w+)}", operation.path)]
    given = {parameter["name"] for parameter in operation.parameters}
    if parameters := [*(name for name in names if name["name"] not in given), *operation.parameters]:
        described["parameters"] = parameters
    if operation.takes is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.takes)}
    if operation.description:
        described["description"] = operation.description
    return {**described, "security": []} if operation.is_open else described


def _answer(description: str, kind: Any) -> JsonObject:
    return {"description": description, "content": _content(kind)} if kind is not None else {"description": description}


def _content(kind: Any) -> JsonObject:
    if isinstance(kind, Media):
        return {media: {"schema": schema} for media, schema in kind.content.items()}
    return {"application/json": {"schema": fields_schema(kind) if isinstance(kind, dict) else schema_of(kind)}}


def fields_schema(kinds: Mapping[str, Any], required: Sequence[str] | None = None) -> JsonObject:
    """The schema of an object with these fields, by their types."""
    properties = {name: schema_of(kind) for name, kind in kinds.items()}
    return {"type": "object", "properties": properties, "required": list(kinds if required is None else required)}


def path_parameter(name: str, description: str = "", example: Any = None, kind: Any = None) -> JsonObject:
    schema = {"type": "string", "minLength": 1} if kind is None else schema_of(kind)
    more = {"description": description, "example": example}
    parameter = {"name": name, "in": "path", "required": True, "schema": schema}
    return {**parameter, **{key: value for key, value in more.items() if value}}


def query_parameter(name: str, kind: Any, description: str = "", *, where: str = "query") -> JsonObject:
    parameter = {"name": name, "in": where, "schema": schema_of(kind)}
    return {**parameter, "description": description} if description else parameter
