"""What several commands of the lab take, and how they read and write it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from tocsin.wire.errors import InputError

OUT: Final = Path("tocsin-lab")

Settings = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        negative="",
        help="parameter=value; for a swept parameter also several: policy=lru,ttl. Repeatable.",
    ),
]
Out = Annotated[Path, Parameter(help="The folder that holds the results of all experiments.")]
TraceTo = Annotated[
    Path | None,
    Parameter(allow_leading_hyphen=True, help="Write every event there, a line of JSON each; - prints them."),
]


def settings_of(given: list[str] | None) -> dict[str, str]:
    settings: dict[str, str] = {}
    for one in given or []:
        name, equals, value = one.partition("=")
        if not equals or not value:
            raise InputError(f"--set {one}: must be parameter=value")
        if (name := name.strip()) in settings:
            raise InputError(f"--set {name}: given twice", hint="several values of one parameter: --set name=1,2")
        settings[name] = value.strip()
    return settings


def say_as(name: str) -> Callable[[str], None]:
    """Tells how far it is, on standard error."""

    def say(words: str) -> None:
        sys.stderr.write(f"{name}: {words}\n")
        sys.stderr.flush()

    return say


@contextmanager
def folders() -> Iterator[None]:
    """Where a folder is wanted and a file stands, or nobody may write, the asker can mend it."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        hint = "--out and --to name folders to write in"
        raise InputError(f"{error.filename}: {error.strerror}", hint=hint) from None


@contextmanager
def open_output(path: Path) -> Iterator[Any]:
    """To be written; - is standard output."""
    if str(path) == "-":
        yield sys.stdout
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    with file:
        yield file
