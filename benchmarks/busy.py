"""Burns CPU in a process of its own, as a neighbour that serves no client: the baseline for attacks.

A line of JSON says how much of a core to burn in each step of STEP_S, `{"steps": [0.4, 0.0, 1.0]}`. The process answers
when it has begun, and is idle after the last step.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.child import Child

STEP_S: Final = 0.25
_PAUSE_S: Final = 0.02
_LATE_S: Final = 1.0
"""What a busy machine did not let it burn is made up for within this time, or not at all."""


class Busy(Child):
    """The process, for who starts it."""

    def __init__(self) -> None:
        super().__init__("benchmarks.busy")

    def burn(self, steps: Sequence[float]) -> None:
        self.ask(steps=list(steps))


class _Burner(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._steps: Sequence[float] = ()
        self._begun_s = 0.0

    def begin(self, steps: Sequence[float]) -> None:
        self._steps, self._begun_s = steps, time.monotonic()

    def run(self) -> None:
        owed_s, used_s, at_s = 0.0, time.process_time(), time.monotonic()
        while True:
            time.sleep(_PAUSE_S)
            now_s = time.monotonic()
            owed_s, at_s = min(_LATE_S, owed_s + self._share(now_s) * (now_s - at_s)), now_s
            while time.process_time() - used_s < owed_s:
                pass
            owed_s, used_s = owed_s - (time.process_time() - used_s), time.process_time()

    def _share(self, now_s: float) -> float:
        steps, step = self._steps, int((now_s - self._begun_s) / STEP_S)
        return steps[step] if step < len(steps) else 0.0


if __name__ == "__main__":
    burner = _Burner()
    burner.start()
    for line in sys.stdin:
        burner.begin(json.loads(line)["steps"])
        print("{}", flush=True)
