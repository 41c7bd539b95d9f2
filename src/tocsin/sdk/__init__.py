"""Speak to a Tocsin broker from Python. `Client` is for asyncio, `tocsin.sdk.sync.Client` for everything else."""

from tocsin.sdk.client import DEFAULT_URL, Client, Published, Webhook
from tocsin.sdk.door import NoBrokerError
from tocsin.sdk.events import Available, Ended, Gap, Notification, Told
from tocsin.wire.answers import Subscription
from tocsin.wire.cursors import START, Cursor
from tocsin.wire.signatures import verify

__all__ = [
    "DEFAULT_URL",
    "START",
    "Available",
    "Client",
    "Cursor",
    "Ended",
    "Gap",
    "NoBrokerError",
    "Notification",
    "Published",
    "Subscription",
    "Told",
    "Webhook",
    "verify",
]
