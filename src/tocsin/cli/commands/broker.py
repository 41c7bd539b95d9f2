"""`tocsin broker`: runs a broker until it is stopped, backs up its store, and restores it.

A broker's store has accounts and subscriptions that no cluster has, so it has a backup of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tocsin.cli.options import SettingsFile, Verbose, read_settings

app = App(
    name="broker",
    help_format="plaintext",
    help_epilogue="""Prints one line on standard output when it is ready, logs on standard error,
and stops cleanly on Ctrl-C or SIGTERM. It subscribes at a cluster, and while
that is unavailable it serves the results that it has. Accounts, subscriptions
and cursors are in broker-NAME.db in the data folder, so a restarted broker
continues. Of two brokers with one name the older stops, with exit status 3.

Examples:

    tocsin broker
    tocsin broker --name Downtown --port 8481
    tocsin broker --cluster http://cluster.example:8470 --host 0.0.0.0
    tocsin broker --trace events.jsonl
    tocsin broker backup monday.db
    tocsin broker restore monday.db --data elsewhere
""",
)

_BrokerNameOption = Annotated[str | None, Parameter(help="The name of the broker at the cluster: dataverse.name.")]
_BrokerFolder = Annotated[
    Path | None, Parameter(name="--data", help="The folder with the broker's store, broker-NAME.db.")
]


@app.default
def broker(
    *,
    name: _BrokerNameOption = None,
    data: _BrokerFolder = None,
    host: Annotated[str | None, Parameter(help="The address to listen on.")] = None,
    port: Annotated[int | None, Parameter(help="The port to listen on; 0 chooses a free port.")] = None,
    cluster: Annotated[str | None, Parameter(help="The cluster's address.")] = None,
    trace: Annotated[Path | None, Parameter(help="The file for the broker's events, which the lab can replay.")] = None,
    take_over: Annotated[
        bool, Parameter(negative="", help="Take over the name of a running broker, which then stops.")
    ] = False,
    exit_with_stdin: Annotated[bool, Parameter(negative="", help="Stop when standard input is closed.")] = False,
    config: SettingsFile = None,
    verbose: Verbose = False,
) -> None:
    """Run a broker until it is stopped."""
    import uvloop

    from tocsin import compose_broker
    from tocsin.cli import broker_processes
    from tocsin.cli.logs import log_to_stderr
    from tocsin.settings import Settings

    flags = {
        "data": data,
        "broker.name": name,
        "broker.http.host": host,
        "broker.http.port": port,
        "broker.cluster.url": cluster,
    }
    settings = Settings.load(config, os.environ, flags)
    log_to_stderr(verbose)
    if exit_with_stdin:
        broker_processes.exit_with_stdin()

    def on_ready(address: str) -> None:
        sys.stdout.write(f"tocsin broker {settings.broker.name} ready at {address} (data: {settings.data})\n")
        sys.stdout.flush()

    uvloop.run(compose_broker.serve_broker(settings, on_ready, trace, take_over=take_over))


@app.command
def backup(
    destination: Annotated[Path, Parameter(help="The file to write; it must not exist.")],
    /,
    *,
    name: _BrokerNameOption = None,
    data: _BrokerFolder = None,
    config: SettingsFile = None,
) -> None:
    """Back up the store of a broker, running or stopped: accounts, subscriptions, cursors, webhooks."""
    from tocsin import compose_broker

    settings = read_settings(config, data=data, broker__name=name).settings
    asyncio.run(compose_broker.back_up(settings, destination.absolute()))
    sys.stdout.write(f"backup of the broker {settings.broker.name} written to {destination}; its checksum agrees\n")


@app.command
def restore(
    source: Annotated[Path, Parameter(help='The file that "tocsin broker backup" wrote.')],
    /,
    *,
    name: _BrokerNameOption = None,
    data: _BrokerFolder = None,
    config: SettingsFile = None,
) -> None:
    """Restore the store of a broker from a backup, after checking all of it.

    The broker must be stopped, and its store must not exist in the folder. The broker has the name that was saved,
    unless --name gives another.
    """
    from tocsin import compose_broker

    loaded = read_settings(config, data=data, broker__name=name)
    settings, named = loaded.settings, "broker.name" in loaded.sources
    restored, saved = asyncio.run(compose_broker.restore(settings, source.absolute(), named=named))
    origin = "" if saved == restored else f" from a backup of {saved or 'a broker that it does not name'}"
    sys.stdout.write(f"restored the broker {restored}{origin} into {settings.data}; its checksum agrees\n")
    sys.stdout.write("all sessions have ended; application tokens are those of the backup\n")
