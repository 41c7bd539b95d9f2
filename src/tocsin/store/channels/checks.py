"""Limits of the channel store: every backend refuses the values that some backend cannot store.

Callers import the module as `check` and call `check.wanted(…)`.
"""

from __future__ import annotations

from typing import Final

from tocsin.store.channels.rows import BackendRequest, BrokerClaim, BrokerName
from tocsin.store.cluster.interface import DATAVERSE_LIMIT, NAME_LIMIT, check_text
from tocsin.wire.errors import InputError

SUBSCRIPTION_ID_LIMIT: Final = 200
PARAMETERS_LIMIT: Final = 100_000
STORE_ID_LIMIT: Final = 100


def broker(given: BrokerName) -> None:
    check_text("dataverse", given.dataverse, DATAVERSE_LIMIT)
    check_text("broker's name", given.name, NAME_LIMIT)


def claimant(given: BrokerClaim) -> None:
    check_text("store's id", given.store, STORE_ID_LIMIT)
    if not given.store:
        raise InputError("a store's id cannot be empty")


def wanted(given: BackendRequest) -> None:
    broker(given.broker)
    check_text("application's name", given.application, NAME_LIMIT)
    check_text("list of parameters", given.parameters, PARAMETERS_LIMIT)
    if given.id is not None:
        check_text("subscription's id", given.id, SUBSCRIPTION_ID_LIMIT)
        if not given.id:
            raise InputError("a subscription's id cannot be empty", hint="leave it out to get one")
