"""All result caches of a broker under one byte budget: admission × eviction × expiry.

The policies rank and decide; here results are kept and dropped. Promises, which the contract suite holds for every
combination of policies:

- after every call no more bytes are resident than the limit: the budget, or with `ttl` the ceiling;
- only residents are dropped, always the lowest ranked, and choosing one is O(log caches);
- a result leaves when everybody attached to it has acknowledged it;
- policies are switched without dropping content that the new limit has room for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from tocsin.rules.caching.admission import admission
from tocsin.rules.caching.counters import CacheCounters
from tocsin.rules.caching.entries import BrokerResult, CacheEntry, MissingRun, Run, size_bytes
from tocsin.rules.caching.eviction import EVICTION, TIES, Eviction, FirstInFirstOut
from tocsin.rules.caching.expiry import EXPIRY, WEIGHTS, set_times_to_live
from tocsin.rules.caching.latency import LatencyEstimate
from tocsin.rules.caching.per_result_policies import MostHits, PerResultPolicy
from tocsin.rules.caching.rank_heap import Rank, RankHeap
from tocsin.rules.caching.result_cache import ResultCache
from tocsin.rules.caching.settings import CachingSettings
from tocsin.rules.caching.ttl_refresh import PAUSE_S, TtlRefresh
from tocsin.rules.model.cursors import Cursor

_SEQUENCE: Final = attrgetter("sequence")


class ResultCaches:
    """`figures` are those of the present policy; `figures_of` keeps those of every policy that was in force."""

    def __init__(self, settings: CachingSettings, now_s: float) -> None:
        self.resident_bytes = 0
        self.ttl_due_s = now_s + settings.ttl_every_s
        self.figures_of: dict[str, CacheCounters] = {}
        self._reckoning: TtlRefresh | None = None
        self._by_result: PerResultPolicy | None = None
        self._latency = LatencyEstimate(settings.latency_first_s, settings.latency_share)
        # What caches without a fetch of their own are ranked by: it changes only when all are ranked anew.
        self._usual_latency_s = settings.latency_first_s
        self._caches: dict[Hashable, ResultCache] = {}
        self._made = self._told = 0
        self._sequence = 0
        self._choose(settings, now_s)

    # --- caches

    def open(self, interest: Hashable, since: Cursor, now_s: float) -> ResultCache:
        """An empty cache whose results begin after `since`."""
        assert interest not in self._caches, f"{interest} has a cache"
        self._made += 1
        ttl_s = min(self.settings.ttl_first_s, self.settings.ttl_cap_s)
        made = ResultCache(interest, since, number=self._made, now_s=now_s, ttl_s=ttl_s)
        made.on_gone = None if self._by_result is None else self._by_result.gone
        self._caches[interest] = made
        return made

    def close(self, interest: Hashable) -> None:
        """The cache goes with all that it holds."""
        gone = self._caches.pop(interest)
        self.resident_bytes -= gone.resident_bytes
        self._evictable.forget(gone)
        self._expiring.forget(gone)
        while gone.tail is not None:
            gone.drop_tail()
        if self._by_result is not None:
            self._by_result.closed(gone.number)

    def __getitem__(self, interest: Hashable) -> ResultCache:
        return self._caches[interest]

    def __contains__(self, interest: Hashable) -> bool:
        return interest in self._caches

    def __iter__(self) -> Iterator[ResultCache]:
        return iter(self._caches.values())

    def __len__(self) -> int:
        return len(self._caches)

    # --- results

    def put(self, cache: ResultCache, result: BrokerResult, now_s: float) -> bool:
        """The next result of an interest. True when it is resident afterwards; else it has left a hole."""
        figures, size = self.figures, result.size_bytes
        figures.arrived += 1
        figures.arrived_bytes += size
        self._sequence += 1
        kept = self._keeps(cache, size)
        cache.put(result, resident=kept, now_s=now_s, sequence=self._sequence)
        if not kept:
            return False
        if self.settings.put_is_access:
            cache.last_access_s = now_s
        cache.rates.arrived_bytes += size
        self.resident_bytes += size
        if self._by_result is not None and (newest := cache.newest) is not None:
            newest.needed = cache.subscribers
            self._came(cache, newest, now_s)
        if cache.residents == 1:
            self._ranks_changed(cache)
        if self.resident_bytes > self.limit_bytes:
            self._hold_limit(None if self.settings.newcomer_may_go else cache, now_s)
        figures.most_bytes = max(figures.most_bytes, self.resident_bytes)
        newest = cache.newest
        return newest is not None and newest.resident

    def get(self, cache: ResultCache, after: Cursor, to: Cursor, now_s: float, readers: int = 1) -> list[Run]:
        """Algorithm 1: the range as cached and missing runs, oldest first. An access of the cache."""
        cache.last_access_s = now_s
        if self._by_result is not None and self._by_result.reads:
            for entry in cache.between(after, to):
                self._by_result.read(entry, readers)
        return cache.get(after, to)

    def served(self, readers: int, hits: int, hit_bytes: int, misses: int = 0, miss_bytes: int = 0) -> None:
        """So many readers got so many results from the cache, and so many because they were fetched for them."""
        figures = self.figures
        if hits:
            figures.hits += readers * hits
            figures.hit_bytes += readers * hit_bytes
        if misses:
            figures.misses += readers * misses
            figures.miss_bytes += readers * miss_bytes

    def fetched(self, cache: ResultCache, results: int, size_bytes: int, took_s: float) -> None:
        """So many results came from the cluster: their size counts, and how long it took."""
        self.figures.fetched += results
        self.figures.fetched_bytes += size_bytes
        cache.latency_s = self._latency.measured(cache.latency_s, took_s)
        if self._eviction.weighs_latency:
            self._ranks_changed(cache)

    def fill(self, cache: ResultCache, missing: MissingRun, results: Sequence[BrokerResult], now_s: float) -> None:
        """Keeps what was fetched because it was missing, where the settings want that and there can be room."""
        if not self.settings.fetched_enters or not self._keeps_any or not results:
            return
        if size_bytes(results) > self.limit_bytes:
            return
        before_bytes, residents = cache.resident_bytes, cache.residents
        self._sequence += 1
        cache.fill(missing.after, missing.to, results, now_s=now_s, sequence=self._sequence)
        self.resident_bytes += cache.resident_bytes - before_bytes
        self.figures.filled += cache.residents - residents
        if self._by_result is not None:
            cache.count_needed()
            for entry in cache.between(missing.after, missing.to):
                if entry.owner is None:
                    self._came(cache, entry, now_s)
                else:
                    self._by_result.needed(entry)
        self._ranks_changed(cache)
        self._hold_limit(None, now_s)

    # --- subscribers

    def attach(self, cache: ResultCache, marker: Cursor, count: int = 1) -> None:
        cache.attach(marker, count)
        if self._by_result is not None:
            self._needed_by(cache, marker, cache.head, count)

    def detach(self, cache: ResultCache, marker: Cursor, count: int = 1) -> None:
        residents, needed = cache.residents, cache.needed
        if self._by_result is not None:
            self._needed_by(cache, marker, cache.head, -count)
        self.resident_bytes -= cache.detach(marker, count)
        self._needed_less(cache, residents, needed)

    def advance(self, cache: ResultCache, before: Cursor, after: Cursor, count: int = 1) -> None:
        """So many subscribers acknowledge everything up to `after`."""
        residents, needed = cache.residents, cache.needed
        if self._by_result is not None:
            self._needed_by(cache, before, after, -count)
        self.resident_bytes -= cache.advance(before, after, count)
        self._needed_less(cache, residents, needed)

    # --- time and change

    def due_s(self) -> float:
        """When `pass_time` has something to do next."""
        if not self.expires:
            return self.ttl_due_s
        found = self._expiring.lowest()
        return self.ttl_due_s if found is None else min(self.ttl_due_s, found[0])

    def pass_time(self, now_s: float) -> None:
        """Expired results go; once in a while times to live are computed anew, some at a time where they are many."""
        if now_s >= self.ttl_due_s:
            self._reckon_some(now_s)
        while (found := self._expiring.lowest()) is not None and found[0] <= now_s:
            self.figures.expired += 1
            self.figures.expired_bytes += self._drop_tail(found[3])

    def reckon(self, now_s: float) -> None:
        """Looks at every cache's growth and at the usual latency, and ranks all anew, at once."""
        self._reckoning = None
        while not self._reckon_some(now_s):
            pass

    def switch(self, settings: CachingSettings, now_s: float) -> None:
        """Other policies from now on. Content stays, unless the new limit has no room for it."""
        self._choose(settings, now_s, self.settings)
        self._reckoning = None
        self.ttl_due_s = min(self.ttl_due_s, now_s + settings.ttl_every_s)
        self._set_times_to_live()
        self._rank_all()
        self.pass_time(now_s)
        self._hold_limit(None, now_s)

    # --- inside

    def _choose(self, settings: CachingSettings, now_s: float, before: CachingSettings | None = None) -> None:
        self.settings = settings
        chosen = EVICTION[settings.eviction]()
        self._keeps_any = chosen.keeps
        if before is None or (settings.eviction, settings.fresh_s) != (before.eviction, before.fresh_s):
            self._by_result = chosen if isinstance(chosen, PerResultPolicy) else None
            self._eviction: Eviction = FirstInFirstOut() if isinstance(chosen, PerResultPolicy) else chosen
            if isinstance(chosen, MostHits):
                chosen.fresh_s = settings.fresh_s
            self._tell_all(now_s)
        self._expiry = EXPIRY[settings.expiry]()
        self.expires = self._expiry.expires
        self._ties = TIES[settings.ties]
        learns = settings.buffer_learns_first
        if before is None or (settings.admission, learns) != (before.admission, before.buffer_learns_first):
            self._admission = admission(settings.admission, learns_first=learns)
        self.limit_bytes = self._expiry.limit_bytes(settings.budget_bytes, settings.ceiling_bytes)
        self.figures = self.figures_of.setdefault(settings.policy, CacheCounters())
        self._evictable: RankHeap[ResultCache] = RankHeap(self._rank)
        self._expiring: RankHeap[ResultCache] = RankHeap(self._due)

    def _reckon_some(self, now_s: float) -> bool:
        """True when that was all."""
        if self._reckoning is None:
            self._usual_latency_s = self._latency.all_s
            self._reckoning = TtlRefresh(self, self.settings)
        for cache in self._reckoning.go_on(now_s):
            if self._caches.get(cache.interest) is cache:
                self._ranks_changed(cache)
        ended = self._reckoning.ended
        if ended:
            self._reckoning = None
        self.ttl_due_s = now_s + (self.settings.ttl_every_s if ended else PAUSE_S)
        return ended

    def _keeps(self, cache: ResultCache, size_bytes: int) -> bool:
        """Whether the next result may stay. One that nobody is attached to is not even judged."""
        subscribers = cache.subscribers
        if not subscribers or not self._admission.admits(subscribers):
            return False
        # Larger than everything together: dropping all the others for it would help nobody.
        if not self._keeps_any or size_bytes > self.limit_bytes:
            return False
        self.figures.admitted += 1
        self.figures.copies += subscribers
        return True

    def _tell_all(self, now_s: float) -> None:
        """A policy that looks at every result is told of all that are there, in the order in which they came."""
        policy = self._by_result
        residents: list[CacheEntry] = []
        for cache in self:
            cache.on_gone = None if policy is None else policy.gone
            cache.count_needed()
            for entry in cache:
                entry.owner = None
                if entry.resident:
                    residents.append(entry)
                    entry.owner = cache
        if policy is not None:
            for entry in sorted(residents, key=_SEQUENCE):
                self._came(entry.owner, entry, now_s)

    def _came(self, cache: ResultCache, entry: CacheEntry, now_s: float) -> None:
        assert self._by_result is not None, "somebody is to be told"
        self._told += 1
        entry.owner, entry.order = cache, self._told
        self._by_result.came(entry, now_s)

    def _needed_by(self, cache: ResultCache, after: Cursor, to: Cursor, more: int) -> None:
        """So many more subscribers need what lies between."""
        if self._by_result is not None and self._by_result.counts:
            for entry in cache.between(after, to):
                entry.needed += more
                self._by_result.needed(entry)

    def _needed_less(self, cache: ResultCache, residents: int, needed: int) -> None:
        """Fewer need what is there: before, so many were resident, and so many needed the tail."""
        if cache.residents != residents:
            self.figures.consumed += residents - cache.residents
            self._ranks_changed(cache)
        elif cache.needed != needed:
            self._ranks_changed(cache)

    def _hold_limit(self, newcomer: ResultCache | None, now_s: float) -> None:
        """Drops until the limit holds. A newcomer is spared while it is all that its cache holds."""
        while self._by_result is not None and self.resident_bytes > self.limit_bytes:
            victim = self._by_result.victim(newcomer.newest if newcomer is not None else None, now_s)
            owner: ResultCache = victim.owner
            freed = owner.drop(owner.place(victim))
            self.figures.evicted += 1
            self.figures.evicted_bytes += freed
            self.resident_bytes -= freed
            self._ranks_changed(owner)
        while self.resident_bytes > self.limit_bytes:
            spared = newcomer if newcomer is not None and newcomer.residents == 1 else None
            found = self._evictable.lowest(besides=spared)
            assert found is not None, "bytes are resident only in caches that are ranked"
            self.figures.evicted += 1
            self.figures.evicted_bytes += self._drop_tail(found[3])
        self.figures.most_bytes = max(self.figures.most_bytes, self.resident_bytes)

    def _drop_tail(self, cache: ResultCache) -> int:
        freed = cache.drop_tail()
        self.resident_bytes -= freed
        self._ranks_changed(cache)
        return freed

    def _ranks_changed(self, cache: ResultCache) -> None:
        if cache.residents:
            if self._by_result is None:
                self._evictable.changed(cache)
            if self.expires:
                self._expiring.changed(cache)

    def _rank(self, cache: ResultCache) -> Rank[ResultCache] | None:
        if not cache.residents:
            return None
        tail = cache.oldest
        latency_s = self._usual_latency_s if cache.latency_s is None else cache.latency_s
        return (self._eviction.value(cache, tail, latency_s), self._ties(tail), cache.number, cache)

    def _due(self, cache: ResultCache) -> Rank[ResultCache] | None:
        if not cache.residents:
            return None
        tail = cache.oldest
        return (self._expiry.due_s(cache, tail), 0.0, cache.number, cache)

    def _rank_all(self) -> None:
        self._evictable, self._expiring = RankHeap(self._rank), RankHeap(self._due)
        for cache in self:
            self._ranks_changed(cache)

    def _set_times_to_live(self) -> None:
        set_times_to_live(
            self,
            WEIGHTS[self.settings.weights],
            budget_bytes=self.settings.budget_bytes,
            first_s=self.settings.ttl_first_s,
            cap_s=self.settings.ttl_cap_s,
        )
