"""Result caches in the plainest way: a set of subscribers per result, and a look at every cache for each victim."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from tocsin.rules.caching.admission import admission
from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.caching.entries import BrokerResult, CachedRun, MissingRun
from tocsin.rules.caching.result_cache import ResultCache
from tocsin.rules.caching.settings import CachingSettings
from tocsin.rules.model.cursors import Cursor


def at(number: int) -> Cursor:
    return Cursor(1, number, 0)


def refresh_ranks(caches: ResultCaches, now_s: float) -> None:
    """Measures every cache's growth and the usual latency, and ranks all caches again, however many pieces it takes."""
    is_under_way = True
    while is_under_way:
        caches.ttl.due_s = now_s
        caches.pass_time(now_s)
        is_under_way = caches.ttl.is_under_way


def needing(cache: ResultCache) -> list[int]:
    """The number of subscribers that still need each entry of the cache, oldest first."""
    counts = [cache.needed]
    for entry in cache:
        counts.append(counts[-1] + entry.reached)
    return counts[: len(cache)]


@dataclass
class ResultModel:
    cursor: Cursor
    size: int
    needed_by: set[str]
    resident: bool
    inserted_s: float
    sequence: int
    reads: int = 1
    worth: float = 0.0
    """For `gdsf`."""
    unread: int | None = None
    """For `worth` and `saving`: how many needed it when it came, until one of them has it."""
    fresh_until_s: float = 0.0


# What these drop follows from queues; the model takes their word for it and checks that it had to be.
QUEUES = {"sieve", "s3fifo", "wtinylfu"}


@dataclass
class InterestModel:
    """One interest: everything ever made, and who has what."""

    number: int
    head: Cursor
    last_access_s: float
    objects: list[ResultModel] = field(default_factory=list)
    markers: dict[str, Cursor] = field(default_factory=dict)
    latency_s: float | None = None

    @property
    def tail(self) -> ResultModel | None:
        return next((object_ for object_ in self.objects if object_.resident), None)


class PlainCaches:
    """Does to a real ResultCaches and to the model what it is told, and compares."""

    def __init__(self, settings: CachingSettings, interests: int) -> None:
        self.settings = settings
        self.now_s = 0.0
        self.real = ResultCaches(settings, 0.0)
        self.models: dict[int, InterestModel] = {}
        self.admission = admission(settings.admission, learns_first=settings.buffer_learns_first)
        self.sequence = 0
        self.usual_s = self.all_s = settings.latency_first_s
        self.measured = False
        self.level = 0.0
        for interest in range(interests):
            self.real.open(interest, at(0), 0.0)
            self.models[interest] = InterestModel(interest + 1, at(0), 0.0)

    # --- what can be done

    def subscribe(self, interest: int, who: str, behind: int = 0) -> None:
        model = self.models[interest]
        if who in model.markers:
            return
        marker = at(max(0, model.head.execution - behind))
        model.markers[who] = marker
        for object_ in model.objects:
            if object_.cursor > marker:
                object_.needed_by.add(who)
        self.real.attach(self.real[interest], marker)

    def unsubscribe(self, interest: int, who: str) -> None:
        model = self.models[interest]
        if who not in model.markers:
            return
        self.real.detach(self.real[interest], model.markers.pop(who))
        for object_ in model.objects:
            self._less(object_, who)
        self._consume(model)

    def put(self, interest: int, size: int) -> None:
        model = self.models[interest]
        self.sequence += 1
        cursor = at(model.head.execution + 1)
        model.head = cursor
        kept = bool(model.markers) and self.admission.admits(len(model.markers))
        kept = kept and self.settings.eviction != "none" and size <= self.limit
        made = ResultModel(cursor, size, set(model.markers), kept, self.now_s, self.sequence)
        model.objects.append(made)
        if kept and self.settings.put_is_access:
            model.last_access_s = self.now_s
        self._came(made)
        result = BrokerResult(cursor, size, f"{interest}:{cursor.execution}")
        if self.settings.eviction in QUEUES:
            resident = self.real.put(self.real[interest], result, self.now_s)
            self._follow(None if self.settings.newcomer_may_go else made)
        else:
            while self.resident_bytes > self.limit:
                self._drop(self._victim(None if self.settings.newcomer_may_go else made))
            resident = self.real.put(self.real[interest], result, self.now_s)
        assert resident == made.resident

    def ack(self, interest: int, who: str, to: int) -> None:
        model = self.models[interest]
        before = model.markers.get(who)
        marker = min(at(to), model.head)
        if before is None or marker <= before:
            return
        model.markers[who] = marker
        for object_ in model.objects:
            if object_.cursor <= marker:
                self._less(object_, who)
        self._consume(model)
        self.real.advance(self.real[interest], before, marker)

    def get(self, interest: int, after: int, to: int) -> None:
        """Cached and missing runs cover the range exactly, and say the truth about every result in it."""
        model = self.models[interest]
        after, to = min(after, model.head.execution), min(to, model.head.execution)
        model.last_access_s = self.now_s
        runs = self.real.get(self.real[interest], at(after), at(to), self.now_s)
        place = at(after)
        for run in runs:
            assert run.after == place < run.to
            place = run.to
        assert place == at(max(after, to)) or (not runs and after >= to)
        for item, other in itertools.pairwise(runs):
            assert not (isinstance(item, MissingRun) and isinstance(other, MissingRun))
        for object_ in model.objects:
            if at(after) < object_.cursor <= at(to):
                (run,) = [run for run in runs if run.after < object_.cursor <= run.to]
                assert isinstance(run, CachedRun) == object_.resident
                object_.reads += 1
                object_.worth = self.level + object_.reads / max(1, object_.size)
        for run in runs:
            if isinstance(run, CachedRun):
                inside = [object_ for object_ in model.objects if run.after < object_.cursor <= run.to]
                expected = [
                    BrokerResult(entry.cursor, entry.size, f"{interest}:{entry.cursor.execution}") for entry in inside
                ]
                assert list(run.results) == expected

    def fetched(self, interest: int, took_s: float) -> None:
        model, share = self.models[interest], self.settings.latency_share
        self.all_s = self.all_s + share * (took_s - self.all_s) if self.measured else took_s
        self.measured = True
        before = model.latency_s
        model.latency_s = took_s if before is None else before + share * (took_s - before)
        self.real.count_fetch(self.real[interest], 0, 0, took_s)

    def pass_time(self, by_s: float) -> None:
        self.now_s += by_s
        if self.now_s >= self.real.ttl.due_s:
            self.usual_s = self.all_s
        self.real.pass_time(self.now_s)
        if self.settings.expiry == "ttl":
            for interest, model in self.models.items():
                for object_ in model.objects:
                    object_.resident = object_.resident and object_.inserted_s + self.real[interest].ttl_s > self.now_s

    def switch(self, settings: CachingSettings) -> None:
        if settings.admission != self.settings.admission:
            self.admission = admission(settings.admission)
        # A life that has ended ends before the switch, under the policy that gave it.
        self.pass_time(0.0)
        begins = settings.eviction != self.settings.eviction
        self.settings = settings
        self.real.switch(settings, self.now_s)
        self.pass_time(0.0)
        if begins:
            self.level = 0.0
            for object_ in self.objects():
                self._came(object_)
        if settings.eviction in QUEUES:
            self._follow(None)
        while self.resident_bytes > self.limit:
            self._drop(self._victim(None))

    # --- what must hold

    @property
    def limit(self) -> int:
        return self.settings.ceiling_bytes if self.settings.expiry == "ttl" else self.settings.budget_bytes

    @property
    def resident_bytes(self) -> int:
        return sum(object_.size for model in self.models.values() for object_ in model.objects if object_.resident)

    def check(self) -> None:
        assert self.real.resident_bytes == self.resident_bytes <= self.limit
        assert self.real.limit_bytes == self.limit
        for interest, model in self.models.items():
            cache = self.real[interest]
            entries = list(cache)
            residents = [entry for entry in entries if entry.resident]
            expected = [object_ for object_ in model.objects if object_.resident]
            assert [resident.cursor for resident in residents] == [object_.cursor for object_ in expected]
            assert cache.residents == len(expected)
            assert cache.resident_bytes == sum(object_.size for object_ in expected)
            assert cache.subscribers == len(model.markers)
            assert cache.lowest_marker() == min(model.markers.values(), default=model.head)
            assert not entries or entries[0].resident
            for index, (entry, needed) in enumerate(zip(entries, needing(cache), strict=True)):
                if entry.resident:
                    (one,) = [object_ for object_ in expected if object_.cursor == entry.cursor]
                    assert needed == len(one.needed_by) > 0
                else:
                    assert index + 1 == len(entries) or entries[index + 1].resident, "neighbouring holes are one"

    # --- inside

    def _consume(self, model: InterestModel) -> None:
        for object_ in model.objects:
            object_.resident = object_.resident and bool(object_.needed_by)

    def objects(self) -> list[ResultModel]:
        return [object_ for model in self.models.values() for object_ in model.objects]

    def _came(self, one: ResultModel) -> None:
        one.reads, one.worth = 1, self.level + 1 / max(1, one.size)
        one.unread, one.fresh_until_s = len(one.needed_by), self.now_s + self.settings.fresh_s

    def _less(self, one: ResultModel, who: str) -> None:
        one.needed_by.discard(who)
        if one.unread is not None and len(one.needed_by) < one.unread:
            one.unread = None

    def _drop(self, one: ResultModel) -> None:
        one.resident = False
        if self.settings.eviction == "gdsf":
            self.level = one.worth

    def _follow(self, spared: ResultModel | None) -> None:
        """What a policy of queues dropped was resident, was no more than had to go, and was not who is spared."""
        dropped = []
        for interest, model in self.models.items():
            kept = {entry.cursor for entry in self.real[interest] if entry.resident}
            dropped += [object_ for object_ in model.objects if object_.resident and object_.cursor not in kept]
        before = self.resident_bytes
        for item in dropped:
            assert item is not spared
            item.resident = False
        if dropped:
            assert before > self.limit >= self.resident_bytes
            assert self.resident_bytes + max(entry.size for entry in dropped) > self.limit

    def _victim(self, spared: ResultModel | None) -> ResultModel:
        candidates = []
        if self.settings.eviction in {"worth", "saving", "gdsf"}:
            residents = [object_ for object_ in self.objects() if object_.resident and object_ is not spared]
            return min(residents, key=lambda one: (self._worth(one), one.sequence))
        for interest, model in self.models.items():
            tail = model.tail
            if tail is not None and tail is not spared:
                candidates.append((self._rank(interest, model, tail), tail))
        return min(candidates, key=lambda pair: pair[0])[1]

    def _worth(self, one: ResultModel) -> float:
        if self.settings.eviction == "gdsf":
            return one.worth
        fresh = one.unread is not None and self.now_s < one.fresh_until_s
        needed = len(one.needed_by) * (1e6 if fresh else 1.0)
        return needed / max(1, one.size) if self.settings.eviction == "worth" else needed

    def _rank(self, interest: int, model: InterestModel, tail: ResultModel) -> tuple[float, float, int]:
        needed = len(tail.needed_by)
        latency_s = self.usual_s if model.latency_s is None else model.latency_s
        value = {
            "lru": model.last_access_s,
            "lsc": needed,
            "lscz": needed / max(1, tail.size),
            "lsd": latency_s * needed / max(1, tail.size),
            "exp": tail.inserted_s + self.real[interest].ttl_s,
            "fifo": tail.sequence,
            "none": tail.sequence,
        }[self.settings.eviction]
        tie = {"oldest": tail.sequence, "newest": -tail.sequence, "largest": -tail.size}[self.settings.ties]
        return (value, tie, model.number)
