"""Workloads have the laws they say, are the same for the same seed, and are kept once."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tocsin.lab.engine.streams import Streams
from tocsin.lab.workloads.edge_caching import EdgeWorkload, edge_events, make_edge_events
from tocsin.lab.workloads.events import WorkloadEventKind, WorkloadEvents, load
from tocsin.lab.workloads.laws import distinct_choices, lognormal_mean, on_off_moments, poisson_moments, popularity
from tocsin.wire.errors import InputError

SMALL = EdgeWorkload(subscribers=200, subscriptions_each=5, interests=50, span_s=1800.0)


def same(one: WorkloadEvents, other: WorkloadEvents) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("at_s", "kind", "subscriber", "interest", "size_bytes")
    )


def bytes_per_s(workload: EdgeWorkload) -> float:
    """The bytes that all interests together produce per second, on average."""
    low, high = workload.period_s
    per_interest_s = 1 / low if low == high else math.log(high / low) / (high - low)
    return workload.interests * per_interest_s * sum(workload.size_bytes) / 2


# ---------------------------------------------------------------- laws


def test_table_twos_sessions_last_15_9_and_20_7_minutes() -> None:
    table = EdgeWorkload()
    assert lognormal_mean(*table.on) == pytest.approx(15.9, abs=0.05)
    assert lognormal_mean(*table.off) == pytest.approx(20.7, abs=0.05)


def test_table_twos_cache_sizes_are_6_to_56_seconds_of_arrivals() -> None:
    rate = bytes_per_s(EdgeWorkload())
    assert 50e6 / rate == pytest.approx(6, abs=0.5)
    assert 500e6 / rate == pytest.approx(56, abs=0.5)


def test_zipf_is_the_harmonic_law_and_uniform_is_even() -> None:
    zipf = popularity("zipf", 4)
    assert zipf.tolist() == pytest.approx([12 / 25, 6 / 25, 4 / 25, 3 / 25])
    assert popularity("uniform", 4).tolist() == [0.25] * 4
    with pytest.raises(ValueError, match="popularity: must be one of"):
        popularity("fair", 4)


def test_choices_are_distinct_and_as_likely_as_drawing_one_after_the_other() -> None:
    likely = popularity("zipf", 5)
    drawn = distinct_choices(Streams(1).of("x"), likely, 20_000, 3)
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    first = np.bincount(drawn[:, 0], minlength=5) / len(drawn)
    # Given that number 0 came first, the others come second in proportion.
    second = np.bincount(drawn[drawn[:, 0] == 0][:, 1], minlength=5)
    assert np.abs(first - likely).max() < 4 * np.sqrt(0.25 / 20_000)
    rest = likely[1:] / likely[1:].sum()
    assert np.abs(second[1:] / second.sum() - rest).max() < 4 * np.sqrt(0.25 / second.sum())
    with pytest.raises(ValueError, match="cannot choose"):
        distinct_choices(Streams(1).of("x"), likely, 1, 6)


def test_poisson_counts_have_the_mean_and_the_variance_of_their_law() -> None:
    rates = np.full(2_000, 0.05)
    at_s, which = poisson_moments(Streams(1).of("x"), rates, 400.0)
    counts = np.bincount(which, minlength=2_000)
    assert at_s.min() >= 0
    assert at_s.max() < 400
    assert counts.mean() == pytest.approx(20, abs=4 * np.sqrt(20 / 2_000))
    assert counts.var() == pytest.approx(20, rel=4 * np.sqrt(2 / 2_000) + 0.02)


def test_people_are_on_for_the_share_of_time_that_their_means_say() -> None:
    on_s, off_s = (3.0, 0.5), (3.5, 0.5)
    at_s, who, on = on_off_moments(Streams(1).of("x"), 400, 20_000.0, on_s=on_s, off_s=off_s)
    order = np.lexsort((at_s, who))
    share = []
    for person in range(400):
        mine = order[who[order] == person]
        states = on[mine].tolist()
        assert all(state != other for state, other in itertools.pairwise(states))  # on and off take turns
        edges = [*at_s[mine].tolist(), 20_000.0]
        share.append(
            sum(end - begin for begin, end, is_on in zip(edges, edges[1:], states, strict=False) if is_on) / 20_000
        )
    wanted = lognormal_mean(*on_s) / (lognormal_mean(*on_s) + lognormal_mean(*off_s))
    assert np.mean(share) == pytest.approx(wanted, abs=0.01)


# ---------------------------------------------------------------- Table II


@pytest.mark.parametrize("lifetimes", ["whole", "once", "renewed"])
def test_nobody_holds_an_interest_twice_or_lets_go_of_what_it_does_not_hold(lifetimes: str) -> None:
    for law in ("uniform", "zipf"):
        held: set[tuple[int, int]] = set()
        most: Counter[int] = Counter()
        for event in make_edge_events(replace(SMALL, lifetimes=lifetimes, popularity=law, interests=12), 1):
            key = (event.subscriber, event.interest)
            if event.kind == WorkloadEventKind.SUBSCRIBED:
                assert key not in held
                held.add(key)
                most[event.subscriber] += 1
            elif event.kind == WorkloadEventKind.UNSUBSCRIBED:
                held.remove(key)
                most[event.subscriber] -= 1
            assert most[event.subscriber] <= 5
        per_subscriber = Counter(subscriber for subscriber, _ in held)
        if lifetimes == "once":
            assert sum(per_subscriber.values()) < 400
        else:
            assert set(per_subscriber.values()) == {5}


def test_events_stand_in_order_and_within_their_span() -> None:
    events = make_edge_events(replace(SMALL, lifetimes="renewed"), 1)
    assert np.all(np.diff(events.at_s) >= 0)
    assert events.at_s[0] >= 0
    assert events.at_s[-1] < SMALL.span_s
    produced = events.of(WorkloadEventKind.PRODUCED)
    assert events.size_bytes[produced].min() >= 1_000
    assert events.size_bytes[produced].max() <= 500_000
    assert set(events.subscriber[produced].tolist()) == {-1}
    assert not events.size_bytes[~produced].any()


def test_results_arrive_as_often_and_as_large_as_the_table_says() -> None:
    workload = EdgeWorkload(subscribers=1, interests=1_000, subscriptions_each=1, span_s=600.0)
    events = make_edge_events(workload, 1)
    volume = float(events.size_bytes.astype(np.float64).sum())
    assert volume / workload.span_s == pytest.approx(bytes_per_s(workload), rel=0.05)


def test_another_popularity_changes_who_subscribes_to_what_and_nothing_else() -> None:
    uniform, zipf = (make_edge_events(replace(SMALL, popularity=law), 1) for law in ("uniform", "zipf"))
    assert np.array_equal(uniform.at_s, zipf.at_s)
    assert np.array_equal(uniform.size_bytes, zipf.size_bytes)
    subscribed = uniform.of(WorkloadEventKind.SUBSCRIBED)
    assert not np.array_equal(uniform.interest[subscribed], zipf.interest[subscribed])
    assert np.array_equal(uniform.interest[~subscribed], zipf.interest[~subscribed])


def test_the_same_seed_gives_the_same_events_and_another_seed_others() -> None:
    assert same(make_edge_events(SMALL, 1), make_edge_events(SMALL, 1))
    assert not same(make_edge_events(SMALL, 1), make_edge_events(SMALL, 2))


def test_events_are_made_once_and_read_back_as_they_were(tmp_path: Path) -> None:
    made = edge_events(SMALL, 1, tmp_path)
    (path,) = tmp_path.iterdir()
    first = path.read_bytes()
    again = edge_events(SMALL, 1, tmp_path)
    assert same(made, again)
    assert again.about["seed"] == 1
    assert again.about["settings"]["interests"] == 50
    path.unlink()
    edge_events(SMALL, 1, tmp_path)
    assert path.read_bytes() == first
    edge_events(replace(SMALL, popularity="zipf"), 1, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert same(make_edge_events(SMALL, 1), edge_events(SMALL, 1))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_events_whose_file_is_torn_are_made_again(tmp_path: Path, share: float) -> None:
    made = edge_events(SMALL, 1, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    assert same(edge_events(SMALL, 1, tmp_path), made)
    assert path.read_bytes() == whole
    path.write_bytes(bytes(len(whole)))
    assert same(edge_events(SMALL, 1, tmp_path), made)


def test_a_file_that_holds_no_events_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.npz"
    with pytest.raises(InputError, match="No such file"):
        load(path)
    path.write_bytes(b"PK not really")
    with pytest.raises(InputError, match="not events of the lab"):
        load(path)
    np.savez(path, at_s=np.zeros(1))
    with pytest.raises(InputError, match="not events of the lab"):
        load(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lifetimes": "ever"}, "lifetimes"),
        ({"subscriptions_each": 51}, "subscriptions_each"),
        ({"span_s": 0.0}, "span_s"),
    ],
)
def test_an_impossible_workload_is_refused_with_the_name_of_its_setting(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=f"{said}: must be"):
        replace(SMALL, **change)  # type: ignore[arg-type]
