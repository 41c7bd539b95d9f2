"""Somebody who was away asks, is answered and acknowledges in all its subscriptions at once."""

from __future__ import annotations

from tests.support.caching_model import at
from tests.support.core_model import CoreModel
from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.caching.settings import CachingSettings

NOTHING_KEPT = CachingSettings(admission="none")


def away(caching: CachingSettings | None = None, *, mode: ev.Mode = ev.Mode.NOTIFY) -> CoreModel:
    """Ann has subscribed to x and y, and two results of each came while she was away."""
    made = CoreModel(CoreSettings(caching=caching or CachingSettings()))
    for interest in "xy":
        made.subscribe(f"ann {interest}", "ann", interest, mode=mode)
        made.backend_ready(interest)
        made.push(interest)
        made.push(interest)
    return made


def delivered(actions: list[ac.Action]) -> dict[str, tuple[int, int]]:
    """To each subscription from where to where."""
    found = {}
    for action in actions:
        assert isinstance(action, ac.Deliver)
        for name in action.audience:
            found[str(name)] = (action.after.execution, action.to.execution)
    return found


def test_who_returns_gets_what_it_lacks_of_every_interest_at_once() -> None:
    made = away()
    assert {type(action) for action in made.log_in("ann")} == {ac.NotifyAvailable}
    assert delivered(made.pull_each("ann")) == {"ann x": (0, 2), "ann y": (0, 2)}
    assert made.ack_each("ann") == []
    assert [made.broker.marker(name) for name in ("ann x", "ann y")] == [at(2), at(2)]
    assert made.broker.caches.resident_bytes == 0


def test_answers_that_come_together_are_delivered_each_to_who_waits_for_it() -> None:
    made = away(NOTHING_KEPT)
    made.log_in("ann")
    fetches = made.pull_each("ann")
    assert {type(fetch) for fetch in fetches} == {ac.Fetch}
    assert delivered(made.answer_together()) == {"ann x": (0, 2), "ann y": (0, 2)}
    counters = made.broker.caches.counters
    assert (counters.hits, counters.misses, counters.fetched) == (0, 4, 4)


def test_an_answer_may_say_how_many_bytes_it_has() -> None:
    counted, said = away(NOTHING_KEPT), away(NOTHING_KEPT)
    for made in (counted, said):
        made.log_in("ann")
        made.pull_each("ann")
    counted.answer_together()
    answers = []
    for number, fetch in sorted(said.fetches.items()):
        results = tuple(said.channels[str(fetch.interest)].results)
        answers.append(ev.FetchSucceeded(number, fetch.to, results, 0.1, None, 20))
    said.handle(ev.FetchesSucceeded(tuple(answers)))
    assert counted.broker.caches.counters == said.broker.caches.counters
    assert said.broker.caches.counters.miss_bytes == 40


def test_news_that_come_with_what_somebody_waits_for_follow_it() -> None:
    """Whoever catches up joins the cohort before the cohort is told: else it would get the news without the rest."""
    made = away(NOTHING_KEPT, mode=ev.Mode.INLINE)
    made.subscribe("ben x", "ben", "x")
    made.log_in("ben")
    made.log_in("ann")
    made.make("x")
    made.announce("x")
    news = max(made.fetches)
    assert made.fetches[news].after == at(2)
    # The answers in the wrong order.
    answers = [made.answer_to(number, 1000, 0.1) for number in sorted(made.fetches, reverse=True)]
    told = made.handle(ev.FetchesSucceeded(tuple(answers)))
    of_x = [action for action in told if isinstance(action, ac.Deliver) and action.interest == "x"]
    assert [(action.why, action.after, action.to) for action in of_x] == [
        (ac.DeliveryReason.CAUGHT_UP, at(0), at(2)),
        (ac.DeliveryReason.LIVE, at(2), at(3)),
    ]
    assert set(of_x[1].audience) == {"ann x", "ben x"}


def test_who_is_not_known_is_refused_and_the_others_are_served() -> None:
    made = away()
    made.log_in("ann")
    refused, answered = made.handle(ev.ResultsRequestedByMany(("nobody", "ann y")))
    assert isinstance(refused, ac.RefuseEvent)
    assert refused.subscription == "nobody"
    assert delivered([answered]) == {"ann y": (0, 2)}
    assert made.handle(ev.ResultsAcknowledgedByMany((("nobody", at(2)),))) == []


def test_who_asks_before_the_cluster_holds_its_subscription_is_told_to_ask_again() -> None:
    made = CoreModel(CoreSettings())
    made.subscribe("ann x", "ann", "x")
    (refused,) = made.pull_each("ann")
    assert isinstance(refused, ac.RefuseEvent)
    assert refused.error.hint == "ask again"
    assert made.handle(ev.ResultsAcknowledgedByMany((("ann x", at(2)),))) == []


def test_an_acknowledgement_beyond_what_the_broker_has_counts_as_far_as_it_has() -> None:
    made = away()
    made.log_in("ann")
    made.handle(ev.ResultsAcknowledgedByMany((("ann x", at(99)), ("ann y", at(1)), ("ann y", at(0)))))
    assert [made.broker.marker(name) for name in ("ann x", "ann y")] == [at(2), at(1)]


def test_of_an_answer_that_has_more_than_was_asked_only_that_is_delivered() -> None:
    made = away(NOTHING_KEPT)
    made.ack("x", at(1), ["ann x"])
    made.log_in("ann")
    made.pull_each("ann")
    (number,) = [number for number, fetch in made.fetches.items() if fetch.interest == "x"]
    everything = tuple(made.channels["x"].results)
    (action,) = made.handle(ev.FetchSucceeded(number, at(2), everything, 0.1))
    assert isinstance(action, ac.Deliver)
    assert [result.cursor for result in action.results] == [at(2)]
    assert made.broker.caches.counters.misses == 1
