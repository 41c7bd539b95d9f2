"""The datasets of a channel are datasets: listed, queried, indexed and changed by statements, all or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.in_process_cluster import LocalCluster
from tests.support.running_channels import OF_KIND, SETUP, RunningChannelDataverse, record
from tests.support.waiting import wait_until
from tocsin.pipeline.datasets.upkeep import UpkeepLimits, upkeep
from tocsin.rules.model.cursors import START, Range
from tocsin.wire.errors import ConflictError, NotFoundError, StatementError, TocsinError


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> RunningChannelDataverse:
    made = RunningChannelDataverse(cluster, dataverse)
    made.run(SETUP + OF_KIND)
    return made


def subscription(place: RunningChannelDataverse, kind: Any, **fields: Any) -> dict[str, Any]:
    return {"DataverseName": place.dataverse, "BrokerName": "b", "param0": kind, **fields}


def insert(place: RunningChannelDataverse, *records: dict[str, Any], verb: str = "INSERT") -> dict[str, Any]:
    (done,) = place.run(f"{verb} INTO cSubscriptions {json.dumps(records)}")
    return done


def refused(place: RunningChannelDataverse, statement: str, kind: type[TocsinError], said: str) -> None:
    with pytest.raises(kind) as raised:
        place.run(statement)
    assert said in f"{raised.value.message} {raised.value.hint or ''}"


# ---------------------------------------------------------------- subscriptions


def test_inserting_a_record_subscribes(place: RunningChannelDataverse) -> None:
    assert insert(place, subscription(place, "a"), subscription(place, "b", subscriptionId="mine"))["inserted"] == 2
    place.write(record(1, "a"), record(2, "b"), record(3, "c"))
    place.told_once("mine", [2])
    rows = place.rows("SELECT VALUE s FROM cSubscriptions s WHERE s.param0 = 'a'")
    assert [(row["BrokerName"], row["DataverseName"]) for row in rows] == [("b", place.dataverse)]
    place.told_once(rows[0]["subscriptionId"], [1])


def test_an_insert_can_be_a_query_and_ids_can_be_uuids(place: RunningChannelDataverse) -> None:
    place.write(record(1, "x"), record(2, "y"))
    place.run(
        f"""INSERT INTO cSubscriptions (SELECT "{place.dataverse}" AS DataverseName, "b" AS BrokerName,
            d.kind AS param0 FROM D d);
        INSERT INTO cSubscriptions {{"BrokerName": "b", "param0": "z",
            "subscriptionId": uuid("5c848e5c-6b6a-498f-8452-8847a2957421")}}"""
    )
    assert sorted(each.parameters for each in place.subscriptions()) == ['["x"]', '["y"]', '["z"]']
    assert "5c848e5c-6b6a-498f-8452-8847a2957421" in [each.id for each in place.subscriptions()]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"param0": 7}, "k: "),
        ({"param0": None}, "k: a parameter has a value"),
        ({"BrokerName": "nobody"}, "no broker"),
        ({"BrokerName": 3}, "BrokerName: a subscription needs this text"),
        ({"DataverseName": 3}, "DataverseName: a subscription needs this text"),
        ({"param1": "b"}, "param1: a subscription has no such field"),
        ({"subscriptionId": 1}, "subscriptionId: must be a text or a uuid"),
        ({"subscriptionId": ""}, "cannot be empty"),
        ({"subscriptionId": "taken"}, "with the id taken already"),
    ],
    ids=str,
)
def test_one_wrong_record_leaves_nothing_behind(
    place: RunningChannelDataverse, wrong: dict[str, Any], said: str
) -> None:
    insert(place, subscription(place, "a", subscriptionId="taken"))
    records = json.dumps([subscription(place, "b"), {**subscription(place, "c"), **wrong}])
    refused(place, f"INSERT INTO cSubscriptions {records}", TocsinError, said)
    assert [each.id for each in place.subscriptions()] == ["taken"]


def test_an_upsert_changes_the_subscription_with_its_id(place: RunningChannelDataverse) -> None:
    insert(place, subscription(place, "a", subscriptionId="mine"))
    place.write(record(1, "a"))
    place.told_once("mine", [1])
    records = [subscription(place, "b", subscriptionId="mine", BrokerName="other"), subscription(place, "c")]
    assert insert(place, *records, verb="UPSERT")["upserted"] == 2
    place.write(record(2, "a"), record(3, "b"))
    place.told_once("mine", [3])
    assert [each.broker.name for each in place.subscriptions() if each.id == "mine"] == ["other"]


def test_deleting_records_unsubscribes(place: RunningChannelDataverse) -> None:
    insert(place, *(subscription(place, kind, subscriptionId=f"s{kind}") for kind in "abc"))
    assert place.run("DELETE FROM cSubscriptions s WHERE s.param0 IN ['a', 'b']")[0]["deleted"] == 2
    assert [each.id for each in place.subscriptions()] == ["sc"]
    assert place.run("DELETE FROM cSubscriptions WHERE subscriptionId = 'sa'")[0]["deleted"] == 0
    assert place.run("DELETE FROM cSubscriptions")[0]["deleted"] == 1
    assert place.subscriptions() == []


def test_an_id_is_a_uuid_as_in_the_original_or_the_text_that_a_client_chose(place: RunningChannelDataverse) -> None:
    made = place.subscribe("'a'")
    insert(place, subscription(place, "a", subscriptionId="mine"))
    place.write(record(1, "a"))
    place.told_once(made, [1])
    for condition, count in ((f"uuid('{made}')", 1), (f"'{made}'", 0), ("'mine'", 1)):
        where = f"WHERE x.subscriptionId = {condition}"
        assert place.rows(f"SELECT VALUE count(*) FROM cResults x {where}") == [count]
        assert place.rows(f"SELECT VALUE count(*) FROM cSubscriptions x {where}") == [count]
    joined = "SELECT VALUE s.subscriptionId FROM cSubscriptions s, cResults r WHERE r.subscriptionId = s.subscriptionId"
    assert sorted(place.rows(joined)) == sorted([made, "mine"])
    assert place.run(f"DELETE FROM cSubscriptions WHERE subscriptionId = uuid('{made}')")[0]["deleted"] == 1


def test_a_subscription_changes_its_values_and_its_broker(place: RunningChannelDataverse) -> None:
    mine, sharer = place.subscribe("'a'"), place.subscribe("'b'")
    (changed,) = place.run(f'CHANGE SUBSCRIPTION "{mine}" ON c(lower("B")) TO other')
    assert (changed["subscription"], changed["broker"]) == (mine, "other")
    place.write(record(1, "a"), record(2, "b"))
    place.told_once(mine, [2])
    place.told_once(sharer, [2])
    refused(place, f'CHANGE SUBSCRIPTION "{mine}" ON c(7) TO other', TocsinError, "k: ")
    refused(place, 'CHANGE SUBSCRIPTION "nobody" ON c("a") TO b', NotFoundError, "no subscription nobody")
    place.told_once(mine, [2])


# ---------------------------------------------------------------- results


def stored(place: RunningChannelDataverse, subscription_id: str) -> list[Any]:
    rows = place.rows(f"SELECT VALUE r.result FROM cResults r WHERE r.subscriptionId = uuid('{subscription_id}')")
    return sorted(rows)


def test_results_have_the_times_of_their_execution_and_of_their_delivery(place: RunningChannelDataverse) -> None:
    place.subscribe("'a'")
    place.write(record(1, "a"))
    place.caught_up()
    (row,) = place.rows("SELECT VALUE r FROM cResults r WHERE r.deliveryTime > datetime('2017-05-02T17:52:59.570Z')")
    assert set(row) == {"resultId", "channelExecutionTime", "subscriptionId", "deliveryTime", "result"}
    assert row["channelExecutionTime"] <= row["deliveryTime"]


def test_deleted_results_are_gone_and_later_ones_come(place: RunningChannelDataverse) -> None:
    mine, other = place.subscribe("'a'"), place.subscribe("'b'")
    place.write(*(record(n, "a") for n in range(4)), record(9, "b"))
    place.told_once(mine, range(4))
    assert place.run("DELETE FROM cResults r WHERE r.result >= 2 AND r.result < 9")[0]["deleted"] == 2
    assert sorted(place.told(mine)) == stored(place, mine) == [0, 1]
    place.write(record(5, "a"))
    place.told_once(mine, [0, 1, 5])
    place.told_once(other, [9])
    assert place.run("DELETE FROM cResults")[0]["deleted"] == 4
    assert place.told(mine) == place.told(other) == []
    assert len(place.subscriptions()) == 2


def test_a_result_that_subscriptions_share_goes_for_all_of_them_or_not_at_all(place: RunningChannelDataverse) -> None:
    mine, sharer = place.subscribe("'a'"), place.subscribe("'a'")
    place.write(record(1, "a"), record(2, "a"))
    place.told_once(mine, [1, 2])
    refused(
        place, f"DELETE FROM cResults WHERE subscriptionId = uuid('{mine}')", ConflictError, "1 of the 2 subscriptions"
    )
    assert stored(place, mine) == stored(place, sharer) == [1, 2]
    assert place.run("DELETE FROM cResults r WHERE r.result = 1")[0]["deleted"] == 2
    assert stored(place, mine) == stored(place, sharer) == [2]
    place.run(f"UNSUBSCRIBE '{sharer}' FROM c; DELETE FROM cResults WHERE subscriptionId = uuid('{mine}')")
    assert stored(place, mine) == []


def test_what_a_broker_was_told_of_stays_a_valid_cursor(place: RunningChannelDataverse) -> None:
    mine = place.subscribe("'a'")
    place.write(record(1, "a"), record(2, "a"))
    place.told_once(mine, [1, 2])
    (one,) = place.subscriptions()

    async def fetch(after: Any, to: Any = None) -> tuple[list[Any], Any]:
        parts = [
            part async for chunk in place.parts.channel_store.fetch([Range(one.interest, after, to)]) for part in chunk
        ]
        results = [result for part in parts for result in part.results]
        return results, [part.gap for part in parts if part.gap is not None]

    results, _ = place.wait(fetch(START))
    announced = results[-1].cursor
    place.run("DELETE FROM cResults")
    assert place.wait(fetch(START, announced)) == ([], [])
    place.write(record(3, "a"))
    place.caught_up()
    later, gaps = place.wait(fetch(announced))
    assert ([json.loads(result.payload) for result in later], gaps) == ([3], [])


def test_results_are_not_inserted_and_not_loaded(place: RunningChannelDataverse) -> None:
    refused(place, "INSERT INTO cResults {'result': 1}", ConflictError, "only its executions add some")
    refused(place, "UPSERT INTO cResults {'result': 1}", ConflictError, "INSERT INTO a dataset that the channel watch")
    load = 'LOAD DATASET cSubscriptions USING localfs (("path"="/nowhere"), ("format"="json"))'
    refused(place, load, ConflictError, "takes no LOAD")
    for dataset in ("cResults", "cSubscriptions"):
        refused(place, f"DROP DATASET {dataset}", ConflictError, "DROP CHANNEL c removes it")
        refused(place, f"DROP DATASET {dataset} IF EXISTS", ConflictError, "DROP CHANNEL c removes it")
    feed = 'CREATE FEED f WITH {"adapter-name": "http_adapter", "type-name": "R", "format": "json"}'
    refused(place, f"{feed}; CONNECT FEED f TO DATASET cSubscriptions", NotFoundError, "belongs to channel")


def test_procedures_change_the_datasets_of_channels(place: RunningChannelDataverse) -> None:
    mine = place.subscribe("'a'")
    place.run(
        f"""CREATE PROCEDURE join(kind) {{ INSERT INTO cSubscriptions
            {{"DataverseName": "{place.dataverse}", "BrokerName": "b", "param0": kind, "subscriptionId": kind}} }};
        CREATE PROCEDURE forget(n) {{ DELETE FROM cResults r WHERE r.result = n }};
        CREATE PROCEDURE sweep(n) {{ DELETE FROM cResults r WHERE r.result > n }} PERIOD "PT0.1S";
        EXECUTE join("b")"""
    )
    place.write(record(1, "a"), record(2, "a"), record(3, "b"), record(4, "a"))
    place.told_once("b", [3])
    assert place.run("EXECUTE forget(1)")[0]["deleted"] == 1
    assert sorted(place.told(mine)) == [2, 4]
    place.run("EXECUTE sweep(2)")
    wait_until(lambda: (place.told(mine), place.told("b")) == ([2], []), "its ticks delete")
    refused(place, "DROP CHANNEL c", ConflictError, "used by procedure")
    ticking = "CREATE PROCEDURE p() { INSERT INTO cSubscriptions [] } PERIOD 'P1D'"
    refused(place, ticking, StatementError, "leave PERIOD out")


# ---------------------------------------------------------------- Metadata, indexes


def test_metadata_lists_the_datasets_of_channels_as_the_original_does(place: RunningChannelDataverse) -> None:
    datasets = place.rows(
        f"""SELECT VALUE x FROM Metadata.`Channel` result, Metadata.`Dataset` x
        WHERE result.ChannelName = "c" AND result.DataverseName = "{place.dataverse}"
        AND x.DataverseName = result.DataverseName
        AND (x.DatasetName = result.SubscriptionsDatasetName OR x.DatasetName = result.ResultsDatasetName)
        ORDER BY x.DatasetName"""
    )
    assert [(row["DatasetName"], row["DatatypeDataverseName"], row["DatatypeName"]) for row in datasets] == [
        ("cResults", "Metadata", "ChannelResultsType"), ("cSubscriptions", "Metadata", "ChannelSubscriptionsType"),
    ]  # fmt: skip
    assert [row["InternalDetails"]["PrimaryKey"] for row in datasets] == [[["resultId"]], [["subscriptionId"]]]
    assert all(row["InternalDetails"]["Autogenerated"] and row["DatasetType"] == "INTERNAL" for row in datasets)
    types = place.rows(
        f"""SELECT d.DatasetName, t.Derived.Record.Fields FROM Metadata.`Dataset` d, Metadata.`Datatype` t
        WHERE d.DataverseName = "{place.dataverse}" AND t.DataverseName = d.DatatypeDataverseName
        AND t.DatatypeName = d.DatatypeName ORDER BY d.DatasetName"""
    )
    assert [row["DatasetName"] for row in types] == ["D", "E", "cResults", "cSubscriptions"]
    assert [field["FieldName"] for field in types[0]["Fields"]] == ["id", "kind", "n", "at"]


def test_indexes_on_the_datasets_of_a_channel_go_with_it(place: RunningChannelDataverse) -> None:
    place.run("CREATE INDEX delivery ON cResults(deliveryTime); CREATE INDEX who ON cSubscriptions(param0)")
    listed = f"""SELECT VALUE i.IndexName FROM Metadata.`Index` i
        WHERE i.DataverseName = "{place.dataverse}" AND NOT i.IsPrimary ORDER BY i.IndexName"""
    assert place.rows(listed) == ["delivery", "who"]
    refused(place, "CREATE INDEX delivery ON cResults(deliveryTime)", ConflictError, "exists already")
    refused(place, "CREATE INDEX i ON cResults(nothing)", StatementError, "no field nothing")
    refused(place, "DROP INDEX cResults.nothing", NotFoundError, "no index")
    place.run("DROP INDEX cSubscriptions.who; DROP CHANNEL c")
    assert place.rows(listed) == []
    refused(place, "CREATE INDEX i ON cResults(deliveryTime)", NotFoundError, "no dataset")


# ---------------------------------------------------------------- records from before CREATE

FROM_BEGINNING = OF_KIND.removesuffix(";") + ' WITH {"since": "beginning"};'


def test_a_channel_from_the_beginning_tells_its_first_subscriptions_of_older_records(
    cluster: LocalCluster, dataverse: str
) -> None:
    place = RunningChannelDataverse(cluster, dataverse)
    place.run(SETUP)
    place.write(record(1, "a"), record(2, "b"))
    place.write(record(1, "a", n=5), record(3, "a"))
    place.run("DELETE FROM D WHERE id = 3")
    place.run(FROM_BEGINNING)
    place.execute()
    assert place.state().vector == {place.folder(): 0}, "it waits for its first subscription"
    mine = place.subscribe("'a'")
    place.told_once(mine, [1])
    late = place.subscribe("'a'")
    place.write(record(4, "a"), record(2, "b", n=7))
    place.told_once(mine, [1, 4])
    assert place.told(late) == [4]


def test_records_from_before_a_channel_count_once_after_compaction_and_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    def place_in(cluster: LocalCluster) -> RunningChannelDataverse:
        return RunningChannelDataverse(cluster, "Default")

    first = LocalCluster(spark, tmp_path)
    place = place_in(first)
    place.run(SETUP)
    for n in range(12):
        place.write(record(n, "a"))
    place.write(record(0, "a", n=7))
    table = place.parts.tables.table(place.parts.catalog.catalog.dataset("Default", "D"))
    assert upkeep(table, UpkeepLimits(files_per_compaction=2)).compacted_files > 0
    place.run(FROM_BEGINNING)
    place.execute()
    first.close()

    second = LocalCluster(spark, tmp_path)
    place = place_in(second)
    assert place.state().vector == {place.folder(): 0}
    mine = place.subscribe("'a'")
    place.told_once(mine, range(12))
    place.write(record(20, "a"))
    place.told_once(mine, [*range(12), 20])
    second.close()

    third = LocalCluster(spark, tmp_path)
    try:
        place = place_in(third)
        place.write(record(21, "a"))
        place.told_once(mine, [*range(12), 20, 21])
    finally:
        third.close()


def test_wrong_beginnings_are_refused(place: RunningChannelDataverse) -> None:
    body = "{ SELECT VALUE d.id FROM D d WHERE d.kind = k }"
    whole = f'CREATE REPETITIVE CHANNEL r(k) PERIOD "P1D" {body} WITH {{"since": "beginning"}}'
    refused(place, whole, StatementError, "computes its whole result")
    yesterday = f'CREATE CONTINUOUS CHANNEL r(k) {body} WITH {{"since": "yesterday"}}'
    refused(place, yesterday, StatementError, 'must be "now" or "beginning"')
