"""Channels and who subscribes to them: made, shared, told from their start on, and gone without a trace."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from datetime import UTC, datetime

import pytest

from tests.support.in_process_cluster import LocalCluster
from tests.support.running_channels import OF_KIND, SETUP, WITHIN_S, RunningChannelDataverse, record
from tests.support.waiting import wait_until
from tocsin import faults
from tocsin.cluster.catalog.catalog import Remove
from tocsin.wire.cluster import SubscriptionRequest
from tocsin.wire.errors import ConflictError, InputError, NotFoundError, StatementError


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> RunningChannelDataverse:
    made = RunningChannelDataverse(cluster, dataverse)
    made.run(SETUP)
    return made


# ---------------------------------------------------------------- made and dropped


def test_a_channel_is_made_once_and_dropped_once(place: RunningChannelDataverse) -> None:
    assert place.run(OF_KIND)[0]["parameters"] == {"k": "string"}
    with pytest.raises(ConflictError, match="exists already"):
        place.run(OF_KIND)
    assert place.run(OF_KIND.replace("c(k)", "c(k) IF NOT EXISTS")) == [{"name": "c", "existed": True}]
    channel_id = place.running().entry.channel_id
    assert place.run("DROP CHANNEL c") == [{"name": "c"}]
    assert place.run("DROP CHANNEL c IF EXISTS") == [{"name": "c", "existed": False}]
    with pytest.raises(NotFoundError, match="no channel"):
        place.run("DROP CHANNEL c")
    assert channel_id not in place.wait(place.parts.channel_store.channel_ids())
    # Another of the same name shares nothing with it.
    place.run(OF_KIND)
    assert place.running().entry.channel_id > channel_id
    assert place.subscriptions() == []


def test_a_refused_channel_leaves_nothing(place: RunningChannelDataverse) -> None:
    place.run("CREATE TYPE S AS { id: int }; CREATE DATASET xResults(S) PRIMARY KEY id")
    before = place.wait(place.parts.channel_store.channel_ids())
    for body in ("SELECT VALUE d.nothing FROM Nowhere d", "SELECT VALUE d.id FROM D d WHERE d.n + k > d.at + d.n"):
        with pytest.raises((StatementError, NotFoundError)):
            place.run(f"CREATE CONTINUOUS CHANNEL c(k) {{ {body} }}")
    with pytest.raises(ConflictError, match="would be seen as"):
        place.run(OF_KIND.replace("c(k)", "x(k)"))
    assert place.wait(place.parts.channel_store.channel_ids()) == before


WRONG = [
    ("SELECT VALUE d.id FROM D d\n  WHERE is_new(d) AND d.kind = k AND active_timestamp(k) > 1", (4, 38), "ranges"),
    ("SELECT VALUE d.id\n  FROM Nowhere d WHERE d.kind = k", (4, 8), "Nowhere"),
    ("SELECT VALUE d.id FROM D d WHERE d.kind = k AND d.n = k", (3, 3), "the parameter k is used as"),
    ("SELECT VALUE d.id FROM D d WHERE d.kind != k", (2, 1), "nothing ties"),
    ("SELECT VALUE x.result FROM xResults x WHERE x.subscriptionId = k", (3, 30), "cannot be read in a channel"),
]


def test_what_is_wrong_in_a_body_is_shown_at_its_place_in_the_script(place: RunningChannelDataverse) -> None:
    place.run(OF_KIND.replace("c(k)", "x(k)"))
    for body, at, said in WRONG:
        with pytest.raises(StatementError, match=said) as refused:
            place.run(f"CREATE TYPE T IF NOT EXISTS AS {{ id: int }};\nCREATE CONTINUOUS CHANNEL c(k) {{\n  {body}\n}}")
        assert (refused.value.line, refused.value.column) == at, body
        assert refused.value.statement == 3
    place.run("CREATE FUNCTION f(k) { SELECT VALUE d.id FROM D d WHERE d.kind = k AND d.n = k }")
    with pytest.raises(StatementError, match=r"in function f: the parameter k is used as") as refused:
        place.run('\n\nCREATE REPETITIVE CHANNEL c USING f@1 PERIOD duration("P1D")')
    assert (refused.value.line, refused.value.column) == (3, 1)


def test_a_broker_that_cannot_be_dropped_says_which_channels_it_serves(place: RunningChannelDataverse) -> None:
    names = ["c", "e", "f", "g"]
    for name in names:
        place.run(OF_KIND.replace("c(k)", f"{name}(k)"))
        place.subscribe('"a"', channel=name)
        place.subscribe('"b"', channel=name)
    c, e, f, _ = (f"{place.dataverse}.{name}" for name in names)
    with pytest.raises(ConflictError, match=f"has subscriptions to {c}, {e}, {f} and others"):
        place.run("DROP BROKER b")
    place.run("DROP CHANNEL f; DROP CHANNEL g")
    with pytest.raises(ConflictError, match=f"has subscriptions to {c} and {e} "):
        place.run("DROP BROKER b")


def test_a_channel_whose_making_was_cancelled_too_late_runs(
    place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach = faults.reach

    def cancel(point: str) -> None:
        reach(point)
        own = asyncio.current_task() if point == "create-channel.recorded" else None
        if own is not None:
            own.cancel()

    monkeypatch.setattr(faults, "reach", cancel)
    with pytest.raises(CancelledError):
        place.run(OF_KIND)
    monkeypatch.undo()
    wait_until(lambda: bool(place.running_all()), "it runs", WITHIN_S)
    mine = place.subscribe('"a"')
    place.write(record(1))
    place.told_once(mine, [1])


async def count_tasks(name: str) -> int:
    return sum(task.get_name() == name for task in asyncio.all_tasks())


def test_a_channel_that_takes_the_name_of_a_dropped_one_before_that_has_ended_is_another(
    place: RunningChannelDataverse,
) -> None:
    place.run(OF_KIND)
    old, tasks = place.running(), place.wait(count_tasks("channel c"))
    place.wait(place.parts.catalog.apply([Remove(old.entry.ref)]))
    place.run(OF_KIND)
    (new,) = place.running_all()
    assert new.entry.channel_id > old.entry.channel_id
    assert place.wait(count_tasks("channel c")) == tasks, "the new one's in place of the old one's"
    assert old.entry.channel_id not in place.wait(place.parts.channel_store.channel_ids())


def test_what_a_channel_uses_cannot_be_dropped_and_the_dataverse_takes_all_with_it(
    place: RunningChannelDataverse,
) -> None:
    place.run(f"CREATE FUNCTION f(k) {{ SELECT VALUE d.id FROM D d WHERE d.kind = k }}; {OF_KIND}")
    place.run('CREATE REPETITIVE CHANNEL r USING f@1 PERIOD duration("P1D")')
    for drop in ("DROP DATASET D", "DROP FUNCTION f@1"):
        with pytest.raises(ConflictError, match=r"is used by .*channel"):
            place.run(drop)
    ids = {place.running(text).entry.channel_id for text in ("c", "r")}
    place.run(f"DROP DATAVERSE {place.dataverse}; CREATE DATAVERSE {place.dataverse}")
    assert not ids & {channel.entry.channel_id for channel in place.parts.channels.list_running()}
    assert not ids & set(place.wait(place.parts.channel_store.channel_ids()))


def test_rows_that_were_there_before_a_channel_are_not_new_to_it(place: RunningChannelDataverse) -> None:
    place.write(record(1))
    place.run(OF_KIND)
    mine = place.subscribe('"a"')
    place.write(record(2))
    place.told_once(mine, [2])


def test_a_repetitive_channel_may_use_a_function_that_asks_what_is_new(place: RunningChannelDataverse) -> None:
    place.run("CREATE FUNCTION fresh(k) { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.kind = k }")
    with pytest.raises(StatementError, match="in a channel only"):
        place.run('SELECT VALUE f FROM fresh("a") f')
    place.run('CREATE REPETITIVE CHANNEL c USING fresh@1 PERIOD duration("P1D")')
    mine = place.subscribe('"a"')
    place.write(record(1), record(2, "b"))
    place.execute(at=datetime.now(UTC))
    assert place.told(mine) == [1]
    place.execute(at=datetime.now(UTC))
    assert place.told(mine) == [1]


def test_small_and_large_numbers_are_parameters_of_one_range(place: RunningChannelDataverse) -> None:
    place.run("CREATE CONTINUOUS CHANNEL c(p) { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.n >= p }")
    small, large, least = (place.subscribe(text) for text in ("1", "5000000000", "-9223372036854775808"))
    place.write(record(1, n=7), record(2, n=2**62), record(3, n=-5))
    place.told_once(small, [1, 2])
    place.told_once(large, [2])
    place.told_once(least, [1, 2, 3])


# ---------------------------------------------------------------- subscriptions


def test_identical_subscriptions_share_an_interest_whatever_their_broker(place: RunningChannelDataverse) -> None:
    place.run("""
        CREATE CONTINUOUS CHANNEL c(a: double, n: bigint) {
            SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.at = a AND d.n = n
        }
    """)
    same = [("1", "0"), ("1.0", "0"), ("1e0", "-0")]
    ids = [place.subscribe(*item, broker=broker) for item in same for broker in ("b", "other")]
    zeros = [place.subscribe(text, "5") for text in ("0", "-0.0", "0.0")]
    # Beyond 2^53 every integer is another one.
    large = [place.subscribe("1", str(2**62 + i)) for i in range(3)]
    interests = {subscription.id: subscription.interest for subscription in place.subscriptions()}
    assert len({interests[identity] for identity in ids}) == 1
    assert len({interests[item] for item in zeros}) == 1
    assert len(set(interests.values())) == 5 == place.state().interests
    assert place.state().subscriptions == 12
    place.write(
        record(1, at=1.0), record(2, at=-0.0, n=5), *(record(3 + i, at=1.0, n=2**62 + i) for i in range(3))
    )  # fmt: skip
    place.caught_up()
    assert [place.told(identity) for identity in (*ids, *zeros)] == [[1]] * 6 + [[2]] * 3
    assert [place.told(subscription) for subscription in large] == [[3], [4], [5]]
    assert place.state().results == 5


def test_a_value_that_does_not_fit_is_refused_and_changes_nothing(place: RunningChannelDataverse) -> None:
    place.run("CREATE CONTINUOUS CHANNEL c(n: bigint) { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.n = n }")
    for arguments in ('"a"', "1.5", "9223372036854775808", "null", "", "1, 2"):
        with pytest.raises((InputError, StatementError)):
            place.subscribe(arguments)
    with pytest.raises(InputError, match="subscription 1: n"):
        place.subscribe_all(SubscriptionRequest([1]), SubscriptionRequest(["x"]))
    assert place.state().subscriptions == place.state().interests == 0
    with pytest.raises(NotFoundError, match="broker"):
        place.subscribe("1", broker="nobody")
    with pytest.raises(NotFoundError, match="channel"):
        place.subscribe("1", channel="nothing")


def test_subscriptions_end_and_change_their_broker(place: RunningChannelDataverse) -> None:
    place.run(OF_KIND)
    mine, yours = place.subscribe('"a"'), place.subscribe('"a"')
    place.run(f'CHANGE SUBSCRIPTION "{yours}" ON c TO other')
    assert {subscription.id: subscription.broker.name for subscription in place.subscriptions()} == {
        mine: "b",
        yours: "other",
    }
    place.run(f'CHANGE SUBSCRIPTION "{yours}" ON c("a") TO other')
    place.write(record(1))
    place.told_once(mine, [1])
    place.run(f'UNSUBSCRIBE "{mine}" FROM c')
    with pytest.raises(NotFoundError, match="no subscription"):
        place.run(f'UNSUBSCRIBE "{mine}" FROM c')
    place.write(record(2))
    place.told_once(yours, [1, 2])
    # With the last one the interest goes: nothing more is found, and nothing is left of it.
    place.run(f'UNSUBSCRIBE "{yours}" FROM c')
    place.write(record(3))
    place.caught_up()
    assert (place.state().interests, place.state().subscriptions) == (0, 0)
    assert place.executions()[0].results == 0


def test_a_subscription_sees_results_from_its_own_start_on(place: RunningChannelDataverse) -> None:
    place.run(OF_KIND)
    first = place.subscribe('"a"')
    place.write(record(1))
    place.caught_up()
    second = place.subscribe('"a"')
    place.write(record(2))
    place.caught_up()
    third = place.subscribe('"b"')
    place.write(record(3), record(4, "b"))
    place.caught_up()
    assert [place.told(subscription) for subscription in (first, second, third)] == [[1, 2, 3], [2, 3], [4]]
    seen = place.rows("SELECT VALUE [r.subscriptionId, r.result] FROM cResults r")
    assert sorted(map(tuple, seen)) == sorted(
        [(first, 1), (first, 2), (first, 3), (second, 2), (second, 3), (third, 4)]
    )
    shown = place.rows("SELECT VALUE [s.subscriptionId, s.BrokerName, s.param0] FROM cSubscriptions s")
    assert sorted(map(tuple, shown)) == sorted([(first, "b", "a"), (second, "b", "a"), (third, "b", "b")])
