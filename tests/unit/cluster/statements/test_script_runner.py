"""Every statement of the language has a handler."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tocsin.cluster.statements.script_runner import ScriptRunner
from tocsin.language.syntax import statements as st
from tocsin.settings import ClusterSettings


@pytest.mark.parametrize("streamed", [False, True])
def test_every_statement_has_a_handler(streamed: bool) -> None:
    parts = (MagicMock() for _ in range(9))
    runner = ScriptRunner(*parts, ClusterSettings(), Path())
    classes = {kind for kind in vars(st).values() if isinstance(kind, type) and issubclass(kind, st.Statement)}
    assert set(runner.handlers[streamed]) == classes - {st.Statement, st.Use, st.SetOption, st.WriteOutput}
