"""Scenarios: movement, zones, files, traces of the ONE simulator, and the driver."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.lab.engine.engine import SimulationEngine
from tocsin.lab.engine.streams import Streams
from tocsin.lab.experiments.edge_caching_prototype.play_scenario import check_steps, simulate
from tocsin.lab.scenarios.city import CHANNELS, City, city_scenario, make_travelling_zones
from tocsin.lab.scenarios.files import city_from, read_connections, read_movement
from tocsin.lab.scenarios.movement import MovementPace, MovementPath, along_roads, random_waypoint
from tocsin.lab.scenarios.roads import RoadMap, grid, read_wkt
from tocsin.lab.scenarios.scenario import (
    Act,
    LogInStep,
    LogOutStep,
    MoveStep,
    PublishStep,
    Scenario,
    Step,
    SubscribeStep,
    UnsubscribeStep,
    VirtualClock,
    WallClock,
    load,
    load_or_make_scenario,
    play,
    save,
    scenario,
)
from tocsin.lab.simulators.network_broker import BROKER, CLUSTER, Links
from tocsin.wire.errors import InputError

SMALL = City(subscribers=30, subscriptions=200, span_s=600.0)


# ---------------------------------------------------------------- movement


def speeds(way: MovementPath) -> list[float]:
    points = list(zip(way.at_s, way.east_m, way.north_m, strict=True))
    return [math.dist(a[1:], b[1:]) / (b[0] - a[0]) for a, b in itertools.pairwise(points) if b[0] > a[0]]


def test_a_random_walker_stays_in_its_area_and_within_its_speed() -> None:
    pace = MovementPace((1.0, 2.0), (0.0, 10.0))
    way = random_waypoint(Streams(1).of("ada"), area_m=(500.0, 300.0), pace=pace, span_s=3600.0)
    assert way.at_s[-1] >= 3600
    for now_s in range(0, 3600, 7):
        east_m, north_m = way.place(now_s)
        assert 0 <= east_m <= 500
        assert 0 <= north_m <= 300
    assert all(speed == 0 or 1 - 1e-9 <= speed <= 2 + 1e-9 for speed in speeds(way))
    assert 0 in speeds(way)


def test_a_walker_on_roads_never_leaves_them() -> None:
    roads = grid(Streams(1).of("roads"), area_m=(1000.0, 1000.0), block_m=100.0, closed=0.2)
    way = along_roads(Streams(1).of("ada"), roads=roads, pace=MovementPace(pause_s=(0.0, 0.0)), span_s=3600.0)
    for now_s in range(0, 3600, 11):
        east_m, north_m = way.place(now_s)
        assert min(east_m % 100, -east_m % 100, north_m % 100, -north_m % 100) < 1e-6


def test_the_shortest_way_is_the_shortest() -> None:
    a, b, c, d = (0.0, 0.0), (3.0, 0.0), (3.0, 4.0), (9.0, 9.0)
    roads = RoadMap([(a, b), (b, c), (a, d), (d, c)])
    assert roads.shortest(a, c) == [a, b, c]
    assert roads.shortest(b, d) == [b, c, d]
    assert roads.shortest(a, a) == [a]


def test_only_what_is_connected_is_kept_of_a_map() -> None:
    roads = RoadMap([((0, 0), (1, 0)), ((1, 0), (2, 0)), ((9, 9), (8, 8))])
    assert roads.places == ((0, 0), (1, 0), (2, 0))
    with pytest.raises(ValueError, match="needs a road"):
        RoadMap([])


def test_a_map_is_read_from_well_known_text(tmp_path: Path) -> None:
    path = tmp_path / "roads.wkt"
    path.write_text("LINESTRING (10 20, 13 20, 13 24)\n\nlinestring(10 20, 10 30)\nPOINT (0 0)\n")
    roads = read_wkt(path)
    assert roads.places == ((0.0, 0.0), (0.0, 10.0), (3.0, 0.0), (3.0, 4.0))
    path.write_text(
        "LINESTRING Z (10 20 5, 13 20 5)\nMULTILINESTRING ((13 20, 13 24), (10 20,\n10 30))\nlinestring zm empty\n"
    )
    assert read_wkt(path).places == roads.places
    for unread in ("LINESTRING (1 1, 2 2)\nLINESTRING (1 1, 3 3", "LINESTRING (1 1, 2 2)\nMULTILINESTRING Q ((1 1))"):
        path.write_text(unread)
        with pytest.raises(InputError, match="line 2: a LINESTRING without its places"):
            read_wkt(path)
    path.write_text("LINESTRING (10 20, 13)")
    with pytest.raises(InputError, match="not a place"):
        read_wkt(path)
    for without in ("POINT (1 2)", "LINESTRING (1 1, 1 1)"):
        path.write_text(without)
        with pytest.raises(InputError, match="no LINESTRING with a road"):
            read_wkt(path)
    with pytest.raises(InputError, match="No such file"):
        read_wkt(tmp_path / "absent")


def test_zones_travel_while_they_last() -> None:
    zones = make_travelling_zones(Streams(1).of("z"), ("flood", "fire"), area_m=(1000, 1000), span_s=7200, every_s=60)
    assert len(zones) > 60
    zone = next(zone for zone in zones if math.hypot(zone.east_m_per_s, zone.north_m_per_s) > 1)
    middle_s = (zone.begin_s + zone.end_s) / 2
    assert not zone.active(zone.end_s)
    assert zone.centre(zone.begin_s) == (zone.east_m, zone.north_m)
    moved_m = math.dist(zone.centre(middle_s), zone.centre(zone.begin_s))
    speed = math.hypot(zone.east_m_per_s, zone.north_m_per_s)
    assert moved_m == pytest.approx(speed * (middle_s - zone.begin_s))
    east_m, north_m = zone.centre(middle_s)
    assert zone.covers(middle_s, (east_m + zone.radius_m * 0.99, north_m))
    assert not zone.covers(middle_s, (east_m + zone.radius_m * 1.01, north_m))


@pytest.mark.parametrize("wrong", [{"speed_m_per_s": (0.0, 1.0)}, {"pause_s": (2.0, 1.0)}])
def test_a_pace_that_never_arrives_is_refused(wrong: dict[str, tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="must be"):
        MovementPace(**wrong)


# ---------------------------------------------------------------- the city


def test_the_city_has_the_numbers_of_the_prototype() -> None:
    made = city_scenario(City(), 1)
    kinds = Counter(type(step.act) for step in made.steps)
    interests = {(act.channel, act.parameters) for step in made.steps if isinstance(act := step.act, SubscribeStep)}
    assert kinds[SubscribeStep] == 3_500
    assert len(interests) == pytest.approx(800, rel=0.1)
    assert {channel for channel, _ in interests} == {channel for channel, _, _ in CHANNELS}
    assert kinds[PublishStep] == pytest.approx(360, abs=4 * math.sqrt(360))
    assert made.span_s() <= 3600
    sizes = [
        len(act.record["message"])
        for step in made.steps
        if isinstance(act := step.act, PublishStep) and "message" in act.record
    ]
    assert min(sizes) >= 200
    assert max(sizes) <= 1_000


@pytest.mark.parametrize("movement", ["waypoint", "roads"])
def test_everybody_moves_only_while_logged_in_and_subscribes_to_a_thing_once(movement: str) -> None:
    online: set[str] = set()
    held: set[tuple[str, str, tuple[str | float, ...]]] = set()
    for step in city_scenario(replace(SMALL, movement=movement, churn=0.5), 1).steps:
        match step.act:
            case LogInStep(who):
                assert who not in online
                online.add(who)
            case LogOutStep(who):
                online.remove(who)
            case MoveStep(who, east_m, north_m):
                assert who in online
                assert 0 <= east_m <= 10_000
                assert 0 <= north_m <= 10_000
            case SubscribeStep(who, channel, parameters):
                assert (who, channel, parameters) not in held
                held.add((who, channel, parameters))
            case UnsubscribeStep(who, channel, parameters):
                held.remove((who, channel, parameters))
            case PublishStep():
                pass
    assert 0 < len(held) < 200


def test_a_scenario_is_the_same_for_the_same_seed_and_read_back_as_it_was_saved(tmp_path: Path) -> None:
    made = city_scenario(SMALL, 1)
    one, other = tmp_path / "one", tmp_path / "other"
    save(made, one)
    save(city_scenario(SMALL, 1), other)
    assert one.read_bytes() == other.read_bytes()
    assert load(one).steps == made.steps
    assert load(one).about["seed"] == 1
    assert city_scenario(SMALL, 2).steps != made.steps


@pytest.mark.parametrize("lines", [0, 1, 50])
def test_a_kept_scenario_that_is_cut_is_made_again(tmp_path: Path, lines: int) -> None:
    made = load_or_make_scenario(tmp_path, "city", lambda: city_scenario(SMALL, 1))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:lines]))
    assert load_or_make_scenario(tmp_path, "city", lambda: city_scenario(SMALL, 1)).steps == made.steps
    assert path.read_bytes() == whole
    assert load_or_make_scenario(tmp_path, "city", lambda: Scenario({}, ())).steps == made.steps
    assert load_or_make_scenario(None, "city", lambda: Scenario({}, ())).steps == ()


def test_more_subscribers_do_not_change_what_happens_in_the_city() -> None:
    few, many = (city_scenario(replace(SMALL, subscribers=people), 1) for people in (30, 40))
    published = [[step for step in made.steps if isinstance(step.act, PublishStep)] for made in (few, many)]
    assert published[0] == published[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("[]\n", 'line 1: a scenario begins with {"scenario": 1'),
        ('{"scenario":1}\n{"at_s":1,"do":"dance"}\n', "line 2: do: must be one of log_in"),
        ('{"scenario":1}\n{"at_s":1,"do":"log_in"}\n', "line 2: log_in needs subscriber, got nothing"),
        ('{"scenario":1}\n{"do":"log_in","subscriber":"a"}\n', "line 2: a step needs at_s"),
        ('{"scenario":1}\n[]\n', "line 2: a step is an object"),
        ('{"scenario":1}\n{"at_s":NaN,"do":"log_in","subscriber":"a"}\n', "line 2: at_s: must be a number"),
        ('{"scenario":1}\n{"at_s":-1,"do":"log_in","subscriber":"a"}\n', "line 2: at_s: must be a number"),
        ('{"scenario":1}\n{"at_s":1,"do":[],"subscriber":"a"}\n', "line 2: do: must be one of"),
        ('{"scenario":1}\n{"at_s":1,"do":"log_in","subscriber":7}\n', "line 2: subscriber: must be a text, got 7"),
        (
            '{"scenario":1}\n{"at_s":1,"do":"move","subscriber":"a","east_m":"1","north_m":2}\n',
            "line 2: east_m: must be a number",
        ),
        (
            '{"scenario":1}\n{"at_s":1,"do":"subscribe","subscriber":"a","channel":"c","parameters":"flood"}\n',
            "line 2: parameters: must be a list",
        ),
        ('{"scenario":1}\n{"at_s":1,"do":"publish","feed":"f","record":1}\n', "line 2: record: must be an object"),
        ('{"scenario":1}\n{"at_s":1 "do"}\n', "line 2: not JSON: Expecting ',' delimiter at column 11"),
        (
            '{"scenario":1}\n{"at_s":2,"do":"log_in","subscriber":"a"}\n{"at_s":1,"do":"log_out","subscriber":"a"}\n',
            "line 3: steps",
        ),
        ("{\n", "line 1"),
        ('{"scenario":1}\n\n{"at_s":2,"do":"log_in","subscriber":"a"}\n', "line 2: not JSON"),
        (
            '{"scenario":1}\n{"at_s":1,"do":"move","subscriber":"a","east_m":1' + "0" * 400 + ',"north_m":2}\n',
            "line 2: east_m: must be a number",
        ),
    ],
)
def test_a_bad_scenario_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "scenario.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        load(path)
    assert said in refused.value.message
    assert "tocsin lab scenario" in str(refused.value.hint)
    path.write_bytes(b'{"scenario":1}\n\xff\n')
    with pytest.raises(InputError, match="no text in UTF-8"):
        load(path)


# ---------------------------------------------------------------- the ONE simulator


def test_movement_of_the_one_simulator_is_shifted_to_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "movement.txt"
    path.write_text("10 30 100 200 50 90 0 0\n# a comment\n10 1 100 50\n10 2 110.5 60 7\n\n20 1 120 70\n")
    made = read_movement(path, prefix="p")
    assert made.steps == (
        Step(0.0, MoveStep("p1", 0.0, 0.0)),
        Step(0.0, MoveStep("p2", 10.5, 10.0)),
        Step(10.0, MoveStep("p1", 20.0, 20.0)),
    )
    saved = tmp_path / "saved"
    save(made, saved)
    assert load(saved).steps == made.steps


def test_connections_of_the_one_simulator_log_in_and_out(tmp_path: Path) -> None:
    path = tmp_path / "events.txt"
    path.write_text("1 CONN 7 A up\n2 CONN B 7 up\n2.5 C M1 7 8 100\n3 CONN A 7 down\n4 CONN 7 B down\n5 CONN 7 8 up\n")
    assert read_connections(path, {"A", "B"}).steps == (Step(1.0, LogInStep("7")), Step(4.0, LogOutStep("7")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 2 3\n", "line 1: begins with"),
        ("0 9 0 9 0 9\n1 a 2\n", "line 2: must be: time id x y"),
        ("0 9 0 9 0 9\n2 a 1 1\n1 a 1 1\n", "line 3: lines stand in order"),
        ("0 9 0 9 0 9\n10 a 1 1\n", "line 2: 10 a 1 1 lies outside of what the first line says"),
        ("0 9 0 9 0 9\n2 a 1 1\n3 a 1 -1\n", "line 3: 3 a 1 -1 lies outside"),
    ],
)
def test_a_bad_movement_trace_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "movement.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_movement(path)


@pytest.mark.parametrize("text", ["1 CONN a\n", "1 CONN a b sideways\n", "x CONN a b up\n"])
def test_a_bad_connection_trace_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "events.txt"
    path.write_text(text)
    with pytest.raises(InputError, match="line 1"):
        read_connections(path, {"b"})
    with pytest.raises(InputError, match="No such file"):
        read_connections(tmp_path / "absent", {"b"})


@pytest.mark.parametrize(
    "text", ["5 CONN a b down\n2 CONN a b up\n", "5 CONN a b up\n2 CONN a b down\n", "#\n-1 CONN a b up\n"]
)
def test_connections_out_of_order_are_refused_with_their_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "events.txt"
    path.write_text(text)
    with pytest.raises(InputError, match="line 2: lines stand in order of time"):
        read_connections(path, {"b"})


# ---------------------------------------------------------------- cities from files


def test_people_of_a_trace_go_where_it_says_and_are_online_while_they_are_connected(tmp_path: Path) -> None:
    walks, links = tmp_path / "walks.txt", tmp_path / "links.txt"
    # An access point has a place, too, and is nobody.
    walks.write_text("0 300 0 900 0 900\n0 7 0 0\n0 8 450 800\n0 A 1 1\n200 7 400 0\n250 7 400 50\n")
    links.write_text("10 CONN 7 A up\n130 CONN 7 A down\n250 CONN A 7 up\n")
    settings = {"move_every_s": "60", "publish_every_s": "10"}
    city, given = city_from(settings, movement=walks, connections=links, access_points={"A"})
    assert (city.subscribers, city.subscriptions, city.span_s, city.area_m) == (2, 18, 300.0, (900.0, 900.0))
    made = city_scenario(city, 1, given)
    seen = [step for step in made.steps if isinstance(step.act, LogInStep | LogOutStep | MoveStep)]
    assert seen == [
        Step(10.0, LogInStep("7")),
        Step(10.0, MoveStep("7", 20.0, 0.0)),
        Step(60.0, MoveStep("7", 120.0, 0.0)),
        Step(120.0, MoveStep("7", 240.0, 0.0)),
        Step(130.0, LogOutStep("7")),
        Step(250.0, LogInStep("7")),
        Step(250.0, MoveStep("7", 400.0, 50.0)),
    ]
    assert {act.subscriber for step in made.steps if isinstance(act := step.act, SubscribeStep)} == {"7", "8"}
    assert made.about["movement"] == "walks.txt"
    check_steps(made, walks)
    only, given = city_from({"span_s": "60"}, connections=links, access_points={"A"})
    assert (only.subscribers, only.span_s, only.join_s, given.names()) == (1, 60.0, 60.0, ["7"])


def test_a_trace_of_connections_lasts_until_its_last_line_unless_a_setting_says_how_long(tmp_path: Path) -> None:
    links = tmp_path / "links.txt"
    links.write_text("0 CONN h1 A up\n")
    city, _ = city_from({"span_s": "600"}, connections=links, access_points={"A"})
    assert (city.span_s, city.join_s) == (600.0, 120.0)
    with pytest.raises(InputError, match="span_s: must be > 0"):
        city_from({}, connections=links, access_points={"A"})
    links.write_text("0 CONN h1 A up\n90 CONN h2 h3 up\n")
    city, _ = city_from({}, connections=links, access_points={"A"})
    assert (city.span_s, city.subscribers) == (90.0, 1)


def test_files_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    walks, links, empty = (tmp_path / name for name in ("walks.txt", "links.txt", "empty.txt"))
    walks.write_text("0 300 0 900 0 900\n0 7 0 0\n300 7 10 10\n")
    links.write_text("10 CONN 9 A up\n")
    empty.write_text("0 300 0 900 0 900\n")
    with pytest.raises(InputError, match=r"9 connects, and .* does not say where it is"):
        city_from({}, movement=walks, connections=links, access_points={"A"})
    with pytest.raises(InputError, match="no people"):
        city_from({}, movement=empty)
    with pytest.raises(InputError, match="says who there is"):
        city_from({"subscribers": "3"}, movement=walks)
    walks.write_text("0 0 0 900 0 900\n0 7 0 0\n")
    with pytest.raises(InputError, match="span_s: must be > 0"):
        city_from({}, movement=walks)
    links.write_text("1 CONN 7 8 up\n")
    with pytest.raises(InputError, match="no people"):
        city_from({}, movement=walks, connections=links, access_points={"7"})


REPORT = {"emergencyType": "flood", "severity": 8, "east_m": 1, "north_m": 2, "radius_m": 3, "message": "-"}


@pytest.mark.parametrize(
    ("acts", "said"),
    [
        ([LogInStep("a"), LogInStep("a")], "line 3: a is logged in already"),
        ([LogOutStep("a")], "line 2: a is not logged in"),
        ([SubscribeStep("a", "weather", ())], "line 2: no channel weather"),
        ([SubscribeStep("a", "emergenciesAt", (1.0,))], "line 2: emergenciesAt takes metres east, metres north"),
        ([SubscribeStep("a", "emergenciesOfType", (1.0,))], "line 2: emergenciesOfType takes a type"),
        ([SubscribeStep("a", "emergenciesOfType", ("x",))] * 2, "line 3: a subscribes to this already"),
        ([UnsubscribeStep("a", "emergenciesOfType", ("x",))], "line 2: a does not subscribe to this"),
        ([PublishStep("News", {})], "line 2: no feed News"),
        ([PublishStep("ReportFeed", {**REPORT, "radius_m": "far"})], "line 2: a record of ReportFeed needs radius_m"),
        ([PublishStep("ShelterFeed", {"name": "s"})], "line 2: a record of ShelterFeed needs east_m"),
        (
            [PublishStep("ReportFeed", {**REPORT, "north_m": math.nan})],
            "line 2: a record of ReportFeed needs north_m, got nan",
        ),
    ],
)
def test_what_a_city_cannot_do_is_told_with_its_line_and_a_remedy(acts: list[Act], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        check_steps(Scenario({}, tuple(Step(1.0, act) for act in acts)), Path("s.jsonl"))
    assert refused.value.hint


def test_a_step_after_months_is_refused() -> None:
    with pytest.raises(InputError, match=r"line 3: at_s: must be at most 1e\+07, got 1e\+09"):
        check_steps(Scenario({}, (Step(1e7, LogInStep("a")), Step(1e9, LogOutStep("a")))), Path("s.jsonl"))


def test_nobody_in_a_town_has_the_name_of_its_cluster_or_broker() -> None:
    links = Links.of_round_trips(0.01, 0.1)
    for name in (CLUSTER, BROKER):
        with pytest.raises(InputError, match=f"{name} is a reserved name"):
            next(simulate(Scenario({}, (Step(1.0, LogInStep(name)),)), [], links))


def test_empty_lines_at_the_end_of_a_scenario_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "scenario.jsonl"
    path.write_text('{"scenario":1}\n{"at_s":2,"do":"log_in","subscriber":"a"}\n\n \n')
    assert load(path).steps == (Step(2.0, LogInStep("a")),)


def test_every_city_can_be_played() -> None:
    check_steps(city_scenario(SMALL, 1), Path("s.jsonl"))
    check_steps(Scenario({}, (Step(1.0, PublishStep("ReportFeed", REPORT)),)), Path("s.jsonl"))


# ---------------------------------------------------------------- the driver


class Notebook:
    def __init__(self) -> None:
        self.performed: list[tuple[Act, float]] = []

    async def perform(self, act: Act, at_s: float) -> None:
        self.performed.append((act, at_s))


TWO = scenario({}, [Step(4.0, LogOutStep("ada")), Step(1.0, LogInStep("ada"))])


def test_the_driver_lets_virtual_time_happen_between_steps() -> None:
    engine = SimulationEngine(1)
    notebook = Notebook()
    engine.every(2.0, lambda: notebook.performed.append((LogInStep("tick"), engine.now_s)))
    assert asyncio.run(play(TWO, notebook, VirtualClock(engine))) == 0
    assert notebook.performed == [
        (LogInStep("ada"), 1.0),
        (LogInStep("tick"), 2.0),
        (LogInStep("tick"), 4.0),
        (LogOutStep("ada"), 4.0),
    ]


def test_the_driver_keeps_to_real_time_at_any_speed_and_says_how_late_it_was() -> None:
    now_s = 100.0
    slept: list[float] = []

    async def sleep(wait_s: float) -> None:
        nonlocal now_s
        slept.append(wait_s)
        now_s += wait_s + 0.01

    notebook = Notebook()
    late_s = asyncio.run(play(TWO, notebook, WallClock(lambda: now_s, sleep, speed=10.0)))
    assert notebook.performed == [(LogInStep("ada"), 1.0), (LogOutStep("ada"), 4.0)]
    assert slept == pytest.approx([0.1, 0.29])
    assert late_s == pytest.approx(0.1)
    with pytest.raises(ValueError, match="speed"):
        WallClock(lambda: 0.0, sleep, speed=0.0)


def test_an_empty_scenario_is_over_at_once() -> None:
    assert Scenario({}, ()).span_s() == 0
    assert asyncio.run(play(Scenario({}, ()), Notebook(), VirtualClock(SimulationEngine(1)))) == 0
