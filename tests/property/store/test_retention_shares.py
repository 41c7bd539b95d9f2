"""Whatever one application makes a channel find, others that stay below their share keep all that they have."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.stored_channel import StoredChannel, fetched
from tocsin.rules.model.cursors import START, Range
from tocsin.store.channels.rows import BackendRequest, BrokerName
from tocsin.store.channels.sqlite.results import ROW_BYTES
from tocsin.store.channels.sqlite.shares import fair_level
from tocsin.store.channels.sqlite.store import SqliteChannelStore

MAX_BYTES = 4_000
SHARES = [
    (BrokerName("Default", "b"), "flood"),
    (BrokerName("Default", "b"), "one"),
    (BrokerName("Default", "other"), ""),
]

# Which shares hold each interest; several may.
holders = st.lists(st.sets(st.sampled_from(range(len(SHARES))), min_size=1), min_size=1, max_size=8)
# Per execution what each interest (by place) finds: payloads by kind, so that many are equal.
found = st.dictionaries(st.integers(0, 7), st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=8)
executions = st.lists(st.tuples(found, st.booleans()), min_size=1, max_size=30)


def payload(kind: int, number: int) -> str:
    return f"{kind} of {number % 3}: " + "x" * (40 * (kind + 1))


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(holders=holders, executions=executions)
def test_who_stays_below_its_share_loses_nothing(
    holders: list[set[int]], executions: list[tuple[dict[int, list[int]], bool]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), holders, executions))


async def play(folder: Path, holders: list[set[int]], executions: list[tuple[dict[int, list[int]], bool]]) -> None:
    store = SqliteChannelStore(folder / "channels.db")
    await store.open()
    try:
        channel = StoredChannel(store, await store.add_channel())
        interests: list[int] = []
        for place, of in enumerate(holders):
            wanted = [
                BackendRequest(f"[{place}]", SHARES[share][0], application=SHARES[share][1]) for share in sorted(of)
            ]
            interests.append((await store.subscribe(channel.id, wanted, created_us=1))[0].interest)
        made: dict[int, list[str]] = defaultdict(list)
        used = [0] * len(SHARES)
        highest = [0] * len(SHARES)
        newest = 0
        for number, (found, looked_over) in enumerate(executions):
            now = {place: [payload(kind, number) for kind in kinds] for place, kinds in found.items()}
            now = {place: texts for place, texts in now.items() if place < len(interests)}
            await channel.run({interests[place]: texts for place, texts in now.items()})
            for place, texts in now.items():
                made[place] += texts
            for share in range(len(SHARES)):
                mine = [text for place, texts in now.items() if share in holders[place] for text in texts]
                used[share] += ROW_BYTES * len(mine) + sum(map(len, set(mine)))
            all_of_it = [text for texts in now.values() for text in texts]
            newest = ROW_BYTES * len(all_of_it) + sum(map(len, set(all_of_it))) or newest
            if looked_over or number == len(executions) - 1:
                await store.retain(channel.id, max_bytes=MAX_BYTES)
                highest = [max(pair) for pair in zip(highest, used, strict=True)]
        holding = [share for share in range(len(SHARES)) if any(share in of for of in holders)]
        equal = MAX_BYTES / len(holding)
        answers = await fetched(store, [Range(interest, START) for interest in interests])
        kept_rows = 0
        for place, answer in enumerate(answers):
            kept = [result.payload.decode() for result in answer["results"]]
            kept_rows += len(kept)
            if any(highest[share] <= equal for share in holders[place]):
                assert (kept, answer["gap"]) == (made[place], None)
            else:
                assert kept == made[place][len(made[place]) - len(kept) :]
                assert (answer["gap"] is None) == (len(kept) == len(made[place]))
        # A row that is gone for its interest stays while another names it as the holder of its payload.
        most = max(MAX_BYTES, newest) + newest + ROW_BYTES * kept_rows
        assert (await store.state(channel.id)).result_bytes <= most
    finally:
        await store.close()


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50), st.integers(0, 10**13))
def test_the_fair_level_gives_everything_away_and_takes_from_the_largest(wants: list[int], capacity: int) -> None:
    level = fair_level(wants, capacity)
    had = [min(want, level) for want in wants]
    if sum(wants) <= capacity:
        assert had == wants
    else:
        assert abs(sum(had) - capacity) <= 1e-6 * max(1, capacity)
        assert level >= capacity / len(wants) * (1 - 1e-9)
