"""Holds all result caches of a broker under one byte budget: admission × eviction × expiry.

The policies rank and decide; this module stores and drops results. The contract suite checks these promises for every
combination of policies:

- after every call the resident bytes are at most the limit: the budget, or with `ttl` the ceiling;
- only residents are dropped, always the lowest ranked, and choosing a victim is O(log caches);
- a result leaves when every subscriber attached to it has acknowledged it;
- switching policies drops nothing that fits the new limit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from tocsin.rules.caching.admission import admission
from tocsin.rules.caching.entries import BrokerResult, CacheEntry, CacheRun, MissingRun, size_bytes
from tocsin.rules.caching.eviction import EVICTION, FIFO, Eviction, TailRanks
from tocsin.rules.caching.expiry import EXPIRY, TtlRefresh, TtlSchedule
from tocsin.rules.caching.per_result_policies import MostHits, PerResultPolicy
from tocsin.rules.caching.rank_heap import Rank, RankHeap
from tocsin.rules.caching.result_cache import ResultCache
from tocsin.rules.caching.settings import CachingSettings
from tocsin.rules.model.cursors import Cursor, InterestId

_SEQUENCE: Final = attrgetter("sequence")


@dataclass(slots=True)
class CacheCounters:
    """Counts under one policy, so that policies can be compared.

    A result that goes to five subscribers counts as five hits or five misses. A result that is pushed
    to subscribers as it arrives is not a hit: no reader had to look it up.
    """

    arrived: int = 0
    arrived_bytes: int = 0
    admitted: int = 0
    copies: int = 0
    """Σ subscribers over all admitted results: the number of copies that a cache per subscriber would hold."""
    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    miss_bytes: int = 0
    pushed: int = 0
    pushed_bytes: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    """All results fetched from the cluster: new results and missing results."""
    filled: int = 0
    """Missing results that entered the cache after they were fetched."""
    consumed: int = 0
    evicted: int = 0
    evicted_bytes: int = 0
    expired: int = 0
    expired_bytes: int = 0
    most_bytes: int = 0

    @property
    def hit_ratio(self) -> float:
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else 0.0


class ResultCaches:
    """`counters` counts under the present policy; `counters_by_policy` has those of every policy that was in force."""

    def __init__(self, settings: CachingSettings, now_s: float) -> None:
        self.resident_bytes = 0
        self.ttl = TtlSchedule(settings, now_s)
        self.counters_by_policy: dict[str, CacheCounters] = {}
        self.by_result: PerResultPolicy | None = None
        self._latency = _LatencyEstimate(settings.latency_first_s, settings.latency_share)
        self._caches: dict[Hashable, ResultCache] = {}
        self._made = self._admissions = 0
        self._sequence = 0
        self._choose(settings, now_s)

    # --- caches

    def open(self, interest: InterestId, since: Cursor, now_s: float) -> ResultCache:
        """Opens an empty cache whose results begin after `since`."""
        assert interest not in self._caches, f"{interest} has a cache"
        self._made += 1
        ttl_s = min(self.settings.ttl_first_s, self.settings.ttl_cap_s)
        cache = ResultCache(interest, since, number=self._made, now_s=now_s, ttl_s=ttl_s)
        cache.on_dropped = None if self.by_result is None else self.by_result.on_dropped
        self._caches[interest] = cache
        return cache

    def close(self, interest: InterestId) -> None:
        """Closes the cache and drops its content."""
        cache = self._caches.pop(interest)
        self.resident_bytes -= cache.resident_bytes
        self._evictable.forget(cache)
        self._expiring.forget(cache)
        while cache.tail is not None:
            cache.drop_tail()
        if self.by_result is not None:
            self.by_result.on_cache_closed(cache.number)

    def __getitem__(self, interest: InterestId) -> ResultCache:
        return self._caches[interest]

    def __contains__(self, interest: InterestId) -> bool:
        return interest in self._caches

    def __iter__(self) -> Iterator[ResultCache]:
        return iter(self._caches.values())

    def __len__(self) -> int:
        return len(self._caches)

    # --- results

    def put(self, cache: ResultCache, result: BrokerResult, now_s: float) -> bool:
        """Puts the next result of an interest. Returns whether the result is resident; otherwise it left a hole."""
        counters, size = self.counters, result.size_bytes
        counters.arrived += 1
        counters.arrived_bytes += size
        self._sequence += 1
        admitted = self._is_admitted(cache, size)
        cache.put(result, resident=admitted, now_s=now_s, sequence=self._sequence)
        if not admitted:
            return False
        if self.settings.put_is_access:
            cache.last_access_s = now_s
        cache.rates.arrived_bytes += size
        self.resident_bytes += size
        if self.by_result is not None and (newest := cache.newest) is not None:
            newest.needed = cache.subscribers
            self._note_admitted(cache, newest, now_s)
        if cache.residents == 1:
            self._ranks_changed(cache)
        if self.resident_bytes > self.limit_bytes:
            self._evict_until_within_limit(None if self.settings.newcomer_may_go else cache, now_s)
        counters.most_bytes = max(counters.most_bytes, self.resident_bytes)
        newest = cache.newest
        return newest is not None and newest.resident

    def get(self, cache: ResultCache, after: Cursor, to: Cursor, now_s: float, readers: int = 1) -> list[CacheRun]:
        """Algorithm 1: splits the range into cached and missing runs, oldest first. Counts as an access."""
        cache.last_access_s = now_s
        if self.by_result is not None and self.by_result.reads:
            for entry in cache.between(after, to):
                self.by_result.read(entry, readers)
        return cache.get(after, to)

    def count_reads(self, readers: int, hits: int, hit_bytes: int, misses: int = 0, miss_bytes: int = 0) -> None:
        """Counts what each of the readers got: `hits` results from the cache, `misses` that were fetched for them."""
        counters = self.counters
        if hits:
            counters.hits += readers * hits
            counters.hit_bytes += readers * hit_bytes
        if misses:
            counters.misses += readers * misses
            counters.miss_bytes += readers * miss_bytes

    def count_fetch(self, cache: ResultCache, results: int, size_bytes: int, took_s: float) -> None:
        """Counts results fetched from the cluster, and updates the estimate of the fetch latency."""
        self.counters.fetched += results
        self.counters.fetched_bytes += size_bytes
        cache.latency_s = self._latency.measure(cache.latency_s, took_s)
        if self._eviction.weighs_latency:
            self._ranks_changed(cache)

    def fill(self, cache: ResultCache, missing: MissingRun, results: Sequence[BrokerResult], now_s: float) -> None:
        """Caches fetched results that were missing, if the settings say so and the limit has room for them."""
        if not self.settings.fetched_enters or not self._keeps_any or not results:
            return
        if size_bytes(results) > self.limit_bytes:
            return
        before_bytes, residents = cache.resident_bytes, cache.residents
        self._sequence += 1
        cache.fill(missing.after, missing.to, results, now_s=now_s, sequence=self._sequence)
        self.resident_bytes += cache.resident_bytes - before_bytes
        self.counters.filled += cache.residents - residents
        if self.by_result is not None:
            cache.count_needed()
            for entry in cache.between(missing.after, missing.to):
                if entry.owner is None:
                    self._note_admitted(cache, entry, now_s)
                else:
                    self.by_result.on_need_changed(entry)
        self._ranks_changed(cache)
        self._evict_until_within_limit(None, now_s)

    # --- subscribers

    def attach(self, cache: ResultCache, marker: Cursor, count: int = 1) -> None:
        cache.attach(marker, count)
        if self.by_result is not None:
            self._add_need(cache, marker, cache.head, count)

    def detach(self, cache: ResultCache, marker: Cursor, count: int = 1) -> None:
        residents, needed = cache.residents, cache.needed
        if self.by_result is not None:
            self._add_need(cache, marker, cache.head, -count)
        self.resident_bytes -= cache.detach(marker, count)
        self._count_consumed(cache, residents, needed)

    def advance(self, cache: ResultCache, before: Cursor, after: Cursor, count: int = 1) -> None:
        """Moves subscribers that acknowledged everything up to `after`."""
        residents, needed = cache.residents, cache.needed
        if self.by_result is not None:
            self._add_need(cache, before, after, -count)
        self.resident_bytes -= cache.advance(before, after, count)
        self._count_consumed(cache, residents, needed)

    # --- time and changes of policy

    def due_s(self) -> float:
        """When `pass_time` has work to do next."""
        if not self.expires:
            return self.ttl.due_s
        rank = self._expiring.lowest()
        return self.ttl.due_s if rank is None else min(self.ttl.due_s, rank[0])

    def pass_time(self, now_s: float) -> None:
        """Drops expired results. Recomputes times to live when that is due, in pieces if there are many caches."""
        if now_s >= self.ttl.due_s:
            self._recompute_some(now_s)
        while (rank := self._expiring.lowest()) is not None and rank[0] <= now_s:
            self.counters.expired += 1
            self.counters.expired_bytes += self._drop_tail(rank[3])

    def switch(self, settings: CachingSettings, now_s: float) -> None:
        """Puts other policies in force. Content stays unless the new limit has no room for it."""
        self._choose(settings, now_s, self.settings)
        self.ttl.restart(settings, now_s)
        times_to_live = TtlRefresh(self, settings, measures=False)
        while not times_to_live.has_ended:
            times_to_live.go_on(now_s)
        for cache in self:
            self._ranks_changed(cache)
        self.pass_time(now_s)
        self._evict_until_within_limit(None, now_s)

    # --- internals

    def _choose(self, settings: CachingSettings, now_s: float, before: CachingSettings | None = None) -> None:
        self.settings = settings
        policy = EVICTION[settings.eviction]
        self._keeps_any = policy.keeps
        if before is None or (settings.eviction, settings.fresh_s) != (before.eviction, before.fresh_s):
            self._eviction = policy if isinstance(policy, Eviction) else FIFO
            self.by_result = None if isinstance(policy, Eviction) else policy()
            if isinstance(self.by_result, MostHits):
                self.by_result.fresh_s = settings.fresh_s
            self._announce_residents(now_s)
        expiry = EXPIRY[settings.expiry]
        self.expires = expiry.expires
        learns = settings.buffer_learns_first
        if before is None or (settings.admission, learns) != (before.admission, before.buffer_learns_first):
            self._admission = admission(settings.admission, learns_first=learns)
        self.limit_bytes = expiry.limit_bytes(settings.budget_bytes, settings.ceiling_bytes)
        self.counters = self.counters_by_policy.setdefault(settings.policy, CacheCounters())
        usual_latency_s = settings.latency_first_s if before is None else self._evictable.usual_latency_s
        self._evictable: TailRanks = TailRanks(self._eviction, settings.ties, usual_latency_s)
        self._expiring: RankHeap[ResultCache] = RankHeap(self._due)

    def _recompute_some(self, now_s: float) -> None:
        """Recomputes times to live, or a piece of them, and ranks the caches again."""
        if not self.ttl.is_under_way:
            # The usual latency ranks caches that have made no fetch yet: it may change only when all are ranked again.
            self._evictable.usual_latency_s = self._latency.all_s
        for cache in self.ttl.recompute_some(self, self.settings, now_s):
            if self._caches.get(cache.interest) is cache:
                self._ranks_changed(cache)

    def _is_admitted(self, cache: ResultCache, size_bytes: int) -> bool:
        """Decides whether the next result may stay. Admission judges only results with subscribers."""
        subscribers = cache.subscribers
        if not subscribers or not self._admission.admits(subscribers):
            return False
        # The result is larger than the whole limit: dropping everything else would not make room for it.
        if not self._keeps_any or size_bytes > self.limit_bytes:
            return False
        self.counters.admitted += 1
        self.counters.copies += subscribers
        return True

    def _announce_residents(self, now_s: float) -> None:
        """Announces all residents to a per-result policy, in the order of their arrival."""
        policy = self.by_result
        residents: list[CacheEntry] = []
        for cache in self:
            cache.on_dropped = None if policy is None else policy.on_dropped
            cache.count_needed()
            for entry in cache:
                entry.owner = None
                if entry.resident:
                    residents.append(entry)
                    entry.owner = cache
        if policy is not None:
            for entry in sorted(residents, key=_SEQUENCE):
                self._note_admitted(entry.owner, entry, now_s)

    def _note_admitted(self, cache: ResultCache, entry: CacheEntry, now_s: float) -> None:
        assert self.by_result is not None, "there is a per-result policy"
        self._admissions += 1
        entry.owner, entry.order = cache, self._admissions
        self.by_result.on_admitted(entry, now_s)

    def _add_need(self, cache: ResultCache, after: Cursor, to: Cursor, more: int) -> None:
        """Adds `more` to the number of subscribers that need the results in the range."""
        if self.by_result is not None and self.by_result.counts:
            for entry in cache.between(after, to):
                entry.needed += more
                self.by_result.on_need_changed(entry)

    def _count_consumed(self, cache: ResultCache, residents: int, needed: int) -> None:
        """Counts consumed residents and updates ranks. `residents` and `needed` are the values before the change."""
        if cache.residents != residents:
            self.counters.consumed += residents - cache.residents
            self._ranks_changed(cache)
        elif cache.needed != needed:
            self._ranks_changed(cache)

    def _evict_until_within_limit(self, newcomer: ResultCache | None, now_s: float) -> None:
        """Drops results until the limit holds. A newcomer is spared while it is the only resident of its cache."""
        while self.by_result is not None and self.resident_bytes > self.limit_bytes:
            victim = self.by_result.victim(newcomer.newest if newcomer is not None else None, now_s)
            owner: ResultCache = victim.owner
            freed = owner.drop(owner.place(victim))
            self.counters.evicted += 1
            self.counters.evicted_bytes += freed
            self.resident_bytes -= freed
            self._ranks_changed(owner)
        while self.resident_bytes > self.limit_bytes:
            freed = self._drop_tail(self._evictable.victim(newcomer))
            self.counters.evicted += 1
            self.counters.evicted_bytes += freed
        self.counters.most_bytes = max(self.counters.most_bytes, self.resident_bytes)

    def _drop_tail(self, cache: ResultCache) -> int:
        freed = cache.drop_tail()
        self.resident_bytes -= freed
        self._ranks_changed(cache)
        return freed

    def _ranks_changed(self, cache: ResultCache) -> None:
        if cache.residents:
            if self.by_result is None:
                self._evictable.update_rank(cache)
            if self.expires:
                self._expiring.update_rank(cache)

    def _due(self, cache: ResultCache) -> Rank[ResultCache] | None:
        if not cache.residents:
            return None
        tail = cache.oldest
        return (tail.inserted_s + cache.ttl_s, 0.0, cache.number, cache)


class _LatencyEstimate:
    """How long a fetch takes, for each interest and for all; the configured value before the first fetch."""

    __slots__ = ("_measured", "_share", "all_s")

    def __init__(self, first_s: float, share: float) -> None:
        self.all_s = first_s
        self._share = share
        self._measured = False

    def measure(self, before_s: float | None, took_s: float) -> float:
        """Returns the new estimate of an interest whose estimate was `before_s` (None before its first fetch)."""
        self.all_s = self.all_s + self._share * (took_s - self.all_s) if self._measured else took_s
        self._measured = True
        return took_s if before_s is None else before_s + self._share * (took_s - before_s)
