"""Functions in Python as a worker calls them, without a worker: columns in, columns out."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkFiles

from tests.support.strategies import same, types, values_of
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.python.protocol import CallError, Code, Signature, parse_call_error
from tocsin.pipeline.python.sandbox import CapturedOutput, FunctionTimeoutError, limit_time
from tocsin.pipeline.python.worker import FunctionLookUp, WorkerCall
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, Field, ObjectType, Type
from tocsin.rules.model.values import MISSING


class Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._version = 0

    def call(self, text: str, *arguments: Type, returns: Type = t.ANY, each: bool = False) -> WorkerCall:
        return WorkerCall(self.code(text), Signature("f", arguments, returns, returns == t.ANY, each))

    def code(self, text: str, timeout_s: float = 5.0) -> Code:
        (self._folder / "udf_of_a_test.py").write_text(text)
        self._version += 1
        said = str(self._folder / "said.log")
        return Code("udf_of_a_test:f", str(self._folder), str(self._version), said, timeout_s)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    # What belongs to a worker's process comes back to this one at the end.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Folder(tmp_path)
    sys.modules.pop("udf_of_a_test", None)


def values(column: pa.Array, kind: Type) -> list[Any]:
    decode = layout.decoder(kind)
    return [decode(value) for value in column.to_pylist()]


@given(st.data())
def test_values_of_every_type_come_back_as_they_went(data: st.DataObject) -> None:
    kind = data.draw(types())
    given_ = data.draw(st.lists(values_of(kind), min_size=1, max_size=5))
    column = layout.untyped_column(given_) if kind == t.ANY else layout.column(kind, given_)
    call = WorkerCall(Code("copy:copy", "/nowhere", "1", "/nowhere/said.log", 5.0), Signature("f", (kind,), kind, True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "stdout", sys.stdout)
        patch.setattr(sys, "stderr", sys.stderr)
        made = call(column)
    assert made.type == layout.arrow_type(kind)
    assert same(values(made, kind), values(column, kind))


def test_null_is_passed_and_missing_is_none(folder: Folder) -> None:
    call = folder.call("def f(a, b): return [a, b]", t.BIGINT, t.ANY)
    made = call(pa.array([1, None]), layout.untyped_column([MISSING, None]))
    assert values(made, t.ANY) == [[1, None], [None, None]]


def test_a_function_without_parameters_is_called_for_each_row(folder: Folder) -> None:
    call = folder.call("n = 0\ndef f():\n    global n\n    n += 1\n    return n")
    assert values(call(pa.array([0, 0, 0])), t.ANY) == [1, 2, 3]


def test_missing_is_none_in_arrays_and_left_out_of_objects(folder: Folder) -> None:
    kind = ObjectType((Field("a", t.ANY), Field("b", ArrayType(t.ANY))), open=False)
    call = folder.call("def f(x): return repr(x)", kind)
    given = pa.array([{"a": None, "b": [None, "1"]}], layout.arrow_type(kind))
    assert values(call(given), t.ANY) == ["{'b': [None, 1]}"]


def test_each_row_that_fails_is_told_beside_the_others(folder: Folder) -> None:
    call = folder.call("def f(x): return 10 // x", t.BIGINT, returns=t.TINYINT, each=True)
    made = call(pa.array([5, 0, 10])).to_pylist()
    assert [item["value"] for item in made] == [2, None, 1]
    assert [item["failed"] is None for item in made] == [True, False, True]
    assert "the function f failed: ZeroDivisionError" in made[1]["failed"]
    assert "udf_of_a_test.py, line 1" in made[1]["failed"]


def test_what_every_row_needs_fails_the_whole(folder: Folder) -> None:
    with pytest.raises(CallError) as raised:
        folder.call("import nothing_like_this", t.BIGINT, each=True)(pa.array([1]))
    assert not raised.value.usable


def test_a_changed_module_is_read_again_and_an_unchanged_one_is_not(folder: Folder) -> None:
    first = folder.call("made = []\ndef f(x):\n    made.append(x)\n    return len(made)", t.BIGINT)
    assert values(first(pa.array([1, 1])), t.ANY) == [1, 2]
    assert values(first(pa.array([1])), t.ANY) == [3]
    assert values(folder.call("def f(x): return -x", t.BIGINT)(pa.array([1])), t.ANY) == [-1]


def test_modules_that_were_sent_are_those_of_the_archive_that_the_call_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(archive: str, text: str = "") -> WorkerCall:
        if text:
            (tmp_path / archive).mkdir()
            (tmp_path / archive / "udf_helper_of_a_test.py").write_text(f"ANSWER = {text}")
            (tmp_path / archive / "udf_of_a_test.py").write_text(
                "from udf_helper_of_a_test import ANSWER\ndef f(x): return ANSWER // x"
            )
        code = Code("udf_of_a_test:f", "", archive, "", 5.0, shown_folder="/data/python", archive=archive)
        return WorkerCall(code, Signature("f", (t.BIGINT,), t.ANY, True))

    one = pa.array([1])
    assert values(call("a.zip", "1")(one), t.ANY) == [1]
    assert values(call("b.zip", "2")(one), t.ANY) == [2]
    assert values(call("a.zip")(one), t.ANY) == [1], "a query that began before the edit goes on with its own"
    with pytest.raises(CallError, match=r"\(udf_of_a_test\.py, line 2\)"):
        call("b.zip")(pa.array([0]))
    missing = Code("udf_none_of_a_test:f", "", "b.zip", "", 5.0, shown_folder="/data/python", archive="b.zip")
    with pytest.raises(CallError) as raised:
        FunctionLookUp(missing, 1)(one)
    assert "/data/python" in str(raised.value.hint)
    for name in ("udf_of_a_test", "udf_helper_of_a_test"):
        sys.modules.pop(name, None)


def test_an_error_survives_the_text_of_sparks_exception(folder: Folder) -> None:
    with pytest.raises(CallError) as raised:
        folder.call("def f(x): raise ValueError('é \"quoted\"\\nline')", t.BIGINT)(pa.array([1]))
    error = raised.value
    text = f"An exception was thrown\nTraceback\n{type(error).__module__}.CallError: {error}, SQLSTATE: 1\n  at java"
    found = parse_call_error(text)
    assert found is not None
    assert (found.message, found.hint, found.usable) == (error.message, error.hint, True)
    assert 'ValueError: é "quoted" line' in found.message
    assert parse_call_error("nothing of the kind") is None


def test_code_that_takes_too_long_is_ended_even_if_it_catches_everything() -> None:
    def endless() -> None:
        try:
            while True:
                pass
        except Exception:
            pass

    with pytest.raises(FunctionTimeoutError), limit_time(0.05):
        endless()


def test_what_was_quick_enough_is_not_ended_afterwards() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with limit_time(5.0):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == before


def test_what_is_printed_is_bounded(tmp_path: Path) -> None:
    said = CapturedOutput(str(tmp_path / "python.log"), most_bytes=1_000)
    for number in range(1_000):
        print("word", number, "\ud800", file=said)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2_200
    assert "word 999" in (tmp_path / "python.log").read_text() + (tmp_path / "python.1.log").read_text()


def test_what_cannot_be_written_is_lost_and_nothing_fails(tmp_path: Path) -> None:
    print("word", file=CapturedOutput(str(tmp_path / "nowhere" / "python.log")))


def test_a_look_up_says_what_stands_in_the_way(folder: Folder) -> None:
    assert FunctionLookUp(folder.code("def f(a, b=1): return a"), 1)(pa.array([0])).to_pylist() == [""]
    with pytest.raises(CallError, match="with 3 arguments"):
        FunctionLookUp(folder.code("def f(a, b=1): return a"), 3)(pa.array([0]))
    with pytest.raises(CallError, match="took longer than"):
        FunctionLookUp(folder.code("while True: pass", timeout_s=0.05), 1)(pa.array([0]))
