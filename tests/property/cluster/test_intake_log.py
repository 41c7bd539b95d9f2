"""The intake log against a plain list: any sequence of appends, repeats, reads, landings, time and restarts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.waiting import WITHIN_S
from tocsin.cluster.intake.frames import FRAME_HEAD_BYTES
from tocsin.cluster.intake.log import AppendedRange, IntakeLog, LogEntry
from tocsin.wire.errors import LimitError

REMEMBER_S = 100.0
LIMIT_BYTES = 3_000
KEYS = st.none() | st.sampled_from(["", "a", "b", "c"])
PAYLOADS = st.binary(max_size=20) | st.sampled_from([bytes(700)])
ASKED = st.tuples(PAYLOADS, st.integers(1, 4), KEYS, st.binary(max_size=3))


def size_of(entry: LogEntry) -> int:
    return FRAME_HEAD_BYTES + len((entry.key or "").encode()) + len(entry.answer) + len(entry.payload)


class LogAndList(RuleBasedStateMachine):
    """Every entry ever kept is in the list; what may be read begins where the log says, never above what has landed."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.now_s = 0.0
        self.entries: list[LogEntry] = []
        self.start = 0
        self.landed = 0
        self.log: IntakeLog

    @initialize(
        start=st.sampled_from([0, 0, 41]),
        segment_bytes=st.sampled_from([1, 200, 1_000, 1 << 20]),
        recent_bytes=st.sampled_from([0, 1_500, 1 << 20]),
    )
    def begin(self, start: int, segment_bytes: int, recent_bytes: int) -> None:
        self.options: dict[str, Any] = {"segment_bytes": segment_bytes, "recent_bytes": recent_bytes}
        self.start = self.landed = start
        self.open(start)

    def open(self, landed: int | None) -> None:
        self.log = IntakeLog.open(
            self.folder / "log",
            limit_bytes=LIMIT_BYTES,
            remember_s=REMEMBER_S,
            clock=lambda: self.now_s,
            landed=landed,
            **self.options,
        )

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.runner.run(self.log.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    @property
    def end(self) -> int:
        return self.entries[-1].end if self.entries else self.start

    def remembered(self, key: str | None) -> LogEntry | None:
        same = [each for each in self.entries if key is not None and each.key == key]
        return same[-1] if same and self.now_s - same[-1].at_s <= REMEMBER_S else None

    def unlanded_bytes(self) -> int:
        return sum(size_of(entry) for entry in self.entries if entry.end > self.landed)

    # ------------------------------------------------------------ steps

    @rule(asked=st.lists(ASKED, min_size=1, max_size=5))
    def append(self, asked: list[tuple[bytes, int, str | None, bytes]]) -> None:
        """All at once: the outcome is as if they had come one after the other."""

        async def at_once() -> list[Any]:
            appends = (self.log.append(payload, rows, key=key, answer=answer) for payload, rows, key, answer in asked)
            return await asyncio.gather(*appends, return_exceptions=True)

        for (payload, rows, key, answer), outcome in zip(asked, self.runner.run(at_once()), strict=True):
            entry = LogEntry(self.end, rows, payload, key, answer, self.now_s)
            if (known := self.remembered(key)) is not None:
                assert outcome == AppendedRange(known.end, known.answer, repeated=True)
            elif self.unlanded_bytes() + size_of(entry) > LIMIT_BYTES:
                assert isinstance(outcome, LimitError)
            else:
                assert outcome == AppendedRange(entry.end, answer, repeated=False)
                self.entries.append(entry)

    @rule(part=st.floats(0, 1), max_rows=st.integers(0, 10), max_bytes=st.sampled_from([0, 30, 1 << 20]))
    def read(self, part: float, max_rows: int, max_bytes: int) -> None:
        after = self.log.first + round(part * (self.end - self.log.first))
        found = self.log.read(after, max_rows=max_rows, max_bytes=max_bytes)
        there = [entry for entry in self.entries if entry.end > after]
        assert found == there[: len(found)]
        fitting = 0
        while fitting < len(there) and (
            fitting == 0
            or (
                sum(entry.rows for entry in there[: fitting + 1]) <= max_rows
                and sum(len(entry.payload) for entry in there[: fitting + 1]) <= max_bytes
            )
        ):
            fitting += 1
        assert len(found) == fitting

    @rule(part=st.floats(0, 1) | st.just(1.0))
    def land(self, part: float) -> None:
        self.landed += round(part * (self.end - self.landed))
        self.log.record_landed(self.landed)

    @rule(seconds=st.sampled_from([0.5, 30.0, REMEMBER_S, 1_000.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(told=st.booleans())
    def reopen(self, told: bool) -> None:
        self.runner.run(self.log.close())
        self.open(self.landed if told else None)
        if not told:
            self.log.record_landed(self.landed)

    @precondition(lambda self: self.entries)
    @rule()
    def wait(self) -> None:
        async def woken() -> None:
            waiting = asyncio.ensure_future(self.log.wait(self.end - 1))
            await asyncio.wait_for(waiting, WITHIN_S)

        self.runner.run(woken())

    # ------------------------------------------------------------ what always holds

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.end == self.end
        assert self.log.unlanded_bytes == self.unlanded_bytes()
        # Nothing goes before it has landed and its key is forgotten.
        needed = [entry.first for entry in self.entries if self.remembered(entry.key) == entry]
        assert self.start <= self.log.first <= min([self.landed, *needed])
        every = self.log.read(self.log.first, max_rows=1 << 40, max_bytes=1 << 40)
        assert every == [entry for entry in self.entries if entry.first >= self.log.first]


LogAndList.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_the_log_is_a_list_that_forgets_only_what_nobody_needs = LogAndList.TestCase
