"""Runs a helper process of a benchmark, with lines of JSON as requests and answers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Self


class Child:
    """A module of ours as a process. It ends when nobody talks to it any more."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, **said: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        return self.read()

    def read(self) -> dict[str, Any]:
        """What it says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the clients' process has ended")
        said: dict[str, Any] = json.loads(line)
        if "failed" in said:
            raise RuntimeError(f"a client failed: {said['failed']}")
        return said
