"""The settings of a cluster. The text below a field is its description in `tocsin config` and in docs/operations.md.

Operators read the descriptions there without the code, so each has to stand by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from tocsin.settings import sections


class _HttpSettings(sections.HttpSection):
    """The cluster's HTTP server."""

    port: sections.Port = 8470
    body_limit_bytes: sections.BodyLimit = 64 << 20
    """The largest request body."""
    bodies_limit_bytes: Annotated[sections.Whole, Field(ge=1_024, le=1 << 40)] = 256 << 20
    """Memory for all request bodies that are being read; one token or address gets at most half of it."""
    connections_limit: sections.ConnectionsLimit = 1_000


class _AuthSettings(sections.Section):
    """Who may send requests to the cluster."""

    mode: Literal["auto", "on", "off"] = "auto"
    """Whether requests need a token. `auto`: yes, unless the server listens on loopback and trusts no proxy."""


class StatementSettings(sections.Section):
    """What statements may use."""

    timeout_s: sections.Seconds = 300.0
    """How long a script, a periodic procedure or a feed's function may run. A request can ask for less."""
    script_limit_bytes: Annotated[sections.Whole, Field(ge=1_024, le=1 << 30)] = 8 << 20
    """The longest script. Many records are for feeds and LOAD."""
    rows_limit: Annotated[sections.Whole, Field(ge=1, le=100_000_000)] = 100_000
    """The most rows in an answer that is not streamed."""
    concurrent: Annotated[sections.Whole, Field(ge=1, le=1_000)] = 8
    """The most scripts that run at once; others wait."""
    token_concurrent: Annotated[sections.Whole, Field(ge=0, le=1_000)] = 0
    """The most scripts of one token or address at once. 0: one per core, at least 2, at most 3/4 of all."""
    spool_limit_bytes: Annotated[sections.Whole, Field(ge=0, le=1 << 50)] = 1 << 30
    """Disk space for streamed answers that clients have not read yet; one token or address gets at most half of it."""
    write_timeout_s: sections.Seconds = 30.0
    """How long a client may take to read the next part of an answer, and how long its script waits in total."""


class SparkSettings(sections.Section):
    """The engine."""

    master: Annotated[str, Field(min_length=1)] = "local[*]"
    """The Spark master. `local[*]`: on this machine, with at least 6 task slots. Others need tables on S3."""
    driver_memory: sections.Memory = "1g"
    """The most memory for the JVM's heap, such as 512m or 4g."""
    ping_timeout_s: Annotated[sections.Seconds, Field(le=30)] = 20.0
    """An engine that does not answer for this long is replaced. At most 30, so that work continues within a minute."""
    unstoppable_limit: Annotated[sections.Whole, Field(ge=1, le=1_000)] = 4
    """The engine is replaced when this many cancelled threads or tasks still run; threads of one token count as one."""
    ui: bool = False
    """Whether Spark serves its web UI, from port 4040 on. It shows queries to everyone who reaches it."""
    worker_archive: str = ""
    """An archive with the Python environment of a Spark cluster's workers: a path or a URL of a tar.gz or zip file."""
    conf: Annotated[dict[str, str], BeforeValidator(sections.dotted_path)] = {}  # noqa: RUF012 - pydantic copies it
    """Spark's own settings; they override ours."""


class StorageSettings(sections.Section):
    """Where the files of datasets are."""

    url: Annotated[str, AfterValidator(sections.storage_url)] = ""
    """A folder, as a path or `file:` URL, or `s3://BUCKET/PREFIX`, for one cluster alone. Empty: the data folder."""
    options: Annotated[dict[str, str], BeforeValidator(sections.storage_options)] = {}  # noqa: RUF012 - pydantic copies it
    """For s3: endpoint, region, access_key_id, secret_access_key, session_token, allow_http, path_style."""


class DatasetSettings(sections.Section):
    """Defaults and upkeep of datasets."""

    history: Annotated[sections.Whole, Field(ge=1, le=1_000_000)] = 1_000
    """How many past commits stay queryable, unless the dataset says otherwise."""
    upkeep_period_s: sections.Seconds = 2.0
    """How often changed datasets are checked for compaction and clean-up."""
    key_index_limit: Annotated[sections.Whole, Field(ge=0, le=1_000_000_000)] = 2_000_000
    """The most primary keys of one dataset that are indexed in memory to find duplicates quickly."""
    outside_readers_s: Annotated[float, BeforeValidator(sections.number), Field(ge=0, le=31_536_000)] = 3_600.0
    """How long removed files and dropped datasets stay on disk for readers outside Tocsin."""
    outside_readers_bytes: Annotated[sections.Whole, Field(ge=0, le=1 << 50)] = 1 << 32
    """The most bytes of removed files that stay on disk per dataset; beyond it the oldest are deleted early."""


class _PythonSettings(sections.Section):
    """Functions in Python."""

    folder: sections.Folder = Path("python")
    """The folder with the modules of Python functions; a relative path starts at the data folder."""
    call_timeout_s: sections.Seconds = 60.0
    """How long one call of a Python function may take."""


class _FeedSettings(sections.Section):
    """Feeds."""

    private: sections.Private = "auto"
    """Private addresses of feeds: `allowed`, `refused`, or networks. `auto`: only on loopback without a proxy."""
    socket_connections_limit: Annotated[sections.Whole, Field(ge=1, le=1_000_000)] = 1_000
    """The most socket connections of one feed. A new one replaces the longest-idle one of the address with the most."""
    socket_address_connections_limit: Annotated[sections.Whole, Field(ge=1, le=1_000_000)] = 250
    """The most socket connections of one address; connections of this machine do not count."""


class ChannelSettings(sections.Section):
    """Defaults and upkeep of channels."""

    retention_s: Annotated[float, BeforeValidator(sections.number), Field(gt=0, le=3_153_600_000)] = 604_800.0
    """How long results are kept, unless the channel says otherwise."""
    retention_bytes: Annotated[sections.Whole, Field(ge=1, le=1 << 50)] = 1 << 30
    """How many bytes of results a channel keeps, unless it says otherwise."""
    matches_limit: Annotated[sections.Whole, Field(ge=1, le=1 << 28)] = 1_000_000
    """The most results of one execution for one interest. Beyond it the newest are kept and subscribers get a gap."""
    interests_limit: Annotated[sections.Whole, Field(ge=1, le=1_000_000_000)] = 10_000_000
    """The most interests of one application at one broker, in all channels together."""
    upkeep_period_s: sections.Seconds = 30.0
    """How often changed channels are checked for results that can be removed."""
    late_ticks: Annotated[sections.Whole, Field(ge=1, le=100_000)] = 10
    """How many missed ticks of a repetitive channel are executed one by one; older ones coalesce."""
    announcement_timeout_s: sections.Seconds = 10.0
    """How long a broker may take to accept an announcement."""
    private: sections.Private = "auto"
    """Private addresses of brokers: `allowed`, `refused`, or networks. `auto`: only on loopback without a proxy."""
    execution_deadline_s: sections.Seconds = 60.0
    """The deadline of an execution in Spark. A longer one is run again in parts, each with the same deadline."""


class ClusterSettings(sections.Section):
    """The cluster process."""

    http: _HttpSettings = _HttpSettings()
    auth: _AuthSettings = _AuthSettings()
    statements: StatementSettings = StatementSettings()
    spark: SparkSettings = SparkSettings()
    storage: StorageSettings = StorageSettings()
    datasets: DatasetSettings = DatasetSettings()
    python: _PythonSettings = _PythonSettings()
    feeds: _FeedSettings = _FeedSettings()
    channels: ChannelSettings = ChannelSettings()

    @property
    def token_needed(self) -> bool:
        """Whether requests need a token: by default, unless the server is on loopback without a proxy."""
        return self.auth.mode == "on" or (self.auth.mode == "auto" and not self.http.local)
