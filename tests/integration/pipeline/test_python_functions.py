"""Functions in Python: made by a statement, called by queries, with values of the model in and out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.support.in_process_cluster import LocalCluster
from tests.support.python_sources import PythonDataverse
from tests.support.waiting import WITHIN_S, wait_until
from tocsin.cluster.engine.engine_session import WorkerLostError
from tocsin.wire.errors import ConflictError, ForbiddenError, StatementError, TocsinError


@pytest.fixture
def world(cluster: LocalCluster, dataverse: str) -> PythonDataverse:
    return PythonDataverse(cluster, dataverse)


def refused(what: Callable[[], object], kind: type[TocsinError], *said: str) -> None:
    with pytest.raises(kind) as raised:
        what()
    assert type(raised.value) is kind
    told = f"{raised.value.message} {raised.value.hint or ''}"
    assert all(item in told for item in said), told
    assert "Traceback" not in told
    assert "org.apache" not in told


# ---------------------------------------------------------------- values


VALUES = [
    "true", "42", "9007199254740993", "-9223372036854775808", "1.5", "1e300", '"text\\n\\"é"', 'date("2026-11-15")',
    'time("08:30:00.25")', 'datetime("0001-01-01T00:00:00Z")', 'datetime("2026-11-15T08:30:00.123456Z")',
    'duration("P1M-1DT2H")', 'uuid("5c848e5c-6b6a-498f-8452-8847a2957421")', 'point("1.0,-0.0")', 'line("0,0 1,1")',
    'rectangle("0,0 1,1")', 'circle("1.0,2.0 0.5")', 'polygon("0,0 0,1 1,0")', "[1, 2]", '[point("1,2")]', "[]",
    '{"a": 1, "b": {"c": [null, {"$d": "$e"}]}}', '[1, "a", null, {"x": circle("0,0 1")}]', "null", 'double("NaN")',
    "{{1, 2}}", "array(1, 2)", "map(\"a\", 1)", "CAST(1.5 AS DECIMAL(4, 2))",
]  # fmt: skip


def test_a_value_comes_back_as_it_went(world: PythonDataverse) -> None:
    world.module.write("def f(x): return x")
    world.create("same(x)")
    both = ", ".join(f"same({value}) AS made{i}, {value} AS given{i}" for i, value in enumerate(VALUES))
    (row,) = world.rows(f"SELECT {both}")
    for i, value in enumerate(VALUES):
        assert row[f"made{i}"] == row[f"given{i}"], value


TYPES = [
    ("boolean", "true", "bool"), ("tinyint", "tinyint(7)", "int"), ("bigint", "9007199254740993", "int"),
    ("float", "float(1.5)", "float"), ("double", "-0.0", "float"), ("string", '"é"', "str"),
    ("date", 'date("2026-11-15")', "date"), ("time", 'time("08:30:00.25")', "time"),
    ("datetime", 'datetime("1582-10-04T00:00:00.000001Z")', "datetime"),
    ("duration", 'duration("P1M-1DT2H")', "Duration"),
    ("uuid", 'uuid("5c848e5c-6b6a-498f-8452-8847a2957421")', "UUID"), ("point", 'point("1,2")', "Point"),
    ("line", 'line("0,0 1,1")', "Line"), ("rectangle", 'rectangle("0,0 1,1")', "Rectangle"),
    ("circle", 'circle("1,2 0.5")', "Circle"), ("polygon", 'polygon("0,0 0,1 1,0")', "Polygon"),
    ("[point]", '[point("1,2")]', "list"), ("{{bigint}}", "{{1, 2}}", "Multiset"), ("any", '{"a": 1}', "dict"),
    ("T", '{"id": 1, "at": point("1,2"), "more": [1]}', "dict"), ("[T]", '[{"id": 1, "at": point("1,2")}]', "list"),
]  # fmt: skip


def test_a_value_of_each_type_is_one_of_the_model_and_returns_typed(world: PythonDataverse) -> None:
    world.run("CREATE TYPE T AS { id: int, at: point, note: string? }")
    world.module.write("""
        def f(x): return x
        def g(x): return type(x).__name__
    """)
    world.create("kind(x) RETURNS string", "g")
    asked = []
    for i, (type_, value, _) in enumerate(TYPES):
        world.create(f"same{i}(x) RETURNS {type_}")
        asked.append(f"{value} AS given{i}, same{i}({value}) AS made{i}")
        asked.append(f"kind({value}) AS in{i}, kind(same{i}({value})) AS out{i}")
    (row,) = world.rows(f"SELECT {', '.join(asked)}")
    for i, (type_, _, kind) in enumerate(TYPES):
        assert row[f"made{i}"] == row[f"given{i}"], type_
        assert (row[f"in{i}"], row[f"out{i}"]) == (kind, kind), type_


def test_null_and_missing_are_none_as_arguments_and_apart_within(world: PythonDataverse) -> None:
    world.run("CREATE TYPE T AS { id: int, a: int?, b: string?, n: { x: int? }? }; CREATE DATASET D(T) PRIMARY KEY id")
    world.run('INSERT INTO D [{"id": 1, "a": null, "more": null}, {"id": 2, "b": "b", "n": {"x": null}}]')
    world.module.write("""
        def f(x): return repr(x)
        def g(): return None
        from tocsin.rules.model.values import MISSING
        def h(): return {"gone": MISSING, "null": None}
    """)
    world.create("shown(x)")
    world.create("nothing()", "g")
    world.create("holes()", "h")
    assert world.rows("SELECT VALUE [shown(d.a), shown(d.b), shown(d.c), shown(d.more)] FROM D d ORDER BY d.id") == [
        ["None"] * 4,
        ["None", "'b'", "None", "None"],
    ]
    shown = world.rows("SELECT VALUE shown(d) FROM D d ORDER BY d.id")
    assert [eval(item) for item in shown] == [{"id": 1, "a": None, "more": None}, {"id": 2, "b": "b", "n": {"x": None}}]
    assert world.rows("SELECT nothing() IS NULL AS a, holes().gone IS MISSING AS b, holes().`null` IS NULL AS c") == [
        {"a": True, "b": True, "c": True}
    ]


# ---------------------------------------------------------------- in queries


@pytest.fixture
def doubled(world: PythonDataverse) -> PythonDataverse:
    """With a function `twice`, and a dataset D of ids 1 to 5."""
    world.module.write("""
        def f(x): return None if x is None else x * 2
        def add(x, y): return x + y
        def letters(x): return list(x)
    """)
    world.create("twice(x) RETURNS bigint?")
    world.create("plus(x, y) RETURNS bigint", "add")
    world.create("letters(x) RETURNS [string]", "letters")
    world.run("CREATE TYPE T AS { id: int, said: string }; CREATE DATASET D(T) PRIMARY KEY id")
    world.run("INSERT INTO D (SELECT x AS id, string(x) AS said FROM [1, 2, 3, 4, 5] AS x)")
    return world


QUERIES = [
        ("twice(21)", [42]),
        ("SELECT VALUE twice(d.id) FROM D d WHERE twice(d.id) > 6 ORDER BY d.id", [8, 10]),
        ("SELECT VALUE plus(twice(d.id), d.id) FROM D d ORDER BY twice(d.id) DESC LIMIT 2", [15, 12]),
        ("SELECT VALUE t + t FROM D d LET t = twice(d.id) WHERE t = 4", [8]),
        ("SELECT sum(twice(d.id)) AS s FROM D d", [{"s": 30}]),
        ("SELECT twice(sum(d.id)) AS s FROM D d GROUP BY d.id % 2 AS k ORDER BY k", [{"s": 12}, {"s": 18}]),
        ("SELECT k, count(*) AS n FROM D d GROUP BY twice(d.id % 2) AS k ORDER BY k",
         [{"k": 0, "n": 2}, {"k": 2, "n": 3}]),
        ("SELECT VALUE [d.id, e.id] FROM D d, D e WHERE twice(d.id) = e.id ORDER BY d.id", [[1, 2], [2, 4]]),
        ("SELECT VALUE [d.id, e.id] FROM D d JOIN D e ON e.id = twice(d.id) ORDER BY d.id", [[1, 2], [2, 4]]),
        ("SELECT VALUE [d.id, e.id] FROM D d LEFT JOIN D e ON e.id = twice(d.id) WHERE d.id > 1 ORDER BY d.id",
         [[2, 4], [3, None], [4, None], [5, None]]),
        ("SELECT VALUE (SELECT VALUE e.said FROM D e WHERE e.id = twice(d.id)) FROM D d WHERE d.id < 3 ORDER BY d.id",
         [["2"], ["4"]]),
        ("SELECT VALUE d.id FROM D d WHERE EXISTS (SELECT VALUE e FROM D e WHERE twice(e.id) = d.id) ORDER BY d.id",
         [2, 4]),
        ("SELECT VALUE d.id FROM D d WHERE d.id IN (SELECT VALUE twice(e.id) FROM D e) ORDER BY d.id", [2, 4]),
        ("SELECT VALUE x FROM letters(\"ab\") AS x", ["a", "b"]),
        ("SELECT VALUE x FROM D d UNNEST letters(d.said) AS x WHERE d.id = 1", ["1"]),
        ("SELECT VALUE letters(\"ab\")[1]", ["b"]),
        ("SELECT VALUE CASE WHEN d.id = 1 THEN twice(d.id) ELSE 0 END FROM D d WHERE d.id < 3 ORDER BY d.id", [2, 0]),
        ("SELECT DISTINCT twice(d.id % 2) AS x FROM D d ORDER BY x", [{"x": 0}, {"x": 2}]),
        ("SELECT d.id, sum(twice(d.id)) OVER (ORDER BY d.id) AS s FROM D d ORDER BY d.id LIMIT 2",
         [{"id": 1, "s": 2}, {"id": 2, "s": 6}]),
]  # fmt: skip


def test_a_function_is_called_wherever_one_of_sql_is(doubled: PythonDataverse) -> None:
    for query, rows in QUERIES:
        assert doubled.rows(query) == rows, query


def test_functions_of_sql_call_it_and_data_are_changed_through_it(doubled: PythonDataverse) -> None:
    doubled.run("CREATE FUNCTION quadruple(x) { twice(twice(x)) }")
    assert doubled.value("quadruple(3)") == 12
    refused(lambda: doubled.run("DROP FUNCTION twice@1"), ConflictError, "is used by", "quadruple")
    doubled.run('INSERT INTO D {"id": quadruple(5), "said": "made"}; DELETE FROM D d WHERE twice(d.id) < 9')
    assert doubled.rows("SELECT VALUE d.id FROM D d ORDER BY d.id") == [5, 20]
    assert doubled.cluster.rows(
        f"USE {doubled.dataverse}; SELECT VALUE twice(d.id) FROM D d ORDER BY d.id", stream=True
    ) == [10, 40]
    doubled.run("DROP FUNCTION quadruple@1; DROP FUNCTION twice@1")
    refused(lambda: doubled.value("twice(1)"), StatementError, "twice cannot be called here")


def test_the_catalog_tells_of_it_and_keeps_the_types_that_it_names(world: PythonDataverse) -> None:
    world.module.write("def f(x): return x")
    world.run("CREATE TYPE T AS { id: int }")
    world.create("g(x) RETURNS [T]?")
    world.run("CREATE FUNCTION s(x) { x + 1 }")
    assert world.rows(f"""
        SELECT f.Name, f.Params, f.ReturnType, f.Language, f.Definition FROM Metadata.`Function` f
        WHERE f.DataverseName = "{world.dataverse}" ORDER BY f.Name
    """) == [
        {
            "Name": "g", "Params": ["x"], "ReturnType": "[T]?", "Language": "PYTHON",
            "Definition": f"{world.module.name}:f",
        },
        {"Name": "s", "Params": ["x"], "ReturnType": "any", "Language": "SQLPP", "Definition": "x + 1"},
    ]  # fmt: skip
    refused(lambda: world.run("DROP TYPE T"), ConflictError, "is used by")
    assert world.run('CREATE FUNCTION g(x) IF NOT EXISTS LANGUAGE PYTHON AS "nowhere:at_all"') == [
        {"name": "g", "existed": True}
    ]
    refused(lambda: world.create("g(x)"), ConflictError, "exists already")


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("text", "head", "function", "said"),
    [
        (None, "g(x)", "f", ("there is no Python module", "put", ".py into")),
        ("def f(x) return x", "g(x)", "f", ("cannot be imported", "SyntaxError", "line 1")),
        ("import not_there_at_all", "g(x)", "f", ("cannot be imported", "not_there_at_all", "line 1")),
        ("1 / 0", "g(x)", "f", ("cannot be imported", "ZeroDivisionError: division by zero", "line 1")),
        ("raise SystemExit(3)", "g(x)", "f", ("cannot be imported", "SystemExit: 3")),
        ("def grid(x): return x", "g(x)", "gird", ("has no function gird", "did you mean grid?")),
        ("f = 3", "g(x)", "f", ("is no function, but of type int",)),
        ("def f(x): return x", "g(x, y)", "f", ("cannot be called with 2 arguments", "too many")),
        ("def f(x, y): return x", "g(x)", "f", ("cannot be called with 1 argument:", "'y'")),
        ("async def f(x): return x", "g(x)", "f", ("is async",)),
    ],
)
def test_a_function_that_cannot_be_called_is_not_created(
    world: PythonDataverse, text: str | None, head: str, function: str, said: tuple[str, ...]
) -> None:
    if text is not None:
        world.module.write(text)
    refused(lambda: world.create(head, function), StatementError, *said)
    assert world.cluster.cluster.catalog.catalog.functions_named(world.dataverse, "g") == []


def test_a_module_that_is_hidden_by_one_of_pythons_is_refused(world: PythonDataverse) -> None:
    world.module.name = "colorsys"
    world.module.write("def f(x): return x")
    try:
        refused(lambda: world.create("g(x)"), StatementError, "colorsys", "is hidden by another", "rename it")
    finally:
        world.module.file.unlink()


def test_functions_of_installed_packages_and_in_packages_of_the_folder_are_found(world: PythonDataverse) -> None:
    package = world.module.file.with_suffix("")
    (package / "deep").mkdir(parents=True)
    (package / "deep" / "inner.py").write_text("class Tools:\n    @staticmethod\n    def f(x): return x + 1")
    world.run(f"""
        CREATE FUNCTION deeper(x) RETURNS int LANGUAGE PYTHON AS "{package.name}.deep.inner:Tools.f";
        CREATE FUNCTION root(x) RETURNS double LANGUAGE PYTHON AS "math:sqrt"
    """)
    assert world.rows("SELECT deeper(1) AS a, root(9) AS b") == [{"a": 2, "b": 3.0}]


FAILURES = [
        ("any", 'raise ValueError("bad\\nluck")', ("the function g0 failed: ValueError: bad luck", ".py, line 2)")),
        ("any", "return x.colour", ("AttributeError: 'int' object has no attribute 'colour'",)),
        ("any", "return object()", ("gave what does not fit any", "a Python object")),
        ("any", "return {'deep': [set()]}", ("deep[0]", "a Python set")),
        ("any", "return 2**63", ("does not fit into a bigint",)),
        ("string", "return 3", ("gave what does not fit string: expected a string, got the number 3",)),
        ("string", "return None", ("gave nothing, and RETURNS string", "write RETURNS string?")),
        ("tinyint", "return 128", ("does not fit into a tinyint",)),
        ("T", "return {'id': 'one'}", ("id: expected a bigint",)),
        ("[int]", "return [1, None]", ("[1]:",)),
        ("any", "raise SystemExit", ("failed: SystemExit",)),
        ("any", "return f11(x)", ("RecursionError",)),
        ("any", "raise KeyError('\\ud800')", ("KeyError",)),
]  # fmt: skip


def test_a_call_that_fails_fails_its_query_and_says_why(world: PythonDataverse) -> None:
    world.run("CREATE TYPE T AS { id: int }")
    world.module.write("\n".join(f"def f{i}(x):\n    {body}\n" for i, (_, body, _) in enumerate(FAILURES)))
    for i, (returns, _, said) in enumerate(FAILURES):
        world.create(f"g{i}(x) RETURNS {returns}", f"f{i}")
        refused(lambda i=i: world.value(f"g{i}(1)"), StatementError, *said)  # type: ignore[misc]
    refused(lambda: world.cluster.rows(f"USE {world.dataverse}; g0(1)", stream=True), StatementError, *FAILURES[0][2])


def test_a_call_that_ends_its_process_is_a_lack_of_capacity(world: PythonDataverse) -> None:
    """The kernel may have ended it for lack of memory."""
    world.module.write("import os\ndef f(x): os._exit(3)")
    world.create("g(x)")
    refused(lambda: world.value("g(1)"), WorkerLostError, "has ended its process")


def test_a_call_that_takes_too_long_ends(spark: SparkSession, tmp_path: Path) -> None:
    own = LocalCluster(spark, tmp_path, **{"cluster.python.call_timeout_s": 0.3})
    try:
        world = PythonDataverse(own, "Default")
        world.module.write("""
            import time
            def f(x):
                try:
                    while True: time.sleep(0.01)
                except Exception: return "caught"
        """)
        world.create("g(x)")
        refused(lambda: world.value("g(1)"), StatementError, "the function g failed: took longer than 0.3 s")
    finally:
        own.close()


def test_a_call_that_hangs_can_be_stopped(world: PythonDataverse) -> None:
    begun = world.module.file.with_suffix(".begun")
    world.module.write(f"""
        import pathlib, os
        def f(x):
            pathlib.Path({str(begun)!r}).write_text(str(os.getpid()))
            while True: pass
    """)
    world.create("g(x)")

    async def stopped() -> None:
        async def ask() -> None:
            async for outcome in world.cluster.cluster.statements.run(f"USE {world.dataverse}; g(1)", stream=False):
                assert outcome.kind == "use"

        asked = asyncio.create_task(ask())
        while not (begun.exists() and begun.read_text()):
            await asyncio.sleep(0.02)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    world.cluster.wait(stopped())
    worker = int(begun.read_text())
    wait_until(lambda: not psutil.pid_exists(worker), "the worker is gone", within_s=WITHIN_S)


def test_what_a_function_prints_is_kept_apart(world: PythonDataverse) -> None:
    world.module.write("""
        import sys
        def f(x):
            print("hello", x)
            print("oh", x, file=sys.stderr)
            sys.stdout.flush()
            return input() if x == 3 else x
    """)
    world.create("g(x)")
    assert world.rows("SELECT VALUE g(x) FROM [1, 2] x ORDER BY x") == [1, 2]
    refused(lambda: world.value("g(3)"), StatementError, "EOFError")
    said = (world.cluster.settings.data / "scratch" / "python.log").read_text()
    assert "hello 1" in said
    assert "oh 2" in said


# ---------------------------------------------------------------- code that changes


def test_a_changed_module_counts_from_the_next_statement_on(world: PythonDataverse) -> None:
    world.module.write("def f(x): return x + 1")
    world.create("g(x) RETURNS int")
    assert world.value("g(1)") == 2
    world.module.write("def f(x): return x + 2")
    assert world.value("g(1)") == 3
    world.module.write("def f(x) oops")
    refused(lambda: world.value("g(1)"), ConflictError, "cannot be imported", "SyntaxError")
    world.module.write("def f(x): return x + 3")
    assert world.value("g(1)") == 4
    world.module.file.unlink()
    refused(lambda: world.value("g(1)"), ConflictError, "there is no Python module")


def test_a_function_that_is_created_again_reads_everything_again(world: PythonDataverse) -> None:
    table = world.module.file.with_suffix(".txt")
    world.module.write(f"TABLE = open({str(table)!r}).read()\ndef f(): return TABLE")
    table.write_text("one")
    world.create("g()")
    assert world.value("g()") == "one"
    table.write_text("two")
    world.run("DROP FUNCTION g@0")
    world.create("g()")
    assert world.value("g()") == "two"


def test_a_function_is_there_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    own = LocalCluster(spark, tmp_path)
    world = PythonDataverse(own, "Default")
    world.module.write("def f(x): return {'id': x, 'n': None}")
    own.run("CREATE TYPE T AS { id: int, n: string? }")
    world.create("g(x) RETURNS T?")
    own.close()
    again = LocalCluster(spark, tmp_path)
    try:
        assert again.rows("g(7)") == [{"id": 7, "n": None}]
        assert again.rows("SELECT VALUE f.ReturnType FROM Metadata.`Function` f") == ["T?"]
    finally:
        again.close()


def test_who_may_not_bring_code_may_use_what_is_there(world: PythonDataverse) -> None:
    world.module.write("def f(x): return x")
    world.create("g(x)")

    async def run(script: str) -> list[str]:
        script = f"USE {world.dataverse}; {script}"
        outcomes = world.cluster.cluster.statements.run(script, stream=False, may_run_code=False)
        return [outcome.kind async for outcome in outcomes]

    assert world.cluster.wait(run("g(1); CREATE FUNCTION s(x) { g(x) }; s(1)")) == [
        "use", "query", "create_function", "query",
    ]  # fmt: skip
    refused(
        lambda: world.cluster.wait(run('CREATE FUNCTION h(x) LANGUAGE PYTHON AS "os:system"')), ForbiddenError, "admin"
    )
