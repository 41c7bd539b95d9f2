from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.support.waiting import WITHIN_S
from tocsin.cluster.feeds.apply_function import job_deadline
from tocsin.pipeline import session
from tocsin.pipeline.class_archive import ARCHIVE
from tocsin.pipeline.spark.local_settings import local_settings, slots
from tocsin.wire.errors import DeadlineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Starts Spark, says which process the JVM is, and dies as by a power cut when its input ends.
DIES = """
import os, signal, sys
from pathlib import Path
from tocsin.pipeline import session
spark = session.start(Path(sys.argv[1]))
spark.range(10).count()
print(session.jvm_process(spark).pid, flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_kill_9_the_jvm_ends_by_itself(tmp_path: Path) -> None:
    elsewhere = tmp_path / "cwd"
    elsewhere.mkdir()
    command = [sys.executable, "-c", DIES, str(tmp_path / "scratch")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, cwd=elsewhere, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        jvm = psutil.Process(int(process.stdout.readline()))
        process.stdin.close()
        process.wait(30)
        psutil.wait_procs([jvm], timeout=WITHIN_S)
        assert not jvm.is_running()
    assert list(elsewhere.iterdir()) == [], "Spark wrote into the working directory"


@pytest.mark.skipif(not ARCHIVE.exists(), reason="this environment has no archive of Spark's classes; ./dev makes one")
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux shows what a process maps")
def test_the_jvm_maps_its_classes_from_the_archive(spark: SparkSession) -> None:
    mapped = Path(f"/proc/{session.jvm_process(spark).pid}/maps").read_text()
    assert str(ARCHIVE.resolve()) in mapped


def test_a_failing_query_is_silent_on_the_terminal(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.sql("SELECT 1 / id FROM range(1)").toArrow()
    assert capfd.readouterr() == ("", "")


def test_a_statement_that_runs_out_of_memory_leaves_spark_alive(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="OutOfMemoryError"):
        spark.sql("SELECT length(repeat('x', CAST(id + 2000000000 AS int))) FROM range(2)").toArrow()
    assert spark.range(3).count() == 3


def test_what_a_thread_asks_beyond_its_deadline_is_stopped(spark: SparkSession) -> None:
    spark.sparkContext.setJobGroup("slow", "slow", interruptOnCancel=True)
    try:
        with pytest.raises(DeadlineError), job_deadline(spark, 0.5):
            spark.sql("SELECT sum(a.id * b.id) FROM range(10000000) a CROSS JOIN range(10000000) b").toArrow()
        with job_deadline(spark, 600):
            assert spark.range(3).count() == 3
    finally:
        spark.sparkContext._jsc.sc().clearJobGroup()  # type: ignore[attr-defined]


def test_the_parser_forgets_what_it_learned_when_that_is_much(spark: SparkSession) -> None:
    threshold = "spark.sql.parser.parserDfaCacheFlushThreshold"
    usual = spark.conf.get(threshold)
    learned = spark._jvm.org.apache.spark.sql.catalyst.parser.AbstractParser.getDFACacheNumStates
    spark.sql("SELECT CASE WHEN id BETWEEN 1 AND 2 THEN 'a' ELSE NULL END FROM range(3) GROUP BY ALL")
    assert learned() > 100
    try:
        spark.conf.set(threshold, "100")
        spark.sql("SELECT 1")
        assert learned() < 100
    finally:
        spark.conf.set(threshold, usual)


def test_names_are_case_sensitive_and_times_are_utc(spark: SparkSession) -> None:
    assert spark.sql("SELECT a.x, a.X FROM (SELECT 1 AS x, 2 AS X) a").toArrow().to_pylist() == [{"x": 1, "X": 2}]
    assert spark.sql("SELECT CAST(TIMESTAMP '2026-01-01 00:00:00Z' AS string) t").first() == ("2026-01-01 00:00:00",)


def test_an_expression_a_thousand_levels_deep_is_answered(spark: SparkSession) -> None:
    assert spark.sql(f"SELECT {'(' * 1_000}1{' + 1)' * 1_000} AS n").first() == (1_001,)


def test_a_process_has_one_session(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="one per process"):
        session.start(tmp_path)


def test_the_callers_settings_win_and_their_java_options_are_added(tmp_path: Path) -> None:
    theirs = {"spark.sql.shuffle.partitions": "7", "spark.driver.extraJavaOptions": "-XX:+UseG1GC -Dx=y"}
    merged = local_settings(tmp_path, master="local[*]", driver_memory="2g", conf=theirs)
    assert merged["spark.sql.shuffle.partitions"] == "7"
    assert merged["spark.driver.maxResultSize"] == "256m"
    assert merged["spark.driver.extraJavaOptions"].endswith(" -XX:+UseG1GC -Dx=y")
    assert "UseSerialGC" not in merged["spark.driver.extraJavaOptions"]
    ours = local_settings(tmp_path, master="local[3]", driver_memory="512m", conf={})
    assert ours["spark.master"] == "local[3]"
    assert "UseSerialGC" in ours["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize(("cores", "expected"), [(1, 6), (2, 6), (8, 24)])
def test_there_are_more_slots_than_cores(cores: int, expected: int) -> None:
    assert slots(cores) == expected


def test_jobs_share_a_pool_that_was_made_for_an_asker_fairly(spark: SparkSession) -> None:
    session.add_fair_pool(spark, "askers x")
    context: Any = spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", "askers x")
    try:
        assert spark.range(3).count() == 3
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)
    pools = {pool.name(): pool.schedulingMode().toString() for pool in seen(context._jsc.sc().getAllPools())}
    assert pools["askers x"] == "FAIR"


def seen(pools: Any) -> Iterator[Any]:
    """What is in a collection of Scala's."""
    iterator = pools.iterator()
    while iterator.hasNext():
        yield iterator.next()
