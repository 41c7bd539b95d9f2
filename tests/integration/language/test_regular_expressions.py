"""Expressions that would keep the engine busy for ever: the statement, record or interest fails, and nothing else."""

from __future__ import annotations

import pytest

from tests.support.in_process_cluster import LocalCluster
from tests.support.running_channels import SETUP, RunningChannelDataverse, record
from tocsin.wire.errors import StatementError

ENDLESS = "(.*e){9}.*z"
STEPS = "this regular expression takes more than 50,000,000 steps on one value"


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> RunningChannelDataverse:
    made = RunningChannelDataverse(cluster, dataverse)
    made.run(SETUP)
    return made


@pytest.mark.parametrize(
    "condition",
    [
        f"d.kind RLIKE '{ENDLESS}'", f"d.kind REGEXP '{ENDLESS}'", f"regexp_contains(d.kind, '{ENDLESS}')",
        f"REGEXP_LIKE(d.kind, '{ENDLESS}')", f"regexp_replace(d.kind, '{ENDLESS}', '') = ''",
        f"SOME x IN [d.kind] SATISFIES x RLIKE '{ENDLESS}'", f"split(d.kind, '{ENDLESS}')[0] = ''",
        f"d.kind LIKE (SELECT VALUE e.kind FROM D e WHERE e.id = 3)[0] OR d.kind RLIKE '{ENDLESS}'",
    ],
)  # fmt: skip
def test_a_statement_ends_with_an_error(place: RunningChannelDataverse, condition: str) -> None:
    place.write(record(1, kind="e" * 400), record(2, kind="eeeeeeeeeez"), record(3, kind="b%"))
    with pytest.raises(StatementError, match=STEPS) as refused:
        place.rows(f"SELECT VALUE d.id FROM D d WHERE {condition}")
    assert "repetitions within repetitions" in str(refused.value.hint)
    assert place.rows(f"SELECT VALUE d.id FROM D d WHERE d.id > 1 AND ({condition})") in ([2], [2, 3], [])


def test_functions_of_ours_are_nobodys_to_call(place: RunningChannelDataverse) -> None:
    with pytest.raises(StatementError, match="tocsin_regexp_like cannot be called here"):
        place.rows("SELECT VALUE tocsin_regexp_like('a', 'b')")


def test_a_record_on_which_a_channels_expression_takes_too_long_is_set_aside_alone(
    place: RunningChannelDataverse,
) -> None:
    place.run(
        f"CREATE CONTINUOUS CHANNEL p(k) {{ SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.n = k"
        f" AND d.kind RLIKE '{ENDLESS}' }};"
    )
    mine, other = place.subscribe("1", channel="p"), place.subscribe("2", channel="p")
    slow, quick = "e" * 400, "eeeeeeeeeez"
    place.write(record(1, n=1, kind=quick), record(2, n=1, kind=slow), record(3, n=1), record(4, n=2, kind=quick))
    place.caught_up("p")
    assert (place.told(mine, "p"), place.told(other, "p")) == ([1], [4])
    (poison_record,) = [poison for run in place.executions("p") for poison in run.details.get("poison_records", [])]
    assert (poison_record["key"], poison_record["reason"]) == (["2"], STEPS)
    place.write(record(5, n=1, kind=quick))
    place.told_once(mine, [1, 5], "p")
    assert place.running("p").trouble is None


def test_an_interest_whose_pattern_takes_too_long_is_set_aside_alone(place: RunningChannelDataverse) -> None:
    place.run("CREATE CONTINUOUS CHANNEL p(k) { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.kind LIKE k };")
    mine, slow = place.subscribe('"aa%"', channel="p"), place.subscribe(f'"%{"a" * 5_000}b%"', channel="p")
    place.write(record(1, kind="a" * 30_000), record(2, kind="aab"))
    place.caught_up("p")
    assert sorted(place.told(mine, "p")) == [1, 2]
    assert place.told(slow, "p") == []
    poison_records = [poison for run in place.executions("p") for poison in run.details.get("poison_records", [])]
    (interest,) = {subscription.interest for subscription in place.subscriptions("p") if subscription.id == slow}
    assert {poison["interest"] for poison in poison_records} == {interest}
    assert {poison["reason"] for poison in poison_records} == {STEPS}


def test_a_pattern_of_like_has_a_greatest_length(place: RunningChannelDataverse) -> None:
    place.write(record(1, kind="a" * 10_001), record(2, kind="aab"))
    for pattern in (f"'{'a' * 10_001}'", "(SELECT VALUE e.kind FROM D e WHERE e.id = 1)[0]"):
        with pytest.raises(StatementError, match="a pattern of LIKE has at most 10,000 characters"):
            place.rows(f"SELECT VALUE d.id FROM D d WHERE d.id = 2 AND d.kind LIKE {pattern}")
