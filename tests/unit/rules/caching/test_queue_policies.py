"""SIEVE, S3-FIFO, W-TinyLFU and GDSF on stories that can be followed by hand."""

from __future__ import annotations

from types import SimpleNamespace

from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.caching.entries import BrokerResult, CacheEntry
from tocsin.rules.caching.per_result_policies import GreedyDual, MostBytes, MostHits, PerResultPolicy
from tocsin.rules.caching.queue_policies import Sieve, SmallThenMain, WindowedFrequency
from tocsin.rules.caching.settings import CachingSettings
from tocsin.rules.model.cursors import START, Cursor


class PolicyRun:
    """Results with names, as a policy sees them."""

    def __init__(self, policy: PerResultPolicy) -> None:
        self.policy = policy
        self.entries: dict[str, CacheEntry] = {}

    def admit(self, names: str, *, size: int = 10, needed: int = 1, at_s: float = 0.0) -> None:
        for name in names:
            number = len(self.entries) + 1
            made = CacheEntry(BrokerResult(Cursor(1, number, 0), size), resident=True, inserted_s=at_s, sequence=number)
            # Names of the same letter are results of one interest.
            made.owner, made.order, made.needed = SimpleNamespace(number=ord(name.lower())), number, needed
            self.entries[name] = made
            self.policy.on_admitted(made, at_s)

    def read(self, names: str, readers: int = 1) -> None:
        for name in names:
            self.policy.read(self.entries[name], readers)

    def needed(self, name: str, now: int) -> None:
        self.entries[name].needed = now
        self.policy.on_need_changed(self.entries[name])

    def dropped(self, at_s: float = 0.0, spared: str | None = None) -> str:
        found = self.policy.victim(None if spared is None else self.entries[spared], at_s)
        name = next(name for name, entry in self.entries.items() if entry is found)
        found.resident = False
        self.policy.on_dropped(found)
        return name


def test_sieve_passes_over_who_was_read_and_goes_on_from_there() -> None:
    run = PolicyRun(Sieve())
    run.admit("abcd")
    run.read("ab")
    assert run.dropped() == "c"
    run.admit("e")
    assert run.dropped() == "d", "the hand has passed a and b"
    assert run.dropped(spared="e") == "a", "from the beginning again, where the marks are gone"


def test_s3fifo_drops_who_was_not_read_in_the_small_queue_and_gives_lives_to_who_was() -> None:
    run = PolicyRun(SmallThenMain())
    run.admit("abc")
    run.read("a")
    assert run.dropped() == "b", "a has moved on to the main queue"
    run.read("a", readers=5)
    run.admit("d")
    assert [run.dropped(), run.dropped()] == ["c", "d"]
    assert run.dropped() == "a", "in the end everybody goes"


def test_s3fifo_remembers_who_went_unread() -> None:
    policy = SmallThenMain()
    run = PolicyRun(policy)
    run.admit("ab")
    again = run.entries["a"]
    assert run.dropped() == "a"
    again.resident = True
    policy.on_admitted(again, 0.0)
    assert run.dropped() == "b", "who comes again begins in the main queue"


def test_wtinylfu_keeps_who_leaves_the_window_only_if_its_interest_is_read_more() -> None:
    run = PolicyRun(WindowedFrequency())
    run.admit("abc")
    run.read("c", readers=2)
    run.admit("d")
    # There was room for a and b, without a comparison. c leaves the window now, and is read more than a.
    assert run.dropped() == "a"
    run.admit("e")
    assert run.dropped() == "d", "d leaves the window and is read no more than b"
    assert run.dropped() == "b", "nobody is left to be compared: the oldest goes"


def test_wtinylfu_forgets_the_reads_of_interests_that_are_gone() -> None:
    caches = ResultCaches(CachingSettings(eviction="wtinylfu"), 0.0)
    stays = caches.open("stays", START, 0.0)
    caches.attach(stays, START)
    for number in range(50):
        for cache in (stays, caches.open(number, START, 0.0)):
            if cache is not stays:
                caches.attach(cache, START)
            caches.put(cache, BrokerResult(Cursor(1, number + 1, 0), 10), 0.0)
            caches.get(cache, START, cache.head, 0.0)
        caches.close(number)
    policy = caches.by_result
    assert isinstance(policy, WindowedFrequency)
    assert policy.interest_reads == {stays.number: policy.counted_reads}


def test_gdsf_counts_readers_by_size_above_a_level_that_rises() -> None:
    run = PolicyRun(GreedyDual())
    run.admit("a", size=100)
    run.admit("b", size=10)
    run.read("a", readers=4)
    assert run.dropped() == "a", "5/100 is less than 1/10"
    run.admit("c", size=20)
    assert run.entries["c"].worth == 5 / 100 + 1 / 20, "the level has risen to a's worth"
    assert run.dropped() == "b", "and c is level with b, which is older"


def test_worth_keeps_what_is_being_told_until_it_is_read_or_old() -> None:
    run = PolicyRun(MostHits())
    run.admit("a", size=10, needed=5)
    run.admit("b", size=100, needed=2)
    run.needed("a", 4)
    assert run.dropped(at_s=1.0) == "a", "b is being told"
    run.admit("c", size=10, needed=1, at_s=1.5)
    assert run.dropped(at_s=2.1) == "b", "two seconds have passed for b and not for c"


def test_worth_weighs_size_and_saving_does_not() -> None:
    for policy, goes in ((MostHits(), "b"), (MostBytes(), "a")):
        run = PolicyRun(policy)
        run.admit("a", size=10, needed=2)
        run.admit("b", size=100, needed=3)
        assert run.dropped(at_s=5.0) == goes
