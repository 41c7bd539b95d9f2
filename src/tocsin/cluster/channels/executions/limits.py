"""The limits of a channel's executions: deadlines, numbers of tries, and bounds on what a search may cost.

`ExecutionLimits.of` takes what the settings decide; the rest has defaults, which a test may replace.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.pipeline.channels.interests import InterestLimits
from tocsin.settings import ChannelSettings


@dataclass(frozen=True, slots=True)
class PartLimits:
    """Limits of an execution that runs in parts (`execution_parts`)."""

    pieces: int = 4  # the next part is this many times smaller than a failed one whose results were not foreseen
    # A part that exceeds its deadline has cost all of it. Smaller pieces mean fewer such failures, at the price of more
    # parts that pass.
    pieces_after_deadline: int = 32
    tries_alone: int = 2  # failures while nothing else runs, before a part is set aside
    # After one interest has exceeded its deadline on this many single records, its other records get a short deadline.
    overruns: int = 3
    shortest_s: float = 1.0  # lower bound of the short deadline
    slower: int = 4  # the short deadline is this multiple of the slowest part that passed
    # After this much time in failed tries with the short deadline, the interest's remaining records are set aside.
    short_tries_s: float = 120.0
    passes_before_growth: int = 8  # parts that must pass before a larger number of interests is tried again
    # After this many interests have failed by themselves while only interests without results passed, each part gets
    # fewer records.
    heavy_interests: int = 3
    lost_records: int = 2  # after this many records that crash the engine, an interest's remaining ones are set aside
    lethal_interests: int = 3  # a record that crashes the engine with this many interests is lethal
    lethal_interests_to_workers: int = 16  # the same for a record that crashes Python workers, which costs far less
    # An execution that has lost this many engines as a whole runs in parts. One loss may have another cause.
    losses: int = 2
    longest_pause: int = 1_024  # executions until larger parts are tried again
    progress_s: float = 10.0  # the progress of an execution in parts is logged at most this often


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of a search for poison records (`poison_search`). They keep it short, because no results are delivered
    before its end."""

    pieces: int = 4  # into how many pieces a failing range is cut
    # This many single records or interests, spread evenly, are tried first. If there are more records than this and
    # every sampled record fails, the query itself is at fault.
    sample: int = 8
    # Sample size when no interest is known to have worked before: only if all of these fail does the query count as
    # failing with every interest.
    wide_sample: int = 32
    representatives: int = 3  # records among which the search looks for a harmless one
    rounds: int = 4  # rounds of the record search: removing some poison records can reveal others
    # Up to this many failing interests, the search finds the failing records of each. Above it, a few bad records may
    # be the cause instead.
    few_interests: int = 16
    # Up to `few_records` poison records, the search finds the interests that fail on each: at most
    # `interests_per_record`, and `runs` runs for all records.
    few_records: int = 4
    interests_per_record: int = 64
    runs: int = 160
    interests: int = 512  # one search sets aside at most this many interests; the retry finds the others


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    deadline_s: float = ChannelSettings().execution_deadline_s  # of one query
    matches: int = ChannelSettings().matches_limit  # results per interest in one execution
    late_ticks: int = ChannelSettings().late_ticks  # missed ticks that are executed one by one; older ticks coalesce
    first_retry_s: float = 0.1  # the back-off after a failure, which grows up to `last_retry_s`
    last_retry_s: float = 60.0
    tries_per_tick: int = 3  # minimum tries of a failing tick before the next due tick replaces it
    log_again_s: float = 55.0  # a lasting problem is logged about once a minute
    named_poison_records: int = 100  # how many the details of an execution list
    interests: InterestLimits = field(default_factory=InterestLimits)
    parts: PartLimits = field(default_factory=PartLimits)
    search: SearchLimits = field(default_factory=SearchLimits)

    @staticmethod
    def of(settings: ChannelSettings) -> ExecutionLimits:
        return ExecutionLimits(settings.execution_deadline_s, settings.matches_limit, settings.late_ticks)
