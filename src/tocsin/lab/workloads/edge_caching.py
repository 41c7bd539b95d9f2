"""The workload of the edge-caching paper's simulation (its Table II): who comes and goes, and what is produced."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.lab.engine.streams import Streams
from tocsin.lab.workloads.events import WorkloadEventKind, WorkloadEvents, in_order, kept
from tocsin.lab.workloads.laws import distinct_choices, on_off_moments, poisson_moments, popularity, renewals

LIFETIMES: Final = ("whole", "once", "renewed")


@dataclass(frozen=True, slots=True)
class EdgeWorkload:
    """Table II; sessions and subscriptions last lognormal times in minutes, their parameters those of the logarithm.

    The printed parameters give mean sessions of 15.9 minutes on and 20.7 off, although the paper's prose says 20 and
    30. Three things the paper leaves open are settings: the popularity of interests; what becomes of a subscription
    that expires (`lifetimes`: none does, `whole`; it is gone, `once`; the subscriber takes another interest,
    `renewed`); and over which time subscribers join.
    """

    subscribers: int = 10_000
    subscriptions_each: int = 10
    interests: int = 1_000
    span_s: float = 6 * 3600.0
    popularity: str = "uniform"
    zipf_exponent: float = 1.0
    lifetimes: str = "whole"
    lasts: tuple[float, float] = (1.0, 2.0)
    on: tuple[float, float] = (1.753, 1.425)
    off: tuple[float, float] = (2.415, 1.11)
    size_bytes: tuple[int, int] = (1_000, 500_000)
    period_s: tuple[float, float] = (10.0, 60.0)
    join_s: float = 300.0

    def __post_init__(self) -> None:
        if self.lifetimes not in LIFETIMES:
            raise ValueError(f"lifetimes: must be one of {', '.join(LIFETIMES)}, got {self.lifetimes}")
        if not 0 <= self.subscriptions_each <= self.interests:
            raise ValueError(f"subscriptions_each: must be from 0 to {self.interests}, got {self.subscriptions_each}")
        if not 0 < self.span_s < math.inf:
            raise ValueError(f"span_s: must be > 0, got {self.span_s}")

    def bytes_per_s(self) -> float:
        """What all interests together produce on average."""
        low, high = self.period_s
        per_interest_s = 1 / low if low == high else math.log(high / low) / (high - low)
        return self.interests * per_interest_s * sum(self.size_bytes) / 2

    def name(self, seed: int) -> str:
        """A file name that is the same for the same workload and seed only."""
        said = json.dumps([asdict(self), seed], sort_keys=True)
        return f"edge-{seed}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"


def edge_events(workload: EdgeWorkload, seed: int, folder: Path | None = None) -> WorkloadEvents:
    """The events of one run, from the folder if an earlier cell left them there."""
    return kept(folder, workload.name(seed), lambda: make_edge_events(workload, seed))


def make_edge_events(workload: EdgeWorkload, seed: int) -> WorkloadEvents:
    streams = Streams(seed).within("edge-caching")
    about: dict[str, Any] = {"workload": "edge-caching", "seed": seed, "settings": asdict(workload)}
    return in_order(
        [_produced(workload, streams), *_sessions(workload, streams), *_subscriptions(workload, streams)], about
    )


Part = tuple[WorkloadEventKind, dict[str, NDArray[Any]]]


def _produced(workload: EdgeWorkload, streams: Streams) -> Part:
    periods_s = streams.of("periods").uniform(*workload.period_s, workload.interests)
    at_s, interest = poisson_moments(streams.of("arrivals"), 1 / periods_s, workload.span_s)
    low, high = workload.size_bytes
    sizes = streams.of("sizes").integers(low, high, len(at_s), endpoint=True)
    return WorkloadEventKind.PRODUCED, {"at_s": at_s, "interest": interest, "size_bytes": sizes}


def _sessions(workload: EdgeWorkload, streams: Streams) -> list[Part]:
    on_s, off_s = ((mu + math.log(60), sigma) for mu, sigma in (workload.on, workload.off))
    at_s, who, on = on_off_moments(
        streams.of("sessions"), workload.subscribers, workload.span_s, on_s=on_s, off_s=off_s
    )
    return [
        (WorkloadEventKind.LOGGED_IN, {"at_s": at_s[on], "subscriber": who[on]}),
        (WorkloadEventKind.LOGGED_OUT, {"at_s": at_s[~on], "subscriber": who[~on]}),
    ]


def _subscriptions(workload: EdgeWorkload, streams: Streams) -> list[Part]:
    each = workload.subscriptions_each
    likely = popularity(workload.popularity, workload.interests, exponent=workload.zipf_exponent)
    first = distinct_choices(streams.of("interests"), likely, workload.subscribers, each).ravel()
    joined_s = np.repeat(streams.of("joining").uniform(0.0, workload.join_s, workload.subscribers), each)
    subscriber = np.arange(workload.subscribers * each) // max(each, 1)
    if workload.lifetimes == "whole":
        inside = joined_s < workload.span_s
        joined = {"at_s": joined_s[inside], "subscriber": subscriber[inside], "interest": first[inside]}
        return [(WorkloadEventKind.SUBSCRIBED, joined)]
    mu, sigma = workload.lasts
    slot, begin_s, end_s = renewals(
        streams.of("lifetimes"),
        joined_s,
        workload.span_s,
        lasts_s=(mu + math.log(60), sigma),
        renewed=workload.lifetimes == "renewed",
    )
    # Every slot's first lifetime stands before all later ones.
    begun = int((joined_s < workload.span_s).sum())
    interest = streams.of("renewals").choice(workload.interests, size=len(slot), p=likely)
    interest[:begun] = first[slot[:begun]]
    _make_distinct(interest, slot, begun, begin_s, each=each, interests=workload.interests)
    over = end_s < workload.span_s
    return [
        (
            WorkloadEventKind.UNSUBSCRIBED,
            {"at_s": end_s[over], "subscriber": subscriber[slot[over]], "interest": interest[over]},
        ),
        (WorkloadEventKind.SUBSCRIBED, {"at_s": begin_s, "subscriber": subscriber[slot], "interest": interest}),
    ]


def _make_distinct(
    interest: NDArray[np.int64],
    slot: NDArray[np.int64],
    begun: int,
    begin_s: NDArray[np.float64],
    *,
    each: int,
    interests: int,
) -> None:
    """Change later lifetimes so that no subscriber holds the same interest twice at a time."""
    slots, wanted = slot.tolist(), interest.tolist()
    holding = [-1] * (int(slot.max(initial=-1)) + each)
    for mine, first in zip(slots[:begun], wanted[:begun], strict=True):
        holding[mine] = first
    order = np.argsort(begin_s[begun:], kind="stable") + begun
    for number in order.tolist():
        mine = slots[number]
        begin = mine - mine % each
        holding[mine] = -1
        held = holding[begin : begin + each]
        choice = wanted[number]
        # The next number instead of another draw: chance must not depend on how often it was refused.
        while choice in held:
            choice = (choice + 1) % interests
        holding[mine] = wanted[number] = choice
    interest[:] = wanted
