"""AsterixDB's query service, `/query/service`: its request and its answer, for clients and notebooks that speak it.

Only the form differs from `POST /v1/statements`: who may ask, the limits and the execution are the same.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson
from aiohttp import hdrs, web

from tocsin.cluster.http.answer_formats import ServiceFormat
from tocsin.cluster.http.script_responses import BufferedAnswer, StreamedResponse
from tocsin.cluster.http.script_routes import ScriptCall, ScriptRoutes
from tocsin.cluster.statements.outcomes import ScriptOptions
from tocsin.serving.answers import REQUEST_ID
from tocsin.serving.requests import parse_json
from tocsin.wire.errors import InputError, TocsinError, UnsupportedError

_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS_LIMIT: Final = 1_000
_CONTEXT_LIMIT: Final = 1_000
_DEPTH_LIMIT: Final = 64
_LARGE_BYTES: Final = 64 << 10
_PARAMETER: Final = re.compile(r"\$[^\W\d_]\w*")
_TIME_PART: Final = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0}
_FLAGS: Final = {"true": True, "false": False}

# Parameters that ask for another kind of answer: the values that are supported, and what to do otherwise.
_SUPPORTED: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "mode": (("immediate",), 'the answer comes at once: leave "mode" out, and ask for "stream": true if it is large'),
    "format": (("json", "clean_json"), "answers are JSON; docs/language.md shows how values are written"),
    "parse-only": (("false",), "EXPLAIN checks a query without running it"),
    "compile-only": (("false",), "EXPLAIN shows the plan of a query without running it"),
    "sql-compat": (("false",), "write the forms of docs/language.md"),
}


class QueryService:
    def __init__(self, scripts: ScriptRoutes) -> None:
        self._scripts = scripts

    async def run(self, request: web.Request) -> web.StreamResponse:
        """Answers GET, which may only read, and POST."""
        form = ServiceFormat(request[REQUEST_ID])

        async def read(body: bytes) -> ScriptCall:
            given = await _read_parameters(request, body)
            form.client_context_id = _text(given, "client_context_id")[:_CONTEXT_LIMIT]
            form.has_signature = _flag(given, "signature", default=True)
            form.warnings_limit = _whole_number(given, "max-warnings")
            return _script_call(given, reads_only=request.method == hdrs.METH_GET)

        def respond(
            call: ScriptCall, grow: Any, limits: Any, count_rows: Callable[[int], None]
        ) -> BufferedAnswer | StreamedResponse:
            if call.is_streamed:
                return StreamedResponse(request, grow, limits.write_timeout_s, count_rows, form=form)
            return BufferedAnswer(limits, grow, form, count_rows)

        try:
            return await self._scripts.answer(request, read, respond)
        except TocsinError as error:
            return form.error_response(error)


async def _read_parameters(request: web.Request, body: bytes) -> dict[str, Any]:
    """The parameters of the body of a POST, a form or JSON, or of the address of a GET. In an address or a form, values
    are texts, and those of statement parameters are JSON."""
    if request.query and request.method != hdrs.METH_GET:
        # An address can be chosen by somebody else than the sender, such as the address of a broker.
        raise InputError(
            "a POST has no parameters in its address", hint="send them in the body, as a form or as JSON, or use GET"
        )
    texts = list(request.query.items())
    values: dict[str, Any] = {}
    if body and request.content_type == "application/json":
        values = _object(body)
    elif body and request.content_type == _FORM:
        texts += await asyncio.to_thread(_form_pairs, body) if len(body) > _LARGE_BYTES else _form_pairs(body)
    elif body:
        raise UnsupportedError(
            f"a request is {_FORM} or application/json, not {request.content_type[:100]}",
            hint='send {"statement": "…"} as application/json',
        )
    for name, text in texts:
        if name in values:
            raise InputError(f"{name[:100]}: is given twice")
        values[name] = _json(name, text) if name == "args" or name.startswith("$") else text
    return values


def _object(body: bytes) -> dict[str, Any]:
    value = parse_json(body)
    if not isinstance(value, dict):
        raise InputError("the body must be a JSON object", hint='such as {"statement": "SELECT VALUE 1;"}')
    return value


def _form_pairs(body: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_FIELDS_LIMIT, errors="strict")
    except ValueError as error:
        raise InputError(f"the form cannot be read: {error}", hint="encode it as UTF-8 and percent signs") from None


def _json(name: str, text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise InputError(f"{name[:100]}: must be JSON", hint='a text is written in quotes: "…"') from None


def _script_call(given: Mapping[str, Any], *, reads_only: bool) -> ScriptCall:
    for name, (values, hint) in _SUPPORTED.items():
        value = _text(given, name).lower()
        if name == "format":
            value = _media_subtype(value)
        if value and value not in values:
            raise InputError(f'{name}: must be {values[0]}, got "{value[:100]}"', hint=hint)
    statement = _text(given, "statement")
    if not statement.strip():
        raise InputError("no statement is given", hint='send {"statement": "SELECT VALUE 1;"}')
    options = ScriptOptions(
        dataverse=_text(given, "dataverse") or None,
        values=_statement_parameters(given),
        is_read_only=reads_only or _flag(given, "readonly", default=False),
        is_single=not _flag(given, "multi-statement", default=True),
    )
    return ScriptCall(statement, _timeout_s(given), options, is_streamed=_flag(given, "stream", default=False))


def _media_subtype(form: str) -> str:
    """`json` for a media type such as `application/json; charset=utf-8`, of which any parameter is accepted."""
    media_type, _, _ = form.partition(";")
    return media_type.strip().removeprefix("application/")


def _statement_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in given.items() if _PARAMETER.fullmatch(name)}
    positional = given.get("args", [])
    if not isinstance(positional, list):
        raise InputError("args: must be an array of values")
    values |= {f"${number}": value for number, value in enumerate(positional, start=1)}
    for name, value in values.items():
        if _is_deeper(value, _DEPTH_LIMIT):
            raise InputError(f"{name}: is nested deeper than {_DEPTH_LIMIT} levels")
    return values


def _is_deeper(value: Any, levels: int) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(item, levels - 1) for item in items)


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, str | int | float):
        return "" if value is None else str(value)
    raise InputError(f"{name}: must be a text")


def _flag(given: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = _text(given, name).lower()
    if value and value not in _FLAGS:
        raise InputError(f'{name}: must be true or false, got "{value[:100]}"')
    return _FLAGS.get(value, default)


def _whole_number(given: Mapping[str, Any], name: str) -> int:
    text = _text(given, name)
    if text and not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InputError(f'{name}: must be a whole number, got "{text[:100]}"')
    return int(text or "0")


def _timeout_s(given: Mapping[str, Any]) -> float:
    """A duration such as `30s` or `1m30s`."""
    text = _text(given, "timeout").strip().lower()
    if not text:
        return math.inf
    parts = _TIME_PART.findall(text)
    timeout_s = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not 0 < timeout_s < math.inf:
        raise InputError(f'timeout: must be a duration such as "30s", got "{text[:100]}"')
    return timeout_s
