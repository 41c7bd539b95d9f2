"""Each caching policy on examples worked by hand."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.support.caching_model import at, refresh_ranks
from tocsin.rules.caching.admission import ADMISSION, PARAMETERS, Admission, Buffer, Mean, Threshold, admission
from tocsin.rules.caching.caches import CacheCounters, ResultCaches
from tocsin.rules.caching.entries import BrokerResult, MissingRun
from tocsin.rules.caching.settings import CachingSettings


def three(eviction: str, **more: object) -> ResultCaches:
    """a: 100 bytes that 4 need; b: 10 bytes that 2 need; c: 50 bytes that 3 need. Put in this order, a second apart."""
    caches = ResultCaches(CachingSettings(budget_bytes=160, eviction=eviction, **more), 0.0)  # type: ignore[arg-type]
    for second, (name, size, subscribers) in enumerate([("a", 100, 4), ("b", 10, 2), ("c", 50, 3)], 1):
        cache = caches.open(name, at(0), 0.0)
        caches.attach(cache, at(0), subscribers)
        assert caches.put(cache, BrokerResult(at(1), size, name), float(second))
    return caches


def who_goes(caches: ResultCaches, now_s: float = 10.0) -> str:
    """The first victim of one byte for which there is no room, and which a hundred need."""
    before = {cache.interest for cache in caches if cache.residents}
    late = caches.open("late", at(0), now_s)
    caches.attach(late, at(0), 100)
    caches.put(late, BrokerResult(at(1), 1), now_s)
    (gone,) = before - {cache.interest for cache in caches if cache.residents}
    return str(gone)


def test_lsc_drops_what_the_fewest_need() -> None:
    assert who_goes(three("lsc")) == "b"


def test_lsc_follows_acknowledgements() -> None:
    caches = three("lsc")
    caches.advance(caches["a"], at(0), at(1), 3)
    assert who_goes(caches) == "a"


def test_lscz_drops_what_the_fewest_need_per_byte() -> None:
    # a: 4/100, b: 2/10, c: 3/50
    assert who_goes(three("lscz")) == "a"


def test_lsd_drops_what_saves_the_least_waiting_per_byte() -> None:
    caches = three("lsd")
    for name, took_s in (("a", 3.0), ("b", 1.0), ("c", 1.0)):
        caches.count_fetch(caches[name], 0, 0, took_s)
    # a: 3·4/100, b: 1·2/10, c: 1·3/50
    assert who_goes(caches) == "c"


def test_lsd_without_measurements_is_lscz() -> None:
    assert who_goes(three("lsd")) == "a"


def test_lru_drops_from_the_cache_that_was_read_the_longest_time_ago() -> None:
    caches = three("lru")
    caches.get(caches["a"], at(0), at(1), 5.0)
    assert who_goes(caches) == "b"


def test_lru_may_count_reads_alone_as_access() -> None:
    caches = three("lru", put_is_access=False)
    caches.get(caches["b"], at(0), at(1), 5.0)
    caches.get(caches["a"], at(0), at(1), 6.0)
    assert who_goes(caches) == "c"
    # The newcomer's own cache has not been read for the longest time: it goes itself.
    again = three("lru", put_is_access=False)
    for name in "abc":
        again.get(again[name], at(0), at(1), 5.0)
    late = again.open("late", at(0), 0.0)
    again.attach(late, at(0))
    assert not again.put(late, BrokerResult(at(1), 1), 6.0)


def test_a_newcomer_is_spared_where_the_settings_say_so() -> None:
    caches = three("lsc", newcomer_may_go=False)
    late = caches.open("late", at(0), 5.0)
    caches.attach(late, at(0))
    assert caches.put(late, BrokerResult(at(1), 1), 5.0)
    assert caches["b"].residents == 0
    may_go = three("lsc")
    late = may_go.open("late", at(0), 5.0)
    may_go.attach(late, at(0))
    assert not may_go.put(late, BrokerResult(at(1), 1), 5.0)


def test_fifo_drops_what_came_first() -> None:
    caches = three("fifo")
    caches.get(caches["a"], at(0), at(1), 5.0)
    assert who_goes(caches) == "a"


def test_exp_drops_what_expires_first_or_expired_longest_ago() -> None:
    caches = three("exp", ttl_first_s=9.0)
    assert who_goes(caches) == "a"
    # Of a 25 bytes a second stay and it lives for 30 s; b grows by 10 and lives for 25 s. Both began at 1 s.
    caches = growing()
    caches.switch(replace(caches.settings, expiry="never"), 10.0)
    refresh_ranks(caches, 10.0)
    late = caches.open("late", at(0), 10.0)
    caches.attach(late, at(0))
    caches.put(late, BrokerResult(at(1), 505), 10.0)
    assert (caches["a"].residents, caches["b"].residents) == (10, 9)
    # When all have expired, those go first that expired first: b's of 2 s (at 27 s) and 3 s, a's of 1 s being at 31 s.
    caches.put(late, BrokerResult(at(2), 25), 100.0)
    assert (caches["a"].residents, caches["b"].residents) == (10, 7)


def test_none_keeps_nothing_new() -> None:
    caches = ResultCaches(CachingSettings(eviction="none"), 0.0)
    cache = caches.open("a", at(0), 0.0)
    caches.attach(cache, at(0))
    assert not caches.put(cache, BrokerResult(at(1), 10), 1.0)
    assert caches.get(cache, at(0), at(1), 2.0) == [MissingRun(at(0), at(1))]


@pytest.mark.parametrize(("ties", "goes"), [("oldest", "a"), ("newest", "c"), ("largest", "b")])
def test_ties_are_broken_as_the_settings_say(ties: str, goes: str) -> None:
    caches = ResultCaches(CachingSettings(budget_bytes=60, eviction="lsc", ties=ties), 0.0)
    for name, size in (("a", 20), ("b", 25), ("c", 15)):
        cache = caches.open(name, at(0), 0.0)
        caches.attach(cache, at(0))
        caches.put(cache, BrokerResult(at(1), size), 1.0)
    assert who_goes(caches) == goes


# ---------------------------------------------------------------- times to live


def growing(weights: str = "subscribers") -> ResultCaches:
    """B = 1,000. a: 3 subscribers, 40 bytes/s arrive and 15 are consumed. b: 1 subscriber, 10 arrive, none consumed."""
    chosen = CachingSettings(
        budget_bytes=1000, eviction="exp", expiry="ttl", ttl_every_s=10, ttl_first_s=100, ttl_cap_s=600, weights=weights
    )
    caches = ResultCaches(chosen, 0.0)
    a, b = caches.open("a", at(0), 0.0), caches.open("b", at(0), 0.0)
    caches.attach(a, at(0), 3)
    caches.attach(b, at(0), 1)
    for second in range(1, 11):
        caches.put(a, BrokerResult(at(second), 40), float(second))
        caches.put(b, BrokerResult(at(second), 10), float(second))
    a.rates.consumed_bytes = 150
    return caches


def test_times_to_live_share_the_budget_by_subscribers_and_growth() -> None:
    caches = growing()
    refresh_ranks(caches, 10.0)
    # 3/4 · 1000/25 and 1/4 · 1000/10
    assert caches["a"].ttl_s == pytest.approx(30.0)
    assert caches["b"].ttl_s == pytest.approx(25.0)
    assert 25 * caches["a"].ttl_s + 10 * caches["b"].ttl_s == pytest.approx(1000)


def test_weights_can_be_equal() -> None:
    caches = growing("equal")
    refresh_ranks(caches, 10.0)
    assert caches["a"].ttl_s == pytest.approx(20.0)
    assert caches["b"].ttl_s == pytest.approx(50.0)


def test_before_the_first_estimate_and_without_growth_the_settings_decide() -> None:
    caches = growing()
    assert caches["a"].ttl_s == 100
    caches["a"].rates.consumed_bytes = 400
    refresh_ranks(caches, 10.0)
    assert caches["a"].ttl_s == 600


def test_the_average_moves_by_the_window() -> None:
    caches = growing()
    refresh_ranks(caches, 10.0)
    refresh_ranks(caches, 10.0 + 300.0 * 0.6931471805599453)  # half a life of the window, without arrivals
    assert caches["b"].rates.growth_bytes_s == pytest.approx(5.0)


@pytest.mark.parametrize("expiry", ["ttl", "never"])
def test_very_many_caches_are_looked_at_some_at_a_time_with_the_same_outcome(expiry: str) -> None:
    chosen = CachingSettings(budget_bytes=10**6, eviction="exp", expiry=expiry, ttl_every_s=60.0)
    pieces, at_once = ResultCaches(chosen, 0.0), ResultCaches(chosen, 0.0)
    for caches in (pieces, at_once):
        for name in range(9_000):
            cache = caches.open(name, at(0), 0.0)
            caches.attach(cache, at(0), 1 + name % 3)
            caches.put(cache, BrokerResult(at(1), 1 + name % 7), 0.0)
    refresh_ranks(at_once, 60.0)
    looks: list[int] = []
    while (now_s := pieces.ttl.due_s) < 62.0:
        pieces.pass_time(now_s)
        looks.append(sum(cache.rates.estimated for cache in pieces))
        if len(looks) == 1:
            pieces.close(8_999)
            pieces.attach(pieces.open("new", at(0), now_s), at(0))
    assert looks[:2] == [4_000, 8_000]
    assert len(looks) < 10
    assert pieces.ttl.due_s > 119.0
    assert pieces["new"].ttl_s == chosen.ttl_first_s
    for name in range(8_999):
        assert pieces[name].ttl_s == pytest.approx(at_once[name].ttl_s, rel=0.02)
    # The same cache has the lowest rank: it loses its result when one has to go.
    victims = []
    for caches in (pieces, at_once):
        room_bytes = caches.limit_bytes - caches.resident_bytes
        caches.put(caches[8_998], BrokerResult(at(2), room_bytes + 1), 62.0)
        victims.append([name for name in range(8_998) if not caches[name].residents])
    assert victims[0] == victims[1]
    assert len(victims[0]) == 1


def test_a_result_goes_when_its_time_is_up_and_not_before() -> None:
    caches = growing()
    refresh_ranks(caches, 10.0)
    assert caches.due_s() == 20.0
    caches.pass_time(19.9)
    assert (caches["a"].residents, caches["b"].residents) == (10, 10)
    caches.ttl.due_s = 1000.0
    assert caches.due_s() == pytest.approx(26.0)
    caches.pass_time(31.0)  # of a what came at 1; of b what came up to 6
    assert (caches["a"].residents, caches["b"].residents) == (9, 4)
    assert (caches.counters.expired, caches.counters.expired_bytes) == (7, 100)


def test_with_times_to_live_the_ceiling_holds_and_the_budget_only_in_expectation() -> None:
    caches = ResultCaches(CachingSettings(budget_bytes=100, expiry="ttl", ceiling=1.5), 0.0)
    cache = caches.open("a", at(0), 0.0)
    caches.attach(cache, at(0))
    for second in range(1, 30):
        caches.put(cache, BrokerResult(at(second), 10), float(second))
    assert caches.counters.most_bytes == 150


def test_a_ttl_cache_holds_about_the_budget_when_growth_is_steady() -> None:
    rng = Random(7)
    chosen = CachingSettings(budget_bytes=100_000, expiry="ttl", ceiling=3.0, ttl_every_s=60, ttl_cap_s=10_000)
    caches = ResultCaches(chosen, 0.0)
    for name in range(10):
        caches.attach(caches.open(name, at(0), 0.0), at(0), rng.randint(1, 9))
    held = []
    for second in range(1, 6_000):
        caches.pass_time(float(second))
        cache = caches[rng.randrange(10)]
        caches.put(cache, BrokerResult(at(second), rng.randint(50, 150)), float(second))
        if second > 3_000:
            held.append(caches.resident_bytes)
    assert sum(held) / len(held) == pytest.approx(100_000, rel=0.1)


# ---------------------------------------------------------------- admission


def decisions(policy: Admission, numbers: list[int]) -> list[bool]:
    return [policy.admits(number) for number in numbers]


def test_threshold_rises_when_it_lets_in_and_falls_when_it_turns_away() -> None:
    policy = Threshold(0.5, 0.5)
    # thresholds 0, 1, 1.5, 1, 2
    assert decisions(policy, [2, 1, 1, 2, 1]) == [True, True, False, True, False]
    assert policy.threshold == pytest.approx(1.5)


def test_mean_judges_a_batch_by_the_batch_before() -> None:
    # thresholds 0, 0, then (2 + 1)/2 twice, then (1 + 2)/2
    assert decisions(Mean(2), [2, 1, 1, 2, 1, 3]) == [True, True, False, True, False, True]


def test_buffer_judges_by_the_last_two() -> None:
    # thresholds 0, 1, 0.5 + 1, 0.5 + 0.5
    assert decisions(Buffer(0.5, 0.5), [2, 1, 1, 2]) == [True, True, False, True]


def test_buffer_that_learns_first_lets_everything_in_with_gamma_1() -> None:
    assert all(decisions(Buffer(1, 0, learns_first=True), [5, 1, 3, 0, 2]))
    # 0.5·1 + 0.5·5 is more than 1
    assert decisions(Buffer(0.5, 0.5, learns_first=True), [5, 1]) == [True, False]


def judged(policy: str, numbers: list[int]) -> CacheCounters:
    """An interest per number of subscribers, and results in the order of the numbers."""
    caches = ResultCaches(CachingSettings(admission=policy), 0.0)
    for number in set(numbers):
        caches.attach(caches.open(number, at(0), 0.0), at(0), number)
    for step, number in enumerate(numbers, 1):
        caches.put(caches[number], BrokerResult(at(step), 10), float(step))
    assert caches.counters.arrived == len(numbers)
    return caches.counters


def test_seven_tenths_shared_by_two_of_three_are_a_duplication_factor_of_1_7() -> None:
    counters = judged("all", [2, 2, 1, 2, 2, 1, 2, 2, 1, 2])
    assert (counters.admitted, counters.copies) == (10, 17)


def test_hit_rate_and_duplication_factor_of_a_threshold() -> None:
    counters = judged("threshold(0.5, 0.5)", [2, 1, 1, 2, 1])
    assert (counters.admitted, counters.copies) == (3, 5)


def test_nothing_let_in_counts_as_no_duplication() -> None:
    counters = judged("none", [2, 1])
    assert (counters.admitted, counters.copies) == (0, 0)


def test_a_high_fall_and_a_low_rise_let_in_more_than_the_opposite() -> None:
    rng = Random(3)
    numbers = [2 if rng.random() < 0.7 else 1 for _ in range(1000)]
    generous, strict = (judged(f"threshold({pair})", numbers).admitted for pair in ("0.2,0.8", "0.8,0.2"))
    assert generous > 2 * strict


def test_every_policy_is_made_by_its_name() -> None:
    for name, kind in ADMISSION.items():
        assert type(admission(name)) is kind
    assert admission(" mean ( 7 ) ").batch == 7  # type: ignore[attr-defined]
    assert set(PARAMETERS) <= set(ADMISSION)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("most", "no admission policy 'most'; there are: all, none, threshold, mean, buffer"),
        ("mean(1, 2)", "mean takes 1 parameters, got 2"),
        ("all(1)", "all takes no parameters, got 1"),
        ("threshold(x, 1)", "numbers stand in the brackets"),
        ("threshold(-1, 1)", "rise: must be at least 0"),
        ("threshold(nan, 1)", "rise: must be at least 0"),
        ("mean(0)", "a batch is a whole number of results"),
        ("mean(1.5)", "a batch is a whole number of results"),
        ("mean(inf)", "a batch is a whole number of results"),
        ("mean(1e400)", "a batch is a whole number of results"),
        ("mean(nan)", "a batch is a whole number of results"),
        ("threshold(1, nan)", "at least 0 and finite"),
        ("buffer(1, inf)", "before: must be at least 0 and finite"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"^admission: ") as refused:
        CachingSettings(admission=text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eviction", "best"), ("expiry", "soon"), ("ties", "any"), ("weights", "heavy"), ("budget_bytes", -1),
        ("ceiling", 0.5), ("latency_share", 0), ("ttl_every_s", 0), ("ttl_cap_s", float("inf")), ("rate_window_s", -1),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        CachingSettings(**{name: value})  # type: ignore[arg-type]
