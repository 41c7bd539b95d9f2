"""Counts the parts of an execution while they run, and decides when to log the progress."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class PartProgress:
    """The parts of one execution. Their progress is due every `interval_s` while they run, so a short execution logs
    none."""

    interval_s: float
    parts: int = 0
    results: int = 0
    _is_running: bool = False
    _logged_s: float = -math.inf

    def begin(self, now_s: float) -> bool:
        """Returns whether the parts begin now. A search for poison records runs the query many times in parts within
        one execution, which begins once."""
        if self._is_running:
            return False
        self._is_running, self.parts, self.results, self._logged_s = True, 0, 0, now_s
        return True

    def count_part(self, results: int, now_s: float) -> bool:
        """Counts a part that passed or failed. Returns whether to log the progress."""
        self.parts += 1
        self.results += results
        if now_s < self._logged_s + self.interval_s:
            return False
        self._logged_s = now_s
        return True

    def end(self) -> None:
        self._is_running = False
