"""Signatures of messages in the form of Standard Webhooks (v1: HMAC-SHA256 over `id.timestamp.body`).

A receiver checks the signature, that the timestamp is recent, and that the id is new. The message then comes from a
sender with the secret, and is not a replay.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from tocsin.wire.errors import InputError, UnauthorizedError

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
_TOLERANCE_S: Final = 300.0

_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = range(24, 65)


def secret_text(secret: bytes) -> str:
    """The text form of a secret."""
    return _PREFIX + base64.b64encode(secret).decode()


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if len(key) not in _SECRET_BYTES:
        raise InputError("this is not a webhook's secret", hint="it begins with whsec_, and base64 follows")
    return key


def sign(secret: str, message_id: str, sent_at_s: int, body: bytes) -> dict[str, str]:
    """The headers of a signed message."""
    return {ID: message_id, TIMESTAMP: str(sent_at_s), SIGNATURE: f"v1,{_digest(secret, message_id, sent_at_s, body)}"}


def _digest(secret: str, message_id: str, sent_at_s: int, body: bytes) -> str:
    text = f"{message_id}.{sent_at_s}.".encode() + body
    return base64.b64encode(hmac.digest(_key(secret), text, hashlib.sha256)).decode()


def check_headers(
    headers: Mapping[str, str], *, now_s: float, tolerance_s: float = _TOLERANCE_S
) -> tuple[str, int, str]:
    """The id, the time and the signatures of a message; raises UnauthorizedError if they are missing or too old.

    It needs no body, so that a refused body need not be read. `headers` has names in lower case.
    """
    message_id, stamp, signatures = headers.get(ID), headers.get(TIMESTAMP), headers.get(SIGNATURE)
    if (
        not message_id
        or not signatures
        or stamp is None
        or not (stamp.isascii() and stamp.isdecimal())
        or len(stamp) > 15
    ):
        raise UnauthorizedError(f"the message is not signed: it needs {ID}, {TIMESTAMP} and {SIGNATURE}")
    if abs(now_s - int(stamp)) > tolerance_s:
        raise UnauthorizedError(f"the message is not of now: it was sent at {stamp}")
    return message_id, int(stamp), signatures


def verify(
    secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float, tolerance_s: float = _TOLERANCE_S
) -> str:
    """The id of a message; raises UnauthorizedError if the signature does not match the secret, or is too old.

    `headers` has names in lower case. Only the receiver can know whether it has seen the id before.
    """
    message_id, sent_at_s, signatures = check_headers(headers, now_s=now_s, tolerance_s=tolerance_s)
    expected = _digest(secret, message_id, sent_at_s, body).encode()
    for signature in signatures.split(" "):
        version, _, digest = signature.partition(",")
        if version == "v1" and hmac.compare_digest(digest.encode("utf-8", "surrogatepass"), expected):
            return message_id
    raise UnauthorizedError("the message's signature is not that of the secret")
