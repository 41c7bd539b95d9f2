"""Tells which of Spark's settings are secrets: they never appear on a command line, where every user can read them.

Spark itself hides the same settings in its UI and its logs (`spark.redaction.regex`), and sends them to executors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# Spark's own words and some more, for settings that only libraries know.
REDACTED: Final = r"(?i)secret|password|passphrase|token|credential|private|access[._]?key|account[._]?key"
_SECRET: Final = re.compile(REDACTED)


def is_secret_setting(key: str) -> bool:
    return _SECRET.search(key) is not None


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in settings.items() if not is_secret_setting(key)}
