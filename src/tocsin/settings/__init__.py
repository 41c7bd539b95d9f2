"""Typed settings from one TOML file, the environment and flags: flags > environment > file > default.

A setting has one dotted path everywhere: `cluster.http.port` is `port` under `[cluster.http]` in the file and
`TOCSIN_CLUSTER__HTTP__PORT` in the environment. Unknown keys fail; every error names the path and where it was set, and
none repeats a secret.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from tocsin.rules.did_you_mean import did_you_mean
from tocsin.settings.broker import BrokerSettings
from tocsin.settings.cluster import ChannelSettings, ClusterSettings, DatasetSettings, StatementSettings
from tocsin.settings.sections import Folder, Section
from tocsin.wire.errors import InputError

__all__ = [
    "BrokerSettings", "ChannelSettings", "ClusterSettings", "DatasetSettings", "Loaded", "Section", "Settings",
    "SettingsError", "StatementSettings", "find_file", "is_secret", "known_settings", "read",
]  # fmt: skip

_PREFIX: Final = "TOCSIN_"
# Variables that Kubernetes sets in every container for a Service whose name begins with "tocsin"; also …_PORT=tcp://….
_KUBERNETES: Final = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
# Tables whose entries may be secrets, by their keys or values.
_MIXED: Final = ("cluster.spark.conf.", "cluster.storage.options.")
_DEFAULT_FILE: Final = Path("tocsin.toml")
# Variables with our prefix that are not settings.
OTHER_VARIABLES: Final[dict[str, str]] = {
    "TOCSIN_CONFIG": "the settings file, if --config names none",
    "TOCSIN_URL": "the address of the cluster for the command line",
    "TOCSIN_TOKEN": "the token of the command line for that cluster",
    "TOCSIN_BROKER_URL": "the address of the broker for the command line",
    "TOCSIN_BROKER_TOKEN": "the token of an application or of the operator for that broker",
    "TOCSIN_USER": "the subscriber of the command line",
    "TOCSIN_PASSWORD": "that user's password",
    "TOCSIN_APPLICATION": "that user's application",
    "TOCSIN_CRASH_AT": "the place where a test kills the process",
}
_FIRST_PARTS: Final = frozenset(
    {"DATA", "CLUSTER", *(name.removeprefix(_PREFIX).partition("_")[0] for name in OTHER_VARIABLES)}
)

_log = logging.getLogger("tocsin.settings")


class SettingsError(InputError):
    """All problems of the settings, a line for each."""

    code = "bad_settings"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Settings(Section):
    """Everything that can be set."""

    data: Folder = Path("tocsin-data")
    """The folder that holds everything durable."""
    cluster: ClusterSettings = ClusterSettings()
    broker: BrokerSettings = BrokerSettings()

    @classmethod
    def load(
        cls, file: Path | None = None, env: Mapping[str, str] = os.environ, flags: Mapping[str, object] | None = None
    ) -> Settings:
        """Returns the effective settings. Raises SettingsError with every problem. `read` also returns the sources."""
        return read(file, env, flags).settings


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and the source of each path that was set."""

    settings: Settings
    sources: Mapping[str, str]


@dataclass(slots=True)
class _Draft:
    """The raw values with their sources, and the problems so far."""

    tree: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """Variables with our prefix that other software sets."""

    def put(self, path: tuple[str, ...], value: object, source: str) -> None:
        """Sets one value. It overrules a lower source at this path, and a value where the path needs a table."""
        if isinstance(value, Mapping) and value:
            for key, inner in value.items():
                self.put((*path, str(key)), inner, source)
            return
        table = self.tree
        for depth, key in enumerate(path[:-1], start=1):
            if not isinstance(table.get(key), dict):
                table[key] = {}
                self.sources.pop(".".join(path[:depth]), None)
            table = table[key]
        table[path[-1]] = dict(value) if isinstance(value, Mapping) else value
        self.sources[".".join(path)] = source

    def source(self, path: str) -> str:
        """Returns the source of the value at this path, or of the table around it; for a table, of its first key."""
        parent = path
        while parent:
            if parent in self.sources:
                return self.sources[parent]
            parent = parent.rpartition(".")[0]
        return next((source for key, source in self.sources.items() if key.startswith(f"{path}.")), "by default")


def read(
    file: Path | None = None, env: Mapping[str, str] = os.environ, flags: Mapping[str, object] | None = None
) -> Loaded:
    """Merges `file` (else TOCSIN_CONFIG's, else ./tocsin.toml if there), `env` and `flags`.

    `flags` maps dotted paths to values; None means that the flag was not given.
    """
    draft = _Draft()
    if (chosen := find_file(file, env)) is not None:
        for key, value in _parse(chosen).items():
            draft.put((key,), value, f"in {chosen}")
    for name, text in sorted(env.items()):
        if name.startswith(_PREFIX) and name not in OTHER_VARIABLES:
            _put_variable(draft, name, text)
    if draft.foreign:
        _log.warning("variables are ignored that are no settings of Tocsin: %s", ", ".join(draft.foreign))
    for path, value in (flags or {}).items():
        if value is not None:
            draft.put(tuple(path.split(".")), value, f"from the flag --{path.rpartition('.')[2].replace('_', '-')}")
    try:
        settings = Settings.model_validate(draft.tree)
    except ValidationError as error:
        draft.problems += [_problem(detail, draft) for detail in error.errors(include_url=False)]
    if draft.problems:
        raise SettingsError(draft.problems)
    return Loaded(settings, draft.sources)


def find_file(file: Path | None, env: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the settings file to read. A named file that is missing is an error; the default file may be absent."""
    chosen = file or (Path(env_file) if (env_file := env.get("TOCSIN_CONFIG")) else None)
    if chosen is not None and not chosen.is_file():
        raise SettingsError([f"{chosen}: no such settings file"])
    return chosen or (_DEFAULT_FILE if _DEFAULT_FILE.is_file() else None)


def known_settings() -> dict[str, typing.Any]:
    """Returns every setting's dotted path with its field: type, default and description."""

    def walk(model: type[Section], prefix: str) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, info in model.model_fields.items():
            if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
                fields |= walk(info.annotation, f"{prefix}{name}.")
            else:
                fields[f"{prefix}{name}"] = info
        return fields

    return walk(Settings, "")


def is_secret(path: str, value: object = "") -> bool:
    """Whether this value of the setting is never shown: a token, or an entry for Spark or the storage with a secret in
    its key or value."""
    for table in _MIXED:
        if path.startswith(table):
            return _names_secret(path.removeprefix(table)) or _mask_secrets(str(value)) != str(value)
    info = known_settings().get(path)
    return info is not None and info.annotation is SecretStr


def _may_hold_secret(path: str) -> bool:
    return (
        is_secret(path)
        or f"{path}." in _MIXED
        or any(is_secret(setting) for setting in known_settings() if setting.startswith(f"{path}."))
    )


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"{file}: is not TOML: {error}"]) from error
    except OSError as error:
        raise SettingsError([f"{file}: cannot be read: {error.strerror}"]) from error


def _put_variable(draft: _Draft, name: str, text: str) -> None:
    path = name.removeprefix(_PREFIX).lower().replace("__", ".")
    info = known_settings().get(path)
    if info is None:
        hint = _nearest_variable(name)
        if _is_foreign(name, text, hint):
            draft.foreign.append(name)
        else:
            draft.problems.append(f"{name}: unknown variable{hint} (in the environment)")
        return
    value: object = text
    if typing.get_origin(info.annotation) is dict:
        # A variable holds a table as an inline table of TOML: {"spark.x" = "1"}
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            draft.problems.append(f"{path}: must be a table such as {{key = 'value'}} (from {name})")
            return
    draft.put(tuple(path.split(".")), value, f"from {name}")


def _is_foreign(name: str, text: str, hint: str) -> bool:
    """Whether other software sets the variable, as opposed to a person who misspelt a setting."""
    if "__" in name:
        return False
    if _KUBERNETES.fullmatch(name) or (name.endswith("_PORT") and "://" in text):
        return True
    return name.removeprefix(_PREFIX).partition("_")[0] not in _FIRST_PARTS and not hint


def _nearest_variable(name: str) -> str:
    candidates = [_variable(path) for path in known_settings()] + list(OTHER_VARIABLES)
    if "__" in name:
        return _nearest(name, candidates)
    # Compare without the common prefix, which says nothing about similarity.
    without_prefix = {candidate.removeprefix(_PREFIX): candidate for candidate in reversed(candidates)}
    for similar in (
        {short.replace("__", "_"): candidate for short, candidate in without_prefix.items()},
        {short.rpartition("__")[2]: candidate for short, candidate in without_prefix.items()},
    ):
        hint = did_you_mean(name.removeprefix(_PREFIX), similar, similarity=0.8, write=similar.__getitem__)
        if hint:
            return f"; {hint}"
    return ""


def _variable(path: str) -> str:
    return _PREFIX + path.upper().replace(".", "__")


# Our words for Pydantic's kinds of error; other kinds keep Pydantic's words.
_WORDS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "greater_than": lambda bound: f"must be > {bound['gt']:g}",
    "greater_than_equal": lambda bound: f"must be ≥ {bound['ge']}",
    "less_than": lambda bound: f"must be < {bound['lt']:g}",
    "less_than_equal": lambda bound: f"must be ≤ {bound['le']:.0f}",
    "int_parsing": lambda _: "must be a whole number",
    "int_type": lambda _: "must be a whole number",
    "int_from_float": lambda _: "must be a whole number",
    "float_parsing": lambda _: "must be a number",
    "float_type": lambda _: "must be a number",
    "finite_number": lambda _: "must be a finite number",
    "string_type": lambda _: "must be text",
    "string_too_short": lambda _: "must not be empty",
    "string_pattern_mismatch": lambda _: "must be a number with k, m, g or t, such as 1g",
    "path_type": lambda _: "must name a folder",
    "literal_error": lambda choices: f"must be one of {choices['expected']}",
    "model_type": lambda _: "must be a table",
    "dict_type": lambda _: "must be a table",
    "value_error": lambda context: str(context["error"]),
}


def _problem(detail: ErrorDetails, draft: _Draft) -> str:
    path = ".".join(str(part) for part in detail["loc"])
    where = f"({draft.source(path)})"
    if detail["type"] == "extra_forbidden":
        return f"{path}: unknown key{_nearest(path, [*known_settings(), *_tables()])} {where}"
    words = _WORDS.get(detail["type"])
    message = words(detail.get("ctx", {})) if words else detail["msg"]
    if _may_hold_secret(path):
        return f"{path}: {message} {where}"
    given = detail["input"]
    shown = repr(_mask_secrets(given)) if isinstance(given, str) else _mask_secrets(repr(given))
    return f"{path}: {message}, got {shown} {where}"


def _tables() -> set[str]:
    return {path.rpartition(".")[0] for path in known_settings()} - {""} | {"cluster", "broker"}


def _nearest(name: str, candidates: list[str]) -> str:
    # A key in the wrong table is more likely than a wrong name, so look for the same last part first.
    leaf = name.rpartition(".")[2]
    same = [candidate for candidate in candidates if candidate.rpartition(".")[2] == leaf]
    hint = did_you_mean(name, same[:1] or candidates, similarity=0.0 if same else 0.6)
    return f"; {hint}" if hint else ""


# Rather hide a harmless value than show a secret: these are more words than Spark redacts (spark.redaction.regex).
_SENSITIVE: Final = (
    r"(?:key|secret|pass|pwd|pw(?![a-z])|token|credential|auth|bearer|basic|jwt|cookie|login|private|signature"
    r"|(?<![a-z])(?:sig|sas)(?![a-z]))"
)
_SECRET_KEY: Final = re.compile(_SENSITIVE, re.IGNORECASE)
# A secret inside a value: a header, a parameter of an address (its signs may be escaped), a property of Java, a field
# of JSON.
_SECRET_PARAMETER: Final = re.compile(
    rf"({_SENSITIVE}(?:[^\s=:&%]|%(?!20|3[ad]))*(?:[\s=:]|%20|%3[ad])+)\S.*", re.IGNORECASE | re.DOTALL
)
# An address without a scheme can have user information, too. The last @ ends it: a password may contain others.
_USER_INFO: Final = re.compile(r"^([\[({'\"]*(?:[\w+.-]+://)?).*@", re.DOTALL)
# Secrets that are recognized without a word: JSON web tokens, and the tokens of AWS, GitHub, GitLab, Slack and Tocsin.
_TOKEN: Final = re.compile(r"\b(?:eyJ|AKIA|ASIA|gh[oprsu]_|github_pat_|glpat-|xox[a-z]-|tocsin_)[\w.+/=-]{16,}")


def _names_secret(key: str) -> bool:
    """Whether the key of a setting says that its value is a secret."""
    return _SECRET_KEY.search(key) is not None


def _mask_secrets(text: str) -> str:
    """Returns the text without tokens, without user information, and without what follows the name of a secret."""
    return _TOKEN.sub("…", _SECRET_PARAMETER.sub(r"\1…", _USER_INFO.sub(r"\1…@", text)))
