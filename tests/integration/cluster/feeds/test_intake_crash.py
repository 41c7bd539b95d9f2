"""kill -9 of a process that appends, lands and trims: every acknowledged append is there once, in order per caller.

A child appends to a log from several callers at once and lands what it reads in a file, as a feed does in a dataset.
Callers with keys send again after a crash what was not acknowledged; those without do not. Between two lives the end of
the log is torn, as a power cut in a write would leave it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.real_processes import environment
from tests.support.waiting import WITHIN_S
from tocsin import faults
from tocsin.cluster.intake.frames import FRAME_HEAD_BYTES, SEGMENT_HEAD_BYTES
from tocsin.cluster.intake.log import IntakeLog

POINTS = [point for point in faults.POINTS if point.startswith("intake.")]
KEYED, UNKEYED = range(4), range(4, 6)
APPENDS = 40
# Room for some twenty keys: far more than can be unacknowledged at once, few enough that segments go.
OPTIONS: dict[str, Any] = {"segment_bytes": 1_000, "remember_bytes": 9_000, "recent_bytes": 2_000}
ALL = {"max_rows": 1 << 40, "max_bytes": 1 << 40}
LIFE_S = WITHIN_S


# ---------------------------------------------------------------- the child


@dataclass(frozen=True)
class Landed:
    """A dataset at its plainest: a line per entry, synced, and how far it goes."""

    lines: list[str]

    @staticmethod
    def of(path: Path) -> Landed:
        text = path.read_text() if path.exists() else ""
        return Landed(text[: text.rfind("\n") + 1].splitlines())

    @property
    def position(self) -> int:
        return int(self.lines[-1].split()[0]) if self.lines else 0


async def live(folder: Path, life: int, begun: list[int]) -> None:
    """One life: keyed callers go on behind what was acknowledged to them, the others begin anew."""
    dataset = folder / "dataset"
    landed = Landed.of(dataset)
    log = IntakeLog.open(folder / "log", landed=landed.position, **OPTIONS)

    async def call(caller: int) -> None:
        for number in range(begun[caller], begun[caller] + APPENDS if caller in UNKEYED else APPENDS):
            name = f"{caller}:{number}" if caller in KEYED else f"{caller}:{life}.{number}"
            kept = await log.append(name.encode(), 1 + number % 3, key=name if caller in KEYED else None)
            os.write(1, f"kept {caller} {number} {name} {kept.position}\n".encode())

    position = landed.position
    with dataset.open("a") as file:
        file.truncate(sum(len(line) + 1 for line in landed.lines))

        async def land() -> None:
            nonlocal position
            for entry in log.read(position, max_rows=8, max_bytes=1_000):
                file.write(f"{entry.end} {entry.payload.decode()}\n")
                position = entry.end
            file.flush()
            os.fsync(file.fileno())
            await asyncio.to_thread(log.record_landed, position)

        async def land_what_comes() -> None:
            while True:
                await log.wait(position)
                await land()

        landing = asyncio.create_task(land_what_comes())
        await asyncio.gather(*(call(caller) for caller in (*KEYED, *UNKEYED)))
        landing.cancel()
        await asyncio.wait([landing])
        while position < log.end:
            await land()
    await log.close()


# ---------------------------------------------------------------- its parent


@dataclass
class AppendsOverLives:
    """What was acknowledged over all lives."""

    folder: Path
    lives: int = 0
    acknowledged: dict[str, int] = field(default_factory=dict)
    begun: list[int] = field(default_factory=lambda: [0] * 6)

    @contextmanager
    def child(self, crash_at: str = "") -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
        self.lives += 1
        with subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(self.folder), str(self.lives), *map(str, self.begun)],
            env=environment(TOCSIN_CRASH_AT=crash_at),
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                yield process, process.stdout
                process.wait(LIFE_S)
            finally:
                process.kill()

    def heard(self, line: str) -> None:
        _, caller, number, name, position = line.split()
        assert self.acknowledged.setdefault(name, int(position)) == int(position)
        self.begun[int(caller)] = int(number) + 1

    def life(self, *, crash_at: str = "", kill_after: int | None = None) -> int:
        """Kills a process after this many acknowledgements, at any point of its work. Returns its exit code."""
        with self.child(crash_at) as (process, lines):
            # Between them is what the log says of a torn end.
            for heard, line in enumerate((line for line in lines if line.startswith("kept ")), 1):
                self.heard(line)
                if heard == kill_after:
                    process.kill()
        return process.returncode

    def tear(self, rng: random.Random) -> None:
        """What a write that a power cut ended may leave: part of a frame, or room without content."""
        path = max((self.folder / "log").glob("*.log"))
        frames = path.read_bytes()[SEGMENT_HEAD_BYTES:]
        part = frames[: rng.randrange(1, FRAME_HEAD_BYTES)]
        with path.open("ab") as file:
            file.write(part if part and rng.random() < 0.5 else bytes(rng.randrange(1, 200)))

    def check(self) -> IntakeLog:
        """Everything acknowledged is in the dataset or, behind that, in the log: once, and in order per caller."""
        landed = Landed.of(self.folder / "dataset")
        log = IntakeLog.open(self.folder / "log", landed=landed.position, **OPTIONS)
        ends = {name: int(end) for end, name in (line.split() for line in landed.lines)}
        names = [line.split()[1] for line in landed.lines]
        for entry in log.read(landed.position, **ALL):
            names.append(entry.payload.decode())
            ends[names[-1]] = entry.end
        assert {name: count for name, count in Counter(names).items() if count > 1} == {}
        assert {name: ends.get(name) for name in self.acknowledged} == self.acknowledged
        assert list(ends.values()) == sorted(ends.values())
        assert max(ends.values(), default=0) == log.end
        for caller in (*KEYED, *UNKEYED):
            mine = [name.partition(":")[2] for name in names if name.startswith(f"{caller}:")]
            assert mine == sorted(mine, key=lambda each: [int(part) for part in each.split(".")])
        return log


async def ends_well(story: AppendsOverLives) -> None:
    """The next life is a whole one, and nothing is missing after it."""
    assert story.life() == 0
    assert story.begun[: len(KEYED)] == [APPENDS] * len(KEYED)
    log = story.check()
    assert log.first > 0, "nothing was trimmed"
    end = log.end
    assert (await log.append(b"last", 1)).position == end + 1
    await log.close()


@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_any_place_nothing_acknowledged_is_lost_or_doubled(
    point: str, nth: int, tmp_path: Path
) -> None:
    story, rng = AppendsOverLives(tmp_path), random.Random(f"{point} {nth}")
    assert story.life(crash_at="intake.append.synced:3") == -signal.SIGKILL
    story.tear(rng)
    # A life cuts off a torn end once, when it begins.
    times = 1 if point == "intake.append.cut" else nth
    assert story.life(crash_at=f"{point}:{times}") == -signal.SIGKILL, f"{point} was not visited"
    if nth > 1:
        story.tear(rng)
    await story.check().close()
    await ends_well(story)


@pytest.mark.parametrize("seed", range(4))
async def test_killed_at_random_moments_nothing_acknowledged_is_lost_or_doubled(seed: int, tmp_path: Path) -> None:
    story, rng = AppendsOverLives(tmp_path), random.Random(seed)
    for _ in range(4):
        story.life(kill_after=rng.randrange(1, 60))
        story.tear(rng)
    await ends_well(story)


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1]), int(sys.argv[2]), [int(each) for each in sys.argv[3:]]))
