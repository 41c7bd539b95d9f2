"""One test's dataverse with channels in it, executed when the test says."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any

from tests.support.feeds_in_process import Place
from tocsin.cluster.channels.executions.running_channel import RunningChannel
from tocsin.rules.model.values import datetime_text


class ChannelPlace(Place):
    """One test's dataverse: channels run when they are told to, and say what each subscription was told."""

    def channel(self, name: str) -> RunningChannel:
        (found,) = (
            one for one in self.cluster.cluster.channels.running()
            if (one.entry.dataverse, one.entry.name) == (self.dataverse, name)
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
