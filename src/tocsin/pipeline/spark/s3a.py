"""Spark's settings for one bucket of S3, which it reads through Hadoop's `s3a:` file system.

Every setting is that bucket's own, so that a site's settings for other buckets stay as they are. The credentials have
names that Spark hides in its UI and its logs. Without credentials here, executors use those of their environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

_SCHEMES: Final = ("s3", "s3a")
_TEMPORARY: Final = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
_SIMPLE: Final = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """A bucket and the options that reach it. The options may be secret, so they are not part of its text."""

    name: str
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, url: str, options: Mapping[str, str]) -> S3Bucket | None:
        """Returns the bucket of a storage URL; None if the storage is not S3."""
        parts = urlsplit(url)
        return cls(parts.netloc, options) if parts.scheme in _SCHEMES else None


def with_bucket(
    settings: Mapping[str, str], bucket: S3Bucket, jars: Sequence[str], conf: Mapping[str, str]
) -> dict[str, str]:
    """Returns the settings with those of the bucket and its jars; only the operator's own settings override them."""
    own = {name: value for name, value in s3a_settings(bucket).items() if name not in conf}
    all_jars = [*jars, *filter(None, settings.get("spark.jars", "").split(","))]
    return {**settings, **own, "spark.jars": ",".join(all_jars)}


def s3a_settings(bucket: S3Bucket) -> dict[str, str]:
    """The settings with which driver and executors reach the bucket. Some are secret (`secret_settings`)."""
    options = bucket.options
    endpoint = options.get("endpoint", "")
    found = {
        # A file of a dataset is written once, so what was listed and what is read are the same.
        "change.detection.mode": "none",
        "path.style.access": _flag(options.get("path_style") or ("true" if endpoint else "false")),
        "connection.ssl.enabled": _flag("false" if endpoint.startswith("http://") else "true"),
    }
    if endpoint:
        found["endpoint"] = endpoint
    if options.get("region") or endpoint:
        found["endpoint.region"] = options.get("region") or "us-east-1"
    if options.get("access_key_id"):
        found["access.key"] = options["access_key_id"]
        found["secret.key"] = options.get("secret_access_key", "")
        found["aws.credentials.provider"] = _SIMPLE
        if options.get("session_token"):
            found["session.token"] = options["session_token"]
            found["aws.credentials.provider"] = _TEMPORARY
    return {f"spark.hadoop.fs.s3a.bucket.{bucket.name}.{name}": value for name, value in found.items()}


def _flag(text: str) -> str:
    return str(text.strip().lower() in ("true", "1", "yes", "on")).lower()
