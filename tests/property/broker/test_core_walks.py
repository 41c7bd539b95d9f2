"""Long lives of a broker's core, each told by its seed: nothing is lost, nobody gets what is another's."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.support.caching_model import at
from tests.support.core_model import CoreModel
from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.caching.eviction import EVICTION
from tocsin.rules.caching.expiry import EXPIRY
from tocsin.rules.caching.settings import CachingSettings

SEEDS = 60
STEPS = 400
PEOPLE = ["ann", "ben", "cyd", "dan", "eve"]
WEIGHTS = {
    "push": 16, "announce": 8, "make": 8, "answer": 20, "fail": 2, "ack": 14, "ack one": 8, "ack all": 4, "pull": 6,
    "pull as one": 8, "ack group": 8, "pull each": 6, "ack each": 6, "answer together": 6,
    "log in": 8, "log out": 5, "behind": 3, "ready": 10, "subscribe": 6, "unsubscribe": 3, "backend": 10, "time": 4,
    "retain": 2, "switch": 1,
}  # fmt: skip


def caching(rng: Random) -> CachingSettings:
    return CachingSettings(
        budget_bytes=rng.choice([0, 60, 200, 10_000]),
        eviction=rng.choice(list(EVICTION)),
        expiry=rng.choice(list(EXPIRY)),
        admission=rng.choice(["all", "all", "none", "threshold", "mean(3)", "buffer"]),
        fetched_enters=rng.random() < 0.5,
        newcomer_may_go=rng.random() < 0.5,
        ttl_first_s=rng.choice([3.0, 30.0]),
        ttl_every_s=20.0,
    )


def walk(seed: int) -> CoreModel:
    rng = Random(seed)
    chosen = CoreSettings(
        caching=caching(rng),
        grace_s=rng.choice([0.0, 5.0]),
        page_results=rng.choice([2, 5, 100]),
        page_bytes=rng.choice([45, 10_000]),
        report_every_s=4.0,
    )
    world = CoreModel(chosen, "xy")
    for step in range(STEPS):
        try:
            one_step(world, rng, step)
            world.check()
        except Exception as error:
            error.add_note(f"step {step} of seed {seed}; what was done last: {world.log[-5:]}")
            raise
    world.settle()
    world.check()
    return world


def one_step(world: CoreModel, rng: Random, step: int) -> None:
    interest = rng.choice("xy")
    names = [str(name) for name, client in world.clients.items() if client.interest == interest]
    channel = world.channels[interest]
    match rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
        case "push":
            world.push(interest, rng.randint(0, 40))
        case "announce" if channel.held:
            world.announce(interest)
        case "make":
            world.make(interest, rng.randint(1, 4), rng.randint(0, 40))
        case "answer" if world.fetches:
            world.answer(rng.choice(sorted(world.fetches)), limit=rng.choice([1, 2, 9]), took_s=rng.uniform(0.1, 2.0))
        case "fail" if world.fetches:
            world.fail(rng.choice(sorted(world.fetches)))
        case "ack" if names:
            some = rng.sample(names, rng.randint(1, len(names)))
            world.ack(interest, at(channel.head.execution - rng.choice([0, 0, 1, 3, -2])), some)
        case "ack one" if names:
            name = rng.choice(names)
            world.ack(interest, world.clients[name].position, [name])
        case "ack all":
            world.ack_as_one(interest)
        case "pull as one":
            world.pull_as_one(interest, together=rng.random() < 0.5)
        case "ack group":
            world.ack_group(interest)
        case "pull" if names:
            world.pull(interest, rng.sample(names, rng.randint(1, len(names))))
        case "pull each":
            world.pull_each(rng.choice(PEOPLE))
        case "ack each":
            world.ack_each(rng.choice(PEOPLE))
        case "answer together" if world.fetches:
            world.answer_together(limit=rng.choice([1, 2, 9]), took_s=rng.uniform(0.1, 2.0))
        case "log in":
            world.log_in(rng.choice(PEOPLE))
        case "log out":
            world.log_out(rng.choice(PEOPLE))
        case "behind" if names:
            world.fall_behind(rng.choice(names))
        case "ready" if names:
            world.ready(rng.choice(names))
        case "subscribe" if len(names) < 6:
            who = rng.choice(PEOPLE)
            since = rng.choice([None, at(rng.randint(0, channel.head.execution + 1))])
            mode = rng.choice([ev.Mode.INLINE, ev.Mode.INLINE, ev.Mode.NOTIFY])
            world.subscribe(f"{who}-{step}", who, interest, mode=mode, since=since)
        case "unsubscribe" if names:
            world.unsubscribe(rng.choice(names))
        case "backend" if world.asked:
            world.backend_ready(world.asked[0])
        case "time":
            world.pass_time(rng.choice([0.1, 1.0, 6.0]))
        case "retain":
            world.retain(interest, rng.randint(0, 6))
        case "switch":
            world.handle(ev.CachePoliciesChanged(caching(rng)))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_and_nobody_gets_what_is_anothers(seed: int) -> None:
    walk(seed)


def test_the_walks_come_by_everything_that_can_happen() -> None:
    """A walk that never meets a gap or a shared fetch would prove nothing about them."""
    seen: Counter[str] = Counter()
    for seed in range(12):
        world = walk(seed)
        seen["active"] += world.activated
        for action in world.log:
            seen[type(action).__name__] += 1
            if isinstance(action, ac.Deliver):
                seen[action.why.value] += 1
                seen["gap"] += action.gap is not None
                seen["more"] += action.more
                seen["shared"] += len(action.audience) > 1
                seen["shared after a fetch"] += len(action.audience) > 1 and action.why is not ac.DeliveryReason.LIVE
    for what in (
        "active", "NotifyAvailable", "SubscribeBackend", "UnsubscribeBackend", "Fetch", "ReportConsumed",
        "live", "pulled", "caught up", "gap", "more", "shared", "shared after a fetch",
    ):  # fmt: skip
        assert seen[what] > 20 or (what == "UnsubscribeBackend" and seen[what] > 3), (what, seen)
