"""Tests wait for as long as one setting says: machines differ in speed."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
# A time-out of a second or more that is written as a number. Shorter ones are what a test wants to be over soon.
_BEFORE = r"(?:\btimeout\(|(?<![?&\w])timeout=|\bwithin_s=|wait_for\([^()]*(?:\([^()]*\))?, )"
_LITERAL = re.compile(_BEFORE + r"[1-9][\d.]*(?=[,)\s])")


def test_no_test_has_a_time_out_of_its_own() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {line.strip()}"
        for path in TESTS.rglob("*.py")
        for line in path.read_text().splitlines()
        if _LITERAL.search(line)
    ]
    assert found == []
