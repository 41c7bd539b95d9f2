"""The settings of a broker. The text below a field is its description in `tocsin config` and in docs/operations.md.

Operators read the descriptions there without the code, so each has to stand by itself.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from tocsin.rules.caching.settings import CachingSettings
from tocsin.settings import sections
from tocsin.wire.addresses import carries_password, http_address
from tocsin.wire.messages import qualify

_CACHING = CachingSettings()

_Count = Annotated[sections.Whole, Field(ge=1, le=1_000_000_000)]
_Real = Annotated[float, BeforeValidator(sections.number)]
_Pause = Annotated[float, BeforeValidator(sections.number), Field(ge=0, le=86_400)]


def _full_name(text: str) -> str:
    parts = text.split(".")
    is_full_name = len(parts) == 2 and all(part and part == part.strip() and part.isprintable() for part in parts)
    if not is_full_name or "/" in text:
        raise ValueError("must be a name, or dataverse.name, such as Default.downtown")
    return text


def _address(text: str) -> str:
    parts = http_address(text)
    if parts is None or parts.query or parts.fragment:
        raise ValueError("must be an address such as http://127.0.0.1:8470")
    if carries_password(parts):
        raise ValueError("must not carry a password; there is broker.cluster.token")
    return text


_HttpAddress = Annotated[str, AfterValidator(_address)]


class _BrokerHttpSettings(sections.HttpSection):
    """The broker's server."""

    port: sections.Port = 8480
    body_limit_bytes: sections.BodyLimit = 16 << 20
    """The largest request body. Announcements of the cluster need a little more than 1 MiB."""
    connections_limit: sections.ConnectionsLimit = 20_000
    origins: str = ""
    """Web pages of these origins may use the broker, separated by spaces; * for all. Those of its own always may."""


class _BrokerClusterSettings(sections.Section):
    """The cluster that the broker takes results from."""

    url: _HttpAddress = "http://127.0.0.1:8470"
    """The cluster's address."""
    token: SecretStr = SecretStr("")
    """The token for the cluster, with the role `broker`; it names the feeds that subscribers may publish to."""
    callback: Annotated[str, AfterValidator(lambda text: text and _address(text))] = ""
    """The address at which the cluster reaches the broker, if it differs from its own: http://broker.example:8480"""
    timeout_s: sections.Seconds = 30.0
    """How long the cluster may take to answer."""
    first_retry_s: sections.Seconds = 0.25
    """How long the broker waits before it asks the cluster again, after the first failure."""
    last_retry_s: sections.Seconds = 15.0
    """The longest time that the broker waits before it asks the cluster again."""
    check_every_s: sections.Seconds = 30.0
    """How often the broker checks that the cluster still knows it."""
    former_subscriptions_s: Annotated[float, BeforeValidator(sections.number), Field(ge=0, le=31_536_000)] = 604_800.0
    """How long the cluster keeps the subscriptions of a previous broker of this name after a take-over."""
    fetches: Annotated[sections.Whole, Field(ge=1, le=64)] = 4
    """The most concurrent fetches of results; each covers many interests."""


class _BrokerCacheSettings(sections.Section):
    """The caching policies."""

    budget_bytes: sections.Whole = _CACHING.budget_bytes
    """How many bytes of results are kept in memory."""
    eviction: str = _CACHING.eviction
    """Eviction policy: which result is dropped when the cache is full."""
    expiry: str = _CACHING.expiry
    """Expiry policy: `ttl` drops results after their time to live, `never` keeps them until consumed or evicted."""
    admission: str = _CACHING.admission
    """Admission policy: which new results enter the cache."""
    put_is_access: bool = _CACHING.put_is_access
    """`lru`: whether a new result counts as an access of its cache, as a read does."""
    newcomer_may_go: bool = _CACHING.newcomer_may_go
    """Whether the new result itself may be evicted when it does not fit."""
    ties: str = _CACHING.ties
    """Which of two results of equal value is evicted: the `oldest`, the `newest` or the `largest`."""
    fresh_s: _Real = _CACHING.fresh_s
    """`worth`, `saving`: how long after arrival online readers may still fetch a result."""
    fetched_enters: bool = _CACHING.fetched_enters
    """Whether results that were fetched after a miss enter the cache."""
    ceiling: _Real = _CACHING.ceiling
    """`ttl`: the cache never holds more than this many times its budget."""
    ttl_every_s: _Real = _CACHING.ttl_every_s
    """How often times to live are recomputed."""
    ttl_first_s: _Real = _CACHING.ttl_first_s
    """The time to live before a cache's growth is known."""
    ttl_cap_s: _Real = _CACHING.ttl_cap_s
    """The longest time to live; a cache that does not grow has it."""
    weights: str = _CACHING.weights
    """How times to live share the budget: `subscribers` or `equal`."""
    rate_window_s: _Real = _CACHING.rate_window_s
    """The time constant of the moving averages of growth."""
    latency_first_s: _Real = _CACHING.latency_first_s
    """`lsd`: the assumed duration of a fetch until the first one is measured."""
    latency_share: _Real = _CACHING.latency_share
    """The weight of the newest fetch in the moving average of the latency."""
    buffer_learns_first: bool = _CACHING.buffer_learns_first
    """`buffer`: whether a result moves the threshold before it is compared with it."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        self.caching()
        return self

    def caching(self) -> CachingSettings:
        """Returns the policies of the cache. ValueError names the setting that is wrong."""
        return CachingSettings(**self.model_dump())


class _DeliverySettings(sections.Section):
    """How results reach subscribers."""

    grace_s: _Pause = 60.0
    """How long a backend subscription is kept after its last frontend subscription ended."""
    page_results: _Count = 1_000
    """The most results in one envelope."""
    page_bytes: Annotated[sections.Whole, Field(ge=1_024, le=1 << 30)] = 256 << 10
    """The size in bytes at which an envelope, and the fetch for it, ends."""
    buffer_bytes: Annotated[sections.Whole, Field(ge=1_024, le=1 << 30)] = 256 << 10
    """A client with more unread bytes than this is a slow consumer: it gets nothing more until it has read them."""
    patience_s: sections.Seconds = 5.0
    """How long the slowest connection of a subscriber may delay its other connections before it is closed."""
    fetch_retry_s: _Pause = 1.0
    """How long the broker waits after a failed fetch."""
    report_every_s: _Pause = 30.0
    """How often the broker reports to the cluster what all its subscribers have acknowledged."""
    ack_every_s: Annotated[float, BeforeValidator(sections.number), Field(ge=0, le=60)] = 0.05
    """How long acknowledgements without a waiting client are batched before they are written."""
    heartbeat_s: sections.Seconds = 30.0
    """How often an idle connection is pinged."""
    wait_limit_s: sections.Seconds = 60.0
    """The longest wait of a long poll."""


class _AccountSettings(sections.Section):
    """Subscribers and their tokens."""

    registration: Literal["auto", "open", "application"] = "auto"
    """Who may register subscribers of application `default`: anybody (`open`), or holders of its token."""
    admin_token: SecretStr = SecretStr("")
    """The operator's token. Empty: every program on loopback is the operator; elsewhere or behind a proxy none is."""
    token_s: sections.Seconds = 3_600.0
    """How long a subscriber's token is valid."""
    session_s: Annotated[float, BeforeValidator(sections.number), Field(gt=0, le=3_153_600_000)] = 2_592_000.0
    """How long after the login a token can be renewed."""
    password_characters: Annotated[sections.Whole, Field(ge=1, le=200)] = 8
    """The fewest characters of a password."""
    password_threads: Annotated[sections.Whole, Field(ge=1, le=64)] = 1
    """How many passwords are checked at once; each takes about 20 ms of a core and 19 MiB."""
    password_waiting: _Count = 500
    """How many password checks may wait."""


class BrokerLimitSettings(sections.Section):
    """What subscribers may use, where their application has no limit of its own."""

    subscribers: _Count = 1_000_000
    """The most subscribers of one application."""
    groups: _Count = 10_000
    """The most groups of one application."""
    members: _Count = 10_000
    """The most members of one group."""
    group_subscriptions: _Count = 1_000
    """The most subscriptions of one group."""
    connections: _Count = 10
    """The most connections of one subscriber."""
    subscriptions: _Count = 1_000
    """The most subscriptions of one subscriber."""
    message_bytes: Annotated[sections.Whole, Field(ge=256, le=1 << 30)] = 64 << 10
    """The largest message that a subscriber sends over a WebSocket."""
    messages_per_s: _Count = 200
    """Token bucket per connection: messages per second."""
    messages_burst: _Count = 1_000
    """Token bucket per connection: burst of messages."""
    requests_per_s: _Count = 100
    """Token bucket per subscriber: requests per second (HTTP, subscribe, pull)."""
    requests_burst: _Count = 1_000
    """Token bucket per subscriber: burst of requests."""
    logins_per_s: _Count = 50
    """Token bucket per address: registrations and logins per second."""
    logins_burst: _Count = 1_000
    """Token bucket per address: burst of registrations and logins."""
    wrong_passwords_per_hour: _Count = 60
    """Token bucket per user: wrong passwords per hour. Beyond it all logins are refused, correct ones too."""
    wrong_passwords_burst: _Count = 20
    """Token bucket per user: burst of wrong passwords."""


class WebhookSettings(sections.Section):
    """Results that are posted to subscribers."""

    timeout_s: sections.Seconds = 15.0
    """How long a receiver may take to answer, counted from when a connection is free for the message."""
    connections: Annotated[sections.Whole, Field(ge=1, le=100_000)] = 500
    """The most messages in flight; others wait."""
    application_connections: Annotated[sections.Whole, Field(ge=1, le=100_000)] = 250
    """The most messages in flight of one application; failing receivers share a quarter of them."""
    host_connections: Annotated[sections.Whole, Field(ge=1, le=100_000)] = 50
    """The most messages in flight of one application to one host."""
    first_retry_s: sections.Seconds = 1.0
    """How long the broker waits before it posts a message again, after the first failure."""
    last_retry_s: sections.Seconds = 300.0
    """The longest time that the broker waits before it posts a message again."""
    private: sections.Private = "auto"
    """Private addresses of receivers: `allowed`, `refused`, or networks. `auto`: only on loopback without a proxy."""


class _PublishSettings(sections.Section):
    """Publishing through the broker."""

    user_field: str = ""
    """The field of each record that is set to the name of the publishing user. Empty: records stay as they are."""
    timeout_s: sections.Seconds = 60.0
    """How long the cluster may take to accept records."""


class BrokerSettings(sections.Section):
    """A broker process."""

    name: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_full_name)] = "Default.broker"
    """The name under which the broker registers at the cluster: dataverse.name."""
    http: _BrokerHttpSettings = _BrokerHttpSettings()
    cluster: _BrokerClusterSettings = _BrokerClusterSettings()
    cache: _BrokerCacheSettings = _BrokerCacheSettings()
    delivery: _DeliverySettings = _DeliverySettings()
    accounts: _AccountSettings = _AccountSettings()
    limits: BrokerLimitSettings = BrokerLimitSettings()
    webhooks: WebhookSettings = WebhookSettings()
    publish: _PublishSettings = _PublishSettings()

    @model_validator(mode="before")
    @classmethod
    def _in_default(cls, fields: Any) -> Any:
        name = fields.get("name") if isinstance(fields, dict) else None
        return {**fields, "name": qualify(name)} if isinstance(name, str) and name else fields

    @property
    def everybody_operates(self) -> bool:
        """Whether every program on this machine is the operator, without a token."""
        return self.http.local and not self.accounts.admin_token

    @property
    def open_registration(self) -> bool:
        mode = self.accounts.registration
        return mode == "open" or (mode == "auto" and self.http.local)
