"""`tocsin lab scenario` writes a scenario, `tocsin lab play` plays one.

A scenario is a file, so that the live system and the simulator can play the same one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from tocsin.cli.options import OUT, LabSettings, TraceTo, folder_errors, open_output, reporter, settings_of
from tocsin.cli.output import print_table
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
    file: Annotated[Path, Parameter(help="The file to write, one line of JSON per step.")],
    /,
    *,
    seed: Annotated[int, Parameter(help="The seed: the same seed, settings and files give the same scenario.")] = 1,
    set_: LabSettings = None,
    map_: Annotated[
        Path | None,
        Parameter(name="--map", help="The file with the roads that people walk along: LINESTRINGs of well-known text."),
    ] = None,
    movement: Annotated[
        Path | None, Parameter(help="A movement trace of the ONE simulator: the people, and where each is when.")
    ] = None,
    connections: Annotated[
        Path | None,
        Parameter(
            help="A connection trace of the ONE simulator: people are online while connected to an access point."
        ),
    ] = None,
    access_points: Annotated[
        str | None, Parameter(help="The hosts of the connection trace that are access points, separated by commas.")
    ] = None,
) -> int:
    """Write a scenario: a city in an emergency, and when people move, log in and out, subscribe and publish.

    Its settings are subscribers, subscriptions, span_s, movement (waypoint or roads), places, zipf_exponent,
    near_share, churn, join_s, publish_every_s, shelter_share, zone_every_s and move_every_s. What the given files say
    (the area, the people, the time span) replaces what the settings would make.
    """
    from tocsin.lab.scenarios.city import city_scenario
    from tocsin.lab.scenarios.files import city_from
    from tocsin.lab.scenarios.scenario import save

    points = {point.strip() for point in (access_points or "").split(",")} - {""}
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
    file: Annotated[Path, Parameter(help="The scenario file, as tocsin lab scenario writes it.")],
    /,
    *,
    policy: Annotated[
        str, Parameter(help="The policies, separated by commas: nc (no cache), ttl, or an eviction of docs/policies.")
    ] = "nc,lsc",
    size_kb: Annotated[str, Parameter(help="The budgets of the caches in KB, separated by commas.")] = "100",
    subscriber_s: Annotated[float, Parameter(help="The simulated round trip to a subscriber, in seconds.")] = 0.01,
    cluster_s: Annotated[float, Parameter(help="The simulated round trip to the cluster, in seconds.")] = 0.1,
    subscriber_kb_per_s: Annotated[
        float, Parameter(help="The simulated bandwidth to each subscriber, in KB per second.")
    ] = 1_000.0,
    cluster_kb_per_s: Annotated[
        float, Parameter(help="The simulated bandwidth to the cluster, shared by all, in KB per second.")
    ] = 10_000.0,
    live: Annotated[
        bool,
        Parameter(negative="", help="Play also to live brokers on a cluster of their own; needs the extra cluster."),
    ] = False,
    speed: Annotated[float, Parameter(help="The speed of --live: scenario seconds per real second.")] = 2.0,
    trace: TraceTo = None,
    out: Annotated[Path, Parameter(help="The folder for the traces of --live.")] = OUT,
) -> int:
    """Play a scenario file to the broker, once for each policy and size, and print the figures of its caches.

    In the simulation, links with these round trips and bandwidths connect subscribers, broker and cluster. With --live
    the file is also played in real time, through the SDK, to servers that the command starts and stops; the trace of
    each broker is written and replayed by its core. The exit status is 1 if a replay differs from the live broker.
    """
    from tocsin.lab.engine.engine import TraceFile
    from tocsin.lab.experiments.edge_caching_prototype import play_scenario
    from tocsin.lab.experiments.edge_caching_prototype.live.options import above_0, cells, policies_of, sizes_of
    from tocsin.lab.experiments.registry import check_installed
    from tocsin.lab.simulators.network_broker import Links

    planned = cells(policies_of(policy), sizes_of(size_kb))
    if trace is not None and len(planned) > 1:
        raise InputError("--trace is of one run", hint="give one --policy and one --size-kb")
    above_0("speed", str(speed))
    if live:
        check_installed()
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
        done = list(play_scenario.simulate(made, planned, links))
    else:
        with open_output(trace) as to:
            noted = TraceFile(to, seed=0, about={"scenario": file.name, "policy": planned[0].name})
            done = list(play_scenario.simulate(made, planned, links, noted))
    played = [("simulated", run) for run in done]
    if live:
        folder = out / "play-live"
        with folder_errors():
            live_runs = list(play_scenario.live(made, planned, folder, speed=speed, say=reporter("play")))
        played += [("live", run) for run in live_runs]
        sys.stderr.write(f"{folder / 'traces'}: the trace of each broker\n")
    say = sys.stdout if trace is None or str(trace) != "-" else sys.stderr
    figures = play_scenario.FIGURES
    rows = [
        (where, run.cell.policy, f"{run.cell.size_kb:g}", *(f"{run.figures[name]:,.4g}" for name, _, _ in figures))
        for where, run in played
    ]
    print_table(("", "policy", "KB", *(name for name, _, _ in figures)), rows, say, numbers_from=2)
    say.write("\n" + "".join(f"{name}{f' ({unit})' if unit else ''}: {about}\n" for name, unit, about in figures))
    if live and not all(run.figures["replayed"] for run in live_runs):
        sys.stderr.write("a replayed trace is NOT the same as the live broker\n")
        return 1
    return 0
