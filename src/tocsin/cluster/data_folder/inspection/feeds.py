"""Inspects a feed's folder: its log, the seen items of a polled feed, or Spark's notes of a feed of files.

Files can all be whole and records still be missing, for example after a part of the folder came from another backup. So
the positions of the log and of its datasets are compared, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tocsin.cluster.data_folder.inspection.findings import BRING_BACK, Finding, unreadable_finding
from tocsin.cluster.feeds.adapters.file_reader import after_last
from tocsin.cluster.feeds.adapters.seen_items import NAME as SEEN
from tocsin.cluster.feeds.adapters.seen_items import SeenItems
from tocsin.cluster.intake import segments
from tocsin.pipeline.landing.streaming_checkpoint import Checkpoint
from tocsin.wire.errors import StoreError

_SEEN_AGAIN: Final = f"{BRING_BACK}; or move it away: then items that are still in the source's answers come again"
_BETWEEN_GONE: Final = (
    "restore log and datasets from one backup, or publish what is missing again; the feed goes on without it"
)
_TAIL_IN_DOUBT: Final = (
    "bring the file back from a copy of the disk before the feed starts, if records are missing; its start sets the "
    "write aside in lost/ and goes on without it"
)
_NOTES_AGAIN: Final = f"{BRING_BACK}; without the feed's notes, DROP and CREATE the feed: its files come again"


def inspect_log(folder: Path, what: str, *, begun: bool, landed: int) -> Iterator[Finding]:
    """Inspects a log. `begun`: the feed was started, so there must be a log. `landed`: the position of its datasets."""
    if not any(folder.glob("*.log")):
        if begun or landed:
            hint = f"{BRING_BACK}; to go on without it, mkdir -p {folder} and touch {folder / 'begin-anew'}"
            yield Finding("damaged", folder, what, "is missing: what had not landed is lost with it", hint)
        return
    try:
        log = segments.inspect(folder)
        if log.end < landed:
            problem = f"ends at position {log.end}, and its datasets are at {landed}"
            yield Finding("damaged", folder, what, problem, "restore log and datasets from one backup")
        if log.doubt is not None:
            problem = f"ends in a write that was torn, or acknowledged and damaged ({log.doubt})"
            yield Finding("damaged", folder, what, problem, _TAIL_IN_DOUBT)
    except StoreError as error:
        yield Finding("damaged", folder, what, error.message)
    except FileNotFoundError:
        yield Finding("unchecked", folder, what, "changes all the time", "run tocsin check again")
    except OSError as error:
        yield unreadable_finding(error, Path(error.filename or folder), what)


def inspect_positions(folder: Path, what: str, first: int | None, positions: Mapping[str, int]) -> Iterator[Finding]:
    """Compares the begin of the log, read before the `positions` of its datasets, with these."""
    for dataset, position in positions.items():
        if first is not None and position < first:
            problem = (
                f"begins at position {first}, and the {dataset} is at {position}: what lies between is missing there"
            )
            yield Finding("damaged", folder, what, problem, _BETWEEN_GONE)


def inspect_seen_items(folder: Path, what: str) -> Iterator[Finding]:
    path = folder / SEEN
    try:
        SeenItems.open(folder)
    except StoreError as error:
        yield Finding("damaged", path, what, error.message, _SEEN_AGAIN)
    except OSError as error:
        yield unreadable_finding(error, path, what)


def inspect_notes(folder: Path, what: str, *, landed: int = 0) -> Iterator[Finding]:
    """Inspects Spark's notes of the files that it found. The newest note of each kind may be torn: a start removes it.
    `landed`: the position of the feed's datasets."""
    if landed > (end := after_last(Checkpoint(folder))):
        problem = f"ends at position {end}, and its datasets are at {landed}: files that come now would be passed over"
        yield Finding("damaged", folder, what, problem, _NOTES_AGAIN)
    for kind in ("offsets", "commits", *(f"sources/{path.name}" for path in folder.glob("sources/*"))):
        notes = {
            int(path.name.removesuffix(".compact")): path
            for path in (folder / kind).glob("*")
            if path.name.removesuffix(".compact").isdigit()
        }
        for number, path in sorted(notes.items()):
            try:
                lines = path.read_text(encoding="utf-8").splitlines()
                whole = len(lines) > 1 and all(line in ("-", "v1") or json.loads(line) for line in lines)
            except FileNotFoundError:
                continue
            except ValueError:
                whole = False
            except OSError as error:
                yield unreadable_finding(error, path, what)
                continue
            if not whole and number == max(notes):
                yield Finding("note", path, what, "was torn by a power cut", "the next start takes it away")
            elif not whole:
                yield Finding("damaged", path, what, "is not as Spark wrote it", _NOTES_AGAIN)
