"""The `tocsin` command. It imports each subcommand when it is used, so that `tocsin --help` is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

from cyclopts import App, Parameter

from tocsin.cli.output import exit_status
from tocsin.wire.errors import TocsinError
from tocsin.wire.version import version

_HELP = """Tocsin, a Big Active Data platform.

Start a cluster, then use it:

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
app.command("tocsin.cli.commands.subscribe:app", name="subscribe", help="Print a channel's results as they arrive.")
app.command("tocsin.cli.commands.subscriber:app", name="subscriber", help="List and show the subscribers of a broker.")
app.command("tocsin.cli.commands.token:app", name="token", help="Make, list and revoke tokens.")
app.command("tocsin.cli.commands.config:app", name="config", help="Show or check the settings.")
app.command("tocsin.cli.commands.backup:backup", name="backup", help="Back up a cluster with all its data.")
app.command("tocsin.cli.commands.backup:restore", name="restore", help="Restore a cluster from a backup.")
app.command("tocsin.cli.commands.clock:app", name="clock", help="Confirm that a cluster's clock is right.")
app.command("tocsin.cli.commands.check:app", name="check", help="Look for damage in a data folder.")
app.command(
    "tocsin.cli.commands.lab:app", name="lab", help="Run experiments: the live system's rules under virtual time."
)


@app.command
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell that will read the script.")], /
) -> None:
    """Print a script that completes tocsin's commands, options and values in a shell.

    bash: tocsin completion bash > ~/.local/share/bash-completion/completions/tocsin
    zsh: tocsin completion zsh > a file _tocsin in a folder of $fpath
    fish: tocsin completion fish > ~/.config/fish/completions/tocsin.fish
    """
    sys.stdout.write(app.generate_completion(shell=shell))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits: with 0 if it succeeded, otherwise as `exit_status` says."""
    try:
        result = app(arguments, exit_on_error=False, print_error=True, result_action="return_value")
        sys.stdout.flush()
    except TocsinError as error:
        _complain(error)
        sys.exit(exit_status(error))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tocsin"):
            raise
        words = list(sys.argv[1:] if arguments is None else arguments)
        extra = "cluster" if words[:1] != ["lab"] else "lab,cluster" if "--live" in words else "lab"
        sys.stderr.write(f"error: {error.name} is not installed\nhint: pip install 'tocsin[{extra}]' installs it\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader has closed the pipe: nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as exc:
        from cyclopts import CycloptsError

        if isinstance(exc, CycloptsError):
            sys.exit(2)  # Cyclopts has printed the error.
        raise
    sys.exit(result if isinstance(result, int) else 0)


def _complain(error: TocsinError) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"error: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"hint: {error.hint}\n")


if __name__ == "__main__":
    main()
