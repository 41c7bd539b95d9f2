"""Result caches do what caches in the plainest way do, whatever happens in whatever order."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.caching_model import PlainCaches, at, needing
from tests.support.examples import examples
from tocsin.rules.caching.entries import BrokerResult, CachedRun, MissingRun
from tocsin.rules.caching.eviction import EVICTION, TIES
from tocsin.rules.caching.expiry import EXPIRY, WEIGHTS
from tocsin.rules.caching.rank_heap import Rank, RankHeap
from tocsin.rules.caching.result_cache import ResultCache
from tocsin.rules.caching.settings import CachingSettings

INTERESTS = st.integers(0, 2)
PEOPLE = st.sampled_from("abcd")
CHOSEN = st.builds(
    CachingSettings,
    budget_bytes=st.integers(0, 200),
    eviction=st.sampled_from(list(EVICTION)),
    expiry=st.sampled_from(list(EXPIRY)),
    admission=st.sampled_from(["all", "none", "threshold(0.5, 0.5)", "mean(3)", "buffer(0.5, 0.5)"]),
    put_is_access=st.booleans(),
    newcomer_may_go=st.booleans(),
    ties=st.sampled_from(list(TIES)),
    weights=st.sampled_from(list(WEIGHTS)),
    ceiling=st.sampled_from([1.0, 1.7]),
    ttl_every_s=st.just(10.0),
    ttl_first_s=st.sampled_from([2.0, 12.0]),
    ttl_cap_s=st.just(15.0),
)


class CachesBesidePlainOnes(RuleBasedStateMachine):
    @initialize(chosen=CHOSEN)
    def begin(self, chosen: CachingSettings) -> None:
        self.plain = PlainCaches(chosen, 3)

    @rule(interest=INTERESTS, who=PEOPLE, behind=st.integers(0, 6))
    def subscribe(self, interest: int, who: str, behind: int) -> None:
        self.plain.subscribe(interest, who, behind)

    @rule(interest=INTERESTS, who=PEOPLE)
    def unsubscribe(self, interest: int, who: str) -> None:
        self.plain.unsubscribe(interest, who)

    @rule(interest=INTERESTS, sizes=st.lists(st.integers(0, 90), min_size=1, max_size=4))
    def put(self, interest: int, sizes: list[int]) -> None:
        for size in sizes:
            self.plain.put(interest, size)

    @rule(interest=INTERESTS, who=PEOPLE, lack=st.integers(0, 5))
    def ack(self, interest: int, who: str, lack: int) -> None:
        self.plain.ack(interest, who, max(0, self.plain.models[interest].head.execution - lack))

    @rule(interest=INTERESTS, after=st.integers(0, 20), length=st.integers(0, 20))
    def get(self, interest: int, after: int, length: int) -> None:
        self.plain.get(interest, after, after + length)

    @rule(interest=INTERESTS, took_s=st.floats(0.1, 2.0))
    def fetched(self, interest: int, took_s: float) -> None:
        self.plain.fetched(interest, took_s)

    @rule(by_s=st.floats(0.0, 8.0))
    def pass_time(self, by_s: float) -> None:
        self.plain.pass_time(by_s)

    @rule(chosen=CHOSEN)
    def switch(self, chosen: CachingSettings) -> None:
        self.plain.switch(chosen)

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "plain"):
            self.plain.check()


TestCachesBesidePlainOnes = CachesBesidePlainOnes.TestCase
TestCachesBesidePlainOnes.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)


# ---------------------------------------------------------------- holes, and what fills them


@st.composite
def worn(draw: st.DrawFn) -> tuple[ResultCache, dict[str, int]]:
    """A cache with some residents and some holes, made by admission and by dropping from anywhere."""
    cache = ResultCache("i", at(0), number=1, now_s=0.0, ttl_s=1.0)
    markers: dict[str, int] = {}
    kept = draw(st.lists(st.booleans(), min_size=1, max_size=12))
    for who in draw(st.sets(PEOPLE, min_size=1)):
        markers[who] = 0
        cache.attach(at(0))
    for number, resident in enumerate(kept, 1):
        cache.put(
            BrokerResult(at(number), number, str(number)), resident=resident, now_s=float(number), sequence=number
        )
    for who in draw(st.sets(st.sampled_from(sorted(markers)))):
        to = draw(st.integers(0, len(kept)))
        cache.advance(at(0), at(to))
        markers[who] = to
    for _ in range(draw(st.integers(0, 8))):
        places = [index for index, entry in enumerate(cache) if entry.resident]
        if places:
            cache.drop(draw(st.sampled_from(places)))
    return cache, markers


def whole(cache: ResultCache, markers: dict[str, int]) -> dict[int, bool]:
    """What is resident, found through GET; checks all counts on the way."""
    head = cache.head.execution
    found = dict.fromkeys(range(1, head + 1), False)
    place = at(0)
    for run in cache.get(at(0), at(head)):
        assert run.after == place < run.to
        place = run.to
        if isinstance(run, CachedRun):
            numbers = [result.cursor.execution for result in run.results]
            assert numbers == list(range(run.after.execution + 1, run.to.execution + 1))
            assert [result.payload for result in run.results] == [str(number) for number in numbers]
            found |= dict.fromkeys(numbers, True)
    assert place == at(head)
    assert cache.resident_bytes == sum(number for number, resident in found.items() if resident)
    entries = list(cache)
    assert not entries or entries[0].resident
    for index, (entry, needed) in enumerate(zip(entries, needing(cache), strict=True)):
        assert needed == sum(marker < entry.cursor.execution for marker in markers.values())
        assert entry.resident or index + 1 == len(entries) or entries[index + 1].resident
    assert all(entry.inserted_s <= other.inserted_s for entry, other in itertools.pairwise(entries))
    return found


@settings(max_examples=examples(300))
@given(worn(), st.data())
def test_what_is_fetched_fills_what_is_missing_and_changes_nothing_else(
    made: tuple[ResultCache, dict[str, int]], data: st.DataObject
) -> None:
    cache, markers = made
    before = whole(cache, markers)
    head, floor = cache.head.execution, cache.floor.execution
    after = data.draw(st.integers(0, head))
    to = data.draw(st.integers(after, head))
    results = [BrokerResult(at(number), number, str(number)) for number in range(after + 1, to + 1)]
    cache.fill(at(after), at(to), results, now_s=99.0, sequence=99)
    lowest = min(markers.values(), default=head)
    for number, resident in whole(cache, markers).items():
        reachable = number > floor or to >= floor
        filled = after < number <= to and number > lowest and reachable
        assert resident == (before[number] or filled)


@given(worn(), st.integers(0, 12), st.integers(0, 12))
def test_a_get_of_any_part_says_what_a_get_of_the_whole_says(
    made: tuple[ResultCache, dict[str, int]], after: int, to: int
) -> None:
    cache, markers = made
    resident = whole(cache, markers)
    to = min(to, cache.head.execution)
    runs = cache.get(at(after), at(to))
    covered = {
        n: isinstance(run, CachedRun) for run in runs for n in range(run.after.execution + 1, run.to.execution + 1)
    }
    assert covered == {number: resident[number] for number in range(after + 1, to + 1)}
    beyond = cache.get(at(after), at(cache.head.execution + 3))
    assert beyond == [] or (isinstance(beyond[-1], MissingRun) and beyond[-1].to == at(cache.head.execution + 3))


# ---------------------------------------------------------------- the heap


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 9)), st.booleans()), max_size=200))
def test_the_lowest_rank_is_found_however_ranks_rise_and_fall(changes: list[tuple[int, int | None, bool]]) -> None:
    ranks: dict[int, Rank[int]] = {}
    heap: RankHeap[int] = RankHeap(ranks.get)
    for key, value, look in changes:
        if value is None:
            ranks.pop(key, None)
        else:
            ranks[key] = (float(value), 0.0, key, key)
        heap.update_rank(key)
        if look:
            lowest = min(ranks.values(), default=None)
            found = heap.lowest()
            assert found == lowest
            spared = heap.lowest(besides=key)
            others = [rank for other, rank in ranks.items() if other != key]
            assert spared == min(others, default=None)
