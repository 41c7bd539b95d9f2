from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tocsin.pipeline.spark import s3a_jars
from tocsin.pipeline.spark.s3a import s3a_settings, with_bucket
from tocsin.pipeline.spark.s3a_jars import LockedJar, ensure_s3a_jars, locked_jars
from tocsin.pipeline.spark.secret_settings import is_secret_setting
from tocsin.storage.s3 import Bucket
from tocsin.wire.errors import UnavailableError

OPTIONS = {
    "endpoint": "http://127.0.0.1:9000",
    "region": "eu-1",
    "access_key_id": "AAA",
    "secret_access_key": "SSS",
    "allow_http": "true",
}
PREFIX = "spark.hadoop.fs.s3a.bucket.b."


def test_the_settings_are_those_of_one_bucket() -> None:
    bucket = Bucket("b", OPTIONS)
    assert s3a_settings(bucket) == {
        f"{PREFIX}endpoint": "http://127.0.0.1:9000",
        f"{PREFIX}endpoint.region": "eu-1",
        f"{PREFIX}path.style.access": "true",
        f"{PREFIX}connection.ssl.enabled": "false",
        f"{PREFIX}change.detection.mode": "none",
        f"{PREFIX}access.key": "AAA",
        f"{PREFIX}secret.key": "SSS",
        f"{PREFIX}aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    assert "SSS" not in repr(bucket)


def test_credentials_are_left_to_the_workers_where_none_are_given() -> None:
    assert not any("key" in name or "credentials" in name for name in s3a_settings(Bucket("b", {})))


def test_temporary_credentials_have_a_token_and_every_credential_is_hidden_by_spark() -> None:
    settings = s3a_settings(Bucket("b", {**OPTIONS, "session_token": "TTT"}))
    assert settings[f"{PREFIX}aws.credentials.provider"].endswith("TemporaryAWSCredentialsProvider")
    secret = {value for name, value in settings.items() if is_secret_setting(name)}
    assert {"AAA", "SSS", "TTT"} <= secret


def test_the_bucket_adds_to_the_settings_and_overrides_none_of_the_operators() -> None:
    settings = {"spark.driver.extraJavaOptions": "ours theirs", "spark.jars": "site.jar", f"{PREFIX}endpoint": "x"}
    conf = {"spark.driver.extraJavaOptions": "theirs", f"{PREFIX}path.style.access": "false"}
    merged = with_bucket({**settings, **conf, **settings}, Bucket("b", OPTIONS), ("a.jar", "b.jar"), conf)
    assert merged["spark.driver.extraJavaOptions"] == "ours theirs"
    assert merged["spark.jars"] == "a.jar,b.jar,site.jar"
    assert merged[f"{PREFIX}endpoint"] == OPTIONS["endpoint"]
    assert merged[f"{PREFIX}path.style.access"] == "false"


def test_every_jar_is_pinned_to_one_content() -> None:
    text = s3a_jars.LOCK.read_text()
    line = r"[\w.-]+:[\w.-]+:[\w.-]+ \\|    --hash=sha256:[0-9a-f]{64}"
    assert [each for each in text.splitlines() if re.fullmatch(line, each) is None] == []
    jars = locked_jars()
    assert len(jars) * 2 == len(text.splitlines())
    assert {"hadoop-aws", "s3", "s3-transfer-manager", "sts"} <= {jar.name for jar in jars}
    assert not any("bundle" in jar.name for jar in jars)


class FakeResolver:
    """Writes a file for each jar. They have the right content only if a test says what it is."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, jars: list[LockedJar], folder: Path, settings: Mapping[str, str]) -> None:
        self.calls += 1
        (folder / "jars").mkdir()
        for jar in jars:
            (folder / "jars" / jar.file).write_text(jar.coordinates)


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock of two jars whose content is their coordinates."""
    file = tmp_path / "s3a_jars.lock"
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("g:a:1", "g:b:2")}
    file.write_text("".join(f"{name} \\\n    --hash=sha256:{digest}\n" for name, digest in digests.items()))
    monkeypatch.setattr(s3a_jars, "LOCK", file)
    monkeypatch.setattr(s3a_jars.locked_jars, "__defaults__", (file,))
    return file


def test_jars_are_fetched_once_and_again_when_one_is_damaged(lock: Path, tmp_path: Path) -> None:
    resolve = FakeResolver()
    paths = ensure_s3a_jars({}, cache=tmp_path / "cache", resolve=resolve)
    assert [Path(path).name for path in paths] == ["g_a-1.jar", "g_b-2.jar"]
    assert ensure_s3a_jars({}, cache=tmp_path / "cache", resolve=resolve) == paths
    assert resolve.calls == 1
    Path(paths[0]).write_text("damaged")
    assert ensure_s3a_jars({}, cache=tmp_path / "cache", resolve=resolve) == paths
    assert (resolve.calls, Path(paths[0]).read_text()) == (2, "g:a:1")


def test_another_content_than_the_pinned_is_refused(lock: Path, tmp_path: Path) -> None:
    lock.write_text(lock.read_text().replace("g:b:2", "g:b:3"))
    with pytest.raises(UnavailableError, match=r"g:b:3 has the checksum \w+ instead of \w+") as raised:
        ensure_s3a_jars({}, cache=tmp_path / "cache", resolve=FakeResolver())
    assert "spark.jars.repositories" in str(raised.value.hint)
    assert list((tmp_path / "cache" / "s3a").iterdir()) == []


def test_jars_that_nobody_could_fetch_are_named(lock: Path, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="g:a:1 is missing; g:b:2 is missing"):
        ensure_s3a_jars({}, cache=tmp_path / "cache", resolve=lambda _jars, _folder, _settings: None)
