from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tocsin.pipeline.spark.cluster_settings import cluster_settings, worker_python
from tocsin.pipeline.spark.secret_settings import is_secret_setting, without_secrets
from tocsin.wire.errors import UnavailableError

SECRET = {"spark.authenticate.secret": "s"}


def merged(
    conf: Mapping[str, str] = SECRET,
    site: Mapping[str, str] | None = None,
    master: str = "spark://127.0.0.1:7077",
    **more: Any,
) -> dict[str, str]:
    return cluster_settings(Path("/scratch"), master=master, driver_memory="1g", conf=conf, site=site or {}, **more)


def test_nothing_depends_on_the_cores_or_the_disk_of_the_driver() -> None:
    settings = merged()
    absent = ("spark.sql.shuffle.partitions", "spark.default.parallelism", "spark.local.dir")
    assert [name for name in absent if name in settings] == []
    assert "spark.executorEnv.PYTHONPATH" not in settings
    assert settings["spark.sql.adaptive.enabled"] == "true"
    assert settings["spark.authenticate"] == "true"


def test_the_site_changes_what_the_language_does_not_need() -> None:
    site = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "99",
        "spark.local.dir": "/fast",
        "spark.sql.ansi.enabled": "false",
        "spark.submit.deployMode": "cluster",
        "spark.eventLog.enabled": "true",
        "spark.ui.enabled": "true",
    }
    settings = merged(site=site)
    kept = ("spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions", "spark.local.dir", "spark.eventLog.enabled")
    assert {name: settings[name] for name in kept} == {name: site[name] for name in kept}
    assert settings["spark.sql.ansi.enabled"] == "true"
    assert settings["spark.submit.deployMode"] == "client"
    assert settings["spark.ui.enabled"] == "false"
    assert merged(ui=True)["spark.ui.enabled"] == "true"


def test_the_operators_settings_win_over_all_others() -> None:
    conf = {**SECRET, "spark.sql.adaptive.enabled": "false", "spark.authenticate": "false"}
    settings = merged(conf, {"spark.sql.adaptive.enabled": "true"})
    assert (settings["spark.sql.adaptive.enabled"], settings["spark.authenticate"]) == ("false", "false")


def test_archives_and_java_options_are_joined_with_the_sites() -> None:
    site = {"spark.archives": "x.zip#x", "spark.executor.extraJavaOptions": "-Dsite=1"}
    settings = merged(site=site, worker_archive="/env.tar.gz")
    assert settings["spark.archives"] == "/env.tar.gz#tocsin-environment,x.zip#x"
    assert settings["spark.executor.extraJavaOptions"].endswith(" -Dsite=1")
    assert settings["spark.executor.extraJavaOptions"].startswith("-Xss8m ")


def test_a_standalone_master_needs_the_secret_that_it_shares_with_all() -> None:
    with pytest.raises(UnavailableError, match=r"spark\.authenticate\.secret is not set") as raised:
        merged(conf={})
    assert "cluster.spark.conf" in str(raised.value.hint)
    merged(conf={}, site=SECRET)
    merged(conf={"spark.authenticate": "false"})
    merged(conf={}, master="yarn")


@pytest.mark.parametrize(
    ("conf", "site", "env", "archive", "expected"),
    [
        ({"spark.pyspark.python": "/c"}, {"spark.pyspark.python": "/s"}, {}, "e.zip", "/c"),
        ({}, {"spark.pyspark.python": "/s"}, {"PYSPARK_PYTHON": "/e"}, "e.zip", "./tocsin-environment/bin/python"),
        ({}, {"spark.pyspark.python": "/s"}, {"PYSPARK_PYTHON": "/e"}, "", "/s"),
        ({}, {}, {"PYSPARK_PYTHON": "/e"}, "", "/e"),
        ({}, {}, {}, "", "python3"),
    ],
)
def test_the_python_of_the_workers(
    conf: dict[str, str], site: dict[str, str], env: dict[str, str], archive: str, expected: str
) -> None:
    assert worker_python({**site, **conf}, env, conf=conf, worker_archive=archive) == expected


@pytest.mark.parametrize(
    "name",
    [
        "spark.authenticate.secret",
        "spark.hadoop.fs.s3a.bucket.b.access.key",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.session.token",
        "spark.ssl.keyPassword",
        "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
        "spark.hadoop.fs.azure.account.key.x",
    ],
)
def test_a_secret_never_comes_onto_the_command_line(name: str) -> None:
    assert is_secret_setting(name)
    assert without_secrets({name: "x", "spark.sql.ansi.enabled": "true"}) == {"spark.sql.ansi.enabled": "true"}
