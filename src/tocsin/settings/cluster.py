"""The settings of a cluster. The text below a field is its description in `tocsin config` and in docs/operations.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tocsin.settings.sections import (
    Folder,
    Memory,
    Networks,
    Private,
    Seconds,
    Section,
    Whole,
    dotted_path,
    is_loopback,
    number,
)


class HttpSettings(Section):
    """The cluster's HTTP server."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[Whole, Field(ge=0, le=65_535)] = 8470
    """The port to listen on; 0 takes a free one."""
    body_limit_bytes: Annotated[Whole, Field(ge=1_024, le=1 << 34)] = 64 << 20
    """The largest request body, hence the longest script."""
    bodies_limit_bytes: Annotated[Whole, Field(ge=1_024, le=1 << 40)] = 256 << 20
    """What bodies on their way may take in memory together; half of it those of one token or address."""
    connections_limit: Annotated[Whole, Field(ge=1, le=1_000_000)] = 1_000
    """Connections at once; for a further one goes one whose request is not whole, or that is idle, or it is refused."""
    address_connections_limit: Annotated[Whole, Field(ge=0, le=1_000_000)] = 0
    """Connections of one address at once. 0: a quarter of all; this machine's own are not counted."""
    read_timeout_s: Seconds = 30.0
    """How long a client may take to send its request."""
    trusted_proxies: Networks = ""
    """Proxies, as addresses or networks with spaces between them, whose X-Forwarded-For tells who the client is."""

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def local(self) -> bool:
        """Whether only programs of this machine can reach the server: no known proxy forwards requests of others."""
        return self.loopback and not self.trusted_proxies.strip()


class AuthSettings(Section):
    """Who may ask."""

    mode: Literal["auto", "on", "off"] = "auto"
    """Whether a token is needed. `auto`: for anything but loopback without a trusted proxy."""


class StatementSettings(Section):
    """What statements may use."""

    timeout_s: Seconds = 300.0
    """How long a script may run, unless the request asks for less; also a procedure by itself, or a feed's function."""
    rows_limit: Annotated[Whole, Field(ge=1, le=100_000_000)] = 100_000
    """The most rows in an answer that is not streamed."""
    concurrent: Annotated[Whole, Field(ge=1, le=1_000)] = 8
    """Scripts that run at once; further ones wait."""
    token_concurrent: Annotated[Whole, Field(ge=0, le=1_000)] = 0
    """Scripts of one token, or of one address, that run at once. 0: one for each core, 2 to three quarters of all."""
    spool_limit_bytes: Annotated[Whole, Field(ge=0, le=1 << 50)] = 1 << 30
    """What streamed answers that are not read yet may take on disk; half of it those of one token or address."""
    write_timeout_s: Seconds = 30.0
    """How long a client may take to read the next part of its answer, and how long its script waits for it in all."""


class SparkSettings(Section):
    """The engine."""

    master: Annotated[str, Field(min_length=1)] = "local[*]"
    """Where Spark runs. `local[*]`: in this machine, with more slots than cores (three times as many, at least 6)."""
    driver_memory: Memory = "1g"
    """The most memory for the JVM's heap, such as 512m or 4g."""
    ping_timeout_s: Annotated[Seconds, Field(le=30)] = 20.0
    """An engine that has not answered for so long is replaced. At most 30, so that work goes on within a minute."""
    unstoppable_limit: Annotated[Whole, Field(ge=1, le=1_000)] = 4
    """So many threads (one token's count once) or tasks that did not end when told to, and the engine is replaced."""
    conf: Annotated[dict[str, str], BeforeValidator(dotted_path)] = {}  # noqa: RUF012 - pydantic copies it
    """Further settings of Spark's own, which win over ours."""


class DatasetSettings(Section):
    """Defaults and upkeep of datasets."""

    history: Annotated[Whole, Field(ge=1, le=1_000_000)] = 1_000
    """Past commits that stay queryable, where the dataset itself does not say."""
    upkeep_period_s: Seconds = 2.0
    """How often datasets that changed are looked over for compaction and clean-up."""
    key_index_limit: Annotated[Whole, Field(ge=0, le=1_000_000_000)] = 2_000_000
    """The most primary keys of one dataset that are kept in memory to tell duplicates quickly."""
    outside_readers_s: Annotated[float, BeforeValidator(number), Field(ge=0, le=31_536_000)] = 3_600.0
    """How long files that a dataset needs no more, and dropped datasets, stay for readers outside of Tocsin."""
    outside_readers_bytes: Annotated[Whole, Field(ge=0, le=1 << 50)] = 1 << 32
    """The most bytes of such files of one dataset; beyond it the oldest go earlier."""


class PythonSettings(Section):
    """Functions in Python."""

    folder: Folder = Path("python")
    """Where the modules of functions in Python lie; a relative path is one in the data folder."""
    call_timeout_s: Seconds = 60.0
    """How long one call of a function in Python may take."""


class FeedSettings(Section):
    """Feeds."""

    private: Private = "auto"
    """Private addresses of feeds: allowed, refused, or networks; auto: allowed where the cluster is on loopback."""
    socket_connections_limit: Annotated[Whole, Field(ge=1, le=1_000_000)] = 1_000
    """Connections to the sockets of one feed at once; for a further one goes the most silent of who has most."""
    socket_address_connections_limit: Annotated[Whole, Field(ge=1, le=1_000_000)] = 250
    """Those of one address; this machine's own are not counted."""


class ChannelSettings(Section):
    """Defaults and upkeep of channels."""

    retention_s: Annotated[float, BeforeValidator(number), Field(gt=0, le=3_153_600_000)] = 604_800.0
    """How long results are kept, where the channel itself does not say."""
    retention_bytes: Annotated[Whole, Field(ge=1, le=1 << 50)] = 1 << 30
    """How many bytes of results a channel keeps, where it does not say itself."""
    matches_limit: Annotated[Whole, Field(ge=1, le=1 << 28)] = 1_000_000
    """The most results of one execution for one interest; of more, the last ones are kept and a gap is told."""
    interests_limit: Annotated[Whole, Field(ge=1, le=1_000_000_000)] = 10_000_000
    """The most interests, in all channels, of one application of a broker."""
    upkeep_period_s: Seconds = 30.0
    """How often channels that changed are looked over for results that may go."""
    late_ticks: Annotated[Whole, Field(ge=1, le=100_000)] = 10
    """Ticks of a repetitive channel that passed meanwhile and are executed one by one; older ones coalesce."""
    announcement_timeout_s: Seconds = 10.0
    """How long a broker may take to accept an announcement."""
    private: Private = "auto"
    """Private addresses of brokers: allowed, refused, or networks; auto: allowed where the cluster is on loopback."""
    execution_deadline_s: Seconds = 60.0
    """How long Spark may take over an execution; one that takes longer is run in parts, each with as much time."""


class ClusterSettings(Section):
    """The cluster process."""

    http: HttpSettings = HttpSettings()
    auth: AuthSettings = AuthSettings()
    statements: StatementSettings = StatementSettings()
    spark: SparkSettings = SparkSettings()
    datasets: DatasetSettings = DatasetSettings()
    python: PythonSettings = PythonSettings()
    feeds: FeedSettings = FeedSettings()
    channels: ChannelSettings = ChannelSettings()

    @property
    def token_needed(self) -> bool:
        """Whether requests need a token: by default, unless the server is on loopback without a proxy."""
        return self.auth.mode == "on" or (self.auth.mode == "auto" and not self.http.local)
