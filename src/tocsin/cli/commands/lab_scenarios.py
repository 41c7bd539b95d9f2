"""`tocsin lab scenario` writes a scenario, `tocsin lab play` plays one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from tocsin.cli.lab_options import OUT, Settings, TraceTo, folders, open_output, say_as, settings_of
from tocsin.wire.errors import InputError

SCENARIO_EXAMPLES: Final = """Examples:

    tocsin lab scenario city.jsonl --seed 7 --set movement=roads
    tocsin lab scenario city.jsonl --map town.wkt
    tocsin lab scenario city.jsonl --movement walks.txt
    tocsin lab scenario city.jsonl --connections links.txt --access-points A,B
"""
PLAY_EXAMPLES: Final = """Examples:

    tocsin lab play city.jsonl --policy nc,lru,lsc,ttl --size-kb 50,100
    tocsin lab play city.jsonl --policy lsc --cluster-kb-per-s 20
    tocsin lab play city.jsonl --policy lsc --trace t.jsonl
    tocsin lab play city.jsonl --policy nc,lsc --live --speed 5
"""


def scenario(
    file: Annotated[Path, Parameter(help="Where it is written, a line of JSON per step.")],
    /,
    *,
    seed: Annotated[int, Parameter(help="The same seed, settings and files give the same scenario.")] = 1,
    set_: Settings = None,
    map_: Annotated[
        Path | None, Parameter(name="--map", help="Roads that people walk along: LINESTRINGs of well-known text.")
    ] = None,
    movement: Annotated[
        Path | None, Parameter(help="A movement trace of the ONE simulator: who there is, and where when.")
    ] = None,
    connections: Annotated[
        Path | None,
        Parameter(help="A trace of connections of the ONE simulator: who is connected to an access point is online."),
    ] = None,
    access_points: Annotated[
        str | None, Parameter(help="Which hosts of that trace are access points, with commas in between.")
    ] = None,
) -> int:
    """Write a scenario: a city in an emergency, who moves, logs in and out, subscribes and publishes, and when.

    Its settings are subscribers, subscriptions, span_s, movement (waypoint or roads), places, zipf_exponent,
    near_share, churn, join_s, publish_every_s, shelter_share, zone_every_s and move_every_s. What files say instead
    (the area, who there is, how long it takes) is not made up.
    """
    from tocsin.lab.scenarios.city import city_scenario
    from tocsin.lab.scenarios.files import city_from
    from tocsin.lab.scenarios.scenario import save

    points = {one.strip() for one in (access_points or "").split(",")} - {""}
    city, given = city_from(
        settings_of(set_), map_=map_, movement=movement, connections=connections, access_points=points
    )
    made = city_scenario(city, seed, given)
    try:
        save(made, file)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    sys.stdout.write(f"{file}: {len(made.steps):,} steps in {made.span_s():,.0f} s\n")
    return 0


def play(
    file: Annotated[Path, Parameter(help="As tocsin lab scenario writes it, or somebody by hand.")],
    /,
    *,
    policy: Annotated[
        str, Parameter(help="With commas in between: nc (no cache), ttl, or an eviction of docs/policies.")
    ] = "nc,lsc",
    size_kb: Annotated[str, Parameter(help="The caches' budgets, with commas in between.")] = "100",
    subscriber_s: Annotated[float, Parameter(help="Simulated round trip to a subscriber.")] = 0.01,
    cluster_s: Annotated[float, Parameter(help="Simulated round trip to the cluster.")] = 0.1,
    subscriber_kb_per_s: Annotated[float, Parameter(help="Simulated bandwidth to each subscriber.")] = 1_000.0,
    cluster_kb_per_s: Annotated[float, Parameter(help="Simulated bandwidth to the cluster, shared by all.")] = 10_000.0,
    live: Annotated[
        bool,
        Parameter(negative="", help="To live brokers on a cluster of their own as well: needs the extra cluster too."),
    ] = False,
    speed: Annotated[float, Parameter(help="With --live: how many times as fast as it is written.")] = 2.0,
    trace: TraceTo = None,
    out: Annotated[Path, Parameter(help="With --live: the folder for what happened to the brokers.")] = OUT,
) -> int:
    """Play a scenario file to the broker, once for each policy and size, and tell what its caches came to.

    The driver plays the same file to each. Under virtual time subscribers, broker and cluster are connected by links
    with these round trips and bandwidths. With --live it is also played in real time, through the SDK, to servers that
    are started for it and stopped afterwards; what happened to each broker is kept, and lived through again by its
    core. Exits with 1 where that is not the same.
    """
    from tocsin.lab import play_scenario
    from tocsin.lab.engine.trace import TraceFile
    from tocsin.lab.experiments.edge_caching_prototype.live.cells import above_0, cells, policies_of, sizes_of
    from tocsin.lab.experiments.live import check
    from tocsin.lab.simulators.network_broker import Links

    wanted = cells(policies_of(policy), sizes_of(size_kb))
    if trace is not None and len(wanted) > 1:
        raise InputError("--trace is of one run", hint="give one --policy and one --size-kb")
    above_0("speed", str(speed))
    if live:
        check()
    try:
        links = Links.of_round_trips(
            subscriber_s,
            cluster_s,
            subscriber_bytes_per_s=subscriber_kb_per_s * 1e3,
            cluster_bytes_per_s=cluster_kb_per_s * 1e3,
        )
    except ValueError as error:
        raise InputError(str(error), hint="round trips are 0 s or more, bandwidths more than 0") from None
    made = play_scenario.load_city(file)
    if trace is None:
        done = list(play_scenario.simulate(made, wanted, links))
    else:
        with open_output(trace) as to:
            noted = TraceFile(to, seed=0, about={"scenario": file.name, "policy": wanted[0].name})
            done = list(play_scenario.simulate(made, wanted, links, noted))
    rows = [("simulated", one) for one in done]
    if live:
        folder = out / "play-live"
        with folders():
            lived = list(play_scenario.live(made, wanted, folder, speed=speed, say=say_as("play")))
        rows += [("live", one) for one in lived]
        sys.stderr.write(f"{folder / 'traces'}: what happened to each broker\n")
    say = sys.stdout if trace is None or str(trace) != "-" else sys.stderr
    say.write("".join(f"{line}\n" for line in _table(rows, play_scenario.FIGURES)))
    if live and not all(one.figures["relived"] for one in lived):
        sys.stderr.write("a trace, relived, is NOT the same as the live broker\n")
        return 1
    return 0


def _table(rows: Sequence[tuple[str, Any]], figures: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Names to the left, numbers to the right, and below what the figures are."""
    heads = ["", "policy", "KB", *(name for name, _, _ in figures)]
    lines = [heads]
    for where, one in rows:
        numbers = [f"{one.figures[name]:,.4g}" for name, _, _ in figures]
        lines.append([where, one.cell.policy, f"{one.cell.size_kb:g}", *numbers])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(_placed(line, widths)).rstrip()
    yield ""
    for name, unit, about in figures:
        yield f"{name}{f' ({unit})' if unit else ''}: {about}"


def _placed(line: Iterable[str], widths: Iterable[int]) -> Iterator[str]:
    for place, (word, width) in enumerate(zip(line, widths, strict=True)):
        yield word.ljust(width) if place < 2 else word.rjust(width)
