"""`tocsin subscriber`: who is registered at a broker, and what they hold."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from tocsin.cli.output import safe

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

Broker = Annotated[str | None, Parameter(env_var="TOCSIN_BROKER_URL", help="Where the broker is.")]
Token = Annotated[
    str | None,
    Parameter(
        env_var="TOCSIN_BROKER_TOKEN", help="The application's or the operator's; better in TOCSIN_BROKER_TOKEN."
    ),
]
Application = Annotated[
    str | None, Parameter(help="Whose subscribers; without it the token's own, and default for the operator.")
]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="One object per line, for other programs.")]


@app.command(name="list")
def list_subscribers(
    *, broker: Broker = None, token: Token = None, application: Application = None, as_json: AsJson = False
) -> None:
    """List the subscribers."""

    async def work(door: BrokerSession) -> None:
        params = _params(application)
        if not as_json:
            _print(f"{'REGISTERED':<29}USER")
        while True:
            page = await door.call("GET", "/v1/subscribers", token=token, params=params)
            for one in page["subscribers"]:
                if as_json:
                    _print(json.dumps(one, ensure_ascii=False))
                else:
                    _print(f"{one.get('created_at', ''):<29}{one['user']}")
            if page["next"] is None:
                return
            params["after"] = page["next"]

    _with_door(broker, work)


@app.command
def show(
    user: Annotated[str, Parameter(help='As "tocsin subscriber list" shows it.')],
    *,
    broker: Broker = None,
    token: Token = None,
    application: Application = None,
    as_json: AsJson = False,
) -> None:
    """Show one subscriber and its subscriptions, with the cursors that it has acknowledged."""

    async def work(door: BrokerSession) -> None:
        path = f"/v1/subscribers/{quote(user, safe='')}"
        one = await door.call("GET", path, token=token, params=_params(application))
        if as_json:
            _print(json.dumps(one, ensure_ascii=False))
            return
        held = one.pop("subscriptions", [])
        more = one.pop("more", False)
        for name, value in one.items():
            _print(f"{name.replace('_', ' '):<14}{_plain(value)}")
        _print("")
        rows = [("SUBSCRIPTION", "MODE", "ACKNOWLEDGED", "CHANNEL")]
        for each in held:
            values = json.dumps(each["parameters"], ensure_ascii=False)
            group = f" (group {each['group']})" if each.get("group") else ""
            rows.append((each["id"], each["mode"], each.get("marker", ""), f"{each['channel']}{values}{group}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            _print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if more:
            _print("… and more")

    _with_door(broker, work)


def _params(application: str | None) -> dict[str, str]:
    return {} if application is None else {"application": application}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print(line: str) -> None:
    sys.stdout.write(f"{safe(line)}\n")


def _with_door(broker: str | None, work: Any) -> None:
    from tocsin.sdk import DEFAULT_URL
    from tocsin.sdk.session import BrokerSession

    async def run() -> None:
        door = BrokerSession(broker or DEFAULT_URL, None)
        door.open()
        try:
            await work(door)
        finally:
            await door.close()

    asyncio.run(run())
