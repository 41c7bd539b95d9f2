"""`tocsin completion`: scripts with which shells complete commands, options and values."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tocsin.cli.main import main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["completion", shell])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script_with_commands_of_all_depths(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert all(command in text for command in ("subscribe", "replay-trace", "completion", "set-aside"))


def test_a_shell_that_is_unknown_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "cmd"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_and_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tocsin"
    file.write_text(script("bash", capsys))

    def completed(*words: str) -> set[str]:
        complete = (
            f'source {file}; COMP_WORDS=(tocsin "$@"); COMP_CWORD=$#; _tocsin; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        done = subprocess.run(
            ["bash", "-c", complete, "tocsin", *words], capture_output=True, text=True, check=True, timeout=30
        )
        return set(done.stdout.split())

    assert completed("sub") == {"subscribe", "subscriber"}
    assert completed("lab", "re") == {"report", "replay-cell", "replay-trace"}
    assert completed("up", "--set") == {"--set-aside"}
    assert completed("sql", "--format", "") == {"table", "json", "csv"}
    assert completed("completion", "") == {"bash", "zsh", "fish"}
