"""The settings of a broker. The text below a field is its description in `tocsin config` and in docs/operations.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from tocsin.rules.caching.settings import CachingSettings
from tocsin.settings.sections import Networks, Private, Seconds, Section, Whole, is_loopback, number
from tocsin.wire.addresses import carries_password, http_address

_CACHING = CachingSettings()

Count = Annotated[Whole, Field(ge=1, le=1_000_000_000)]
Number = Annotated[float, BeforeValidator(number)]
Pause = Annotated[float, BeforeValidator(number), Field(ge=0, le=86_400)]


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


Address = Annotated[str, AfterValidator(_address)]


class BrokerHttpSettings(Section):
    """The broker's server."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[Whole, Field(ge=0, le=65_535)] = 8480
    """The port to listen on; 0 takes a free one."""
    body_limit_bytes: Annotated[Whole, Field(ge=1_024, le=1 << 34)] = 16 << 20
    """The largest request body. Announcements of the cluster need a little more than 1 MiB."""
    connections_limit: Annotated[Whole, Field(ge=1, le=1_000_000)] = 20_000
    """Connections at once; for a further one goes one whose request is not whole, or that is idle, or it is refused."""
    address_connections_limit: Annotated[Whole, Field(ge=0, le=1_000_000)] = 0
    """Connections of one address at once. 0: a quarter of all, at most 2000; this machine's own are not counted."""
    read_timeout_s: Seconds = 30.0
    """How long a client may take to send its request."""
    trusted_proxies: Networks = ""
    """Proxies, as addresses or networks with spaces between them, whose X-Forwarded-For tells who the client is."""
    origins: str = ""
    """Web pages of these origins may use the broker, separated by spaces; * for all. Those of its own always may."""

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def local(self) -> bool:
        """Whether only programs of this machine can reach the server: no known proxy forwards requests of others."""
        return self.loopback and not self.trusted_proxies.strip()


class BrokerClusterSettings(Section):
    """The cluster that the broker takes results from."""

    url: Address = "http://127.0.0.1:8470"
    """Where the cluster is."""
    token: SecretStr = SecretStr("")
    """What is shown there, of the role broker; it names the feeds that subscribers may publish to."""
    callback: Annotated[str, AfterValidator(lambda text: text and _address(text))] = ""
    """Where the cluster reaches the broker, if not at the address that it listens on: http://broker.example:8480"""
    timeout_s: Seconds = 30.0
    """How long the cluster may take to answer."""
    first_retry_s: Seconds = 0.25
    """How long to wait before the first further try."""
    last_retry_s: Seconds = 15.0
    """The longest wait between two tries."""
    check_every_s: Seconds = 30.0
    """How often to look whether the cluster still knows the broker."""
    former_subscriptions_s: Annotated[float, BeforeValidator(number), Field(ge=0, le=31_536_000)] = 604_800.0
    """How long what another broker of this name has subscribed to stays at the cluster after this one took over."""
    fetches: Annotated[Whole, Field(ge=1, le=64)] = 4
    """Fetches of results at once, each of many interests."""


class BrokerCacheSettings(Section):
    """The caching policies."""

    budget_bytes: Whole = _CACHING.budget_bytes
    """How many bytes of results are kept in memory."""
    eviction: str = _CACHING.eviction
    """Who goes when there is no room."""
    expiry: str = _CACHING.expiry
    """Who goes although there is room: ttl, or never anybody."""
    admission: str = _CACHING.admission
    """Which new results are let in."""
    put_is_access: bool = _CACHING.put_is_access
    """For lru: whether a new result counts as an access of its cache, as a read does."""
    newcomer_may_go: bool = _CACHING.newcomer_may_go
    """Whether the result that fills the cache may be the one that is dropped."""
    ties: str = _CACHING.ties
    """Between two of equal value the oldest, the newest or the largest goes."""
    fresh_s: Number = _CACHING.fresh_s
    """For worth and saving: how long after it came a result's readers are on their way at most."""
    fetched_enters: bool = _CACHING.fetched_enters
    """Whether what was fetched because it was missing is kept."""
    ceiling: Number = _CACHING.ceiling
    """With ttl: at no moment more than so many times the budget."""
    ttl_every_s: Number = _CACHING.ttl_every_s
    """How often times to live are computed anew."""
    ttl_first_s: Number = _CACHING.ttl_first_s
    """The time to live before a cache's growth is known."""
    ttl_cap_s: Number = _CACHING.ttl_cap_s
    """The longest time to live; a cache that does not grow has it."""
    weights: str = _CACHING.weights
    """How times to live share the budget: by subscribers, or equal."""
    rate_window_s: Number = _CACHING.rate_window_s
    """The time constant of the moving averages of growth."""
    latency_first_s: Number = _CACHING.latency_first_s
    """For lsd: what a fetch takes before the first was measured."""
    latency_share: Number = _CACHING.latency_share
    """How much the newest fetch counts in the running estimate of the latency."""
    buffer_learns_first: bool = _CACHING.buffer_learns_first
    """For buffer: whether a result moves the threshold before it is judged by it."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        self.caching()
        return self

    def caching(self) -> CachingSettings:
        """Returns the policies of the cache. ValueError names the setting that is wrong."""
        return CachingSettings(**self.model_dump())


class DeliverySettings(Section):
    """How results reach subscribers."""

    grace_s: Pause = 60.0
    """How long an interest is kept at the cluster after its last subscription here has ended."""
    page_results: Count = 1_000
    """The most results in one envelope."""
    page_bytes: Annotated[Whole, Field(ge=1_024, le=1 << 30)] = 256 << 10
    """An envelope ends with the result that reaches so many bytes, and so does what is fetched for it."""
    buffer_bytes: Annotated[Whole, Field(ge=1_024, le=1 << 30)] = 256 << 10
    """A client that has not taken so much of what was sent is behind: it gets no more until it has."""
    patience_s: Seconds = 5.0
    """How long the slowest of several connections of one subscriber may hold up the others; then it is ended."""
    fetch_retry_s: Pause = 1.0
    """How long after a failed fetch it is asked again."""
    report_every_s: Pause = 30.0
    """How often the cluster is told what everybody here has."""
    ack_every_s: Annotated[float, BeforeValidator(number), Field(ge=0, le=60)] = 0.05
    """How long acknowledgements that nobody waits for are gathered before they are written."""
    heartbeat_s: Seconds = 30.0
    """How often a connection that is silent is tried."""
    wait_limit_s: Seconds = 60.0
    """The longest that a long poll waits."""


class AccountSettings(Section):
    """Subscribers and their tokens."""

    registration: Literal["auto", "open", "application"] = "auto"
    """Who may register subscribers of the application default: anybody (open), or who has its token (application)."""
    admin_token: SecretStr = SecretStr("")
    """The operator's token. Empty: on loopback every program is the operator, elsewhere and behind a proxy nobody."""
    token_s: Seconds = 3_600.0
    """How long a subscriber's token is good."""
    session_s: Annotated[float, BeforeValidator(number), Field(gt=0, le=3_153_600_000)] = 2_592_000.0
    """For how long after the login a token can be renewed."""
    password_characters: Annotated[Whole, Field(ge=1, le=200)] = 8
    """How long a password must be at least."""
    password_threads: Annotated[Whole, Field(ge=1, le=64)] = 1
    """Passwords that are checked at once; each takes about 20 ms of a core and 19 MiB."""
    password_waiting: Count = 500
    """Passwords that may wait to be checked."""


class BrokerLimitSettings(Section):
    """What subscribers may use, where their application has no limit of its own."""

    subscribers: Count = 1_000_000
    """Subscribers of one application."""
    groups: Count = 10_000
    """Groups of one application."""
    members: Count = 10_000
    """Members of one group."""
    group_subscriptions: Count = 1_000
    """Subscriptions of one group."""
    connections: Count = 10
    """Connections of one subscriber at once."""
    subscriptions: Count = 1_000
    """Subscriptions of one subscriber."""
    message_bytes: Annotated[Whole, Field(ge=256, le=1 << 30)] = 64 << 10
    """The largest message that a subscriber sends over a WebSocket."""
    messages_per_s: Count = 200
    """Messages per second of one connection, on the long run."""
    messages_burst: Count = 1_000
    """Messages of one connection at once."""
    requests_per_s: Count = 100
    """Requests per second of one subscriber, on the long run: HTTP, subscribing, pulling."""
    requests_burst: Count = 1_000
    """Requests of one subscriber at once."""
    logins_per_s: Count = 50
    """Registrations and logins per second of one address, on the long run."""
    logins_burst: Count = 1_000
    """Registrations and logins of one address at once."""
    wrong_passwords_per_hour: Count = 60
    """Wrong passwords for one user per hour, on the long run; further logins are refused, right ones too."""
    wrong_passwords_burst: Count = 20
    """Wrong passwords for one user at once."""


class WebhookSettings(Section):
    """Results that are posted to subscribers."""

    timeout_s: Seconds = 15.0
    """How long a receiver may take to answer, from when a connection is free for the message."""
    connections: Annotated[Whole, Field(ge=1, le=100_000)] = 500
    """Messages on their way at once; further ones wait."""
    application_connections: Annotated[Whole, Field(ge=1, le=100_000)] = 250
    """Those of one application; a quarter of them for receivers that did not take the last one."""
    host_connections: Annotated[Whole, Field(ge=1, le=100_000)] = 50
    """Those of one application to one host."""
    first_retry_s: Seconds = 1.0
    """How long to wait before the first further try."""
    last_retry_s: Seconds = 300.0
    """The longest wait between two tries."""
    private: Private = "auto"
    """Private addresses of receivers: allowed, refused, or networks; auto: allowed where the broker is on loopback."""


class PublishSettings(Section):
    """Publishing through the broker."""

    user_field: str = ""
    """This field of every record becomes the name of the user who publishes it. Empty: records stay as they are."""
    timeout_s: Seconds = 60.0
    """How long the cluster may take to accept records."""


class BrokerSettings(Section):
    """A broker process."""

    name: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_full_name)] = "Default.broker"
    """What the cluster calls it: dataverse.name."""
    http: BrokerHttpSettings = BrokerHttpSettings()
    cluster: BrokerClusterSettings = BrokerClusterSettings()
    cache: BrokerCacheSettings = BrokerCacheSettings()
    delivery: DeliverySettings = DeliverySettings()
    accounts: AccountSettings = AccountSettings()
    limits: BrokerLimitSettings = BrokerLimitSettings()
    webhooks: WebhookSettings = WebhookSettings()
    publish: PublishSettings = PublishSettings()

    @model_validator(mode="before")
    @classmethod
    def _in_default(cls, given: Any) -> Any:
        name = given.get("name") if isinstance(given, dict) else None
        if isinstance(name, str) and name and "." not in name:
            return {**given, "name": f"Default.{name}"}
        return given

    @property
    def everybody_operates(self) -> bool:
        """Whether every program on this machine is the operator, without a token."""
        return self.http.local and not self.accounts.admin_token

    @property
    def open_registration(self) -> bool:
        mode = self.accounts.registration
        return mode == "open" or (mode == "auto" and self.http.local)
