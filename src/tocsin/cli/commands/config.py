"""`tocsin config`: shows the settings and where each comes from, and checks a settings file.

Settings come from a file, the environment and flags, so the command names the source of each value.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from pydantic import SecretStr

from tocsin.cli.options import SettingsFile
from tocsin.settings import Loaded, Section, SettingsError, find_file, is_secret, read

app = App(name="config", help="Show or check the settings.")


@app.command
def show(
    *,
    config: SettingsFile = None,
    explain: Annotated[bool, Parameter(help="Print a comment that says what each setting does.")] = False,
) -> int:
    """Print the effective settings as TOML. A comment says where each that is not the default comes from."""
    try:
        loaded = read(config)
    except SettingsError as error:
        return _complain(error)
    print("\n".join(to_toml(loaded, explain=explain)))
    if hidden := list(_secret_paths(loaded.settings)):
        print(f"not shown, because they are secrets: {', '.join(hidden)}", file=sys.stderr)
    return 0


@app.command
def check(
    file: Annotated[Path | None, Parameter(help="The settings file (default: the one that tocsin up reads).")] = None, /
) -> int:
    """Check a settings file together with the environment. Prints one line per problem and exits with 1."""
    try:
        read(file)
        found = find_file(file)
    except SettingsError as error:
        return _complain(error)
    print(f"{found}: in order" if found else "no settings file; the defaults and the environment are in order")
    return 0


def to_toml(loaded: Loaded, *, explain: bool = False) -> Iterator[str]:
    """Yields the lines of a TOML file with the same settings; comments stand in place of secrets."""
    yield from _table(loaded.settings, "", loaded.sources, explain)


def _table(section: Section, prefix: str, sources: Mapping[str, str], explain: bool) -> Iterator[str]:
    inner: list[tuple[str, Section]] = []
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            inner.append((name, value))
            continue
        path = f"{prefix}{name}"
        if explain and info.description:
            yield f"# {info.description}"
        yield from _setting(path, value, _origin(path, sources))
    for name, value in inner:
        # A table that contains only tables needs no header.
        if any(not isinstance(getattr(value, field), Section) for field in type(value).model_fields):
            yield ""
            yield f"[{prefix}{name}]"
        yield from _table(value, f"{prefix}{name}.", sources, explain)


def _setting(path: str, value: Any, origin: str) -> Iterator[str]:
    """Yields the line of a setting. A secret becomes a comment: a mask would be read back as the value."""
    name = path.rpartition(".")[2]
    hidden = list(_find_secrets(path, value))
    if hidden == [path]:
        yield f"# {name} is set and not shown, because it is a secret{origin}"
        return
    if hidden:
        value = {key: inner for key, inner in value.items() if f"{path}.{key}" not in hidden}
    yield f"{name} = {_literal(value)}{origin}"
    for secret in hidden:
        yield f"# {name} also has {_literal(secret.removeprefix(f'{path}.'))}, not shown because it is a secret"


def _find_secrets(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr) and value:
        yield path
    elif isinstance(value, Mapping):
        # An empty secret is not set: show it like any other default.
        yield from (f"{path}.{key}" for key, inner in value.items() if inner and is_secret(f"{path}.{key}", inner))


def _secret_paths(section: Section, prefix: str = "") -> Iterator[str]:
    """Yields the paths of all secrets that are set."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _secret_paths(value, f"{prefix}{name}.")
        else:
            yield from _find_secrets(f"{prefix}{name}", value)


def _origin(path: str, sources: Mapping[str, str]) -> str:
    origins = dict.fromkeys(source for key, source in sources.items() if key == path or key.startswith(f"{path}."))
    return f"  # {', '.join(origins)}" if origins else ""


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)} = {_literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    # A JSON string is a TOML string, except for DEL, which JSON does not escape.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _complain(error: SettingsError) -> int:
    for problem in error.problems:
        print(problem, file=sys.stderr)
    return 1
