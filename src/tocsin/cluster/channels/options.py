"""What WITH {…} says of a channel."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tocsin.cluster.statements.options import read_options, seconds, whole_number
from tocsin.language.syntax import statements as st


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """How long results are kept, and how many bytes of them; None: the cluster's default."""

    retention_s: float | None = None
    retention_bytes: int | None = None


def channel_options(statement: st.CreateChannel, now: datetime) -> ChannelOptions:
    """Raises TranslationError naming the option that cannot be."""
    found = read_options(statement, now, {"retention": seconds, "retention-bytes": whole_number("bytes", 1)})
    return ChannelOptions(found.get("retention"), found.get("retention-bytes"))
