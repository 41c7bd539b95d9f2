"""Statements on a Spark cluster of real processes: the answers are those of a local engine."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.real_processes import ClusterHttpClient, ClusterProcess
from tests.support.spark_cluster import ROOT, StandaloneCluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

ROWS = 1_000
STREAM = {"Accept": "application/x-ndjson"}


@pytest.fixture
def dataverse(client: ClusterHttpClient) -> str:
    """A dataverse with a dataset D of ids 0 to 999, in several files."""
    name = f"v{uuid4().hex}"
    run(client, f"CREATE DATAVERSE {name}; USE {name}; CREATE TYPE T AS {{ id: int, kind: string }};")
    run(client, f"USE {name}; CREATE DATASET D(T) PRIMARY KEY id;")
    for part in range(4):
        rows = [{"id": i, "kind": f"k{i % 7}"} for i in range(part * 250, part * 250 + 250)]
        run(client, f"USE {name}; INSERT INTO D {json.dumps(rows)};")
    return name


def run(client: ClusterHttpClient, script: str) -> None:
    answer = client.run(script)
    assert answer.status == 200, answer.body


def write_module(data: Path, name: str, text: str) -> None:
    folder = data / "python"
    folder.mkdir(exist_ok=True)
    draft = folder / f"{name}.draft"
    draft.write_text(textwrap.dedent(text))
    draft.replace(folder / f"{name}.py")


def test_queries_join_group_and_sort_what_executors_read(client: ClusterHttpClient, dataverse: str) -> None:
    use = f"USE {dataverse};"
    assert client.rows(f"{use} SELECT VALUE count(*) FROM D d;") == [ROWS]
    grouped = client.rows(f"{use} SELECT k, count(*) AS n, sum(d.id) AS s FROM D d GROUP BY d.kind AS k ORDER BY k;")
    assert grouped == [
        {"k": f"k{kind}", "n": len(range(kind, ROWS, 7)), "s": sum(range(kind, ROWS, 7))} for kind in range(7)
    ]
    joined = (
        f"{use} SELECT VALUE e.id FROM D d, D e WHERE d.id * 2 = e.id AND d.kind LIKE 'k%' ORDER BY e.id DESC LIMIT 3;"
    )
    assert client.rows(joined) == [998, 996, 994]


def test_functions_in_java_reach_the_executors(client: ClusterHttpClient, dataverse: str) -> None:
    query = (
        "SELECT VALUE d.id FROM D d WHERE regexp_like(d.kind, '^k[05]$') AND repeat(d.kind, 2) = 'k5k5' ORDER BY d.id"
    )
    assert client.rows(f"USE {dataverse}; {query} LIMIT 2;") == [5, 12]


def test_the_error_of_a_row_is_the_statements(client: ClusterHttpClient, dataverse: str) -> None:
    answer = client.run(f"USE {dataverse}; SELECT VALUE 1 / (d.id - 500) FROM D d;")
    assert answer.status == 400
    assert "zero" in answer.error["message"].lower()


def test_a_streamed_answer_is_written_by_executors_and_read_here(client: ClusterHttpClient, dataverse: str) -> None:
    answer = client.run(f"USE {dataverse}; SELECT VALUE d.id FROM D d ORDER BY d.id;", **STREAM)
    assert answer.status == 200
    values = [line for line in answer.lines if isinstance(line, int) or "row" in line]
    assert [line if isinstance(line, int) else line["row"] for line in values] == list(range(ROWS))


def test_data_are_changed_by_what_executors_select(client: ClusterHttpClient, dataverse: str) -> None:
    use = f"USE {dataverse};"
    run(client, f"{use} UPSERT INTO D (SELECT d.id, 'new' AS kind FROM D d WHERE d.id < 10);")
    run(client, f"{use} DELETE FROM D d WHERE d.id >= 990;")
    assert client.rows(
        f"{use} SELECT d.kind = 'new' AS k, count(*) AS n FROM D d GROUP BY d.kind = 'new' ORDER BY n;"
    ) == [{"k": True, "n": 10}, {"k": False, "n": 980}]


def test_a_procedure_runs_there(client: ClusterHttpClient, dataverse: str) -> None:
    use = f"USE {dataverse};"
    body = 'UPSERT INTO D (SELECT d.id, concat(d.kind, "!") AS kind FROM D d WHERE d.id = n)'
    run(client, f"{use} CREATE PROCEDURE p(n) {{ {body} }}; EXECUTE p(3);")
    wait_until(
        lambda: client.rows(f"{use} SELECT VALUE d.kind FROM D d WHERE d.id = 3;") == ["k3!"], "the procedure has run"
    )


# ------------------------------------------------------------ functions in Python


def test_a_function_in_python_runs_where_nothing_of_ours_is_seen(
    client: ClusterHttpClient, dataverse: str, tocsin: ClusterProcess, workers: StandaloneCluster
) -> None:
    module = f"m{uuid4().hex}"
    write_module(
        tocsin.data,
        module,
        """
        import os, sys
        def seen(path):
            try:
                return len(os.listdir(path))
            except OSError:
                return 0
        def python(x): return sys.executable
        def twice(x): return x * 2
        """,
    )
    use = f"USE {dataverse};"
    for head in ("seen(p) RETURNS bigint", "python(x) RETURNS string", "twice(x) RETURNS bigint"):
        run(client, f'{use} CREATE FUNCTION {head} LANGUAGE PYTHON AS "{module}:{head.partition("(")[0]}";')
    assert client.rows(f"{use} SELECT VALUE sum(twice(d.id)) FROM D d;") == [2 * sum(range(ROWS))]
    assert client.rows(f"{use} SELECT VALUE python(d.id) FROM D d WHERE d.id = 1;") == [workers.python]
    for folder in (ROOT, ROOT / "src", Path(pytest.__file__).parent, tocsin.data, tocsin.data / "scratch"):
        assert client.rows(f'{use} SELECT VALUE seen("{folder}") FROM D d WHERE d.id = 1;') == [0], folder


def test_an_edited_module_counts_from_the_next_statement_on(
    client: ClusterHttpClient, dataverse: str, tocsin: ClusterProcess
) -> None:
    module = f"m{uuid4().hex}"
    use = f"USE {dataverse};"
    query = f"{use} SELECT DISTINCT VALUE f(d.id) FROM D d;"
    for round_ in range(3):
        write_module(tocsin.data, f"{module}_helper", f"ANSWER = {round_}")
        write_module(
            tocsin.data, module, f"from {module}_helper import ANSWER\ndef f(x): return ANSWER + {round_} * 10"
        )
        if not round_:
            run(client, f'{use} CREATE FUNCTION f(x) RETURNS bigint LANGUAGE PYTHON AS "{module}:f";')
        assert client.rows(query) == [round_ * 11]


def test_a_file_beside_a_module_is_sent_with_it(
    client: ClusterHttpClient, dataverse: str, tocsin: ClusterProcess
) -> None:
    module = f"m{uuid4().hex}"
    write_module(
        tocsin.data,
        module,
        f"""
        from pathlib import Path
        def f(x): return Path(__file__).with_name("{module}.txt").read_text()
        """,
    )
    (tocsin.data / "python" / f"{module}.txt").write_text("beside")
    use = f"USE {dataverse};"
    run(client, f'{use} CREATE FUNCTION f(x) RETURNS string LANGUAGE PYTHON AS "{module}:f";')
    assert client.rows(f"{use} SELECT VALUE f(d.id) FROM D d WHERE d.id = 7;") == ["beside"]


def test_a_failing_function_says_where_in_the_operators_folder(
    client: ClusterHttpClient, dataverse: str, tocsin: ClusterProcess, workers: StandaloneCluster
) -> None:
    module = f"m{uuid4().hex}"
    write_module(tocsin.data, module, "def f(x):\n    print('seen', x)\n    return 1 // (x - 3)")
    use = f"USE {dataverse};"
    run(client, f'{use} CREATE FUNCTION f(x) RETURNS bigint LANGUAGE PYTHON AS "{module}:f";')
    answer = client.run(f"{use} SELECT VALUE f(d.id) FROM D d WHERE d.id = 3;")
    assert answer.status == 400
    assert f"({module}.py, line 3)" in answer.error["message"]
    assert "seen 3" in workers.executor_logs(), "what a function prints is in the log of its executor"
    missing = client.run(f'{use} CREATE FUNCTION g(x) LANGUAGE PYTHON AS "none{module}:f";')
    assert str(tocsin.data / "python") in missing.error["hint"]


# ------------------------------------------------------------ channels


def test_a_channel_finds_what_is_new_on_executors(
    client: ClusterHttpClient, dataverse: str, tocsin: ClusterProcess
) -> None:
    module = f"m{uuid4().hex}"
    write_module(tocsin.data, module, "def loud(x): return x.upper()")
    use = f"USE {dataverse};"
    run(
        client,
        f"""{use}
        CREATE FUNCTION loud(x) RETURNS string LANGUAGE PYTHON AS "{module}:loud";
        CREATE ACTIVE DATASET R(T) PRIMARY KEY id;
        CREATE FEED F WITH {{"adapter-name": "http_adapter", "type-name": "T"}};
        CONNECT FEED F TO DATASET R; START FEED F;
        CREATE BROKER b AT "http://127.0.0.1:9/";
        CREATE CONTINUOUS CHANNEL c(k) {{
            SELECT VALUE {{"id": r.id, "kind": loud(r.kind)}} FROM R r WHERE is_new(r) AND r.kind = k
        }};
    """,
    )
    for kind in ("k1", "k2"):
        run(client, f'{use} SUBSCRIBE TO c("{kind}") ON b;')
    records = [{"id": i, "kind": f"k{i % 3}"} for i in range(30)]
    assert client.ask("POST", f"/v1/feeds/{dataverse}.F", json.dumps(records).encode()).status == 200
    query = f"{use} SELECT VALUE r.result FROM cResults r;"
    wait_until(lambda: len(client.rows(query)) >= 20, "the channel has told everybody")
    found = sorted((row["id"], row["kind"]) for row in client.rows(query))
    assert found == sorted((i, f"K{i % 3}") for i in range(30) if i % 3)
