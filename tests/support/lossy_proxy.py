"""A TCP proxy in front of an S3 server that can lose the answers of chosen requests.

The server does what it was asked to do, and the client hears nothing of it: the connection ends.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PIECE_BYTES = 1 << 16


class LossyProxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lose = re.compile(rb"(?!)")
        self._times = 0
        self.lost: list[bytes] = []
        """The first lines of the requests whose answers were lost."""
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answers(self, pattern: str, times: int = 1) -> None:
        """Loses the next answers to requests whose first line matches."""
        self._lose, self._times = re.compile(pattern.encode()), times

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Carries one connection. A request begins with what the client sends after the server has answered."""
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._target_port)) as server:
            losing = threading.Event()

            def answers() -> None:
                with suppress(OSError):
                    while piece := server.recv(_PIECE_BYTES):
                        if losing.is_set():
                            break
                        client.sendall(piece)
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

            threading.Thread(target=answers, daemon=True).start()
            while piece := client.recv(_PIECE_BYTES):
                line = piece.partition(b"\r\n")[0]
                if self._times > 0 and self._lose.search(line):
                    self._times -= 1
                    self.lost.append(line)
                    losing.set()
                server.sendall(piece)


@contextmanager
def lossy_proxy(target_port: int) -> Iterator[LossyProxy]:
    proxy = LossyProxy(target_port)
    try:
        yield proxy
    finally:
        proxy.close()
