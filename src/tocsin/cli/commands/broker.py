"""`tocsin broker`: run a broker until told to stop; save what it keeps, and bring that back."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from tocsin.settings import Loaded, Settings

app = App(
    name="broker",
    help_format="plaintext",
    help_epilogue="""Prints one line on standard output when it is ready, logs on standard error,
and stops cleanly on Ctrl-C or SIGTERM. It needs a running cluster to
subscribe at, and goes on with what it has while that is away. What subscribers
have and hold is in broker-NAME.db in the data folder: start it again, and it
goes on. Of two brokers under one name the older stops, with status 3.

Examples:

    tocsin broker
    tocsin broker --name Downtown --port 8481
    tocsin broker --cluster http://cluster.example:8470 --host 0.0.0.0
    tocsin broker --trace events.jsonl
    tocsin broker backup monday.db
    tocsin broker restore monday.db --data elsewhere
""",
)


@app.default
def broker(
    *,
    name: Annotated[str | None, Parameter(help="What the cluster calls it: dataverse.name.")] = None,
    data: Annotated[Path | None, Parameter(help="The folder that holds its file; made if absent.")] = None,
    host: Annotated[str | None, Parameter(help="The address to listen on.")] = None,
    port: Annotated[int | None, Parameter(help="The port to listen on; 0 takes a free one.")] = None,
    cluster: Annotated[str | None, Parameter(help="Where the cluster is.")] = None,
    trace: Annotated[Path | None, Parameter(help="Write every event there, for the lab.")] = None,
    take_over: Annotated[bool, Parameter(negative="", help="Take the name from another broker, which stops.")] = False,
    beside: Annotated[bool, Parameter(negative="", help="End when standard input does.")] = False,
    config: Annotated[Path | None, Parameter(help="The settings file (default: ./tocsin.toml if there).")] = None,
    verbose: Annotated[bool, Parameter(name=["--verbose", "-v"], negative="", help="Say more in the log.")] = False,
) -> None:
    """Run a broker; returns when it was stopped."""
    import uvloop

    from tocsin import compose_broker
    from tocsin.cli.exit_with_stdin import end_with_input
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
    if beside:
        end_with_input()

    def on_ready(address: str) -> None:
        sys.stdout.write(f"tocsin broker {settings.broker.name} ready at {address} (data: {settings.data})\n")
        sys.stdout.flush()

    uvloop.run(compose_broker.serve_broker(settings, on_ready, trace, take_over=take_over))


Name = Annotated[str | None, Parameter(help="Which broker: dataverse.name.")]
Data = Annotated[Path | None, Parameter(help="The folder that holds its file.")]
Config = Annotated[Path | None, Parameter(help="The settings file (default: ./tocsin.toml if there).")]


@app.command
def backup(
    destination: Annotated[Path, Parameter(help="A new file.")],
    /,
    *,
    name: Name = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Save what a broker keeps, whether it runs or not: accounts, subscriptions, markers, webhooks."""
    from tocsin import compose_broker
    from tocsin.cli.logs import log_to_stderr

    log_to_stderr(for_good=False)
    settings = _settings(name, data, config)
    asyncio.run(compose_broker.back_up(settings, destination.absolute()))
    sys.stdout.write(f"backup of the broker {settings.broker.name} written to {destination}; its checksum agrees\n")


@app.command
def restore(
    source: Annotated[Path, Parameter(help='What "tocsin broker backup" wrote.')],
    /,
    *,
    name: Name = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Bring back what a broker kept, after checking all of it. The broker must be stopped, and have no file there.

    It is the broker that was saved, unless another name is given.
    """
    from tocsin import compose_broker
    from tocsin.cli.logs import log_to_stderr

    log_to_stderr(for_good=False)
    loaded = _loaded(name, data, config)
    settings, named = loaded.settings, "broker.name" in loaded.sources
    restored, saved = asyncio.run(compose_broker.restore(settings, source.absolute(), named=named))
    whose = "" if saved == restored else f" from a backup of {saved or 'a broker that it does not name'}"
    sys.stdout.write(f"restored the broker {restored}{whose} into {settings.data}; its checksum agrees\n")
    sys.stdout.write("every session has ended; application tokens are those of the time of the backup\n")


def _settings(name: str | None, data: Path | None, config: Path | None) -> Settings:
    return _loaded(name, data, config).settings


def _loaded(name: str | None, data: Path | None, config: Path | None) -> Loaded:
    from tocsin.settings import read

    return read(config, os.environ, {"data": data, "broker.name": name})
