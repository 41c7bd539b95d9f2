"""Reads, writes and plays a scenario. Its file has a header, then one step per line of JSON, in order of time.

It is a text with one step per line, so that people can read, cut and write it by hand. Live and simulated figures are
comparable only if both come from the same steps. So `play` knows neither system: the target performs an act, and the
clock decides what waiting means.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Protocol, get_args

from tocsin.lab.atomic_files import AtomicFile
from tocsin.lab.engine.engine import SimulationEngine
from tocsin.wire.errors import InputError

_FORMAT: Final = 1
_HINT: Final = "docs/lab.md shows a scenario line by line; tocsin lab scenario writes one"


@dataclass(frozen=True, slots=True)
class LogInStep:
    subscriber: str


@dataclass(frozen=True, slots=True)
class LogOutStep:
    subscriber: str


@dataclass(frozen=True, slots=True)
class SubscribeStep:
    subscriber: str
    channel: str
    parameters: tuple[str | float, ...]


@dataclass(frozen=True, slots=True)
class UnsubscribeStep:
    subscriber: str
    channel: str
    parameters: tuple[str | float, ...]


@dataclass(frozen=True, slots=True)
class MoveStep:
    """The subscriber is now there: metres east and north of the map's south-western corner."""

    subscriber: str
    east_m: float
    north_m: float


@dataclass(frozen=True, slots=True)
class PublishStep:
    """A record for a feed; places in it are in metres, as in `MoveStep`."""

    feed: str
    record: Mapping[str, Any]


Act = LogInStep | LogOutStep | SubscribeStep | UnsubscribeStep | MoveStep | PublishStep
_ACTS: Final[dict[str, type[Any]]] = {
    "log_in": LogInStep,
    "log_out": LogOutStep,
    "subscribe": SubscribeStep,
    "unsubscribe": UnsubscribeStep,
    "move": MoveStep,
    "publish": PublishStep,
}
assert set(_ACTS.values()) == set(get_args(Act))
_NAMES: Final = {kind: name for name, kind in _ACTS.items()}


@dataclass(frozen=True, slots=True)
class Step:
    at_s: float
    act: Act


@dataclass(frozen=True, slots=True)
class Scenario:
    """Steps in order of time; `about` has the seed and the settings that they were made from."""

    about: Mapping[str, Any]
    steps: tuple[Step, ...]

    def span_s(self) -> float:
        return self.steps[-1].at_s if self.steps else 0.0


def scenario(about: Mapping[str, Any], steps: Iterable[Step]) -> Scenario:
    """Sorts the steps by time; steps of the same moment keep their order."""
    return Scenario(about, tuple(sorted(steps, key=lambda step: step.at_s)))


def save(scenario: Scenario, path: Path) -> None:
    """Saves the scenario atomically. The same scenario gives the same bytes."""
    with AtomicFile(path) as new, new.open("w", encoding="utf-8") as file:
        for line in _lines(scenario):
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def load(path: Path) -> Scenario:
    """Loads a scenario from a file of `save` or of a person. `InputError` names the line that is wrong."""
    steps: list[Step] = []
    about: dict[str, Any] = {}
    number = 0
    try:
        text = path.read_text("utf-8").rstrip()  # an editor may have left empty lines at the end
        for number, line in enumerate(text.split("\n") if text else [], 1):
            value = json.loads(line)
            if number == 1:
                about = _header(value)
                continue
            steps.append(_step(value))
            if len(steps) > 1 and steps[-1].at_s < steps[-2].at_s:
                raise ValueError("steps stand in order of time")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a scenario: no text in UTF-8", hint=_HINT) from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {number}: not JSON: {error.msg} at column {error.colno}", hint=_HINT) from None
    except ValueError as error:
        raise InputError(f"{path}, line {number}: {error}", hint=_HINT) from None
    if not number:
        raise InputError(f"{path}: not a scenario: empty", hint=_HINT)
    return Scenario(about, tuple(steps))


def load_or_make_scenario(folder: Path | None, name: str, make: Callable[[], Scenario]) -> Scenario:
    """Returns the scenario from the folder if an earlier run saved it whole; otherwise makes and saves it."""
    if folder is None:
        return make()
    path = folder / f"{name}.jsonl"
    try:
        saved = load(path)
        # A truncated file can still be a valid scenario, but not this one.
        if saved.about.get("steps") == len(saved.steps):
            return saved
    except InputError:
        pass
    new_scenario = make()
    save(replace(new_scenario, about={**new_scenario.about, "steps": len(new_scenario.steps)}), path)
    return new_scenario


def _lines(scenario: Scenario) -> Iterator[dict[str, Any]]:
    yield {"scenario": _FORMAT, **scenario.about}
    for step in scenario.steps:
        yield {"at_s": step.at_s, "do": _NAMES[type(step.act)], **asdict(step.act)}


def _header(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or value.pop("scenario", None) != _FORMAT:
        raise ValueError('a scenario begins with {"scenario": 1, ...}')
    return value


def _step(value: Any) -> Step:
    if not isinstance(value, dict):
        raise ValueError("a step is an object")
    for name in ("at_s", "do"):
        if name not in value:
            raise ValueError(f"a step needs {name}")
    at_s, name = value.pop("at_s"), value.pop("do")
    if not _number(at_s) or at_s < 0:
        raise ValueError(f"at_s: must be a number of seconds from 0 on, got {at_s!r}")
    kind = _ACTS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"do: must be one of {', '.join(_ACTS)}, got {name!r}")
    field_names = {declared.name for declared in fields(kind)}
    if set(value) != field_names:
        raise ValueError(f"{name} needs {', '.join(sorted(field_names))}, got {', '.join(sorted(value)) or 'nothing'}")
    for field, field_value in value.items():
        fits, word = _FITS.get(field, _TEXT)
        if not fits(field_value):
            raise ValueError(f"{field}: must be {word}, got {field_value!r}")
    if "parameters" in value:
        value["parameters"] = tuple(value["parameters"])
    return Step(float(at_s), kind(**value))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _parameters(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(parameter, str) or _number(parameter) for parameter in value)


_Fits = tuple[Callable[[object], bool], str]
_TEXT: Final[_Fits] = (_text, "a text")
_FITS: Final[dict[str, _Fits]] = {
    "east_m": (_number, "a number"),
    "north_m": (_number, "a number"),
    "parameters": (_parameters, "a list of texts and numbers"),
    "record": (lambda value: isinstance(value, dict), "an object"),
}


class _ScenarioTarget(Protocol):
    """The system that a scenario is played to."""

    async def perform(self, act: Act, at_s: float) -> None:
        """Performs an act. A step begins when the previous step has been performed."""
        ...


class _Clock(Protocol):
    """The clock of the steps."""

    async def until(self, at_s: float) -> float:
        """Waits until this moment of the scenario, and returns by how much it was missed."""
        ...


class VirtualClock:
    """The engine's clock: it runs everything that is due before a step."""

    def __init__(self, engine: SimulationEngine) -> None:
        self._engine = engine

    async def until(self, at_s: float) -> float:
        self._engine.run(at_s)
        return 0.0


class WallClock:
    """Real time, accelerated by `speed`. Time and sleep are arguments, so that tests need neither."""

    def __init__(
        self, now_s: Callable[[], float], sleep: Callable[[float], Awaitable[object]], *, speed: float = 1.0
    ) -> None:
        if not speed > 0:
            raise ValueError(f"speed: must be > 0, got {speed}")
        self._now_s, self._sleep, self._speed = now_s, sleep, speed
        self._began_s: float | None = None

    async def until(self, at_s: float) -> float:
        if self._began_s is None:
            self._began_s = self._now_s()
        while (left_s := self._began_s + at_s / self._speed - self._now_s()) > 0:
            await self._sleep(left_s)
        return -left_s * self._speed


async def play(scenario: Scenario, target: _ScenarioTarget, clock: _Clock) -> float:
    """Plays all steps. Returns the largest delay of a step, in seconds of the scenario."""
    late_s = 0.0
    for step in scenario.steps:
        late_s = max(late_s, await clock.until(step.at_s))
        await target.perform(step.act, step.at_s)
    return late_s
