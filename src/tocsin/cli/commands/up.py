"""`tocsin up`: runs a cluster, and brokers beside it, until it is stopped.

The brokers are child processes that end with the cluster, so that one command starts and stops a whole small system.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

from cyclopts import App, Parameter

from tocsin.cli.options import DataOption, SettingsFile, Verbose

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
    data: DataOption = None,
    host: Annotated[str | None, Parameter(help="The address to listen on.")] = None,
    port: Annotated[int | None, Parameter(help="The port to listen on; 0 chooses a free port.")] = None,
    brokers: Annotated[
        int, Parameter(help="The number of brokers to run beside the cluster: Default.broker1 and so on.")
    ] = 0,
    set_aside: Annotated[
        bool,
        Parameter(
            negative="", help="Start although the catalog or channels.db is lost; move data without a catalog to lost/."
        ),
    ] = False,
    exit_with_stdin: Annotated[bool, Parameter(negative="", help="Stop when standard input is closed.")] = False,
    config: SettingsFile = None,
    verbose: Verbose = False,
) -> None:
    """Run a cluster until it is stopped. The data folder is made if it does not exist."""
    import uvloop

    from tocsin import compose
    from tocsin.cli import broker_processes
    from tocsin.cli.logs import log_to_stderr
    from tocsin.settings import Settings

    flags = {"data": data, "cluster.http.host": host, "cluster.http.port": port}
    settings = Settings.load(config, os.environ, flags)
    broker_processes.check_brokers(settings, brokers)
    if brokers:
        settings = broker_processes.allow_supervised_brokers(settings, brokers)
    log_to_stderr(verbose)
    if exit_with_stdin:
        broker_processes.exit_with_stdin()

    def on_ready(address: str) -> None:
        sys.stdout.write(f"tocsin cluster ready at {address} (data: {settings.data})\n")
        sys.stdout.flush()

    def brokers_beside(address: str) -> dict[str, list[str]]:
        return broker_processes.broker_commands(settings, address, brokers, config=config, verbose=verbose)

    uvloop.run(compose.serve_cluster(settings, on_ready, brokers_beside, set_aside=set_aside))
