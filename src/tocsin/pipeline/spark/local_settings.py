"""The settings of Spark on this machine alone: driver and executor are one JVM, and jobs are small."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import tocsin
from tocsin.pipeline.spark.common_settings import common_settings, driver_java_options, history_settings

LOOPBACK = "127.0.0.1"


def slots(cores: int | None = None) -> int:
    """The number of tasks that run at once. It exceeds the number of cores, because tasks are not preempted: a long
    task on every core would stall short ones. It also exceeds what the scripts of one token use together (on two cores
    two scripts of two tasks each).
    """
    return max(6, 3 * (cores or os.cpu_count() or 1))


def local_settings(
    scratch: Path, *, master: str, driver_memory: str, conf: Mapping[str, str], ui: bool = False
) -> dict[str, str]:
    """All settings that Spark is started with: ours, overridden by the caller's (whose Java options are appended)."""
    cores = os.cpu_count() or 1
    return {
        **common_settings(scratch, driver_memory=driver_memory, ui=ui),
        **history_settings(),
        "spark.master": f"local[{slots(cores)}]" if master == "local[*]" else master,
        # Only this process connects to it.
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        # Driver and executor are the same JVM, so a lost heartbeat means nothing, and each costs idle CPU.
        "spark.executor.heartbeatInterval": "60s",
        "spark.network.timeout": "600s",
        # An OutOfMemoryError is the fault of one statement; by default it would end the JVM for all of them.
        "spark.executor.killOnFatalError.depth": "0",
        "spark.rpc.netty.dispatcher.numThreads": "2",
        # Nothing is written outside the scratch folder.
        "spark.local.dir": str(scratch / "local"),
        # Jobs here are small: few tasks, and no re-planning between stages (212 ms a job instead of 1,222).
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        "spark.default.parallelism": str(max(2, cores)),
        "spark.sql.adaptive.enabled": "false",
        # We name the files to read; listing thousands of them in a Spark job would cost more than reading them.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        # Local files open quickly: without this, a thousand small files become dozens of tasks.
        "spark.sql.files.openCostInBytes": "65536",
        # The workers find this package here even if it is not installed.
        "spark.executorEnv.PYTHONPATH": str(Path(tocsin.__file__).parents[1]),
        **conf,
        "spark.driver.extraJavaOptions": driver_java_options(scratch, conf.get("spark.driver.extraJavaOptions", "")),
    }
