"""Decides whether a log entry is as it was written, was torn by a power cut, or was damaged later.

Our entries have a checksum and are synced before they get their names: an entry with a checksum was once complete, and
is damaged if the checksum does not agree. Only an entry without a checksum can be torn: one of an older Tocsin, or of
an interrupted CREATE. Its beginning is there, and after that nothing, or unwritten blocks that read as zeros. Damage
that took the checksum looks the same: `log_recovery.can_be_torn` decides by the entries before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum
from typing import Any, Final

from tocsin.clock import to_us
from tocsin.storage.interface import StorageFolder

AT_KEY: Final = "tocsin.at"
CHECK_KEY: Final = "tocsin.check"
ACTIONS_KEY: Final = "tocsin.actions"
CHECKPOINT_KEY: Final = "tocsin.checkpoint"
_OURS: Final = "tocsin."
# The fields of an action that the checksum covers, in this order; an empty tuple covers the whole action.
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("path", "size", "modificationTime", "dataChange", "stats"),
    "remove": ("path", "size", "deletionTimestamp", "dataChange"),
    "txn": ("appId", "version"),
    "metaData": (),
    "protocol": (),
}
_PIECE_BYTES: Final = 1 << 20
LogMark = Sequence[Any]


class EntryState(Enum):
    WHOLE = "whole"
    TORN = "torn"
    DAMAGED = "damaged"


def split_lines(text: str) -> list[str]:
    """Splits at line feeds only: `splitlines` also splits at characters that JSON allows within strings."""
    return [line for line in text.split("\n") if line]


def mark_actions(actions: Iterable[Mapping[str, Any]]) -> list[LogMark]:
    """The parts of these actions that the checksum covers."""
    return [_mark(kind, action[kind]) for action in actions for kind in _FIELDS if kind in action]


def add_checksum(line: Mapping[str, Any], marks: Sequence[LogMark]) -> dict[str, Any]:
    """A commit's own information, with a checksum of it and of the actions."""
    counted = {**line, ACTIONS_KEY: len(marks)}
    return {**counted, CHECK_KEY: _checksum(counted, marks)}


def sign_entry(content: bytes) -> bytes:
    """Adds a checksum to an entry that another program wrote."""
    actions = [json.loads(line) for line in split_lines(content.decode())]
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    others = [action for action in actions if "commitInfo" not in action]
    ours = {key: value for key, value in info.items() if key.startswith(_OURS)}
    signed = {"commitInfo": {**info, **add_checksum(ours, mark_actions(others))}}
    return "\n".join(json.dumps(action) for action in (signed, *others)).encode()


def has_checksum(content: bytes) -> bool:
    # Two marks, so that damage to one of them does not turn it into an entry without a checksum.
    return any(b'"%b":' % key.encode() in content for key in (ACTIONS_KEY, CHECK_KEY))


def classify_entry(content: bytes) -> EntryState:
    """Classifies the content of an entry that the disk returned without an error."""
    written = content.rstrip(b"\0")
    checked = has_checksum(content)
    if not written:
        return EntryState.TORN
    lines = split_lines(written.decode("utf-8", "surrogateescape"))
    if not lines:
        return EntryState.DAMAGED
    actions: list[dict[str, Any]] = []
    for index, line in enumerate(lines):
        try:
            action = json.loads(line)
        except json.JSONDecodeError as error:
            cut = not checked and index == len(lines) - 1 and _is_cut_short(line, error)
            return EntryState.TORN if cut else EntryState.DAMAGED
        except (ValueError, RecursionError):
            return EntryState.DAMAGED
        if not isinstance(action, dict):
            return EntryState.DAMAGED
        actions.append(action)
    if checked:
        return EntryState.WHOLE if written == content and _agrees(actions) else EntryState.DAMAGED
    # The entry has no checksum: an older version wrote it.
    return EntryState.WHOLE if written == content else EntryState.TORN


def _agrees(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an entry agrees with its checksum."""
    infos = (action["commitInfo"] for action in actions if isinstance(action.get("commitInfo"), dict))
    info: dict[str, Any] = next(infos, {})
    ours = {key: value for key, value in info.items() if key.startswith(_OURS) and key != CHECK_KEY}
    return info.get(CHECK_KEY) == _checksum(ours, mark_actions(actions))


def mark_checkpoint(version: int, digest: str) -> dict[str, str]:
    """The note about a checkpoint in the first entry after it."""
    return {CHECKPOINT_KEY: f"{version} {digest}"}


def read_checkpoint_mark(content: bytes) -> tuple[int, str] | None:
    """The checkpoint that a complete entry notes: its version, and its file's digest."""
    for action in _actions_in(content):
        info = action.get("commitInfo")
        if isinstance(info, dict) and isinstance(mark := info.get(CHECKPOINT_KEY), str):
            version, _, digest = mark.partition(" ")
            return int(version), digest
    return None


def read_entry_time_us(content: bytes) -> int | None:
    """When a commit or a step of upkeep wrote the entry, according to the entry: rounded up to the millisecond if an
    older Tocsin, or another program, wrote it.
    """
    for action in _actions_in(content):
        info = action.get("commitInfo")
        if not isinstance(info, dict):
            continue
        # delta-rs writes the time of the wall clock, which may be wrong; ours is from the guarded clock.
        with suppress(TypeError, ValueError):
            if AT_KEY in info:
                return to_us(datetime.fromisoformat(info[AT_KEY]))
        if isinstance(at_ms := info.get("timestamp"), int):
            return at_ms * 1000 + 999
    return None


def compute_digest(folder: StorageFolder, name: str) -> str:
    digest = hashlib.sha256()
    with folder.open_input(name) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def list_added_files(content: bytes) -> set[str]:
    """The data files that an entry adds, as far as it is readable."""
    added = (action.get("add") for action in _actions_in(content))
    return {str(action.get("path")) for action in added if isinstance(action, dict)}


def _actions_in(content: bytes) -> Iterator[dict[str, Any]]:
    for line in split_lines(content.decode("utf-8", "replace")):
        try:
            action = json.loads(line)
        except ValueError:
            continue
        if isinstance(action, dict):
            yield action


def _mark(kind: str, action: Any) -> LogMark:
    if not _FIELDS[kind]:
        return kind, action
    return (kind, *(action.get(field) if isinstance(action, dict) else None for field in _FIELDS[kind]))


def _checksum(line: Mapping[str, Any], marks: Iterable[LogMark]) -> str:
    listed = [["said", key, line[key]] for key in sorted(line)] + sorted((list(mark) for mark in marks), key=repr)
    return hashlib.blake2b(json.dumps(listed).encode(), digest_size=16).hexdigest()


def _is_cut_short(line: str, error: json.JSONDecodeError) -> bool:
    """Whether this is the beginning of a line. In doubt it is not: damage is an error, a torn entry is given up."""
    if line.endswith("}}"):
        return False
    rest = line[error.pos :]
    unfinished = error.msg.startswith(("Unterminated string", "Invalid \\"))
    return not rest or unfinished or any(word.startswith(rest) for word in ("true", "false", "null", "-"))
