"""`tocsin check`: looks for damage in all durable data.

It reads the files directly and changes nothing, so it also works when the cluster cannot start.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from tocsin.cli.commands.backup import size_text
from tocsin.cli.options import DataOption, SettingsFile, read_settings
from tocsin.cli.output import progress_bar
from tocsin.wire.errors import TocsinError

app = App(
    name="check",
    help_format="plaintext",
    help_epilogue="""Reads the catalog, the stores of channels and brokers, the log of every
dataset with its checksums, every byte of every data file of the newest state and
of kept history, and the feeds' logs and the record of the clock, and lists what
was set aside under lost/ or is not known to the catalog. --quick only looks
whether a data file is there, at its size and at its footer. Not checked: the
values in the SQLite stores (SQLite keeps no checksums: its own check finds damage
to their structure only), python/ (your own code), scratch/ and lock (made anew at
each start), storage-owner (a random number that marks the storage). Nothing is
changed or locked: a cluster may be at work.

Exit status: 0 nothing is damaged (notes may need a look); 1 something is damaged,
and named with what helps; 2 something could not be checked.

Examples:

    tocsin check
    tocsin check --data /var/lib/tocsin --quick
    tocsin check --format json | jq '.damaged[].path'
""",
)


@app.default
def check(
    *,
    data: DataOption = None,
    quick: Annotated[
        bool, Parameter(negative="", help="Look at the sizes and footers of data files; do not read their contents.")
    ] = False,
    form: Annotated[
        Literal["text", "json"], Parameter(name="--format", help="The form of the findings: text, or one JSON object.")
    ] = "text",
    config: SettingsFile = None,
) -> int:
    """Check all durable data in a data folder. A cluster may run on it meanwhile."""
    from rich.progress import MofNCompleteColumn

    from tocsin import compose

    try:
        settings = read_settings(config, data=data).settings
        with progress_bar("checking", MofNCompleteColumn, "{task.fields[what]}", what="") as update:
            findings = compose.check(
                settings,
                deep=not quick,
                on_progress=lambda done, total, what: update(completed=done, total=total, what=what),
            )
    except TocsinError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return 2
    sys.stdout.write(json.dumps(findings, indent=1) + "\n" if form == "json" else "".join(format_findings(findings)))
    return {"clean": 0, "damaged": 1, "unchecked": 2}[findings["status"]]


def format_findings(findings: Mapping[str, Any]) -> Iterator[str]:
    for title, severity in (("damaged", "damaged"), ("not checked", "unchecked"), ("note", "notes")):
        for finding in findings[severity]:
            yield f"{title}: {finding['path']} ({finding['what']})\n  {finding['problem']}\n  {finding['remedy']}\n"
    checked = findings["checked"]
    counts = ", ".join(_count_text(checked[name], name) for name in ("stores", "datasets", "feeds", "files"))
    outcome = {
        "clean": f"nothing is damaged; {_state_need(len(findings['notes']))}" if findings["notes"] else _well(findings),
        "damaged": f"{_count_text(len(findings['damaged']), 'things')} damaged",
        "unchecked": f"{_count_text(len(findings['unchecked']), 'things')} could not be checked",
    }
    if findings["is_quick"]:
        counts += ", without the contents of data files (--quick)"
    yield "not covered: values in the SQLite stores, which have no checksums (their structure is checked)\n"
    yield f"checked {findings['data']}: {counts}, {size_text(checked['size_bytes'])}: {outcome[findings['status']]}\n"


def _well(findings: Mapping[str, Any]) -> str:
    return "nothing is damaged in what was read" if findings["is_quick"] else "all is well"


def _state_need(count: int) -> str:
    return f"{_count_text(count, 'things')} {'need' if count != 1 else 'needs'} a look"


def _count_text(count: int, plural: str) -> str:
    return f"{count:,} {plural if count != 1 else plural[:-1]}"
