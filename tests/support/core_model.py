"""A broker's core between a cluster and clients in the plainest way, which check everything that they are given."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from tests.support.caching_model import at, needing
from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core.broker import Broker
from tocsin.broker.core.cohorts import Cohort, CohortSnapshot
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.model.cursors import START, Cursor


@dataclass
class ChannelModel:
    """What the cluster knows of one interest."""

    results: list[BrokerResult] = field(default_factory=list)
    held: bool = False
    told: Cursor = START
    gone: Cursor = START
    """Retention has removed everything up to here."""

    @property
    def head(self) -> Cursor:
        return self.results[-1].cursor if self.results else at(0)

    def between(self, after: Cursor, to: Cursor) -> list[BrokerResult]:
        return [result for result in self.results if max(after, self.gone) < result.cursor <= to]


@dataclass
class ClientModel:
    """One subscription, seen from its subscriber."""

    subscriber: str
    interest: str
    mode: ev.Mode
    since: Cursor | None = None
    acked: Cursor = START
    position: Cursor = START
    """Everything up to here has come, or was told to be gone."""
    notified: Cursor = START
    behind: bool = False
    wants_more: bool = False


class CoreModel:
    def __init__(self, settings: CoreSettings, interests: Collection[str] = "xyz") -> None:
        self.broker = Broker(settings, 0.0)
        self.now_s = 0.0
        self.channels = {interest: ChannelModel() for interest in interests}
        self.clients: dict[Hashable, ClientModel] = {}
        self.online: set[str] = set()
        self.fetches: dict[int, ac.Fetch] = {}
        self.asked: list[str] = []
        self.cohorts: dict[str, Collection[Hashable]] = {}
        self.told: dict[str, Cohort] = {}
        self.groups: dict[str, CohortSnapshot] = {}
        self.reports: dict[Hashable, Cursor] = {}
        self.pulled_from: dict[Hashable, Cursor] = {}
        self.log: list[ac.Action] = []
        self.activated = 0
        """Subscriptions that became active."""

    # --- what happens

    def handle(self, event: ev.BrokerEvent) -> list[ac.Action]:
        found = self.broker.handle(event, self.now_s)
        # A report that is due is made before the event, and knows nothing of subscriptions that the event activates.
        for action in found:
            if isinstance(action, ac.ReportConsumed):
                self._perform(action)
        for name, client in self.clients.items():
            if client.since is None and self.broker.knows(name) and (since := self.broker.since(name)) is not None:
                client.since = client.acked = client.position = since
                self.activated += 1
        for action in found:
            if not isinstance(action, ac.ReportConsumed):
                self._perform(action)
        self.log += found
        return found

    def subscribe(
        self, name: str, subscriber: str, interest: str, *, mode: ev.Mode = ev.Mode.INLINE, since: Cursor | None = None
    ) -> list[ac.Action]:
        self.clients[name] = ClientModel(subscriber, interest, mode)
        return self.handle(ev.SubscribeRequested(name, subscriber, interest, since, mode))

    def unsubscribe(self, name: str) -> list[ac.Action]:
        del self.clients[name]
        return self.handle(ev.UnsubscribeRequested(name))

    def backend_ready(self, interest: str) -> list[ac.Action]:
        """The cluster has made the subscription that was asked for first."""
        self.asked.remove(interest)
        channel = self.channels[interest]
        channel.held = True
        channel.told = channel.head
        return self.handle(ev.BackendSubscribed(interest, channel.head))

    def make(self, interest: str, count: int = 1, size: int = 10) -> None:
        """The cluster has new results, and has told nobody yet."""
        channel = self.channels[interest]
        for _ in range(count):
            number = channel.head.execution + 1
            channel.results.append(BrokerResult(at(number), size, f"{interest}{number}"))

    def announce(self, interest: str) -> list[ac.Action]:
        channel = self.channels[interest]
        channel.told = channel.head
        return self.handle(ev.ResultsAnnounced(interest, channel.head))

    def push(self, interest: str, size: int = 10) -> list[ac.Action]:
        """The next result, sent along; what was made before it and not told is announced first."""
        channel = self.channels[interest]
        found = self.announce(interest) if channel.held and channel.told < channel.head else []
        self.make(interest, 1, size)
        channel.told = channel.head
        one = channel.results[-1]
        return found + self.handle(ev.ResultArrived(interest, one.cursor, one.size_bytes, one.payload))

    def retain(self, interest: str, keep: int) -> None:
        channel = self.channels[interest]
        channel.gone = max(channel.gone, at(max(0, channel.head.execution - keep)))

    def answer(self, number: int, *, limit: int = 1000, took_s: float = 0.1) -> list[ac.Action]:
        return self.handle(self.answer_to(number, limit, took_s))

    def answer_together(self, *, limit: int = 1000, took_s: float = 0.1) -> list[ac.Action]:
        """Everything that is asked for comes at once."""
        answers = tuple(self.answer_to(number, limit, took_s) for number in sorted(self.fetches))
        return self.handle(ev.FetchesSucceeded(answers))

    def answer_to(self, number: int, limit: int, took_s: float) -> ev.FetchSucceeded:
        fetch = self.fetches.pop(number)
        channel = self.channels[str(fetch.interest)]
        found = channel.between(fetch.after, fetch.to)
        results = found[: min(limit, fetch.limit)]
        for place in range(1, len(results)):
            if sum(result.size_bytes for result in results[:place]) >= fetch.limit_bytes:
                results = results[:place]
                break
        to = fetch.to if len(results) == len(found) else results[-1].cursor
        gap = channel.gone if channel.gone > fetch.after else None
        return ev.FetchSucceeded(number, to, tuple(results), took_s, gap)

    def fail(self, number: int) -> list[ac.Action]:
        del self.fetches[number]
        return self.handle(ev.FetchFailed(number))

    def log_in(self, subscriber: str) -> list[ac.Action]:
        if subscriber not in self.online:
            self.online.add(subscriber)
            for client in self.clients.values():
                if client.subscriber == subscriber:
                    # A new connection knows what was acknowledged, and no more.
                    client.position, client.behind, client.wants_more, client.notified = (
                        client.acked,
                        False,
                        False,
                        START,
                    )
        return self.handle(ev.SubscriberLoggedIn(subscriber))

    def log_out(self, subscriber: str) -> list[ac.Action]:
        self.online.discard(subscriber)
        return self.handle(ev.SubscriberLoggedOut(subscriber))

    def ack(self, interest: str, cursor: Cursor, names: Collection[Hashable]) -> list[ac.Action]:
        head = self.channels[interest].head
        for name in names:
            one = self.clients.get(name)
            if one is not None and one.interest == interest and one.since is not None:
                one.acked = max(one.acked, min(cursor, self.head(interest), head))
                one.position = max(one.position, one.acked)
        return self.handle(ev.ResultsAcknowledged(interest, cursor, names))

    def ack_each(self, subscriber: str) -> list[ac.Action]:
        """Somebody acknowledges all that it has, in all its subscriptions at once."""
        mine = [
            (name, client)
            for name, client in self.clients.items()
            if client.subscriber == subscriber and client.since is not None
        ]
        for _, subscription in mine:
            subscription.acked = max(subscription.acked, min(subscription.position, self.head(subscription.interest)))
        return self.handle(ev.ResultsAcknowledgedByMany(tuple((name, item.position) for name, item in mine)))

    def pull_each(self, subscriber: str) -> list[ac.Action]:
        """Somebody asks for all that it lacks at once."""
        mine = tuple(name for name, client in self.clients.items() if client.subscriber == subscriber)
        return self.handle(ev.ResultsRequestedByMany(mine))

    def ack_as_one(self, interest: str) -> None:
        """The audience of the last live delivery acknowledges what all of it has."""
        audience = self.cohorts.get(interest, ())
        if have := [self.clients[name].position for name in audience if name in self.clients]:
            self.ack(interest, min(have), audience)

    def pull_as_one(self, interest: str, *, together: bool) -> None:
        """Everybody who was told together pulls: all of them, or those who share a marker."""
        cohort = self.told.get(interest)
        if cohort is not None:
            self.groups[interest] = cohort.together
            self.pull(interest, cohort.together if together else cohort)

    def ack_group(self, interest: str) -> None:
        """Those who once shared a marker acknowledge what all of them have."""
        audience = self.groups.get(interest, ())
        if have := [self.clients[name].position for name in audience if name in self.clients]:
            self.ack(interest, min(have), audience)

    def pull(self, interest: str, names: Collection[Hashable]) -> list[ac.Action]:
        return self.handle(ev.ResultsRequested(interest, names))

    def fall_behind(self, name: str) -> list[ac.Action]:
        one = self.clients[name]
        one.behind = True
        return self.handle(ev.SubscriberFellBehind(name, one.position))

    def ready(self, name: str) -> list[ac.Action]:
        one = self.clients[name]
        one.behind = one.wants_more = False
        return self.handle(ev.SubscriberReady(name))

    def pass_time(self, by_s: float) -> list[ac.Action]:
        self.now_s += by_s
        return self.handle(ev.TimePassed())

    def head(self, interest: str) -> Cursor:
        """How far the broker has come."""
        return self.broker.caches[interest].head if interest in self.broker.caches else START

    def settle(self) -> None:
        """Everything gets through: at the end of it nobody lacks anything."""
        for _ in range(1000):
            for interest in list(self.asked):
                self.backend_ready(interest)
            for interest, channel in self.channels.items():
                if channel.held and channel.told < channel.head:
                    self.announce(interest)
            for number in list(self.fetches):
                self.answer(number)
            for subscriber in sorted({client.subscriber for client in self.clients.values()} - self.online):
                self.log_in(subscriber)
            for name, client in list(self.clients.items()):
                if client.behind or client.wants_more:
                    self.ready(str(name))
                elif client.mode is ev.Mode.NOTIFY and client.since is not None and client.notified > client.position:
                    self.pull(client.interest, [name])
                    self.ack(client.interest, client.position, [name])
            self.pass_time(2.0)
            if not self.fetches and not self.asked and all(self._has_all(client) for client in self.clients.values()):
                return
        raise AssertionError(f"somebody still lacks something: {self.clients}, {self.fetches}, {self.asked}")

    def _has_all(self, one: ClientModel) -> bool:
        return one.since is not None and one.position >= self.channels[one.interest].head

    # --- what must hold

    def check(self) -> None:
        caches = self.broker.caches
        assert caches.resident_bytes == sum(cache.resident_bytes for cache in caches) <= caches.limit_bytes
        for interest in self.channels:
            mine = {name: client for name, client in self.clients.items() if client.interest == interest}
            if mine:
                assert self.broker.holds(interest)
            if interest not in caches:
                continue
            cache = caches[interest]
            attached = {name: item.acked for name, item in mine.items() if item.since is not None}
            assert {name: self.broker.marker(name) for name in attached} == attached
            assert cache.subscribers == len(attached)
            assert cache.lowest_marker() == min(attached.values(), default=cache.head)
            for entry, needed in zip(cache, needing(cache), strict=True):
                assert needed == sum(marker < entry.cursor for marker in attached.values()) > 0

    # --- what the broker wants

    def _perform(self, action: ac.Action) -> None:
        match action:
            case ac.SubscribeBackend(interest):
                self.asked.append(str(interest))
            case ac.UnsubscribeBackend(interest):
                assert not [client for client in self.clients.values() if client.interest == interest]
                if interest in self.asked:
                    self.asked.remove(str(interest))
                self.channels[str(interest)].held = False
                self.reports.pop(interest, None)
                self.fetches = {n: fetch for n, fetch in self.fetches.items() if fetch.interest != interest}
            case ac.Fetch():
                assert action.after < action.to
                for other in self.fetches.values():
                    same = other.interest == action.interest and other.fetch != action.fetch
                    assert not same or other.to <= action.after or action.to <= other.after, "one range, one fetch"
                self.fetches[action.fetch] = action
            case ac.ReportConsumed(lowest):
                self.reports |= lowest
                for interest, cursor in lowest.items():
                    mine = [
                        client.acked for client in self.clients.values() if client.interest == interest and client.since
                    ]
                    # The event that follows a report can close the interest.
                    held = interest in self.broker.caches
                    head = self.head(str(interest)) if held else self.channels[str(interest)].head
                    assert cursor <= min(mine, default=head), "nothing that somebody still lacks"
            case ac.NotifyAvailable(interest, to, audience):
                assert len(audience) > 0
                for name in audience:
                    one = self._listening(name, interest)
                    assert one.mode is ev.Mode.NOTIFY
                    one.notified = max(one.notified, to)
                if isinstance(audience, Cohort):
                    self.told[str(interest)] = audience
            case ac.Deliver():
                self._delivered(action)
            case ac.EndSubscriptions(_, audience):
                for name in audience:
                    del self.clients[name]
            case ac.RefuseEvent():
                pass

    def _delivered(self, action: ac.Deliver) -> None:
        channel = self.channels[str(action.interest)]
        assert len(action.audience) > 0
        whole = [result for result in channel.results if action.after < result.cursor <= action.to]
        lacking = [result.cursor for result in whole if result not in action.results]
        present = [item for item in whole if item in action.results]
        assert list(action.results) == present, "in order, of this interest and nothing else"
        if action.gap is None:
            assert lacking == []
        else:
            assert action.after < action.gap <= action.to
            assert all(cursor <= min(action.gap, channel.gone) for cursor in lacking)
        for name in action.audience:
            if action.why is ac.DeliveryReason.PULLED:
                one = self.clients[name]
                assert one.interest == action.interest
                assert one.since is not None
                assert action.after >= one.since, "nothing from before it subscribed"
            else:
                one = self._listening(name, action.interest)
                assert one.mode is ev.Mode.INLINE
                assert action.after == one.position, "what comes follows what has come"
                one.wants_more = action.more
            # Who is served inline and pulls besides gets those twice: it has asked for it.
            inline_pull = one.mode is ev.Mode.INLINE and action.why is ac.DeliveryReason.PULLED
            if action.after <= one.position and not inline_pull:
                one.position = max(one.position, action.to)
        if action.why is ac.DeliveryReason.LIVE:
            self.cohorts[str(action.interest)] = action.audience

    def _listening(self, name: Hashable, interest: Hashable) -> ClientModel:
        one = self.clients[name]
        assert one.interest == interest
        assert one.subscriber in self.online
        assert not one.behind
        return one
