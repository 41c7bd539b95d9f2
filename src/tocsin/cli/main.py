"""The `tocsin` command. Each subcommand is imported when it is used, so that `tocsin --help` is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App

from tocsin.wire.errors import EXIT_FENCED, FencedError, TocsinError
from tocsin.wire.version import version

_HELP = """Tocsin, a Big Active Data platform.

Start a cluster, then talk to it:

    tocsin up                             a cluster; its data in ./tocsin-data
    tocsin sql                            a prompt, in another terminal
    tocsin sql -e 'SELECT VALUE 1 + 1;'   one script
    tocsin publish Reports reports.json   records into a feed
    tocsin subscribe Alerts 17 --user ann --register
                                          a channel's results, from a broker
"""

app = App(name="tocsin", help=_HELP, version=version, help_format="plaintext")
app.command("tocsin.cli.commands.up:app", name="up", help="Start a cluster and keep it running.")
app.command("tocsin.cli.commands.broker:app", name="broker", help="Start a broker and keep it running.")
app.command("tocsin.cli.commands.sql:app", name="sql", help="Run statements: at a prompt, or from -e, -f or a pipe.")
app.command(
    "tocsin.cli.commands.publish:publish", name="publish", help="Send records to a feed, from a file or a pipe."
)
app.command("tocsin.cli.commands.subscribe:app", name="subscribe", help="Print a channel's results as they come.")
app.command("tocsin.cli.commands.subscriber:app", name="subscriber", help="List and show the subscribers of a broker.")
app.command("tocsin.cli.commands.token:app", name="token", help="Make, list and revoke tokens.")
app.command("tocsin.cli.commands.config:app", name="config", help="Show or check the settings.")
app.command("tocsin.cli.commands.backup:backup", name="backup", help="Save everything of a cluster.")
app.command("tocsin.cli.commands.backup:restore", name="restore", help="Bring back what a backup saved.")
app.command("tocsin.cli.commands.clock:app", name="clock", help="Say that a cluster's clock is right.")
app.command("tocsin.cli.commands.check:app", name="check", help="Look for damage in everything durable.")
app.command(
    "tocsin.cli.commands.lab:app", name="lab", help="Run experiments: the live system's rules under virtual time."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 well, 1 with an error that was said, 2 for a wrong command line or no cluster, 3
    for a broker whose name another has taken over."""
    try:
        result = app(arguments, exit_on_error=False, print_error=True, result_action="return_value")
        sys.stdout.flush()
    except TocsinError as error:
        _complain(error)
        sys.exit({"no_cluster": 2, "no_broker": 2, FencedError.code: EXIT_FENCED}.get(error.code, 1))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tocsin"):
            raise
        words = list(sys.argv[1:] if arguments is None else arguments)
        extra = "cluster" if words[:1] != ["lab"] else "lab,cluster" if "--live" in words else "lab"
        sys.stderr.write(f"error: {error.name} is not installed\nhint: pip install 'tocsin[{extra}]' has all of it\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has enough; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as exc:
        from cyclopts import CycloptsError

        if isinstance(exc, CycloptsError):
            sys.exit(2)  # It has been said already.
        raise
    sys.exit(result if isinstance(result, int) else 0)


def _complain(error: TocsinError) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"error: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"hint: {error.hint}\n")


if __name__ == "__main__":
    main()
