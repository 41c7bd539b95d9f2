"""Functions in Python in channels: called once a record, and a call that fails spoils only what it is made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.in_process_cluster import LocalCluster
from tests.support.python_sources import Modules
from tests.support.running_channels import SETUP, RunningChannelDataverse, record
from tocsin.wire.errors import ConflictError

MODULE = """
from tocsin.rules.model.values import Circle, Point

def twice(n):
    if n == 13:
        raise ValueError("unlucky")
    return 2 * n

def noted(n):
    with open({calls!r}, "a") as file:
        file.write("x")
    return n

def around(n):
    return Circle(Point(float(n), 0.0), 0.5)
"""
FUNCTIONS = """
CREATE FUNCTION twice(n) RETURNS bigint LANGUAGE PYTHON AS "{0}:twice";
CREATE FUNCTION noted(n) RETURNS bigint LANGUAGE PYTHON AS "{0}:noted";
CREATE FUNCTION around(n) RETURNS circle LANGUAGE PYTHON AS "{0}:around";
"""


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def module(cluster: LocalCluster, calls: Path) -> Modules:
    made = Modules(cluster.settings.data / "python")
    made.write(MODULE.format(calls=str(calls)))
    return made


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str, module: Modules) -> RunningChannelDataverse:
    made = RunningChannelDataverse(cluster, dataverse)
    made.run(SETUP + FUNCTIONS.format(module.name))
    return made


def create(place: RunningChannelDataverse, name: str, parameters: str, what: str) -> None:
    place.run(f'CREATE CONTINUOUS CHANNEL {name}({parameters}) PERIOD "P1D" {{ SELECT {what} AND is_new(d) }}')


def test_a_call_may_stand_wherever_a_field_or_a_parameter_may(place: RunningChannelDataverse) -> None:
    for name, parameters, what in (
        ("ofBoth", "k", "VALUE d.id FROM D d WHERE (twice(d.n) = k OR d.n = twice(k))"),
        ("ofRange", "k", "VALUE d.id FROM D d WHERE twice(d.n) >= k"),
        ("ofShape", "k: bigint", "VALUE d.id FROM D d WHERE spatial_intersect(around(k), create_point(d.n, 0.25))"),
        ("ofLet", "k: [bigint]", "twice(d.n), k FROM D d LET t = twice(d.n) WHERE t IN k"),
    ):
        create(place, name, parameters, what)
    place.write(*(record(i, n=i) for i in range(8)))
    for name, wanted in (
        ("ofBoth", {"3": [6], "4": [2], "7": []}),
        ("ofRange", {"10": [5, 6, 7], "15": []}),
        ("ofShape", {"5": [5], "9": []}),
        ("ofLet", {"[2, 3]": [{"$1": 2, "k": [2, 3]}]}),
    ):
        mine = {value: place.subscribe(value, channel=name) for value in wanted}
        place.execute(name)
        assert {value: sorted(place.told(item, name), key=str) for value, item in mine.items()} == wanted, name


def test_a_function_of_a_record_is_called_once_however_many_interests_it_meets(
    place: RunningChannelDataverse, calls: Path
) -> None:
    create(place, "p", "k, m: bigint", "VALUE [m, noted(d.n)] FROM D d WHERE d.kind = k AND noted(d.n) > m")
    mine = [place.subscribe('"a"', str(i), channel="p") for i in range(12)]
    place.write(record(1, n=20), record(2, n=30))
    place.execute("p")
    for i, item in enumerate(mine):
        assert sorted(place.told(item, "p")) == [[i, 20], [i, 30]]
    assert len(calls.read_text()) <= 4, "Spark may ask twice for a record, never for each match"


def test_a_call_that_fails_spoils_the_results_of_its_own_record_only(place: RunningChannelDataverse) -> None:
    create(place, "p", "k", "VALUE twice(d.n) FROM D d WHERE d.kind = k")
    mine = place.subscribe('"a"', channel="p")
    place.write(record(1, n=1), record(2, n=13))
    place.execute("p")
    assert place.told(mine, "p") == [2]
    (poison_record,) = place.executions("p")[0].details["poison_records"]
    assert (poison_record["dataset"], poison_record["key"], poison_record["interest"]) == (
        f"{place.dataverse}.D",
        ["2"],
        None,
    )
    assert poison_record["reason"].startswith("the function twice failed: ValueError: unlucky (")


def test_a_call_that_fails_on_a_parameter_silences_that_interest_only(place: RunningChannelDataverse) -> None:
    create(place, "p", "k: bigint", "VALUE d.id FROM D d WHERE d.n = twice(k)")
    good, bad = place.subscribe("1", channel="p"), place.subscribe("13", channel="p")
    place.write(record(1, n=2), record(2, n=26))
    place.execute("p")
    assert (place.told(good, "p"), place.told(bad, "p")) == ([1], [])
    (poison_record,) = place.executions("p")[0].details["poison_records"]
    (blamed,) = [subscription.interest for subscription in place.subscriptions("p") if subscription.id == bad]
    assert (poison_record["dataset"], poison_record["interest"]) == ("", blamed)


def test_code_may_change_and_break_under_a_channel_which_loses_nothing(
    place: RunningChannelDataverse, module: Modules
) -> None:
    create(place, "p", "k", "VALUE d.id FROM D d WHERE spatial_intersect(around(k), create_point(d.n, 0))")
    with pytest.raises(ConflictError, match=r"cannot be dropped: it is used by channel .*\.p"):
        place.run("DROP FUNCTION around@1")
    text = module.file.read_text()
    mine = place.subscribe("1", channel="p")

    def tell(id_: int, n: int) -> None:
        place.write(record(id_, n=n))
        place.execute("p")

    tell(1, 1)
    module.write(text.replace("float(n)", "100.0 * n"))
    tell(2, 100)
    tell(3, 1)
    assert place.told(mine, "p") == [1, 2], "what was computed with the old code is not kept"
    module.write("def around(n) return")
    with pytest.raises(ConflictError, match="cannot be imported: SyntaxError"):
        tell(4, 1)
    module.write(text)
    place.execute("p")
    assert place.told(mine, "p") == [1, 2, 4]
    place.run("DROP CHANNEL p; DROP FUNCTION around@1")
