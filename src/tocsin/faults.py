"""Crash points: named places where a test can kill the process, to try a crash between any two steps.

`TOCSIN_CRASH_AT=name` kills the process (SIGKILL, as a power cut would) the first time it reaches the place, `name:3`
the third time. If the variable is not set, a crash point costs one comparison.
"""

from __future__ import annotations

import os
import signal
from typing import Final

# All crash points, in the order in which data pass them. A test visits each.
POINTS: Final[dict[str, str]] = {
    "store.upgrade.before": "the steps of an upgrade have run, their transaction has not committed",
    "store.commit.before": "all of a store transaction is written, nothing is committed",
    "store.commit.after": "a store transaction is durable, no answer is sent",
    "intake.segment.written": "a feed's next log file is written and synced, under its temporary name only",
    "intake.segment.rolled": "a feed's next log file has its name, the folder is not synced",
    "intake.append.written": "records of a feed are written to its log, not synced",
    "intake.append.synced": "records of a feed are durable, no answer is sent",
    "intake.append.cut": "the rest of an unfinished write at the end of a feed's log is cut off, not synced",
    "intake.trim.removed": "one file of a feed's log that nothing needs is removed, others are not",
    "polling.seen.written": "the seen items of a polled feed are written and synced, under a temporary name only",
    "polling.seen.renamed": "the seen items of a polled feed have their file name, the folder is not synced",
    "files.batch.named": "Spark has recorded which files are next, the record is not synced",
    "files.batch.synced": "which files are next is durable, nothing of them is read",
    "files.batch.landed": "the files of a batch are in their datasets, Spark has not recorded that they are done",
    "function.applied": "a feed's function was applied to a batch, nothing is written",
    "landing.before": "a batch of a feed is ready for its dataset, nothing is written",
    "landing.committed": "a batch of a feed is in its dataset with its position, no answer is sent",
    "feeds.start.ready": "a feed is ready to take records, the catalog still says that it is stopped",
    "feeds.start.recorded": "the catalog says that a feed is started, it takes nothing yet",
    "feeds.connect.recorded": "the catalog knows a started feed's new dataset, nothing lands there yet",
    "feeds.disconnect.landed": "all of a feed is in the dataset that it leaves, the catalog still names that one",
    "feeds.disconnect.recorded": "the catalog has forgotten a feed's dataset, the feed could still land there",
    "feeds.stop.landed": "all of a feed has landed, the catalog still says that it is started",
    "feeds.stop.recorded": "the catalog says that a feed is stopped, it has not ended",
    "feeds.drop.recorded": "the catalog has forgotten a feed, its log and its rejected records are still there",
    "create-dataset.intended": "the catalog knows that a new dataset's folder may be removed, there is none yet",
    "create-dataset.folder-made": "a new dataset's table is on the disk, the catalog does not know it",
    "drop-dataset.catalog-done": "the catalog has forgotten a dataset, its files are still there",
    "removal.carried-out": "the removal that an intent names is done, the intent is still recorded",
    "lost.set-aside": "a folder that is not in the catalog is set aside, nobody was told",
    "recovery.set-aside": "a torn log entry is set aside, the folders are not synced",
    "dataset.create.written": "a dataset's first log entry is written, not synced",
    "dataset.load.rows": "some rows of a bulk load have passed, the stream goes on",
    "dataset.data.written": "data files are written and synced, no log entry names them",
    "dataset.commit.before": "all of a commit is ready, its log entry is not written",
    "dataset.commit.written": "a commit's log entry is written, not synced",
    "dataset.commit.synced": "a commit is durable, no answer is sent",
    "dataset.compact.before": "a compacted file is written, the log still names the old ones",
    "dataset.compact.written": "a compaction's log entry is written, not synced",
    "dataset.compact.synced": "a compaction is durable, the old files are still there",
    "dataset.retention.before": "the rows that stay are written, the log still names the old file",
    "dataset.retention.written": "the log entry that ends old rows is written, not synced",
    "dataset.retention.synced": "old rows have ended, their files are still there",
    "dataset.checkpoint.written": "a checkpoint of the log is written, not synced",
    "dataset.cleanup.data-removed": "one data file that nothing needs is removed, others are not",
    "dataset.cleanup.log-removed": "one log file that nothing needs is removed, others are not",
    "channel-store.execution.written": "an execution's results and its channel's vector are written, not committed",
    "channel-store.execution.committed": "an execution is durable, no answer is sent",
    "channel-store.subscriptions.written": "subscriptions are created or ended, nothing is committed",
    "channel-store.subscriptions.committed": "subscriptions were created or ended durably, no answer is sent",
    "channel-store.retention.step": "some old results are removed, others are not",
    "channel-store.deletion.written": "results are deleted by a statement, nothing is committed",
    "channel-store.deletion.committed": "results were deleted durably by a statement, no answer is sent",
    "channel-store.drop.step": "some rows of a dropped channel are removed, others are not",
    "broker-store.written": "a group commit of a broker's store is written, not committed",
    "broker-store.committed": "a group commit of a broker's store is durable, no answer is sent",
    "broker.registered": "a broker's secret is stored, the catalog does not know the broker",
    "announcer.sent": "a broker has accepted an announcement, its position is not stored",
    "delivery.announcement.handled": "a broker delivers the results of an announcement, its position is not stored",
    "delivery.announcement.recorded": "a broker's position and its interests' heads are stored, no answer is sent",
    "delivery.subscription.stored": "a broker has stored a subscription, nothing is delivered, no answer is sent",
    "delivery.acks.stored": "acknowledgements of subscribers are stored, no answer is sent",
    "backup.copied": "a backup is whole and checked, under its temporary name only",
    "restore.verified": "a restored data folder is whole and checked, under its temporary name only",
    "create-channel.numbered": "a channel has a number, it has no position yet",
    "create-channel.intended": "the catalog knows that a new channel's rows may be removed, there are none yet",
    "create-channel.stored": "a channel has a number and a first position, the catalog does not know it",
    "create-channel.recorded": "the catalog knows a channel, it does not run yet",
    "drop-channel.recorded": "the catalog has forgotten a channel, it still runs",
    "drop-channel.stopped": "the catalog has forgotten a channel, its rows are still there",
    "drop-channel.emptied": "the rows of a dropped channel are removed, the intent is still recorded",
    "channel.ahead.renewed": "a new epoch has begun, channels are still ahead of their datasets",
    "channel.execution.begun": "an execution knows its commits and interests, no results are found",
    "channel.execution.found": "an execution has found its results, nothing is stored",
    "channel.execution.committed": "an execution is durable, its channel has not continued",
}

_wanted, _, _count = os.environ.get("TOCSIN_CRASH_AT", "").partition(":")
_left = int(_count or 1)


def reach(point: str) -> None:
    """Kills the process if a test asked for a crash at this point."""
    global _left
    if _wanted and point == _wanted:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
    elif _wanted and point not in POINTS:
        raise KeyError(f"{point} is not listed in faults.POINTS")
