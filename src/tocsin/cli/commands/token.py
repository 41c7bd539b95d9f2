"""`tocsin token`: who may use a cluster that is reachable from other machines.

Works on the data folder itself, so the first token can be made before anybody could show one, even before the first
start where the folder is named; a running cluster honours the change at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Protocol

from cyclopts import App, Parameter

from tocsin.settings import Settings

app = App(
    name="token",
    help_format="plaintext",
    help_epilogue="""A cluster asks for tokens on every address but loopback (cluster.auth.mode).

Examples:

    tocsin token create ada --role admin --data /var/lib/tocsin
    tocsin token create brokers --role broker --feeds emergency.ReportFeed
    tocsin token list
    tocsin token revoke 3
""",
)

Data = Annotated[Path | None, Parameter(name="--data", help="The cluster's data folder.")]
Config = Annotated[Path | None, Parameter(name="--config", help="The settings file.")]


class TokenInfo(Protocol):
    """What is kept of a token: not its secret."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def revoked_at(self) -> datetime | None: ...
    @property
    def feeds(self) -> Sequence[str]: ...


class TokenStore(Protocol):
    """The tokens of one data folder."""

    async def create(self, name: str, role: str, feeds: Sequence[str] = ()) -> tuple[TokenInfo, str]:
        """A new token and its secret, which is known only now. `ConflictError` where a live token has the name."""
        ...

    async def list(self) -> Sequence[TokenInfo]:
        """All, revoked ones too, oldest first."""
        ...

    async def revoke(self, identity: int) -> TokenInfo:
        """The token, from now on useless. `NotFoundError` for an id that no live token has."""
        ...


@app.command
def create(
    name: Annotated[str, Parameter(help="For whom or what it is, to know it by later.")],
    *,
    role: Annotated[
        Literal["reader", "broker", "writer", "admin"],
        Parameter(
            help="A reader runs queries, a broker also subscribes, a writer also changes data; "
            "an admin may do everything."
        ),
    ] = "writer",
    feeds: Annotated[
        str | None, Parameter(help="Feeds that a broker may publish to, with commas between them; without it to none.")
    ] = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Make a token. Its secret is printed once, alone on standard output, and kept nowhere."""

    async def work(tokens: TokenStore) -> None:
        token, secret = await tokens.create(name, role, feeds.split(",") if feeds else ())
        sys.stdout.write(f"{secret}\n")
        sys.stderr.write(f"token {token.id} for {token.name} ({token.role}); this secret is not shown again\n")

    _with_tokens(data, config, work, may_make_folder=True)


@app.command(name="list")
def list_tokens(*, data: Data = None, config: Config = None) -> None:
    """List the tokens; their secrets are not known."""

    async def work(tokens: TokenStore) -> None:
        rows = [("ID", "NAME", "ROLE", "CREATED", "REVOKED", "FEEDS")]
        rows += [
            (
                str(token.id),
                token.name,
                token.role,
                _time(token.created_at),
                _time(token.revoked_at),
                " ".join(token.feeds),
            )
            for token in await tokens.list()
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            sys.stdout.write("  ".join(cells).rstrip() + "\n")

    _with_tokens(data, config, work)


@app.command
def revoke(
    identity: Annotated[int, Parameter(name="id", help='As "tocsin token list" shows it.')],
    *,
    data: Data = None,
    config: Config = None,
) -> None:
    """Make a token useless, from the next request on."""

    async def work(tokens: TokenStore) -> None:
        token = await tokens.revoke(identity)
        sys.stdout.write(f"token {token.id} of {token.name} is revoked\n")

    _with_tokens(data, config, work)


class _TokenWork(Protocol):
    async def __call__(self, tokens: TokenStore) -> None: ...


def _with_tokens(data: Path | None, config: Path | None, work: _TokenWork, *, may_make_folder: bool = False) -> None:
    from tocsin import compose
    from tocsin.cli.logs import log_to_stderr

    log_to_stderr(for_good=False)
    settings = Settings.load(config, os.environ, {"data": data})
    # Not the default one: a token in a new folder beside the cluster's own would be of no use, and nobody would know.
    make_folder = may_make_folder and "data" in settings.model_fields_set
    opened: AbstractAsyncContextManager[TokenStore] = compose.tokens(settings, make_folder=make_folder)

    async def run() -> None:
        async with opened as tokens:
            await work(tokens)

    asyncio.run(run())


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
