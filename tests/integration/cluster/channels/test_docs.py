"""What docs/channels.md says is tried: its examples, how it says conditions are matched, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.support.channels_in_process import ChannelDataverse
from tests.support.in_process_cluster import LocalCluster
from tests.unit.test_docs import document, table_after
from tocsin.wire.errors import TocsinError

GUIDE = document("docs/channels.md")
EXAMPLES = re.findall(r"^```sql\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
MATCHED = table_after(GUIDE, "### How parameters are matched")
REFUSED = table_after(GUIDE, "### What is refused")


@pytest.fixture(scope="module")
def guide(cluster: LocalCluster) -> Iterator[ChannelDataverse]:
    """A dataverse in which all examples of the guide ran, one after the other."""
    name = f"guide{uuid4().hex}"
    cluster.run(f"CREATE DATAVERSE {name}")
    place = ChannelDataverse(cluster, name)
    for example in EXAMPLES:
        place.run(example)
    yield place
    cluster.run(f"DROP DATAVERSE {name}")


def test_the_examples_run_and_tell_who_subscribed(guide: ChannelDataverse) -> None:
    for channel, expected in (
        ("ReportsOfKind", {"message": "Leave low ground", "severity": 8}),
        ("ReportsAt", {"message": "Leave low ground", "kind": "flood"}),
    ):
        guide.execute(channel)
        (results,) = guide.told(channel).values()
        assert expected in results
    (shown,) = guide.rows("SELECT VALUE s FROM ReportsOfKindSubscriptions s")
    assert set(shown) == {"subscriptionId", "DataverseName", "BrokerName", "param0"}
    shown, *_ = guide.rows("SELECT VALUE r FROM ReportsOfKindResults r")
    assert set(shown) == {"resultId", "channelExecutionTime", "subscriptionId", "deliveryTime", "result"}


def test_a_channel_is_explained(guide: ChannelDataverse) -> None:
    (shown,) = guide.rows("EXPLAIN CHANNEL ReportsNearPerson")
    assert shown.pop("plan")
    assert shown == {
        "channel": "ReportsNearPerson", "parameters": {"name": "string"}, "watches": ["Reports", "People"],
        "matched by": ["equality"], "depends on time": False,
    }  # fmt: skip


@pytest.mark.parametrize("condition", MATCHED)
def test_a_condition_is_matched_as_the_guide_says(guide: ChannelDataverse, condition: str) -> None:
    parameters, way = MATCHED[condition]
    guide.run(
        f"CREATE CONTINUOUS CHANNEL Tried({parameters.strip('`')})"
        f" {{ SELECT VALUE r.id FROM Reports r WHERE is_new(r) AND {condition} }}"
    )
    try:
        assert list(guide.channel("Tried").query.matched_by) == [way]
    finally:
        guide.run("DROP CHANNEL Tried")


@pytest.mark.parametrize("body", REFUSED)
def test_a_query_is_refused_with_the_remedy_that_the_guide_tells(guide: ChannelDataverse, body: str) -> None:
    why, remedy = REFUSED[body]
    with pytest.raises(TocsinError) as caught:
        guide.run(f"CREATE CONTINUOUS CHANNEL Tried(p) {{ {body} }}")
    assert (re.sub(r"^line \d+, column \d+: ", "", caught.value.message), caught.value.hint) == (why, remedy)


def test_a_version_of_a_record_is_told_once_and_only_the_last_of_a_period(guide: ChannelDataverse) -> None:
    guide.run(
        """CREATE CONTINUOUS CHANNEL Moves(name) PERIOD "P1D" {
            SELECT VALUE get_x(p.place) FROM People p WHERE is_new(p) AND p.name = name
        }"""
    )
    mine = guide.subscribe('Moves("ann")', "Downtown")
    told: list[float] = []

    def move(*statements: str) -> None:
        for statement in statements:
            guide.run(statement)
        guide.execute("Moves")

    at = 'UPSERT INTO People {{"name": "ann", "place": create_point({}, 0)}}'
    for x in (1.0, 1.0, 2.0):
        move(at.format(x))
        told.append(x)
        assert guide.told("Moves")[mine] == told
    move(at.format(3.0), at.format(4.0))
    assert guide.told("Moves")[mine] == [*told, 4.0]
    move(at.format(5.0), 'DELETE FROM People p WHERE p.name = "ann"')
    move('INSERT INTO People {"name": "bo", "place": create_point(6, 0)}')
    assert guide.told("Moves")[mine] == [*told, 4.0]


def test_limits_hold_for_each_interest_by_itself(guide: ChannelDataverse) -> None:
    guide.run(
        """CREATE CONTINUOUS CHANNEL Worst(kind) PERIOD "P1D" {
            SELECT VALUE r.severity FROM Reports r WHERE is_new(r) AND r.kind = kind ORDER BY r.severity DESC LIMIT 2
        }"""
    )
    floods, fires = (guide.subscribe(f'Worst("{kind}")', "Downtown") for kind in ("flood", "fire"))
    zone = 'create_circle(create_point(0.0, 0.0), 1.0), "at": current_datetime(), "message": "", "tags": []'
    for kind, severity in (("flood", 1), ("flood", 9), ("flood", 5), ("fire", 2), ("fire", 3), ("fire", 1)):
        guide.run(f'INSERT INTO Reports {{"kind": "{kind}", "severity": {severity}, "zone": {zone}}}')
    guide.execute("Worst")
    assert guide.told("Worst") == {floods: [9, 5], fires: [3, 2]}
