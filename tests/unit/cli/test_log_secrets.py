"""Whatever is sent to a server, its log at its most talkative holds no secret."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import aiohttp
import orjson
import pytest

from tests.support.real_processes import environment
from tests.unit.cluster.http.http_requests import raw
from tocsin.cli.logs import without_secrets

ADMIN = "operators-own-s3cret"
CLUSTER = f"tocsin_{'c' * 43}"
PASSWORD = "correct horse battery"


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("GET /v1/events?access_token=abc.def&x=1 HTTP/1.1", "GET /v1/events?access_token=…&x=1 HTTP/1.1"),
        ("b'GET /v1/events?a=1&access_token=abc HTTP/9.9'", "b'GET /v1/events?a=1&access_token=… HTTP/9.9'"),
        ("{'Authorization': 'Bearer some.thing-else_1='}", "{'Authorization': 'Bearer …'}"),
        (f"the token {CLUSTER} is", "the token tocsin_… is"),
        ("session eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sIg-nature", "session eyJ…"),
        ("secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "secret whsec_…"),
        ("tocsin_cluster_announcements_failed_total", "tocsin_cluster_announcements_failed_total"),
    ],
)
def test_what_looks_like_a_secret_is_not_written(said: str, written: str) -> None:
    assert without_secrets(said) == written


async def test_no_secret_is_in_the_log_of_a_broker_that_tells_everything(tmp_path: Path) -> None:
    variables = {"TOCSIN_BROKER__ACCOUNTS__ADMIN_TOKEN": ADMIN, "TOCSIN_BROKER__CLUSTER__TOKEN": CLUSTER}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tocsin.cli.main", "broker", "--data", str(tmp_path / "data"), "--port", "0",
        "--cluster", "http://127.0.0.1:1", "--verbose",
        env=environment(**variables), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().split()[5]
        operator = {"Authorization": f"Bearer {ADMIN}"}
        ann = {"user": "ann", "password": PASSWORD}
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}/v1/register", json=ann, headers=operator) as answer:
                assert answer.status == 201
            async with session.post(f"{url}/v1/login", json=ann) as answer:
                token = (await answer.json())["token"]
            for shown in (token, ADMIN, CLUSTER):
                async with session.get(f"{url}/v1/events", params={"access_token": shown}) as answer:
                    assert answer.status in (200, 401, 403)
                async with session.get(f"{url}/v1/policies", headers={"Authorization": f"Bearer {shown}"}) as answer:
                    assert answer.status in (200, 401, 403)
            webhook = {"url": f"http://127.0.0.1:1/{ADMIN}?key={ADMIN}"}
            async with session.put(
                f"{url}/v1/webhook", json=webhook, headers={"Authorization": f"Bearer {token}"}
            ) as answer:
                secret = (await answer.json())["secret"]
            async with session.ws_connect(f"{url}/v1/stream") as socket:
                await socket.send_str(orjson.dumps({"ref": 1, "login": {"token": f"{token}x"}}).decode())
                await socket.receive()
        # What is no HTTP is told with its text.
        for shown in (token, ADMIN, CLUSTER):
            await raw(url, f"GET /v1/events?access_token={shown} HTTP/9.9\r\n\r\n".encode())
            await raw(url, f"GET /v1/events HTTP/1.1\r\nAuthorization: Bearer {shown}\r\nno colon\r\n\r\n".encode())
    finally:
        process.send_signal(signal.SIGTERM)
        _, told = await process.communicate()
    log = told.decode()
    assert "an HTTP request was answered" in log
    assert "not HTTP" in log
    for hidden in (token, ADMIN, CLUSTER, PASSWORD, secret, token.rpartition(".")[2]):
        assert hidden not in log
