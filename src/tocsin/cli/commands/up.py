"""`tocsin up`: run a cluster, and brokers beside it, until told to stop."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(
    name="up",
    help_format="plaintext",
    help_epilogue="""Prints one line on standard output when it is ready, logs on standard error,
and stops cleanly on Ctrl-C or SIGTERM (a second Ctrl-C ends it at once).
Only this machine can reach it unless --host says otherwise; then it asks for
tokens, which "tocsin token create" makes. Brokers are processes of their own, at
consecutive ports from broker.http.port on; one that ends is started again.

Examples:

    tocsin up
    tocsin up --data /var/lib/tocsin --port 9000
    tocsin up --host 0.0.0.0 --config tocsin.toml
    tocsin up --brokers 2
""",
)


@app.default
def up(
    *,
    data: Annotated[Path | None, Parameter(help="The folder that holds everything; made if absent.")] = None,
    host: Annotated[str | None, Parameter(help="The address to listen on.")] = None,
    port: Annotated[int | None, Parameter(help="The port to listen on; 0 takes a free one.")] = None,
    brokers: Annotated[int, Parameter(help="How many brokers to run beside it: Default.broker1 and so on.")] = 0,
    set_aside: Annotated[
        bool,
        Parameter(
            negative="",
            help="Begin anew although the catalog is lost (data beside it are moved to lost/), or channels.db.",
        ),
    ] = False,
    beside: Annotated[bool, Parameter(negative="", help="End when standard input does.")] = False,
    config: Annotated[Path | None, Parameter(help="The settings file (default: ./tocsin.toml if there).")] = None,
    verbose: Annotated[bool, Parameter(name=["--verbose", "-v"], negative="", help="Say more in the log.")] = False,
) -> None:
    """Run a cluster; returns when it was stopped."""
    import uvloop

    from tocsin import compose
    from tocsin.cli.broker_processes import allow_supervised_brokers, broker_commands, check_brokers
    from tocsin.cli.exit_with_stdin import end_with_input
    from tocsin.cli.logs import log_to_stderr
    from tocsin.settings import Settings

    flags = {"data": data, "cluster.http.host": host, "cluster.http.port": port}
    settings = Settings.load(config, os.environ, flags)
    check_brokers(settings, brokers)
    if brokers:
        settings = allow_supervised_brokers(settings, brokers)
    log_to_stderr(verbose)
    if beside:
        end_with_input()

    def say(address: str) -> None:
        sys.stdout.write(f"tocsin cluster ready at {address} (data: {settings.data})\n")
        sys.stdout.flush()

    def brokers_beside(address: str) -> dict[str, list[str]]:
        return broker_commands(settings, address, brokers, config=config, verbose=verbose)

    beside_it = brokers_beside if brokers else lambda _address: {}
    uvloop.run(compose.serve_cluster(settings, say, beside_it, set_aside=set_aside))
