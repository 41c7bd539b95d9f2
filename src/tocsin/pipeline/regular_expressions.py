"""Our own regular expression functions for Spark: they limit their steps and stop when their task is killed.

Java's matcher does neither, and some expressions would keep it busy practically forever. Spark's own functions are
therefore never run: the language calls these (`language/functions/bounds/regular_expressions.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tocsin.language.functions.bounds.regular_expressions import (
    EXTRACT,
    EXTRACT_ALL,
    LIKE,
    POSITION,
    REPLACE,
    SPLIT,
)

STEPS: Final = 50_000_000
"""How many characters a match of one value may examine, which takes a second at most."""
PROBLEM: Final = "tocsin regex: "
"""The beginning of these functions' error messages, which have two lines."""
FUNCTIONS: Final = {
    LIKE: ("RegexLike", "BOOLEAN"),
    EXTRACT: ("RegexExtract", "STRING"),
    EXTRACT_ALL: ("RegexExtractAll", "ARRAY<STRING>"),
    POSITION: ("RegexPosition", "INT"),
    REPLACE: ("RegexReplace", "STRING"),
    SPLIT: ("RegexSplit", "ARRAY<STRING>"),
}


def java_source() -> str:
    source = Path(__file__).with_suffix(".java").read_text(encoding="utf-8")
    return source.replace("@STEPS@", str(STEPS)).replace("@SHOWN@", f"{STEPS:,}")
