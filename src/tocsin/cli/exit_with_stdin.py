"""Servers that end with whoever started them: its end of our standard input closes, however it ended."""

from __future__ import annotations

import os
import signal
import sys
import threading


def end_with_input() -> None:
    """From now on the end of standard input is a SIGTERM."""
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
