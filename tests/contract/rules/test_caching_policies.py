"""What holds for every combination of caching policies, tried beside caches in the plainest way."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from tests.support.caching_model import PlainCaches
from tocsin.rules.caching.admission import ADMISSION
from tocsin.rules.caching.eviction import EVICTION, TIES
from tocsin.rules.caching.expiry import EXPIRY
from tocsin.rules.caching.settings import CachingSettings

SPELLED = {"threshold": "threshold(0.3, 0.5)", "mean": "mean(5)", "buffer": "buffer(0.6, 0.4)"}
POLICIES = list(product(EVICTION, EXPIRY, ADMISSION))
INTERESTS = 5
PEOPLE = [f"s{each}" for each in range(8)]


def settings(eviction: str, expiry: str, admission: str, **more: object) -> CachingSettings:
    chosen = {"budget_bytes": 400, "ceiling": 1.5, "ttl_every_s": 20.0, "ttl_first_s": 15.0, "ttl_cap_s": 25.0, **more}
    return CachingSettings(eviction=eviction, expiry=expiry, admission=SPELLED.get(admission, admission), **chosen)  # type: ignore[arg-type]


def live(plain: PlainCaches, rng: Random, steps: int) -> None:
    """Some time in the life of a broker's caches; after each step everything is compared."""
    for _ in range(steps):
        interest, who = rng.randrange(INTERESTS), rng.choice(PEOPLE)
        head = plain.models[interest].head.execution
        match rng.choices(
            ["put", "ack", "get", "subscribe", "unsubscribe", "time", "fetched"], [40, 25, 12, 12, 3, 6, 2]
        )[0]:
            case "put":
                plain.put(interest, rng.choice([0, 10, 30, 60, 90, 700]) if rng.random() < 0.3 else rng.randint(1, 80))
            case "ack":
                plain.ack(interest, who, max(0, head - rng.randrange(6)))
            case "get":
                plain.get(interest, rng.randint(0, head), rng.randint(0, head))
            case "subscribe":
                plain.subscribe(interest, who, rng.choice([0, 0, 0, rng.randint(0, 20)]))
            case "unsubscribe":
                plain.unsubscribe(interest, who)
            case "time":
                plain.pass_time(rng.choice([0.5, 3.0, 9.0]))
            case "fetched":
                plain.fetched(interest, rng.uniform(0.1, 2.0))
        plain.check()


@pytest.mark.parametrize(("eviction", "expiry", "admission"), POLICIES, ids="+".join)
def test_a_policy_keeps_the_budget_counts_right_and_drops_whom_it_ranks_lowest(
    eviction: str, expiry: str, admission: str
) -> None:
    plain = PlainCaches(settings(eviction, expiry, admission), INTERESTS)
    live(plain, Random(f"{eviction} {expiry} {admission}"), 250)
    assert plain.real.counters.arrived > 50
    if eviction == "none" or admission == "none":
        assert plain.real.counters.admitted == 0
    else:
        assert plain.real.counters.most_bytes > 0


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("newcomer_may_go", [True, False])
@pytest.mark.parametrize("put_is_access", [True, False])
@pytest.mark.parametrize("eviction", EVICTION)
def test_open_choices_are_followed(eviction: str, ties: str, newcomer_may_go: bool, put_is_access: bool) -> None:
    chosen = settings(eviction, "never", "all", ties=ties, newcomer_may_go=newcomer_may_go, put_is_access=put_is_access)
    live(PlainCaches(chosen, INTERESTS), Random(ties), 150)


@pytest.mark.parametrize(("eviction", "expiry"), list(product(EVICTION, EXPIRY)), ids="+".join)
def test_policies_are_switched_without_dropping_content(eviction: str, expiry: str) -> None:
    rng = Random(f"{eviction} {expiry}")
    plain = PlainCaches(settings("lsc", "never", "all"), INTERESTS)
    live(plain, rng, 100)
    before = plain.resident_bytes
    assert before > 0
    plain.switch(settings(eviction, expiry, "all"))
    plain.check()
    assert plain.resident_bytes == before or expiry == "ttl"
    live(plain, rng, 100)
    plain.switch(settings("lru", "never", "mean", budget_bytes=100))
    plain.check()
    live(plain, rng, 50)
