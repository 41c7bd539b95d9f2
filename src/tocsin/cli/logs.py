"""Where a server's log goes. Nobody's work ends because a line of it could not be written."""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress
from typing import Any, Final, TextIO

# Tokens in addresses and headers, of ours in any place, of sessions (JWT), and secrets of webhooks.
_SECRETS: Final = re.compile(
    r"(access_token=)[^&\s\"'\\]+|(\bbearer\s+)[\w.~+/=-]+|(\btocsin_)[\w-]{43,}|(\beyJ)[\w-]+\.[\w-]+\.[\w-]*"
    r"|(\bwhsec_)[\w+/=-]+",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    return _SECRETS.sub(lambda found: f"{next(kept for kept in found.groups() if kept)}…", text)


class SafeStream:
    """A stream that loses what cannot be written (to a full disk, or where nobody reads any more), and secrets.

    Whatever is logged goes through here: libraries repeat what clients sent, and that may hold a token.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(without_secrets(text))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def log_to_stderr(verbose: bool = False, *, for_good: bool = True) -> None:
    """Warnings, or with `verbose` everything, one line each; standard output stays for what was asked for.

    `for_good`: the process logs nowhere else as long as it lives, which makes logging cheaper.
    """
    import structlog

    level = logging.DEBUG if verbose else logging.WARNING
    stream: Any = SafeStream(sys.stderr)
    logging.basicConfig(stream=stream, level=logging.INFO if verbose else logging.WARNING)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Plain tracebacks: the others show variables, and those hold what people sent.
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=for_good,
    )
