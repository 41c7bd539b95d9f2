"""The dataverse of one test on a real cluster in this process; its channels are executed when the test says."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any

from tests.support.feeds_in_process import FeedDataverse
from tocsin.cluster.channels.executions.running_channel import RunningChannel
from tocsin.rules.model.values import datetime_text


class ChannelDataverse(FeedDataverse):
    """A dataverse whose channels run when the test executes them; it returns what each subscription received."""

    def channel(self, name: str) -> RunningChannel:
        (found,) = (
            item for item in self.cluster.cluster.channels.list_running()
            if (item.entry.dataverse, item.entry.name) == (self.dataverse, name)
        )  # fmt: skip
        return found

    def execute(self, name: str, tick: datetime | None = None) -> None:
        """Once, at this instant, whatever the channel does by itself."""
        self.cluster.wait(self.channel(name).execute(tick))

    def subscribe(self, call: str, broker: str = "B") -> str:
        (made,) = self.run(f"SUBSCRIBE TO {call} ON {broker}")
        return str(made["subscription"])

    def told(self, name: str, tick: datetime | None = None) -> dict[str, list[Any]]:
        """What each subscription got, of this instant's execution or of all, in no order."""
        found = defaultdict(list)
        for row in self.rows(f"SELECT VALUE r FROM {name}Results r"):
            if tick is None or row["channelExecutionTime"] == datetime_text(tick):
                found[row["subscriptionId"]].append(row["result"])
        return dict(found)
