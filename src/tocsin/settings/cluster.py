"""What can be set for a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tocsin.settings.sections import Folder, Memory, Seconds, Section, Whole, dotted, is_loopback, number


class HttpSettings(Section):
    """The cluster's HTTP server."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[Whole, Field(ge=0, le=65_535)] = 8470
    """The port to listen on; 0 takes a free one."""
    body_limit_bytes: Annotated[Whole, Field(ge=1_024, le=1 << 34)] = 64 << 20
    """The largest request body, hence the longest script."""
    connections_limit: Annotated[Whole, Field(ge=1, le=1_000_000)] = 1_000
    """Connections at once; a further one is refused."""
    read_timeout_s: Seconds = 30.0
    """How long a client may take to send its request."""

    @property
    def loopback(self) -> bool:
        """Only this machine can reach it."""
        return is_loopback(self.host)


class AuthSettings(Section):
    """Who may ask."""

    mode: Literal["auto", "on", "off"] = "auto"
    """Whether a token is needed. `auto`: for anything but loopback."""


class StatementSettings(Section):
    """What statements may use."""

    timeout_s: Seconds = 300.0
    """How long a script may run, unless the request asks for less."""
    rows_limit: Annotated[Whole, Field(ge=1, le=100_000_000)] = 100_000
    """The most rows in an answer that is not streamed."""
    concurrent: Annotated[Whole, Field(ge=1, le=1_000)] = 8
    """Scripts that run at once; further ones wait."""


class SparkSettings(Section):
    """The engine."""

    master: Annotated[str, Field(min_length=1)] = "local[*]"
    """Where Spark runs. `local[*]`: in this machine, with more slots than cores (twice as many, at least 4)."""
    driver_memory: Memory = "1g"
    """The most memory for the JVM's heap, such as 512m or 4g."""
    conf: Annotated[dict[str, str], BeforeValidator(dotted)] = {}  # noqa: RUF012 - pydantic copies it
    """Further settings of Spark's own, which win over ours."""


class DatasetSettings(Section):
    """Defaults and upkeep of datasets."""

    history: Annotated[Whole, Field(ge=1, le=1_000_000)] = 1_000
    """Past commits that stay queryable, where the dataset itself does not say."""
    upkeep_period_s: Seconds = 2.0
    """How often datasets that changed are looked over for compaction and clean-up."""
    key_index_limit: Annotated[Whole, Field(ge=0, le=1_000_000_000)] = 2_000_000
    """The most primary keys of one dataset that are kept in memory to tell duplicates quickly."""


class PythonSettings(Section):
    """Functions in Python."""

    folder: Folder = Path("python")
    """Where the modules of functions in Python lie; a relative path is one in the data folder."""
    call_timeout_s: Seconds = 60.0
    """How long one call of a function in Python may take."""


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


class ClusterSettings(Section):
    """The cluster process."""

    http: HttpSettings = HttpSettings()
    auth: AuthSettings = AuthSettings()
    statements: StatementSettings = StatementSettings()
    spark: SparkSettings = SparkSettings()
    datasets: DatasetSettings = DatasetSettings()
    python: PythonSettings = PythonSettings()
    channels: ChannelSettings = ChannelSettings()

    @property
    def token_needed(self) -> bool:
        """Nothing but loopback is served without a token unless somebody said `off`."""
        return self.auth.mode == "on" or (self.auth.mode == "auto" and not self.http.loopback)
