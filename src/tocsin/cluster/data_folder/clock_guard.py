"""Detects a wrong wall clock. While the clock is suspect, nothing is deleted by age.

A clock that is set wrong (a bad battery, a resumed machine) would make everything look old at once. So the guard
compares the wall clock with the clock since boot, sleep included, which nobody can set, and with the newest time on
record. The suspicion lasts until the clock is right again, or until an operator accepts it.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Final

import structlog

from tocsin.clock import STEP_US, now_us, since_boot_us
from tocsin.cluster.data_folder.lost_folder import LostFolder
from tocsin.durable_files import sync_file, sync_folder

_log = structlog.get_logger()

RECORD: Final = "clock.json"
_RECORD_EVERY_US: Final = 60 * 1_000_000
_LOOK_EVERY_S: Final = 5.0
# The longest time that a killed process may have run after its last record.
_UNRECORDED_US: Final = 2 * _RECORD_EVERY_US


class ClockSuspicion(Enum):
    STEPPED = "it was set by more than an hour while the cluster ran"
    BEFORE = "it is before the newest time on record"
    UNSETTLED = "it was suspect before the machine last booted, and is not right since"


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """The state of the guard in its file, so that the next process continues with it.

    `base_us` (wall clock) and `boot_us` (clock since boot) are the same moment, the last at which the guard believed
    the wall clock. They are comparable until the machine boots again, which changes `boot_id`. `suspicion` is the name
    of the guard's suspicion: the next process begins with it, wherever the clock was set to meanwhile.
    """

    newest_us: int
    base_us: int
    boot_us: int
    boot_id: str
    suspicion: str | None = None


@dataclass(frozen=True, slots=True)
class Clocks:
    """The wall clock, and the clock since boot, which nobody can set; `boot_id` names the boot."""

    wall_us: Callable[[], int]
    boot_us: Callable[[], int]
    boot_id: str


def machine_clocks() -> Clocks:
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot_id = ""
    return Clocks(now_us, since_boot_us, boot_id)


class ClockGuard:
    """Thread-safe. The record is a file in the data folder. `committed_us` is the time of the newest commit: a process
    that was killed may not have recorded it. `ran_until_us` is the latest time that the processes before this one have
    recorded, 0 without a record."""

    def __init__(self, folder: Path, clocks: Clocks, committed_us: int = 0) -> None:
        self._path = folder / RECORD
        self._clocks = clocks
        self._lock = threading.Lock()
        self._suspicion: ClockSuspicion | None = None
        self._stopped_us = 0
        self._written_us = 0
        known = _read(self._path, clocks.wall_us())
        self.ran_until_us: Final = 0 if known is None else max(known.newest_us, known.base_us)
        self._start(known, committed_us)

    # ------------------------------------------------------------ reading the clock

    def age_us(self) -> int:
        """The time that ages are measured by. It stands still while the clock is suspect, so that nothing grows old."""
        with self._lock:
            wall_us = self._look()
            return wall_us if self._suspicion is None else self._stopped_us

    def now_us(self) -> int:
        """The time of events that happen now. While the clock is suspect it continues from the last believed time."""
        with self._lock:
            wall_us = self._look()
            return wall_us if self._suspicion is None else self._expected_us()

    def suspicion(self) -> ClockSuspicion | None:
        with self._lock:
            self._look()
            return self._suspicion

    def accept(self) -> int:
        """Accepts the wall clock on an operator's word, and clears the suspicion."""
        with self._lock:
            wall_us = self._clocks.wall_us()
            self._record = ClockRecord(wall_us, wall_us, self._clocks.boot_us(), self._clocks.boot_id)
            if self._suspicion is not None:
                _log.warning("the wall clock was accepted; what is too old is deleted again")
            self._suspicion = None
            self._write()
            return wall_us

    async def watch(self) -> None:
        """Detects steps, and updates the record, even if nobody reads the clock."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await asyncio.to_thread(self.record)

    def record(self) -> None:
        """Records the newest time, unless that happened recently."""
        with self._lock:
            self._look()
            self._move_base()
            if self._record_us() - self._written_us >= _RECORD_EVERY_US:
                self._write()

    def close(self) -> None:
        with self._lock:
            self._look()
            self._move_base()
            self._write()

    # ------------------------------------------------------------ deciding; the caller holds the lock

    def _start(self, known: ClockRecord | None, committed_us: int) -> None:
        wall_us, boot_us, boot_id = self._clocks.wall_us(), self._clocks.boot_us(), self._clocks.boot_id
        # Without a record, the newest commit is all that is known of the time.
        self._record = record = known or ClockRecord(max(wall_us, committed_us), wall_us, boot_us, boot_id)
        # Ignore later commit times: they come from a clock that was ahead and that an operator has since accepted.
        if self._record_us() < committed_us <= self._record_us() + _UNRECORDED_US:
            self._record = record = replace(record, newest_us=committed_us)
        suspicion = None if record.suspicion is None else ClockSuspicion[record.suspicion]
        if suspicion is None or record.boot_id != boot_id:
            # Nobody knows how long the machine was off, so a clock that was suspect is not believed far ahead.
            suspicion = None if suspicion is None else ClockSuspicion.UNSETTLED
            if wall_us < record.newest_us:
                suspicion = ClockSuspicion.BEFORE
            # Time that passed while no process ran is not a step.
            base_us = wall_us if suspicion is None else self._record_us()
            self._record = replace(record, base_us=base_us, boot_us=boot_us, boot_id=boot_id)
        if suspicion is not None and not self._is_right(suspicion, wall_us, self._expected_us()):
            self._suspect(suspicion, min(wall_us, record.newest_us))
        elif suspicion is not None:
            self._believe(wall_us)
        self._look()
        self._write()

    def _expected_us(self) -> int:
        return self._record.base_us + self._clocks.boot_us() - self._record.boot_us

    def _record_us(self) -> int:
        """The latest time on record, including the time that replaces a suspect clock."""
        return max(self._record.newest_us, self._record.base_us)

    def _move_base(self) -> None:
        """Records how far time went on without the wall clock, so that it continues from there after a boot."""
        if self._suspicion is not None:
            self._record = replace(self._record, base_us=self._expected_us(), boot_us=self._clocks.boot_us())

    def _look(self) -> int:
        """Updates the suspicion, and returns the wall clock."""
        wall_us, expected_us = self._clocks.wall_us(), self._expected_us()
        if self._suspicion is None:
            if abs(wall_us - expected_us) > STEP_US:
                self._suspect(ClockSuspicion.STEPPED, min(wall_us, expected_us))
                self._write()
            else:
                self._believe(wall_us)
        elif self._is_right(self._suspicion, wall_us, expected_us):
            _log.warning("the wall clock is right again; what is too old is deleted again")
            self._suspicion = None
            self._believe(wall_us)
            self._write()
        return wall_us

    def _is_right(self, suspicion: ClockSuspicion, wall_us: int, expected_us: int) -> bool:
        """Whether a suspect clock agrees with the last believed time and the time since."""
        if suspicion is ClockSuspicion.STEPPED:
            return abs(wall_us - expected_us) <= STEP_US
        # The expected time began at the newest one, which a clock behind it has yet to reach.
        return self._record.newest_us <= wall_us <= expected_us + STEP_US

    def _believe(self, wall_us: int) -> None:
        newest_us = max(wall_us, self._record.newest_us)
        self._record = ClockRecord(newest_us, wall_us, self._clocks.boot_us(), self._clocks.boot_id)

    def _suspect(self, suspicion: ClockSuspicion, stopped_us: int) -> None:
        self._suspicion, self._stopped_us = suspicion, stopped_us
        self._record = replace(self._record, suspicion=suspicion.name)
        folder = self._path.parent.absolute()
        _log.error(
            "the wall clock is not believed: nothing is deleted by age",
            why=suspicion.value,
            hint=f"set the clock right; or, if it is right, run: tocsin clock accept --data {shlex.quote(str(folder))}",
        )  # fmt: skip

    def _write(self) -> None:
        draft = self._path.with_suffix(".tmp")
        try:
            draft.write_text(json.dumps(asdict(self._record)), encoding="utf-8")
            sync_file(draft)
            draft.replace(self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            _log.warning("the newest time could not be put on record", reason=str(error))
        self._written_us = self._record_us()


def parse_record(content: bytes) -> ClockRecord:
    """Parses the record. Raises ValueError if it is damaged."""
    fields = json.loads(content)
    # Older records had the time that a suspect clock was set ahead to.
    if isinstance(fields, dict) and fields.pop("stepped_to_us", None) is not None:
        fields["suspicion"] = ClockSuspicion.STEPPED.name
    try:
        record = ClockRecord(**fields)
    except TypeError as error:
        raise ValueError(str(error)) from None
    times = (record.newest_us, record.base_us, record.boot_us)
    if not (all(type(time_us) is int for time_us in times) and isinstance(record.boot_id, str)):
        raise ValueError("its fields are no times")
    if record.suspicion not in (None, *ClockSuspicion.__members__):
        raise ValueError("its suspicion is unknown")
    return record


def _read(path: Path, wall_us: int) -> ClockRecord | None:
    """Reads the record; None if there is none. A damaged record goes to the lost folder, with a log line."""
    try:
        return parse_record(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        place = LostFolder(path.parent, lambda: datetime.fromtimestamp(wall_us / 1e6, UTC)).choose_place(path.name)
        path.rename(place)
        sync_folder(place.parent)
        sync_folder(path.parent)
        _log.error("the record of the clock is damaged and was set aside", path=str(place), reason=str(error))
        return None
