"""`tocsin subscriber`: lists the subscribers of a broker, and shows one with its subscriptions.

Operators look here first when a subscriber says that nothing arrives.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from cyclopts import App, Parameter

from tocsin.cli.options import BrokerUrl
from tocsin.cli.output import plain, print_table, safe

if TYPE_CHECKING:
    from tocsin.sdk.session import BrokerSession

app = App(
    name="subscriber",
    help_format="plaintext",
    help_epilogue="""An application's token shows its own subscribers, the operator's token
(broker.accounts.admin_token) those of every application. A broker that only
this machine reaches asks for none.

Examples:

    tocsin subscriber list
    tocsin subscriber list --application emergency
    tocsin subscriber show ann
    TOCSIN_BROKER_TOKEN=… tocsin subscriber list --broker https://broker.example
""",
)

_BrokerToken = Annotated[
    str | None,
    Parameter(
        env_var="TOCSIN_BROKER_TOKEN",
        help="The token of an application or of the operator. Other users can see arguments: set TOCSIN_BROKER_TOKEN.",
    ),
]
_Application = Annotated[
    str | None,
    Parameter(help="The application of the subscribers (default: the token's own; for the operator: default)."),
]
_AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object per line.")]


@app.command(name="list")
def list_subscribers(
    *, broker: BrokerUrl = None, token: _BrokerToken = None, application: _Application = None, as_json: _AsJson = False
) -> None:
    """List the subscribers."""

    async def work(session: BrokerSession) -> None:
        params = _params(application)
        while True:
            page = await session.call("GET", "/v1/subscribers", token=token, params=params)
            if as_json:
                for subscriber in page["subscribers"]:
                    _print(json.dumps(subscriber, ensure_ascii=False))
            else:
                rows = [(subscriber.get("created_at", ""), subscriber["user"]) for subscriber in page["subscribers"]]
                print_table(("REGISTERED", "USER"), rows, sys.stdout)
            if page["next"] is None:
                return
            params["after"] = page["next"]

    _with_session(broker, work)


@app.command
def show(
    user: Annotated[str, Parameter(help='The name of the subscriber, as "tocsin subscriber list" shows it.')],
    *,
    broker: BrokerUrl = None,
    token: _BrokerToken = None,
    application: _Application = None,
    as_json: _AsJson = False,
) -> None:
    """Show one subscriber and its subscriptions, with the cursors that it has acknowledged."""

    async def work(session: BrokerSession) -> None:
        path = f"/v1/subscribers/{quote(user, safe='')}"
        subscriber = await session.call("GET", path, token=token, params=_params(application))
        if as_json:
            _print(json.dumps(subscriber, ensure_ascii=False))
            return
        subscriptions = subscriber.pop("subscriptions", [])
        more = subscriber.pop("more", False)
        for name, value in subscriber.items():
            _print(f"{name.replace('_', ' '):<14}{plain(value)}")
        _print("")
        rows = []
        for subscription in subscriptions:
            values = json.dumps(subscription["parameters"], ensure_ascii=False)
            group = f" (group {subscription['group']})" if subscription.get("group") else ""
            channel = f"{subscription['channel']}{values}{group}"
            rows.append((subscription["id"], subscription["mode"], subscription.get("marker", ""), channel))
        print_table(("SUBSCRIPTION", "MODE", "ACKNOWLEDGED", "CHANNEL"), rows, sys.stdout)
        if more:
            _print("… and more")

    _with_session(broker, work)


def _params(application: str | None) -> dict[str, str]:
    return {} if application is None else {"application": application}


def _print(line: str) -> None:
    sys.stdout.write(f"{safe(line)}\n")


def _with_session(broker: str | None, work: Callable[[BrokerSession], Awaitable[None]]) -> None:
    from tocsin.sdk import DEFAULT_URL
    from tocsin.sdk.session import BrokerSession

    async def run() -> None:
        session = BrokerSession(broker or DEFAULT_URL, None)
        session.open()
        try:
            await work(session)
        finally:
            await session.close()

    asyncio.run(run())
