"""The Python SDK for Tocsin brokers: `Client` for subscribers and `Manager` for those that manage them. Both use
asyncio; `tocsin.sdk.sync` has blocking versions.

The package imports nothing of a server, so that an application needs neither Spark nor a server's dependencies.
"""

from tocsin.sdk.client import DEFAULT_URL, Client
from tocsin.sdk.events import Available, Ended, Event, Gap, Result
from tocsin.sdk.manager import Manager
from tocsin.sdk.session import NoBrokerError
from tocsin.wire.accounts import Application, Group, GroupSubscription, PublishAnswer, Subscriber, Webhook
from tocsin.wire.answers import Subscription
from tocsin.wire.cursors import START, Cursor
from tocsin.wire.signatures import verify

__all__ = [
    "DEFAULT_URL",
    "START",
    "Application",
    "Available",
    "Client",
    "Cursor",
    "Ended",
    "Event",
    "Gap",
    "Group",
    "GroupSubscription",
    "Manager",
    "NoBrokerError",
    "PublishAnswer",
    "Result",
    "Subscriber",
    "Subscription",
    "Webhook",
    "verify",
]
