"""Names the entries of the catalog: references and quoting.

A name may contain any character, dots and backticks too. So names are joined and split here only, and without loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

_EntryKind = Literal["dataverse", "type", "dataset", "index", "function", "feed", "broker", "channel", "procedure"]

_PLAIN: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*\Z")
_PART: Final = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")


def quote_name(name: str) -> str:
    """Returns a name as a script writes it: in backticks if necessary."""
    return name if _PLAIN.match(name) else "`" + name.replace("`", "``") + "`"


def join_names(*names: str) -> str:
    """Returns several names as one unambiguous text, such as `Emergency.Reports`."""
    return ".".join(quote_name(name) for name in names)


def split_names(text: str) -> tuple[str, ...]:
    """Returns the names from which `join_names` made this text."""
    names, position = [], 0
    while match := _PART.match(text, position):
        names.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        position = match.end() + 1
        if text[match.end() : position] != ".":
            break
    if position <= len(text):
        raise ValueError(f"not a qualified name: {text!r}")
    return tuple(names)


class _Named(Protocol):
    @property
    def dataverse(self) -> str: ...

    @property
    def name(self) -> str: ...


def full_name(named: _Named) -> str:
    """Returns `dataverse.name`, without quotes, as messages, metrics and the wire have it."""
    return f"{named.dataverse}.{named.name}"


@dataclass(frozen=True, slots=True)
class Ref:
    """Names one entry.

    `name` is the name of the entry, except for these kinds: a dataverse repeats its own name; an index has
    `dataset.index`, because its name is unique only within its dataset; a function or procedure has `name@arity`, so
    that overloads coexist."""

    kind: _EntryKind
    dataverse: str
    name: str

    def __str__(self) -> str:
        match self.kind:
            case "dataverse":
                return f"dataverse {quote_name(self.name)}"
            case "function" | "procedure":
                name, _, arity = self.name.rpartition("@")
                return f"{self.kind} {join_names(self.dataverse, name)}@{arity}"
            case "index":
                return f"index {quote_name(self.dataverse)}.{self.name}"
            case _:
                return f"{self.kind} {join_names(self.dataverse, self.name)}"


def dataverse_ref(name: str) -> Ref:
    return Ref("dataverse", name, name)


def type_ref(dataverse: str, name: str) -> Ref:
    return Ref("type", dataverse, name)


def dataset_ref(dataverse: str, name: str) -> Ref:
    return Ref("dataset", dataverse, name)


def feed_ref(dataverse: str, name: str) -> Ref:
    return Ref("feed", dataverse, name)


def index_ref(dataverse: str, dataset: str, name: str) -> Ref:
    return Ref("index", dataverse, join_names(dataset, name))


def function_ref(dataverse: str, name: str, arity: int) -> Ref:
    return Ref("function", dataverse, f"{name}@{arity}")


def broker_ref(dataverse: str, name: str) -> Ref:
    return Ref("broker", dataverse, name)


def channel_ref(dataverse: str, name: str) -> Ref:
    return Ref("channel", dataverse, name)


def procedure_ref(dataverse: str, name: str, arity: int) -> Ref:
    return Ref("procedure", dataverse, f"{name}@{arity}")


def list_some(names: Iterable[object], limit: int = 3) -> str:
    """Returns the first names as a text, and how many more there are."""
    all_names = [str(name) for name in names]
    more = f" and {len(all_names) - limit} more" if len(all_names) > limit else ""
    return ", ".join(all_names[:limit]) + more
