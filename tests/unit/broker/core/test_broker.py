"""The broker's core on stories that can be followed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.support.caching_model import at
from tests.support.core_model import CoreModel
from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core.broker import Broker
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.caching.settings import CachingSettings
from tocsin.wire.errors import ConflictError, NotFoundError

NOTIFY, INLINE = ev.Mode.NOTIFY, ev.Mode.INLINE


def world(
    *names: str, mode: ev.Mode = INLINE, caching: CachingSettings | None = None, online: bool = True, **more: float
) -> CoreModel:
    """Everybody subscribes to x; the cluster holds it."""
    made = CoreModel(CoreSettings(caching=caching or CachingSettings(), **more))  # type: ignore[arg-type]
    for name in names:
        made.subscribe(name, name, "x", mode=mode)
        if online:
            made.log_in(name)
    if names:
        made.backend_ready("x")
    return made


def results(*numbers: int, size: int = 10) -> tuple[BrokerResult, ...]:
    return tuple(BrokerResult(at(number), size, f"x{number}") for number in numbers)


def only(actions: list[ac.Action], kind: type) -> ac.Action:
    (found,) = [action for action in actions if isinstance(action, kind)]
    return found


def test_equal_interests_are_one_backend_subscription() -> None:
    made = CoreModel(CoreSettings())
    assert made.subscribe("a", "ann", "x") == [ac.SubscribeBackend("x")]
    assert made.subscribe("b", "ben", "x") == []
    assert made.broker.since("a") is None
    assert made.backend_ready("x") == []
    assert made.subscribe("c", "cyd", "x") == []
    assert [made.broker.since(name) for name in "abc"] == [at(0), at(0), at(0)]


def test_a_result_is_one_delivery_whatever_the_number_of_subscribers() -> None:
    made = world(*(f"s{each}" for each in range(100)))
    (delivered,) = made.push("x")
    assert isinstance(delivered, ac.Deliver)
    assert (delivered.after, delivered.to, delivered.results) == (at(0), at(1), results(1))
    assert len(delivered.audience) == 100
    assert made.ack("x", at(1), delivered.audience) == []
    assert len(made.broker.caches["x"]) == 0
    assert made.broker.caches.counters.pushed == 100


def test_who_is_notified_pulls_from_its_marker_to_the_brokers() -> None:
    made = world("a", "b", mode=NOTIFY)
    told = only(made.push("x"), ac.NotifyAvailable)
    made.push("x")
    assert isinstance(told, ac.NotifyAvailable)
    assert told.to == at(1)
    assert made.pull("x", ["a"]) == [ac.Deliver("x", at(0), at(2), results(1, 2), ("a",), ac.DeliveryReason.PULLED)]
    made.ack("x", at(2), ["a"])
    assert made.pull("x", ["a", "b"]) == [
        ac.Deliver("x", at(2), at(2), (), ("a",), ac.DeliveryReason.PULLED),
        ac.Deliver("x", at(0), at(2), results(1, 2), ("b",), ac.DeliveryReason.PULLED),
    ]
    counters = made.broker.caches.counters
    assert (counters.hits, counters.misses, counters.pushed) == (4, 0, 0)


def test_who_lacks_the_same_is_answered_together() -> None:
    made = world("a", "b", "c", mode=NOTIFY)
    made.push("x")
    (answer,) = made.pull("x", ["a", "b", "c"])
    assert isinstance(answer, ac.Deliver)
    assert answer.audience == ("a", "b", "c")


def test_what_is_partly_missing_is_fetched_and_served_in_order() -> None:
    made = world("a", mode=NOTIFY, caching=CachingSettings(budget_bytes=20, eviction="fifo"))
    for _ in range(4):
        made.push("x")
    (fetch,) = made.pull("x", ["a"])
    assert fetch == ac.Fetch(1, "x", at(0), at(2), 1000, 4 << 20)
    assert made.answer(1) == [ac.Deliver("x", at(0), at(4), results(1, 2, 3, 4), ("a",), ac.DeliveryReason.PULLED)]
    counters = made.broker.caches.counters
    assert (counters.hits, counters.misses, counters.hit_ratio) == (2, 2, 0.5)
    assert (counters.miss_bytes, counters.fetched_bytes) == (20, 20)
    assert made.broker.caches.resident_bytes == 20, "what was missed is served and not kept"


def test_many_misses_of_the_same_range_are_one_fetch() -> None:
    made = world("a", "b", mode=NOTIFY, caching=CachingSettings(eviction="none"))
    for _ in range(4):
        made.push("x")
    made.ack("x", at(2), ["b"])
    assert made.pull("x", ["a"]) == [ac.Fetch(1, "x", at(0), at(4), 1000, 4 << 20)]
    assert made.pull("x", ["a"]) == []
    assert made.pull("x", ["b"]) == [], "its part is under way"
    assert made.answer(1) == [
        ac.Deliver("x", at(0), at(4), results(1, 2, 3, 4), ("a", "a"), ac.DeliveryReason.PULLED),
        ac.Deliver("x", at(2), at(4), results(3, 4), ("b",), ac.DeliveryReason.PULLED),
    ]


def test_only_what_is_not_under_way_is_fetched() -> None:
    made = world("a", "b", mode=NOTIFY, caching=CachingSettings(eviction="none"))
    for _ in range(4):
        made.push("x")
    made.ack("x", at(2), ["b"])
    assert made.pull("x", ["b"]) == [ac.Fetch(1, "x", at(2), at(4), 1000, 4 << 20)]
    assert made.pull("x", ["a"]) == [ac.Fetch(2, "x", at(0), at(2), 1000, 4 << 20)]
    assert len(made.answer(1)) == 1
    assert made.answer(2) == [ac.Deliver("x", at(0), at(4), results(1, 2, 3, 4), ("a",), ac.DeliveryReason.PULLED)]


def test_what_was_fetched_is_kept_where_the_settings_say_so() -> None:
    chosen = CachingSettings(budget_bytes=1000, eviction="lsc", fetched_enters=True)
    made = world("a", "b", mode=NOTIFY, caching=replace(chosen, eviction="none"))
    made.push("x")
    made.push("x")
    made.handle(ev.CachePoliciesChanged(chosen))
    made.pull("x", ["a"])
    made.answer(1)
    assert [type(action) for action in made.pull("x", ["b"])] == [ac.Deliver]
    assert made.broker.caches.counters.hits == 2


def test_news_are_fetched_once_and_delivered_in_order() -> None:
    made = world("a")
    made.make("x", 3)
    assert made.announce("x") == [ac.Fetch(1, "x", at(0), at(3), 1000, 4 << 20)]
    made.make("x", 1)
    assert made.announce("x") == [], "one fetch of news at a time"
    delivered, fetch = made.answer(1)
    assert isinstance(delivered, ac.Deliver)
    assert (delivered.results, delivered.why) == (results(1, 2, 3), ac.DeliveryReason.LIVE)
    assert fetch == ac.Fetch(2, "x", at(3), at(4), 1000, 4 << 20)


def test_a_pushed_result_does_not_overtake_what_is_still_being_fetched() -> None:
    made = world("a")
    made.make("x", 2)
    made.announce("x")
    assert made.push("x") == []
    first, fetch = made.answer(1)
    assert isinstance(first, ac.Deliver)
    assert first.to == at(2)
    assert fetch == ac.Fetch(2, "x", at(2), at(3), 1000, 4 << 20)


def test_a_result_that_comes_twice_is_delivered_once() -> None:
    made = world("a")
    made.push("x")
    assert made.handle(ev.ResultArrived("x", at(1), 10, "x1")) == []
    assert made.handle(ev.ResultsAnnounced("x", at(1))) == []


def test_who_comes_back_gets_from_the_cache_what_it_did_not_acknowledge() -> None:
    made = world("a", "b")
    made.push("x")
    made.ack("x", at(1), ["a"])
    made.log_out("a")
    made.push("x")
    made.push("x")
    assert made.log_in("a") == [ac.Deliver("x", at(1), at(3), results(2, 3), ("a",), ac.DeliveryReason.CAUGHT_UP)]
    (live,) = made.push("x")
    assert isinstance(live, ac.Deliver)
    assert set(live.audience) == {"a", "b"}


def test_who_comes_back_while_its_results_are_fetched_gets_all_of_them_in_order() -> None:
    made = world("a", caching=CachingSettings(eviction="none"))
    made.log_out("a")
    made.push("x")
    assert made.log_in("a") == [ac.Fetch(1, "x", at(0), at(1), 1000, 4 << 20)]
    assert made.push("x") == [], "it is not live before it has the first"
    (first,) = made.answer(1)
    assert isinstance(first, ac.Deliver)
    assert (first.results, first.more) == (results(1), True)
    assert made.ready("a") == [ac.Fetch(2, "x", at(1), at(2), 1000, 4 << 20)]
    (second,) = made.answer(2)
    assert isinstance(second, ac.Deliver)
    assert (second.results, second.more) == (results(2), False)


def test_an_answer_for_somebody_who_left_meanwhile_goes_nowhere() -> None:
    made = world("a", caching=CachingSettings(eviction="none"), online=False)
    made.push("x")
    made.log_in("a")
    made.log_out("a")
    assert made.answer(1) == []


def test_a_client_that_is_behind_does_not_hold_up_the_others() -> None:
    made = world("slow", "quick")
    made.push("x")
    made.fall_behind("slow")
    (delivered,) = made.push("x")
    assert isinstance(delivered, ac.Deliver)
    assert list(delivered.audience) == ["quick"]
    assert made.ready("slow") == [ac.Deliver("x", at(1), at(2), results(2), ("slow",), ac.DeliveryReason.CAUGHT_UP)]


def test_catching_up_goes_page_by_page() -> None:
    made = world("a", page_results=2)
    made.log_out("a")
    for _ in range(5):
        made.push("x")
    found = [*made.log_in("a"), *made.ready("a"), *made.ready("a"), *made.ready("a")]
    assert [(execution.results, execution.more) for execution in found if isinstance(execution, ac.Deliver)] == [
        (results(1, 2), True),
        (results(3, 4), True),
        (results(5), False),
    ]


def test_a_page_ends_with_the_result_that_fills_it() -> None:
    made = world("a", page_bytes=15)
    made.log_out("a")
    for _ in range(3):
        made.push("x")
    (first,) = made.log_in("a")
    assert isinstance(first, ac.Deliver)
    assert (first.results, first.more) == (results(1, 2), True)


def test_a_subscriber_gets_only_what_was_made_after_it_subscribed() -> None:
    made = world("a")
    made.push("x")
    assert made.subscribe("late", "late", "x") == []
    assert made.broker.since("late") == at(1)
    assert made.log_in("late") == []
    (answer,) = made.handle(ev.ResultsRequested("x", ["late"], after=at(0)))
    assert isinstance(answer, ac.Deliver)
    assert (answer.after, answer.results) == (at(1), ())


def test_who_subscribes_while_news_are_fetched_begins_after_them() -> None:
    made = world("a")
    made.make("x", 2)
    made.announce("x")
    assert made.subscribe("late", "a", "x") == []
    assert made.broker.since("late") is None
    (delivered,) = made.answer(1)
    assert isinstance(delivered, ac.Deliver)
    assert list(delivered.audience) == ["a"]
    assert made.broker.since("late") == at(2)


def test_who_asks_since_an_earlier_cursor_gets_everything_from_there() -> None:
    made = world("a")
    for _ in range(3):
        made.push("x")
    made.ack("x", at(3), ["a"])
    made.log_in("late")
    assert made.subscribe("late", "late", "x", since=at(1)) == [ac.Fetch(1, "x", at(1), at(3), 1000, 4 << 20)]
    assert made.broker.since("late") == at(1)
    assert made.answer(1) == [ac.Deliver("x", at(1), at(3), results(2, 3), ("late",), ac.DeliveryReason.CAUGHT_UP)]


def test_what_retention_has_removed_is_told_as_a_gap() -> None:
    made = world("a", caching=CachingSettings(eviction="none"), online=False)
    for _ in range(5):
        made.push("x")
    made.retain("x", keep=2)
    made.log_in("a")
    assert made.answer(1) == [
        ac.Deliver("x", at(0), at(5), results(4, 5), ("a",), ac.DeliveryReason.CAUGHT_UP, gap=at(3))
    ]


def test_a_gap_in_the_news_is_told_to_those_who_are_online_and_later_to_the_others() -> None:
    made = world("a", "away")
    made.log_out("away")
    made.make("x", 4)
    made.retain("x", keep=1)
    made.announce("x")
    (live,) = made.answer(1)
    assert isinstance(live, ac.Deliver)
    assert (live.results, live.gap) == (results(4), at(3))
    assert made.log_in("away") == [ac.Fetch(2, "x", at(0), at(3), 1000, 4 << 20)]
    (later,) = made.answer(2)
    assert isinstance(later, ac.Deliver)
    assert (later.results, later.gap) == (results(4), at(3))


def test_acknowledgements_are_cumulative_and_never_go_back() -> None:
    made = world("a", "b", online=False)
    for _ in range(3):
        made.push("x")
    made.ack("x", at(2), ["a"])
    made.handle(ev.ResultsAcknowledged("x", at(1), ["a"]))
    made.handle(ev.ResultsAcknowledged("x", at(99), ["b"]))
    assert (made.broker.marker("a"), made.broker.marker("b")) == (at(2), at(3))
    assert [entry.cursor for entry in made.broker.caches["x"]] == [at(3)]


def test_an_acknowledgement_of_another_interest_changes_nothing() -> None:
    made = world("a", online=False)
    made.push("x")
    assert made.handle(ev.ResultsAcknowledged("y", at(1), ["a"])) == []
    assert made.broker.marker("a") == at(0)


def test_the_last_one_to_leave_lets_go_of_the_backend_subscription_after_a_while() -> None:
    made = world("a", grace_s=30.0)
    assert made.unsubscribe("a") == []
    assert made.broker.next_wake_s == 30.0
    made.pass_time(29.0)
    assert made.broker.holds("x")
    assert made.subscribe("b", "ben", "x") == []
    assert made.broker.since("b") == at(0), "it is still there"
    assert ac.UnsubscribeBackend("x") not in made.pass_time(10.0)
    made.unsubscribe("b")
    assert ac.UnsubscribeBackend("x") in made.pass_time(30.0)
    assert not made.broker.holds("x")
    assert len(made.broker.caches) == 0


def test_without_grace_it_lets_go_at_once() -> None:
    made = world("a", grace_s=0.0)
    assert made.unsubscribe("a") == [ac.UnsubscribeBackend("x")]


def test_a_failed_fetch_is_asked_again_until_it_is_answered() -> None:
    made = world("a", mode=NOTIFY, caching=CachingSettings(eviction="none"), fetch_retry_s=2.0)
    made.push("x")
    (fetch,) = made.pull("x", ["a"])
    assert made.fail(1) == []
    assert made.broker.next_wake_s == 2.0
    assert made.pass_time(2.0) == [fetch]
    assert len(made.answer(1)) == 1


def test_the_cluster_is_told_what_everybody_has() -> None:
    made = world("a", "b", report_every_s=5.0, online=False)
    made.push("x")
    made.push("x")
    made.ack("x", at(2), ["a"])
    made.ack("x", at(1), ["b"])
    assert made.pass_time(5.0) == [ac.ReportConsumed({"x": at(1)})]
    assert made.pass_time(5.0) == []
    made.ack("x", at(2), ["b"])
    assert made.pass_time(5.0) == [ac.ReportConsumed({"x": at(2)})]


def test_subscriptions_end_with_their_interest() -> None:
    made = world("a", "b")
    made.push("x")
    assert made.handle(ev.BackendSubscriptionLost("x", "the channel was dropped")) == [
        ac.EndSubscriptions("x", ("a", "b"), "the channel was dropped")
    ]
    assert made.broker.caches.resident_bytes == 0
    assert made.broker.subscriptions_of("a") == ()


def test_policies_are_switched_without_dropping_content() -> None:
    made = world("a", online=False)
    made.push("x")
    made.push("x")
    made.handle(ev.CachePoliciesChanged(CachingSettings(eviction="none", expiry="ttl")))
    made.push("x")
    made.log_in("a")
    assert [type(action) for action in made.answer(1)] == [ac.Deliver]
    assert made.broker.caches.counters_by_policy["all+none+ttl"].hits == 2
    assert made.broker.caches.counters_by_policy["all+lsc+never"].admitted == 2


def test_results_expire_although_nothing_happens_but_time() -> None:
    made = world("a", caching=CachingSettings(expiry="ttl", ttl_first_s=40.0), online=False)
    made.push("x")
    assert made.broker.next_wake_s == 30.0  # a report
    made.pass_time(30.0)
    assert made.broker.next_wake_s == 40.0
    made.pass_time(10.0)
    assert made.broker.caches.resident_bytes == 0


def test_a_subscription_can_be_made_again_as_it_was_and_not_as_another() -> None:
    made = world("a")
    assert made.handle(ev.SubscribeRequested("a", "a", "x", None, INLINE)) == []
    assert made.broker.since("a") == at(0)
    (refused,) = made.handle(ev.SubscribeRequested("a", "a", "y", None, INLINE))
    assert isinstance(refused, ac.RefuseEvent)
    assert isinstance(refused.error, ConflictError)


@pytest.mark.parametrize(
    "event",
    [
        ev.UnsubscribeRequested("nobody"),
        ev.ResultsRequested("x", ["nobody"]),
        ev.SubscriberReady("nobody"),
        ev.SubscriberFellBehind("nobody"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_is_not_there_is_refused(event: ev.BrokerEvent) -> None:
    (refused,) = world("a").handle(event)
    assert isinstance(refused, ac.RefuseEvent)
    assert isinstance(refused.error, NotFoundError)


def test_results_of_an_interest_that_nobody_holds_are_passed_over() -> None:
    broker = Broker(CoreSettings(), 0.0)
    for event in (
        ev.ResultArrived("x", at(1), 10),
        ev.ResultsAnnounced("x", at(1)),
        ev.BackendSubscribed("x", at(0)),
        ev.FetchFailed(7),
    ):
        assert broker.handle(event, 0.0) == []
    assert broker.handle(ev.FetchSucceeded(7, at(1), (), 0.1), 0.0) == []


def test_results_pushed_before_the_backend_is_known_to_be_ready_are_fetched() -> None:
    made = CoreModel(CoreSettings())
    made.subscribe("a", "ann", "x")
    made.log_in("ann")
    channel = made.channels["x"]
    assert made.handle(ev.ResultArrived("x", at(1), 10, "x1")) == []
    (fetch,) = made.handle(ev.BackendSubscribed("x", at(0)))
    assert made.broker.since("a") == at(0)
    assert fetch == ac.Fetch(1, "x", at(0), at(1), 1000, 4 << 20)
    made.make("x")
    assert channel.head == at(1)
    assert len(made.answer(1)) == 1


@pytest.mark.parametrize(("name", "value"), [("grace_s", -1), ("page_results", 0), ("fetch_retry_s", math.inf)])
def test_a_wrong_setting_is_refused_by_its_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        CoreSettings(**{name: value})  # type: ignore[arg-type]


def test_a_cohort_that_acknowledges_less_than_before_changes_nothing() -> None:
    made = world("a", "b", "c")
    for _ in range(3):
        (delivered,) = made.push("x")
    assert isinstance(delivered, ac.Deliver)
    made.ack("x", at(1), ["c"])
    made.ack("x", at(3), delivered.audience)
    made.handle(ev.ResultsAcknowledged("x", at(2), delivered.audience))
    assert [made.broker.marker(name) for name in "abc"] == [at(3)] * 3
    made.check()


def test_who_acknowledged_more_than_its_cohort_keeps_that() -> None:
    made = world("a", "b", "c")
    for _ in range(3):
        (delivered,) = made.push("x")
    assert isinstance(delivered, ac.Deliver)
    made.ack("x", at(3), ["b"])
    made.ack("x", at(2), delivered.audience)
    assert [made.broker.marker(name) for name in "abc"] == [at(2), at(3), at(2)]
    made.log_out("b")
    made.log_out("a")
    assert [made.broker.marker(name) for name in "abc"] == [at(2), at(3), at(2)]
    made.check()


def test_news_without_results_are_not_asked_for_again() -> None:
    made = world("a")
    made.handle(ev.ResultsAnnounced("x", at(5)))
    assert made.handle(ev.FetchSucceeded(1, at(5), (), 0.1)) == []
    assert made.head("x") == at(5)
    assert made.handle(ev.ResultsAnnounced("x", at(5))) == []


def test_an_answer_that_says_nothing_is_asked_again() -> None:
    made = world("a", fetch_retry_s=1.0)
    (fetch,) = made.handle(ev.ResultsAnnounced("x", at(5)))
    assert made.handle(ev.FetchSucceeded(1, at(0), (), 0.1)) == []
    assert made.pass_time(1.0) == [fetch]


def test_what_happens_is_the_same_each_time() -> None:
    def told() -> list[str]:
        made = world("a", "b", "c", caching=CachingSettings(budget_bytes=25))
        made.log_out("b")
        for _ in range(5):
            made.push("x")
        made.log_in("b")
        made.settle()
        return [
            repr(action)
            for action in made.log
            if not isinstance(action, ac.Deliver) or action.why is not ac.DeliveryReason.LIVE
        ]

    assert told() == told()
