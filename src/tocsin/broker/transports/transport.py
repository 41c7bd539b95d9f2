"""What a transport is: a way for events to reach subscribers. To add one, read this file and imitate a neighbour.

A transport speaks to BrokerService and to nothing behind it. It serves a subscriber in these steps:

1. A client comes to one of its `routes` and is identified: `who = await subscriber_of(service, request)`.
2. The connection is counted, and ends with its token: `with service.connection(who, close)`.
3. An outlet is opened: `service.attach(who.subscriber, outlet)`, and at the end `service.detach(outlet)`. From now on
   everything that is not acknowledged goes out on it, then what comes, in order. Outlets are in delivery/outlets.py: a
   ConnectionOutlet writes to a socket, a PlainOutlet hands events to a function.
4. While an outlet is full, it is given nothing. When it has room again, call `service.resume_outlet(outlet)`: the
   results that it missed follow.
5. Acknowledgements go to `service.acknowledge`. What is not acknowledged comes again to the next outlet.

The table of transports is in broker/app.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from aiohttp import web

from tocsin.broker.service import BrokerService


class Transport(ABC):
    """One way for events to reach subscribers."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    @abstractmethod
    def routes(self) -> list[web.RouteDef]:
        """The HTTP routes at which clients reach this transport or set it up."""

    async def start(self) -> None:  # noqa: B027 - most transports begin when a client comes
        """The broker starts. Outlets that need no client, such as webhooks, are opened now."""

    async def stop(self) -> None:  # noqa: B027 - connections of clients are closed by the service
        """The broker stops, after all connections of clients are closed."""

    async def forget(self, subscribers: Sequence[int]) -> None:  # noqa: B027 - few keep something
        """These subscribers were removed, with all that they had in the store."""
