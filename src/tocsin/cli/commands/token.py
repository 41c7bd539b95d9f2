"""`tocsin token`: makes, lists and revokes the tokens for a cluster that other machines can reach.

It reads and writes the data folder directly, because there is no token to authenticate with before the first one is
made. With --data it works even before the first start. A running cluster applies a change at once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Annotated, Literal, Protocol

from cyclopts import App, Parameter

from tocsin.cli.options import DataOption, SettingsFile, read_settings

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


class _TokenInfo(Protocol):
    """What the cluster stores of a token: everything but its secret."""

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


class _TokenStore(Protocol):
    """The tokens of one data folder."""

    async def create(self, name: str, role: str, feeds: Sequence[str] = ()) -> tuple[_TokenInfo, str]:
        """Returns a new token and its secret, which is not stored. `ConflictError` if a valid token has the name."""
        ...

    async def list(self) -> Sequence[_TokenInfo]:
        """Returns all tokens, oldest first; revoked ones too."""
        ...

    async def revoke(self, identity: int) -> _TokenInfo:
        """Revokes a token and returns it. `NotFoundError` if no valid token has the id."""
        ...


@app.command
def create(
    name: Annotated[str, Parameter(help="The name of the user or program that gets the token.")],
    *,
    role: Annotated[
        Literal["reader", "broker", "writer", "admin"],
        Parameter(
            help="What the token allows. A reader runs queries, a broker also subscribes, a writer also changes data, "
            "an admin may do everything."
        ),
    ] = "writer",
    feeds: Annotated[
        str | None, Parameter(help="The feeds that a broker may publish to, separated by commas (default: none).")
    ] = None,
    data: DataOption = None,
    config: SettingsFile = None,
) -> None:
    """Make a token. Its secret is printed once, alone on standard output, and stored nowhere."""

    async def work(tokens: _TokenStore) -> None:
        token, secret = await tokens.create(name, role, feeds.split(",") if feeds else ())
        sys.stdout.write(f"{secret}\n")
        sys.stderr.write(f"token {token.id} for {token.name} ({token.role}); this secret is not shown again\n")

    _with_tokens(data, config, work, may_make_folder=True)


@app.command(name="list")
def list_tokens(*, data: DataOption = None, config: SettingsFile = None) -> None:
    """List the tokens, without their secrets."""

    async def work(tokens: _TokenStore) -> None:
        from tocsin.cli.output import print_table

        rows = [
            (str(info.id), info.name, info.role, _time(info.created_at), _time(info.revoked_at), " ".join(info.feeds))
            for info in await tokens.list()
        ]
        print_table(("ID", "NAME", "ROLE", "CREATED", "REVOKED", "FEEDS"), rows, sys.stdout)

    _with_tokens(data, config, work)


@app.command
def revoke(
    identity: Annotated[int, Parameter(name="id", help='The number of the token, as "tocsin token list" shows it.')],
    *,
    data: DataOption = None,
    config: SettingsFile = None,
) -> None:
    """Revoke a token: it is refused from the next request on."""

    async def work(tokens: _TokenStore) -> None:
        token = await tokens.revoke(identity)
        sys.stdout.write(f"token {token.id} of {token.name} is revoked\n")

    _with_tokens(data, config, work)


class _TokenWork(Protocol):
    async def __call__(self, tokens: _TokenStore) -> None: ...


def _with_tokens(data: DataOption, config: SettingsFile, work: _TokenWork, *, may_make_folder: bool = False) -> None:
    from tocsin import compose

    settings = read_settings(config, data=data).settings
    # Never make the default folder: a token in a folder that no cluster uses would be useless, without a warning.
    make_folder = may_make_folder and "data" in settings.model_fields_set
    opened: AbstractAsyncContextManager[_TokenStore] = compose.tokens(settings, make_folder=make_folder)

    async def run() -> None:
        async with opened as tokens:
            await work(tokens)

    asyncio.run(run())


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
