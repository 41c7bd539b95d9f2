"""`tocsin up`: run a cluster until told to stop."""

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
tokens, which "tocsin token create" makes.

Examples:

    tocsin up
    tocsin up --data /var/lib/tocsin --port 9000
    tocsin up --host 0.0.0.0 --config tocsin.toml
""",
)


@app.default
def up(
    *,
    data: Annotated[Path | None, Parameter(help="The folder that holds everything; made if absent.")] = None,
    host: Annotated[str | None, Parameter(help="The address to listen on.")] = None,
    port: Annotated[int | None, Parameter(help="The port to listen on; 0 takes a free one.")] = None,
    config: Annotated[Path | None, Parameter(help="The settings file (default: ./tocsin.toml if there).")] = None,
    verbose: Annotated[bool, Parameter(name=["--verbose", "-v"], negative="", help="Say more in the log.")] = False,
) -> None:
    """Run a cluster; returns when it was stopped."""
    import uvloop

    from tocsin import compose
    from tocsin.cli.logs import log_to_stderr
    from tocsin.settings import Settings

    flags = {"data": data, "cluster.http.host": host, "cluster.http.port": port}
    settings = Settings.load(config, os.environ, flags)
    log_to_stderr(verbose)

    def on_ready(address: str) -> None:
        sys.stdout.write(f"tocsin cluster ready at {address} (data: {settings.data})\n")
        sys.stdout.flush()

    uvloop.run(compose.serve_cluster(settings, on_ready))
