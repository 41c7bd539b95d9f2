"""`tocsin clock accept`: somebody who knows says that the clock of a cluster is right, although it suspects it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Annotated

import aiohttp
from cyclopts import App, Parameter

from tocsin.cli.client import ClusterConnection
from tocsin.cli.commands.backup import Config, Data, choose_address
from tocsin.settings import Settings

app = App(
    name="clock",
    help_format="plaintext",
    help_epilogue="""A cluster whose clock was set by more than an hour, or that starts before the newest time on
record, deletes nothing by age until the clock is right again or was accepted.

Examples:

    tocsin clock accept
    tocsin clock accept --url https://cluster.example --token ...
""",
)


@app.command
def accept(
    *,
    data: Data = None,
    config: Config = None,
    url: Annotated[
        str | None, Parameter(help="Ask the cluster at this address (default: TOCSIN_URL, without --data).")
    ] = None,
    token: Annotated[
        str | None, Parameter(env_var="TOCSIN_TOKEN", help="An admin's token; better given in TOCSIN_TOKEN.")
    ] = None,
) -> None:
    """Say that the clock is right: what is too old by it is deleted from now on."""
    from tocsin import compose
    from tocsin.cli.logs import log_to_stderr

    log_to_stderr(for_good=False)
    settings = Settings.load(config, os.environ, {"data": data})
    address = choose_address(settings, data, url, compose.folder_holder)
    if address is not None:
        now = asyncio.run(_ask(address, token))
    else:
        now = asyncio.run(compose.accept_clock(settings)).isoformat()
    sys.stdout.write(f"accepted: it is {now}\n")


class _ClockClient(ClusterConnection):
    async def accept_clock(self) -> str:
        try:
            async with self._session.post(f"{self.url}/v1/clock:accept") as response:
                content = await response.read()
        except aiohttp.ClientError as error:
            raise self._unreachable(error) from None
        if response.status != 200 or response.content_type != "application/json":
            raise self._error_in(content, response.status)
        return str(json.loads(content)["now"])


async def _ask(url: str, token: str | None) -> str:
    async with _ClockClient(url, token) as client:
        return await client.accept_clock()
