"""The settings of Spark on a cluster of machines, where the site's own settings count.

    ours that the site may change  <  the site's  <  ours that the language and safety need  <  cluster.spark.conf

Archives, jars and Java options are joined instead. Nothing here depends on the driver's cores or disk: partitions
follow the cluster, re-planning between stages (AQE) stays on as Spark has it, and temporary files are where each worker
keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tocsin.pipeline.spark import masters
from tocsin.pipeline.spark.common_settings import common_settings, driver_java_options, history_settings
from tocsin.pipeline.spark.secret_settings import REDACTED
from tocsin.wire.errors import UnavailableError

SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_AUTHENTICATE: Final = "spark.authenticate"
_AUTHENTICATE_SECRET: Final = "spark.authenticate.secret"  # noqa: S105 - the name of a setting
_PYTHON: Final = "spark.pyspark.python"
_ARCHIVES: Final = "spark.archives"
# The analyser's expressions are deep on executors, too; texts and times are the same everywhere.
_EXECUTOR_JAVA_OPTIONS: Final = "-Xss8m -Duser.timezone=UTC -Dfile.encoding=UTF-8"
_ENVIRONMENT: Final = "tocsin-environment"  # the folder in which a worker unpacks the archive


def cluster_settings(
    scratch: Path,
    *,
    master: str,
    driver_memory: str,
    conf: Mapping[str, str],
    site: Mapping[str, str],
    ui: bool = False,
    worker_archive: str = "",
) -> dict[str, str]:
    """All settings that Spark is started with. Raises UnavailableError if they cannot work."""
    host = masters.driver_host(master)
    changeable = {
        **history_settings(),
        # A task that cannot be stopped keeps its slot until its executor ends. A local executor is this JVM: there the
        # cluster's watchdog counts such tasks.
        "spark.task.reaper.enabled": "true",
        "spark.task.reaper.killTimeout": "120s",
        "spark.sql.adaptive.enabled": "true",
        "spark.redaction.regex": REDACTED,
        # Executors connect to the driver: on the interface that leads to them, and on no other.
        **({"spark.driver.host": host} if host is not None else {}),
        # Queries, data and the credentials of the storage cross the network.
        "spark.network.crypto.enabled": "true",
    }
    needed = {
        **common_settings(scratch, driver_memory=driver_memory, ui=ui),
        "spark.master": master,
        _AUTHENTICATE: "true",
    }
    merged = {**changeable, **site, **needed, **conf}
    if worker_archive:
        others = filter(None, merged.get(_ARCHIVES, "").split(","))
        merged[_ARCHIVES] = ",".join([f"{worker_archive}#{_ENVIRONMENT}", *others])
    theirs = {**site, **conf}
    merged["spark.driver.extraJavaOptions"] = driver_java_options(
        scratch, theirs.get("spark.driver.extraJavaOptions", "")
    )
    executor_options = theirs.get("spark.executor.extraJavaOptions", "")
    merged["spark.executor.extraJavaOptions"] = f"{_EXECUTOR_JAVA_OPTIONS} {executor_options}".rstrip()
    _refuse_missing_secret(merged)
    return merged


def _refuse_missing_secret(settings: Mapping[str, str]) -> None:
    """A standalone master shares one secret with all applications; YARN and Kubernetes make one for each."""
    is_needed = masters.is_standalone(settings["spark.master"]) and settings[_AUTHENTICATE] == "true"
    if is_needed and not settings.get(_AUTHENTICATE_SECRET):
        raise UnavailableError(
            f"the Spark master {settings['spark.master']} needs a secret, and {_AUTHENTICATE_SECRET} is not set",
            hint=f"set {_AUTHENTICATE_SECRET} in cluster.spark.conf or the site's spark-defaults.conf, as the master "
            f"has it; if the master has none and its network is closed to others, set {_AUTHENTICATE} to false",
        )


def worker_python(
    settings: Mapping[str, str], env: Mapping[str, str], *, conf: Mapping[str, str], worker_archive: str
) -> str:
    """Returns the command that starts Python on the workers."""
    if _PYTHON in conf:
        return conf[_PYTHON]
    if worker_archive:
        return f"./{_ENVIRONMENT}/bin/python"
    return settings.get(_PYTHON) or env.get("PYSPARK_PYTHON") or "python3"
