"""Spark's settings for one bucket of S3, which it reads through Hadoop's `s3a:` file system.

Every setting is that bucket's own, so that a site's settings for other buckets stay as they are. The credentials have
names that Spark hides in its UI and its logs. Without credentials here, executors use those of their environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tocsin.storage.s3 import Bucket

_TEMPORARY: Final = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
_SIMPLE: Final = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"


def with_bucket(
    settings: Mapping[str, str], bucket: Bucket, jars: Sequence[str], conf: Mapping[str, str]
) -> dict[str, str]:
    """Returns the settings with those of the bucket and its jars; only the operator's own settings override them."""
    own = {name: value for name, value in s3a_settings(bucket).items() if name not in conf}
    all_jars = [*jars, *filter(None, settings.get("spark.jars", "").split(","))]
    return {**settings, **own, "spark.jars": ",".join(all_jars)}


def s3a_settings(bucket: Bucket) -> dict[str, str]:
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
