"""`tocsin subscribe`: prints the results of a channel as they arrive.

A result is acknowledged after it was printed, never before. A command that is killed may therefore print a result
again, and loses none.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

from cyclopts import App, Parameter

from tocsin.cli.options import BrokerUrl
from tocsin.cli.output import safe
from tocsin.wire.cursors import cursor_text, parse_cursor
from tocsin.wire.errors import InputError
from tocsin.wire.subscriber import DEFAULT_APPLICATION

if TYPE_CHECKING:
    from tocsin.sdk import Client, Gap, Result, Subscription

app = App(
    name="subscribe",
    help_format="plaintext",
    help_epilogue="""Ctrl-C stops the command. The subscription stays: the same command later begins
with what was missed. Printed results are acknowledged and do not come again. The
exit status is 1 if the subscription ended or was refused, 2 if no broker answers.

Examples:

    tocsin subscribe emergency.Alerts -41.29 174.78 --user ann --register
    tocsin subscribe emergency.ReportsNear '[33.6, -117.8]' --user ann
    tocsin subscribe emergency.Alerts -41.29 174.78 --user ann --since all
    tocsin subscribe emergency.Alerts 0 0 --user ann --format json --count 1
    TOCSIN_USER=ann TOCSIN_PASSWORD=… tocsin subscribe emergency.Alerts 0 0
""",
)


@app.default
def subscribe(
    channel: Annotated[str, Parameter(help="The channel: dataverse.channel, or a channel of the dataverse Default.")],
    *parameters: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="The values of the channel's parameters, as JSON; any other text is a string.",
        ),
    ],
    since: Annotated[
        str | None,
        Parameter(help="The cursor after which to begin; all begins with the oldest result (default: new results)."),
    ] = None,
    mode: Annotated[
        Literal["inline", "notify"],
        Parameter(help="How results arrive: inline in the event, or pulled after an event that announces them."),
    ] = "inline",
    format: Annotated[  # noqa: A002 - the flag is called so
        Literal["text", "json"],
        Parameter(help="The form of output: text, or one JSON object per line with cursor and time."),
    ] = "text",
    count: Annotated[int | None, Parameter(help="The number of results after which the command stops.")] = None,
    drop: Annotated[bool, Parameter(negative="", help="End the subscription when the command stops.")] = False,
    broker: BrokerUrl = None,
    user: Annotated[str | None, Parameter(env_var="TOCSIN_USER", help="The name of the subscriber.")] = None,
    password: Annotated[
        str | None,
        Parameter(
            env_var="TOCSIN_PASSWORD",
            help="The password. Other users can see arguments: set TOCSIN_PASSWORD, or type it.",
        ),
    ] = None,
    register: Annotated[bool, Parameter(negative="", help="Register the subscriber if it is unknown.")] = False,
    application: Annotated[str, Parameter(env_var="TOCSIN_APPLICATION", help="The application of the subscriber.")] = (
        DEFAULT_APPLICATION
    ),
    token: Annotated[str | None, Parameter(help="The token of the application, if --register needs one.")] = None,
) -> int:
    """Subscribe to a channel and print its results as they arrive."""
    from tocsin.sdk import DEFAULT_URL, START, Client

    if user is None:
        raise InputError(
            "--user is missing", hint="name the subscriber with --user or TOCSIN_USER; --register makes a new one"
        )
    if count is not None and count < 1:
        raise InputError(f"--count: must be above 0, got {count}")
    after = START if since == "all" else None if since is None else parse_cursor(since)
    client = Client(
        broker or DEFAULT_URL,
        user,
        password if password is not None else _ask_password(user),
        application=application,
        register=register,
        application_token=token,
        ack="manual",
    )
    printer = ResultPrinter(format, sys.stdout, sys.stderr)
    values = [value_of(parameter) for parameter in parameters]

    async def work(client: Client) -> int:
        subscription = await client.subscribe(channel, values, since=after, mode=mode)
        if subscription.since_applied is False:
            sys.stderr.write(
                f"{user} has this subscription since {cursor_text(subscription.since)}: acknowledged results do"
                " not come again (--drop ends the subscription)\n"
            )
        try:
            return await follow(client, subscription, printer, count)
        finally:
            if drop:
                await client.unsubscribe(subscription)

    return asyncio.run(_until_interrupted(client, work))


def value_of(text: str) -> Any:
    """Returns the value of a parameter as typed: parsed as JSON, or the text itself if it is not JSON."""
    try:
        return json.loads(text, parse_constant=_not_json)
    except ValueError:
        return text


def _not_json(word: str) -> None:
    raise ValueError(word)


def _ask_password(user: str) -> str:
    if not sys.stdin.isatty():
        raise InputError(f"the password of {user} is missing", hint="set TOCSIN_PASSWORD, or give --password")
    from getpass import getpass

    return getpass(f"password of {user}: ")


async def _until_interrupted(client: Client, work: Any) -> int:
    """Runs `work`. Ctrl-C and SIGTERM end it normally: every printed result is acknowledged."""
    async with client:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signal_number, task.cancel)
        try:
            with suppress(asyncio.CancelledError):
                return int(await work(client))
            task.uncancel()
            return 0
        finally:
            for signal_number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(signal_number)


async def follow(client: Client, subscription: Subscription, printer: ResultPrinter, count: int | None) -> int:
    """Prints the results of this subscription; events of the user's other subscriptions stay unacknowledged."""
    from tocsin.sdk import Available, Ended, Gap, Result

    printer.print_start(subscription)
    left = count
    async for event in client.results():
        if event.interest != subscription.interest:
            continue
        if isinstance(event, Ended):
            printer.print_end(event.reason)
            return 1
        events: list[Result | Gap] = []
        if isinstance(event, Available):
            events += [pulled async for pulled in client.pull(subscription)]
        elif isinstance(event, Result | Gap):
            events.append(event)
        for item in events:
            printer.print_event(item)
            await client.ack(item)
            if left is not None and isinstance(item, Result):
                left -= 1
                if not left:
                    return 0
    return 0


class ResultPrinter:
    """Prints results on standard output, and messages about the subscription on standard error."""

    def __init__(self, form: Literal["text", "json"], out: TextIO, err: TextIO) -> None:
        self._json = form == "json"
        self._out = out
        self._err = err

    def print_start(self, subscription: Subscription) -> None:
        values = json.dumps(list(subscription.parameters), ensure_ascii=False)
        self._say(f"subscribed to {subscription.channel}{values} ({subscription.id}); Ctrl-C stops")
        if subscription.recovered is False:
            self._say("some results after --since are no longer stored")

    def print_event(self, event: Result | Gap) -> None:
        from tocsin.sdk import Gap

        if isinstance(event, Gap):
            self._say(f"a gap: results up to {cursor_text(event.cursor)} that were not delivered are lost")
            if self._json:
                self._print(json.dumps({"channel": event.channel, "gap": cursor_text(event.cursor)}))
            return
        if self._json:
            self._print(json.dumps(event.to_json(), ensure_ascii=False))
            return
        at = event.executed_at.astimezone().strftime("%H:%M:%S")
        self._print(safe(f"{at}  {json.dumps(event.result, ensure_ascii=False)}"))

    def print_end(self, reason: str) -> None:
        self._say(f"the subscription has ended: {reason}")

    def _print(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()

    def _say(self, line: str) -> None:
        self._err.write(f"{safe(line)}\n")
        self._err.flush()
