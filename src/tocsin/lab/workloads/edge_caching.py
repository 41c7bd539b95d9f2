"""The workload of the edge-caching paper's simulation (its Table II): sessions, subscriptions and results.

What the paper leaves open (the law of popularity, whether subscriptions are renewed) is a setting, so that experiments
can vary it.
"""

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
from tocsin.lab.workloads.events import WorkloadEventKind, WorkloadEvents, in_order, load_or_make_events
from tocsin.lab.workloads.laws import distinct_choices, on_off_moments, poisson_moments, popularity, renewals

_LIFETIMES: Final = ("whole", "once", "renewed")


@dataclass(frozen=True, slots=True)
class EdgeWorkload:
    """Table II. Sessions and subscriptions last lognormal times in minutes; the parameters are those of the logarithm.

    The printed parameters give mean sessions of 15.9 minutes on and 20.7 off, although the paper's prose says 20 and
    30. Three things that the paper leaves open are settings: the popularity of interests; what happens when a
    subscription expires (`lifetimes`: `whole`, none expires; `once`, it is gone; `renewed`, the subscriber takes
    another interest); and over which time subscribers join.
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
        if self.lifetimes not in _LIFETIMES:
            raise ValueError(f"lifetimes: must be one of {', '.join(_LIFETIMES)}, got {self.lifetimes}")
        if not 0 <= self.subscriptions_each <= self.interests:
            raise ValueError(f"subscriptions_each: must be from 0 to {self.interests}, got {self.subscriptions_each}")
        if not 0 < self.span_s < math.inf:
            raise ValueError(f"span_s: must be > 0, got {self.span_s}")

    def name(self, seed: int) -> str:
        """Returns a file name that is unique for the workload and the seed."""
        text = json.dumps([asdict(self), seed], sort_keys=True)
        return f"edge-{seed}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def edge_events(workload: EdgeWorkload, seed: int, folder: Path | None = None) -> WorkloadEvents:
    """Returns the events of one run, from the folder if an earlier cell saved them there."""
    return load_or_make_events(folder, workload.name(seed), lambda: make_edge_events(workload, seed))


def make_edge_events(workload: EdgeWorkload, seed: int) -> WorkloadEvents:
    streams = Streams(seed).within("edge-caching")
    about: dict[str, Any] = {"workload": "edge-caching", "seed": seed, "settings": asdict(workload)}
    return in_order(
        [_make_results(workload, streams), *_sessions(workload, streams), *_subscriptions(workload, streams)], about
    )


_EventColumns = tuple[WorkloadEventKind, dict[str, NDArray[Any]]]


def _make_results(workload: EdgeWorkload, streams: Streams) -> _EventColumns:
    periods_s = streams.of("periods").uniform(*workload.period_s, workload.interests)
    at_s, interest = poisson_moments(streams.of("arrivals"), 1 / periods_s, workload.span_s)
    low, high = workload.size_bytes
    sizes = streams.of("sizes").integers(low, high, len(at_s), endpoint=True)
    return WorkloadEventKind.PRODUCED, {"at_s": at_s, "interest": interest, "size_bytes": sizes}


def _sessions(workload: EdgeWorkload, streams: Streams) -> list[_EventColumns]:
    on_s, off_s = ((mu + math.log(60), sigma) for mu, sigma in (workload.on, workload.off))
    at_s, subscriber, on = on_off_moments(
        streams.of("sessions"), workload.subscribers, workload.span_s, on_s=on_s, off_s=off_s
    )
    return [
        (WorkloadEventKind.LOGGED_IN, {"at_s": at_s[on], "subscriber": subscriber[on]}),
        (WorkloadEventKind.LOGGED_OUT, {"at_s": at_s[~on], "subscriber": subscriber[~on]}),
    ]


def _subscriptions(workload: EdgeWorkload, streams: Streams) -> list[_EventColumns]:
    subscriptions_each = workload.subscriptions_each
    probabilities = popularity(workload.popularity, workload.interests, exponent=workload.zipf_exponent)
    first = distinct_choices(streams.of("interests"), probabilities, workload.subscribers, subscriptions_each).ravel()
    joined_s = np.repeat(streams.of("joining").uniform(0.0, workload.join_s, workload.subscribers), subscriptions_each)
    subscriber = np.arange(workload.subscribers * subscriptions_each) // max(subscriptions_each, 1)
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
    # The first lifetimes of all slots come before all later ones.
    begun = int((joined_s < workload.span_s).sum())
    interest = streams.of("renewals").choice(workload.interests, size=len(slot), p=probabilities)
    interest[:begun] = first[slot[:begun]]
    _make_distinct(interest, slot, begun, begin_s, each=subscriptions_each, interests=workload.interests)
    is_over = end_s < workload.span_s
    return [
        (
            WorkloadEventKind.UNSUBSCRIBED,
            {"at_s": end_s[is_over], "subscriber": subscriber[slot[is_over]], "interest": interest[is_over]},
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
    """Changes later lifetimes so that no subscriber holds the same interest twice at the same time."""
    slots, chosen = slot.tolist(), interest.tolist()
    holding = [-1] * (int(slot.max(initial=-1)) + each)
    for own_slot, first in zip(slots[:begun], chosen[:begun], strict=True):
        holding[own_slot] = first
    order = np.argsort(begin_s[begun:], kind="stable") + begun
    for number in order.tolist():
        own_slot = slots[number]
        begin = own_slot - own_slot % each
        holding[own_slot] = -1
        own_interests = holding[begin : begin + each]
        choice = chosen[number]
        # Take the next number instead of another draw: the random stream must not depend on the number of conflicts.
        while choice in own_interests:
            choice = (choice + 1) % interests
        holding[own_slot] = chosen[number] = choice
    interest[:] = chosen
