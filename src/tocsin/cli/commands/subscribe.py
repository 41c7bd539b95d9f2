"""`tocsin subscribe`: prints the results of a channel as they arrive."""

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
        Parameter(help="How results come: inline, or pulled after an event that says that there are some."),
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
        raise InputError("who subscribes?", hint="--user NAME, or TOCSIN_USER; --register makes a new user")
    if count is not None and count < 1:
        raise InputError(f"--count: must be above 0, got {count}")
    after = START if since == "all" else None if since is None else parse_cursor(since)
    client = Client(
        broker or DEFAULT_URL,
        user,
        password if password is not None else _asked(user),
        application=application,
        register=register,
        application_token=token,
        ack="manual",
    )
    printer = ResultPrinter(format, sys.stdout, sys.stderr)
    values = [value_of(each) for each in parameters]

    async def work(client: Client) -> int:
        made = await client.subscribe(channel, values, since=after, mode=mode)
        if made.since_applied is False:
            sys.stderr.write(
                f"{user} has this subscription already, since {cursor_text(made.since)}: what it has acknowledged does"
                " not come again (--drop ends it)\n"
            )
        try:
            return await follow(client, made, printer, count)
        finally:
            if drop:
                await client.unsubscribe(made)

    return asyncio.run(_until_interrupted(client, work))


def value_of(text: str) -> Any:
    """A parameter as it is typed: JSON where it is some, and else the text itself."""
    try:
        return json.loads(text, parse_constant=_not_json)
    except ValueError:
        return text


def _not_json(word: str) -> None:
    raise ValueError(word)


def _asked(user: str) -> str:
    if not sys.stdin.isatty():
        raise InputError(f"what is the password of {user}?", hint="TOCSIN_PASSWORD, or --password")
    from getpass import getpass

    return getpass(f"password of {user}: ")


async def _until_interrupted(client: Client, work: Any) -> int:
    """Runs it; Ctrl-C and SIGTERM end it as if it had come to its end, with everything printed acknowledged."""
    async with client:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, task.cancel)
        try:
            with suppress(asyncio.CancelledError):
                return int(await work(client))
            task.uncancel()
            return 0
        finally:
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(each)


async def follow(client: Client, made: Subscription, printer: ResultPrinter, count: int | None) -> int:
    """Print what comes for this subscription; what else its user holds waits for somebody else."""
    from tocsin.sdk import Available, Ended, Gap, Result

    printer.began(made)
    left = count
    async for told in client.results():
        if told.interest != made.interest:
            continue
        if isinstance(told, Ended):
            printer.ended(told.reason)
            return 1
        found: list[Result | Gap] = []
        if isinstance(told, Available):
            found += [each async for each in client.pull(made)]
        elif isinstance(told, Result | Gap):
            found.append(told)
        for each in found:
            printer.told(each)
            await client.ack(each)
            if left is not None and isinstance(each, Result):
                left -= 1
                if not left:
                    return 0
    return 0


class ResultPrinter:
    """Results on standard output, everything about them on standard error."""

    def __init__(self, form: Literal["text", "json"], out: TextIO, err: TextIO) -> None:
        self._json = form == "json"
        self._out = out
        self._err = err

    def began(self, made: Subscription) -> None:
        values = json.dumps(list(made.parameters), ensure_ascii=False)
        self._say(f"subscribed to {made.channel}{values} ({made.id}); Ctrl-C leaves")
        if made.recovered is False:
            self._say("some of what was wanted is gone already")

    def told(self, one: Result | Gap) -> None:
        from tocsin.sdk import Gap

        if isinstance(one, Gap):
            self._say(f"results up to {cursor_text(one.cursor)} that did not come are gone for good")
            if self._json:
                self._print(json.dumps({"channel": one.channel, "gap": cursor_text(one.cursor)}))
            return
        if self._json:
            self._print(json.dumps(one.to_json(), ensure_ascii=False))
            return
        at = one.executed_at.astimezone().strftime("%H:%M:%S")
        self._print(safe(f"{at}  {json.dumps(one.result, ensure_ascii=False)}"))

    def ended(self, reason: str) -> None:
        self._say(f"the subscription has ended: {reason}")

    def _print(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()

    def _say(self, line: str) -> None:
        self._err.write(f"{safe(line)}\n")
        self._err.flush()
