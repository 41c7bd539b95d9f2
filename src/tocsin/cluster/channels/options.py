"""Reads the options of CREATE CHANNEL … WITH {…}."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tocsin.cluster.statements.options import read_options, seconds, whole_number
from tocsin.language.syntax import statements as st


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """How long a channel keeps results, and how many bytes of them; None means the cluster's default."""

    retention_s: float | None = None
    retention_bytes: int | None = None


def channel_options(statement: st.CreateChannel, now: datetime) -> ChannelOptions:
    """Raises TranslationError, which names the invalid option."""
    options = read_options(statement, now, {"retention": seconds, "retention-bytes": whole_number("bytes", 1)})
    return ChannelOptions(options.get("retention"), options.get("retention-bytes"))
