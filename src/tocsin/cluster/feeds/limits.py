"""The limits of feeds: sizes of batches, pauses, patience and what sockets may take.

The composition root fills in what the settings decide. The rest has defaults, which a test may replace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.intake.log import IntakeLog
from tocsin.serving.addresses import is_loopback


@dataclass(frozen=True, slots=True)
class FeedLimits:
    # A batch is what lands in one commit.
    batch_rows: int = 20_000
    batch_bytes: int = 32 << 20
    # Each batch is one commit, whatever its size. When records trickle in, a worker pauses after a batch for this many
    # times as long as the batch took. Otherwise small commits would take the CPU that channels and queries need.
    rest: float = 2.0
    longest_rest_s: float = 0.2
    # A statement waits this long for records to land while landing fails. While landing makes progress, it waits up to
    # the deadline of the statement.
    patience_s: float = 5.0
    # The same for a publisher that waits for visibility: longer than the longest pause between two tries to land.
    visible_patience_s: float = 15.0
    # How long Spark may take for a batch that goes through a function.
    function_deadline_s: float = 300.0
    # This many failing records of a batch run once more, each alone, to learn the reason; the others do not.
    reasons: int = 20
    # Connections to the sockets of one feed: all of them, and those of one address that is not exempt.
    connections: int = 1_000
    address_connections: int = 250
    is_exempt: Callable[[str | None], bool] = is_loopback
    # Time for the rest of a record that has begun. Between records a connection may be silent.
    record_timeout_s: float = 30.0
    # The longest pause before a feed tries again to listen at a port that is in use.
    listen_retry_s: float = 30.0
    least_poll_period_s: float = 1.0
    # The host at which a feed listens whose address names a node.
    node_host: str = "127.0.0.1"
    poll_timeout_s: float = 60.0
    poll_body_bytes: int = 32 << 20
    # Polled items per write. An answer may hold very many, and the first items need not wait for the last.
    items_per_write: int = 1_000
    open_log: Callable[..., IntakeLog] = IntakeLog.open
    before_landing: Callable[[Ref], None] = lambda _dataset: None
    """Called with the dataset before a batch lands, on the thread that lands it."""


USUAL_LIMITS: Final = FeedLimits()
