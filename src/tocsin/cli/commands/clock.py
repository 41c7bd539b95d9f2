"""`tocsin clock accept`: an operator confirms that a cluster's clock is right, although the cluster suspects it.

A cluster deletes by age, so it must not believe a clock that jumped; only a person can say that the new time is right.
"""

from __future__ import annotations

import asyncio
import sys

from cyclopts import App

from tocsin.cli.commands.backup import call_cluster, choose_address
from tocsin.cli.options import ClusterToken, DataOption, NamedClusterUrl, SettingsFile, read_settings

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
    *, data: DataOption = None, config: SettingsFile = None, url: NamedClusterUrl = None, token: ClusterToken = None
) -> None:
    """Confirm that the cluster's clock is right, so that it deletes again what is too old. Needs an admin's token."""
    from tocsin import compose

    settings = read_settings(config, data=data).settings
    address = choose_address(settings, data, url, compose.folder_holder)
    if address is not None:
        now = asyncio.run(call_cluster(address, token, "/v1/clock:accept"))["now"]
    else:
        now = asyncio.run(compose.accept_clock(settings)).isoformat()
    sys.stdout.write(f"accepted: it is {now}\n")
