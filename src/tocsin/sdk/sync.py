"""Blocking clients for programs without asyncio: every method blocks, every stream is a plain iterator.

    with BlockingClient("http://127.0.0.1:8480", "ann", "secret", register=True) as client:
        client.subscribe("emergency.Alerts", [-41.29, 174.78])
        for result in client.results():
            print(result)

No code is written twice: an event loop in a thread runs the asynchronous client, and its methods are available here
under the same names. Events keep arriving in the buffer while the program does something else.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, ClassVar, Self

from tocsin.sdk import client as asynchronous
from tocsin.sdk import manager
from tocsin.wire.errors import InputError


class _BlockingFacade:
    """Runs an asynchronous client in a thread of its own."""

    _kind: ClassVar[type[asynchronous.Client | manager.Manager]]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._loop: asyncio.AbstractEventLoop | None = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tocsin-sdk", daemon=True)
        self._thread.start()
        try:
            self._client = self._run(_construct(self._kind, arguments, named))
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> Self:
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the asynchronous client and ends the thread."""
        if self._loop is not None:
            try:
                self._run(self._client.close())
            finally:
                self._stop()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        attribute = getattr(self._client, name)
        return self._make_blocking(attribute) if inspect.ismethod(attribute) else attribute

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(self._client) if not name.startswith("_"))})

    def _make_blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call_method(*arguments: Any, **named: Any) -> Any:
            outcome = method(*arguments, **named)
            return self._run(outcome) if inspect.iscoroutine(outcome) else self._iterate(outcome)

        return call_method

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            coroutine.close()
            raise InputError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C reaches only the waiting thread, so cancel the work that it waited for.
            future.cancel()
            raise

    def _iterate(self, stream: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._run(_next(stream))
                except StopAsyncIteration:
                    return
        finally:
            if self._loop is not None and isinstance(stream, AsyncGenerator):
                self._run(stream.aclose())

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()


class BlockingClient(_BlockingFacade):
    """A blocking `tocsin.sdk.Client`, with the same arguments and methods."""

    _kind = asynchronous.Client


class BlockingManager(_BlockingFacade):
    """A blocking `tocsin.sdk.Manager`, with the same arguments and methods."""

    _kind = manager.Manager


async def _construct(kind: type[Any], arguments: Any, named: Any) -> Any:
    return kind(*arguments, **named)


async def _next(stream: AsyncIterator[Any]) -> Any:
    return await anext(stream)
