"""A process that has nothing to do with anybody and burns so much of a core: what harm does any neighbour do?

Told how much in lines of JSON, `{"share": 0.4}`, and answers when it has begun; 0 rests.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Final

from benchmarks.child import Child

_STEP_S: Final = 0.02


class Busy(Child):
    """The process, for who starts it."""

    def __init__(self) -> None:
        super().__init__("benchmarks.busy")

    def burn(self, share: float) -> None:
        self.ask(share=share)


class _Burner(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.share = 0.0

    def run(self) -> None:
        owed_s, used_s, at_s = 0.0, time.process_time(), time.monotonic()
        while True:
            time.sleep(_STEP_S)
            now_s = time.monotonic()
            # What a busy machine did not let it burn is not made up for later than in the next second.
            owed_s, at_s = min(1.0, owed_s + self.share * (now_s - at_s)), now_s
            while time.process_time() - used_s < owed_s:
                pass
            owed_s, used_s = owed_s - (time.process_time() - used_s), time.process_time()


if __name__ == "__main__":
    burner = _Burner()
    burner.start()
    for line in sys.stdin:
        burner.share = float(json.loads(line)["share"])
        print("{}", flush=True)
