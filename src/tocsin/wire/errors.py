"""The errors that can cross a process boundary, with their codes and HTTP statuses.

    TocsinError
    ├─ InputError              the client can correct it (400)
    │  ├─ StatementError          a script: syntax, names, types, values
    │  ├─ ConflictError           a key or a name is taken, or something is still in use (409)
    │  ├─ FencedError             another broker has taken over the broker's name, so this one stops (409)
    │  ├─ ReusedKeyError          an idempotency key that was sent before, with another body (422)
    │  ├─ NotFoundError           it does not exist (404)
    │  │  └─ PastStateError          a state of a dataset from before its history (404)
    │  ├─ UnauthorizedError       no token, or an invalid one (401)
    │  ├─ ForbiddenError          a valid token without the right (403)
    │  ├─ UnsupportedError        a method, media type or expectation that this path does not support (405, 415, 417)
    │  ├─ LimitError              too large or too many; the message names the limit (400, 413, 429)
    │  └─ StoppedError            the statement timed out or was cancelled (408)
    │     └─ ScriptCancelledError    a client has cancelled the script (408)
    ├─ CapacityError           it needs more disk, memory or executors than the engine has (400)
    │  ├─ DeadlineError           the engine did not answer in time (408)
    │  └─ WorkerLostError         a Python worker died during the work (400; in cluster.engine_session)
    ├─ StorageFullError        the disk is full; nothing acknowledged was lost (507)
    ├─ StoreError              stored data is damaged, or newer than this program; it is left unchanged (500)
    └─ UnavailableError        starting, stopping or overloaded (503)
       └─ EngineLostError         the engine died during the work (503; in cluster.engine_session)

A connection that the settings do not allow is an OSError (serving.address_guard.PrivateAddressError): the caller
handles it, and it crosses no process boundary. Any other exception is a bug and is answered with 500.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

EXIT_FENCED: Final = 3
"""The exit status of a fenced broker's process, which must not be restarted (FencedError)."""


class TocsinError(Exception):
    """The base of all errors. `retry`: the same request may succeed later. `details`: further JSON fields.

    The first paragraph of a subclass says what is wrong, the second what to do: the table of docs/http.md.
    """

    code: ClassVar[str] = "error"
    status: int = 500
    other_statuses: ClassVar[tuple[int, ...]] = ()
    """Statuses that some errors of this class have instead."""
    retry: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        statement: int | None = None,
        line: int | None = None,
        column: int | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.statement = statement
        self.line = line
        self.column = column
        self.details = details

    def to_json(self) -> dict[str, Any]:
        position = {"statement": self.statement, "line": self.line, "column": self.column}
        body = {"code": self.code, "message": self.message, **position, "hint": self.hint, "retry": self.retry}
        return {**body, **self.details}

    def __str__(self) -> str:
        where = f"line {self.line}, column {self.column}: " if self.line is not None else ""
        return f"{where}{self.message}{f' ({self.hint})' if self.hint else ''}"


class InputError(TocsinError):
    """The request itself is wrong: not UTF-8, not HTTP, or a bad parameter.

    Correct the request.
    """

    code = "bad_request"
    status = 400


class StatementError(InputError):
    """A statement is wrong: its syntax, a name, a type or a value.

    Correct the statement at the line and column of the error.
    """

    code = "bad_statement"


class ConflictError(InputError):
    """A key or a name is taken, or something is still in use.

    Choose another name, or remove what uses it first.
    """

    code = "conflict"
    status = 409


class FencedError(InputError):
    """Another broker has taken over this broker's name, so this one stops.

    Give each broker its own name.
    """

    code = "fenced"
    status = 409


class ReusedKeyError(InputError):
    """An `Idempotency-Key` was sent before with another body.

    Use a new key for a new body.
    """

    code = "reused_key"
    status = 422


class NotFoundError(InputError):
    """The path, the object or the past commit does not exist.

    Check the name; a past state may be older than the history of the dataset.
    """

    code = "not_found"
    status = 404


class PastStateError(NotFoundError):
    """The requested state of a dataset is from before its history."""


class UnauthorizedError(InputError):
    """The request has no token, or one that is not valid.

    Send a valid token: `Authorization: Bearer …`.
    """

    code = "unauthorized"
    status = 401


class ForbiddenError(InputError):
    """The token does not allow it, or the request comes from a web page of another origin.

    Use a token with the right role.
    """

    code = "forbidden"
    status = 403


class UnsupportedError(InputError):
    """The path does not support this method, media type or expectation.

    Use what the documentation of the path names.
    """

    code = "unsupported"
    status = 415
    other_statuses = (405, 417)

    def __init__(self, message: str, *, status: int = 415, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.status = status


class LimitError(InputError):
    """Something is too large, too long, or there is too much of it; the message names the limit.

    Send less, or after a 429 send it later; an operator can raise many limits.
    """

    code = "limit"
    status = 413
    other_statuses = (400, 429, 431)

    def __init__(self, message: str, *, status: int = 413, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.status = status


class StoppedError(InputError):
    """The statement's time was up, or a client stopped it.

    Allow more time, or make the statement smaller.
    """

    code = "stopped"
    status = 408


class ScriptCancelledError(StoppedError):
    """A client has cancelled the script."""


class CapacityError(TocsinError):
    """The work needs more space, memory or executors than the engine has.

    Make the statement smaller, or give the engine more.
    """

    code = "capacity"
    status = 400


class DeadlineError(CapacityError):
    """The engine did not answer in time.

    Try again; if it happens again, make the statement smaller.
    """

    code = "deadline"
    status = 408


class StorageFullError(TocsinError):
    """The disk is full; nothing acknowledged was lost.

    Free space, then send the request again.
    """

    code = "storage_full"
    status = 507
    retry = True


class StoreError(TocsinError):
    """Stored data is damaged, or newer than this program; it was left unchanged.

    Run `tocsin check`; restore a backup, or use the newer program.
    """

    code = "store"


class UnavailableError(TocsinError):
    """The server is starting, stopping or overloaded, or a feed cannot continue or land records.

    Send the same request again later.
    """

    code = "unavailable"
    status = 503
    retry = True


def error_of(json: dict[str, Any], status: int | None = None) -> TocsinError:
    """Rebuilds the error that the other side raised from its `to_json`, with all details."""
    classes = {error_class.code: error_class for error_class in _tree(TocsinError) if "code" in vars(error_class)}
    known = {"code", "message", "hint", "statement", "line", "column", "retry"}
    place = {name: json.get(name) for name in ("hint", "statement", "line", "column")}
    error = classes.get(str(json["code"]), TocsinError)(str(json["message"]), **place)
    error.details = {name: value for name, value in json.items() if name not in known}
    if status is not None:
        error.status = status
    if "id" in json:
        error.hint = error.hint or f"look for {json['id']} in the server's log"
    return error


def _tree(top: type[TocsinError]) -> Iterator[type[TocsinError]]:
    yield top
    for subclass in top.__subclasses__():
        yield from _tree(subclass)
