"""The options that several commands share, so that each has one name and one help text.

A user who knows one command then knows these options of all others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from tocsin.wire.errors import InputError

if TYPE_CHECKING:
    from tocsin.settings import Loaded

DataOption = Annotated[Path | None, Parameter(name="--data", help="The cluster's data folder.")]
SettingsFile = Annotated[
    Path | None, Parameter(name="--config", help="The settings file (default: ./tocsin.toml, if it exists).")
]
Verbose = Annotated[
    bool, Parameter(name=["--verbose", "-v"], negative="", help="Log every event, not only warnings and errors.")
]
ClusterUrl = Annotated[
    str | None, Parameter(env_var="TOCSIN_URL", help="The cluster's address (default: http://127.0.0.1:8470).")
]
ClusterToken = Annotated[
    str | None,
    Parameter(
        env_var="TOCSIN_TOKEN", help="The token for the cluster. Other users can see arguments: set TOCSIN_TOKEN."
    ),
]
NamedClusterUrl = Annotated[
    str | None,
    Parameter(name="--url", help="The cluster's address, instead of --data (default without --data: TOCSIN_URL)."),
]
BrokerUrl = Annotated[
    str | None, Parameter(env_var="TOCSIN_BROKER_URL", help="The broker's address (default: http://127.0.0.1:8480).")
]


def read_settings(config: Path | None, **flags: Any) -> Loaded:
    """Returns the settings of a command that ends by itself, with its own flags over those of the file and the
    environment (`broker__name` is `broker.name`). From now on the command logs warnings to standard error."""
    from tocsin.cli.logs import log_to_stderr
    from tocsin.settings import read

    log_to_stderr(for_good=False)
    return read(config, os.environ, {name.replace("__", "."): value for name, value in flags.items()})


# ---------------------------------------------------------------- the lab

OUT: Final = Path("tocsin-lab")

LabSettings = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        negative="",
        help="A parameter's value: parameter=value. A swept parameter takes several: policy=lru,ttl. Repeatable.",
    ),
]
Out = Annotated[Path, Parameter(help="The folder for the results of all experiments.")]
TraceTo = Annotated[
    Path | None,
    Parameter(allow_leading_hyphen=True, help="The file for the run's events, one line of JSON each; - prints them."),
]


def settings_of(arguments: list[str] | None) -> dict[str, str]:
    settings: dict[str, str] = {}
    for setting in arguments or []:
        name, equals, value = setting.partition("=")
        if not equals or not value:
            raise InputError(f"--set {setting}: must be parameter=value")
        if (name := name.strip()) in settings:
            raise InputError(f"--set {name}: given twice", hint="several values of one parameter: --set name=1,2")
        settings[name] = value.strip()
    return settings


def reporter(name: str) -> Callable[[str], None]:
    """Returns a function that reports progress on standard error."""

    def say(words: str) -> None:
        sys.stderr.write(f"{name}: {words}\n")
        sys.stderr.flush()

    return say


@contextmanager
def folder_errors() -> Iterator[None]:
    """Raises `InputError` if a file is in place of a folder, or if a folder is not writable."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        hint = "--out and --to name folders to write in"
        raise InputError(f"{error.filename}: {error.strerror}", hint=hint) from None


@contextmanager
def open_output(path: Path) -> Iterator[Any]:
    """Opens a file for writing; - is standard output."""
    if str(path) == "-":
        yield sys.stdout
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    with file:
        yield file
