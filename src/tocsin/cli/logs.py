"""Configures a server's log. A line that cannot be written is dropped, so that logging never ends work.

Secrets are masked in the stream and not where a line is written, because libraries also log what clients sent.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress
from typing import Any, Final, TextIO

# Tokens in addresses and headers, Tocsin's own tokens anywhere, session tokens (JWT), and secrets of webhooks.
_SECRETS: Final = re.compile(
    r"(access_token=)[^&\s\"'\\]+|(\bbearer\s+)[\w.~+/=-]+|(\btocsin_)[\w-]{43,}|(\beyJ)[\w-]+\.[\w-]+\.[\w-]*"
    r"|(\bwhsec_)[\w+/=-]+",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    return _SECRETS.sub(lambda match: f"{next(prefix for prefix in match.groups() if prefix)}…", text)


class SafeStream:
    """A stream that drops what cannot be written (full disk, closed pipe), and masks secrets.

    Everything that is logged passes through it: libraries repeat what clients sent, and that may contain a token.
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
    """Logs warnings, or everything if `verbose`, one line each. Standard output is only for the command's own output.

    `for_good`: the configuration never changes in this process, so that loggers may cache it.
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
            # Plain tracebacks: the others show variables, which contain what clients sent.
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=for_good,
    )
