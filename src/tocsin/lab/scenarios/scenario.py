"""A scenario and its file: a header, then one step per line of JSON, in order of time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, get_args

from tocsin.wire.errors import InputError

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class LogIn:
    subscriber: str


@dataclass(frozen=True, slots=True)
class LogOut:
    subscriber: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    subscriber: str
    channel: str
    parameters: tuple[str | float, ...]


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    subscriber: str
    channel: str
    parameters: tuple[str | float, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """The subscriber is now there: metres east and north of the map's south-western corner."""

    subscriber: str
    east_m: float
    north_m: float


@dataclass(frozen=True, slots=True)
class Publish:
    """A record for a feed; places in it are in metres, as in `Move`."""

    feed: str
    record: Mapping[str, Any]


Act = LogIn | LogOut | Subscribe | Unsubscribe | Move | Publish
ACTS: Final[dict[str, type[Any]]] = {
    "log_in": LogIn,
    "log_out": LogOut,
    "subscribe": Subscribe,
    "unsubscribe": Unsubscribe,
    "move": Move,
    "publish": Publish,
}
assert set(ACTS.values()) == set(get_args(Act))
_NAMES: Final = {kind: name for name, kind in ACTS.items()}


@dataclass(frozen=True, slots=True)
class Step:
    at_s: float
    act: Act


@dataclass(frozen=True, slots=True)
class Scenario:
    """Steps in order of time; `about` says from which seed and settings they were made."""

    about: Mapping[str, Any]
    steps: tuple[Step, ...]

    def span_s(self) -> float:
        return self.steps[-1].at_s if self.steps else 0.0


def scenario(about: Mapping[str, Any], steps: Iterable[Step]) -> Scenario:
    """Put the steps in order; at the same moment they stay in the order in which they come."""
    return Scenario(about, tuple(sorted(steps, key=lambda step: step.at_s)))


def save(made: Scenario, path: Path) -> None:
    """Whole or not at all. The same scenario gives the same bytes."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    with new.open("w", encoding="utf-8") as file:
        for line in _lines(made):
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    new.replace(path)


def load(path: Path) -> Scenario:
    """What `save` saved, or somebody wrote by hand. `InputError` names the line that is wrong."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    steps: list[Step] = []
    about: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            if number == 1:
                about = _header(value)
            else:
                steps.append(_step(value))
                if len(steps) > 1 and steps[-1].at_s < steps[-2].at_s:
                    raise ValueError("steps stand in order of time")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path}, line {number}: {error}") from None
    if not lines:
        raise InputError(f"{path}: not a scenario: empty")
    return Scenario(about, tuple(steps))


def _lines(made: Scenario) -> Iterator[dict[str, Any]]:
    yield {"scenario": _FORMAT, **made.about}
    for step in made.steps:
        yield {"at_s": step.at_s, "do": _NAMES[type(step.act)], **asdict(step.act)}


def _header(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or value.pop("scenario", None) != _FORMAT:
        raise ValueError('a scenario begins with {"scenario": 1, ...}')
    return value


def _step(value: Any) -> Step:
    at_s, name = float(value.pop("at_s")), value.pop("do")
    kind = ACTS.get(name)
    if kind is None:
        raise ValueError(f"do: must be one of {', '.join(ACTS)}, got {name!r}")
    wanted = {each.name for each in fields(kind)}
    if set(value) != wanted:
        raise ValueError(f"{name} needs {', '.join(sorted(wanted))}, got {', '.join(sorted(value)) or 'nothing'}")
    if "parameters" in value:
        value["parameters"] = tuple(value["parameters"])
    return Step(at_s, kind(**value))
