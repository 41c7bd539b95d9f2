"""Puts entries into a Delta log. An entry is put at once and only if its version is free; it is never taken back.

`LinkedLog` writes entries itself where the storage has a conditional put: the state is in memory, so a commit need not
read the log first. `DeltaRsLog` lets delta-rs do it, which has a conditional put for object stores.

A put can fail although the entry was put: its answer was lost, or the disk failed after the link. The transaction in an
entry tells whose it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import orjson
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.transaction import AddAction, RemoveAction

from tocsin.pipeline.datasets.delta.log_entries import add_checksum, mark_actions, sign_entry, split_lines
from tocsin.pipeline.datasets.delta.log_files import entry_name, log_of
from tocsin.storage.interface import StorageFolder

TRANSACTION_KEY: Final = "tocsin.txn"

# Upkeep makes checkpoints and removes entries, when the outside readers' time is over.
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

LogAction = Mapping[str, Any]
CommitInfo = Mapping[str, Any]


class LogWriter(Protocol):
    is_prompt: bool
    """Whether an entry that is not there after a failed put will never come: no request is still under way."""

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        """Creates the table: the version 0 of the log."""

    def put(self, version: int, actions: Sequence[LogAction], info: CommitInfo, at_us: int) -> None:
        """Puts the entry of this version. Raises FileExistsError if there is one, which may be this very one. After
        any other error it is unknown whether the entry was put.
        """

    def refreshed(self, delta: DeltaTable) -> None:
        """Gets the table as it was just opened."""


def log_writer(folder: StorageFolder) -> LogWriter:
    return LinkedLog(folder) if folder.has_conditional_put else DeltaRsLog(folder)


def read_transaction(folder: StorageFolder, version: int) -> str | None:
    """The transaction of the entry of this version; None if it has none, so that another program wrote it. Raises
    FileNotFoundError if there is no entry.
    """
    for line in split_lines(log_of(folder).read(entry_name(version)).decode("utf-8", "replace")):
        try:
            action = json.loads(line)
        except ValueError:
            continue
        if isinstance(action, dict) and isinstance(action.get("commitInfo"), dict):
            transaction = action["commitInfo"].get(TRANSACTION_KEY)
            return transaction if isinstance(transaction, str) else None
    return None


class LinkedLog:
    """Entries are files of ours, each with a checksum."""

    is_prompt = True

    def __init__(self, folder: StorageFolder) -> None:
        self._folder = folder

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        stored = DeltaSchema.from_arrow(schema)
        DeltaTable.create(self._folder.delta_uri, schema=stored, mode="error", configuration=dict(properties))
        # delta-rs neither adds a checksum nor syncs. Nobody knows this table yet, so its entry can be replaced.
        logs, name = log_of(self._folder), entry_name(0)
        logs.put(name, sign_entry(logs.read(name)))

    def put(self, version: int, actions: Sequence[LogAction], info: CommitInfo, at_us: int) -> None:
        checked = add_checksum(info, mark_actions(actions))
        line = {"timestamp": at_us // 1000, "operation": "WRITE", **checked, "engineInfo": "tocsin"}
        content = b"\n".join([orjson.dumps({"commitInfo": line}), *map(orjson.dumps, actions)])
        log_of(self._folder).put_if_absent(entry_name(version), content)

    def refreshed(self, delta: DeltaTable) -> None:
        """Needs no table."""


class DeltaRsLog:
    """Entries are made by delta-rs from our actions. The checksum is in the commit's own information."""

    is_prompt = False

    def __init__(self, folder: StorageFolder) -> None:
        self._folder = folder
        self._delta: DeltaTable | None = None

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        DeltaTable.create(
            self._folder.delta_uri, schema=DeltaSchema.from_arrow(schema), mode="error",
            configuration=dict(properties), storage_options=self._folder.delta_options,
        )  # fmt: skip

    def refreshed(self, delta: DeltaTable) -> None:
        self._delta = delta

    def put(self, version: int, actions: Sequence[LogAction], info: CommitInfo, at_us: int) -> None:  # noqa: ARG002
        delta = self._delta
        assert delta is not None, "the table is opened before its first commit"
        if delta.version() < version - 1:
            delta.update_incremental()
        if delta.version() != version - 1:
            raise FileExistsError(f"the version {version} exists")
        described = next((action["metaData"] for action in actions if "metaData" in action), None)
        if described is not None:
            # delta-rs writes the metadata, so a checksum of it cannot be known before.
            delta.alter.set_table_properties(
                described["configuration"], raise_if_not_exists=False,
                commit_properties=CommitProperties(dict(info), max_commit_retries=0),
                post_commithook_properties=_NO_HOOKS,
            )  # fmt: skip
            return
        checked = add_checksum(info, mark_actions(actions))
        transactions = [action["txn"] for action in actions if "txn" in action]
        delta.create_write_transaction(
            [made for action in actions for made in _converted(action)], "append", delta.schema(),
            # A retry would put the same files under the next version, whatever another program did to the table.
            commit_properties=CommitProperties(
                checked, max_commit_retries=0,
                app_transactions=[Transaction(txn["appId"], txn["version"]) for txn in transactions],
            ),
            post_commithook_properties=_NO_HOOKS,
        )  # fmt: skip


def _converted(action: LogAction) -> list[AddAction | RemoveAction]:
    if "add" in action:
        add = action["add"]
        return [
            AddAction(
                add["path"], add["size"], add["partitionValues"], add["modificationTime"], add["dataChange"],
                add["stats"],
            )
        ]  # fmt: skip
    if "remove" in action:
        remove = action["remove"]
        return [
            RemoveAction(
                remove["path"], remove["dataChange"], remove["deletionTimestamp"], remove["size"],
                remove["partitionValues"],
            )
        ]  # fmt: skip
    return []
