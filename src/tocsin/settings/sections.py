"""The building blocks of settings: sections that refuse unknown keys, and validators for kinds of values.

A misspelt key must not be silently ignored: the server would run with a default that nobody chose.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from tocsin.wire.addresses import parse_endpoint


def number(value: object) -> object:
    # Python counts booleans as numbers, but `port = true` is a mistake.
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _folder(value: object) -> object:
    if isinstance(value, str) and (not value.strip() or "\0" in value):
        raise ValueError("must name a folder")
    # Shells expand `~` and files do not; a folder that is really called `~` is a mistake.
    if str(value).startswith("~"):
        raise ValueError("must be written out, ~ is not expanded here")
    return value


def dotted_path(value: object) -> object:
    # In TOML an unquoted `spark.sql.x = "1"` is three nested tables; the user means one name with dots.
    if not isinstance(value, Mapping):
        return value
    flat: dict[str, object] = {}
    for key, inner in value.items():
        nested = dotted_path(inner)
        flat |= {f"{key}.{k}": v for k, v in nested.items()} if isinstance(nested, dict) else {str(key): nested}
    return flat


def _networks(text: str) -> str:
    for part in text.split():
        try:
            ipaddress.ip_network(part, strict=False)
        except ValueError:
            raise ValueError(
                "must be addresses or networks with spaces between them, such as 127.0.0.1 10.0.0.0/8"
            ) from None
    return text


def _private(text: str) -> str:
    if text not in ("auto", "allowed", "refused"):
        try:
            _networks(" ".join(part for part in text.split() if parse_endpoint(part) is None) if text else "-")
        except ValueError:
            raise ValueError("must be auto, allowed, refused, or networks such as 10.0.0.0/8 or 10.0.0.5:80") from None
    return text


_STORAGE_OPTIONS: Final = (
    "endpoint", "region", "access_key_id", "secret_access_key", "session_token", "allow_http", "path_style",
)  # fmt: skip


def storage_url(text: str) -> str:
    scheme, separator, rest = text.partition(":")
    if not separator or "/" in scheme:
        if text:
            _folder(text)
        return text
    if scheme == "file":
        if not rest.startswith("/") or (rest.startswith("//") and not rest.startswith("///")):
            raise ValueError("must name a folder of this machine, such as file:///srv/tocsin")
        return text
    if scheme != "s3":
        raise ValueError(f"must be a folder or s3://BUCKET/PREFIX; {scheme}: is not supported")
    bucket, _, prefix = rest.removeprefix("//").partition("/")
    if "@" in bucket or ":" in bucket:
        raise ValueError("must not contain keys; they belong into cluster.storage.options")
    if not rest.startswith("//") or not bucket or set(text) & set("?#%\\ ") or ".." in prefix.split("/"):
        raise ValueError("must be s3://BUCKET/PREFIX")
    return text


def storage_options(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    for key in value:
        if key not in _STORAGE_OPTIONS:
            raise ValueError(f"has an unknown key {str(key)!r}; it can have {', '.join(_STORAGE_OPTIONS)}")
    texts = {key: str(inner).lower() if isinstance(inner, bool) else inner for key, inner in value.items()}
    for key in ("allow_http", "path_style"):
        if texts.get(key, "true") not in ("true", "false"):
            raise ValueError(f"{key} must be true or false")
    endpoint = texts.get("endpoint", "https://")
    if not isinstance(endpoint, str) or not endpoint.startswith(("http://", "https://")):
        raise ValueError("endpoint must begin with http:// or https://")
    if endpoint.startswith("http://") and texts.get("allow_http") != "true":
        raise ValueError("endpoint is not encrypted; use https://, or set allow_http to true")
    if ("access_key_id" in texts) != ("secret_access_key" in texts):
        raise ValueError("must have both access_key_id and secret_access_key, or neither")
    return texts


_NetworkList = Annotated[str, AfterValidator(_networks)]
Private = Annotated[str, AfterValidator(_private)]
Whole = Annotated[int, BeforeValidator(number)]
Seconds = Annotated[float, BeforeValidator(number), Field(gt=0, le=86_400)]
Folder = Annotated[Path, BeforeValidator(_folder)]
Port = Annotated[Whole, Field(ge=0, le=65_535, description="The port to listen on; 0 takes a free one.")]
BodyLimit = Annotated[Whole, Field(ge=1_024, le=1 << 34)]
_CONNECTIONS = "The most connections. Beyond it, a new one replaces one that is idle or whose request is incomplete."
ConnectionsLimit = Annotated[Whole, Field(ge=1, le=1_000_000, description=_CONNECTIONS)]
Memory = Annotated[str, Field(pattern=r"^[1-9]\d*[kmgtKMGT]$")]


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class HttpSection(Section):
    """The settings of every HTTP server; each server adds its defaults and settings of its own."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address to listen on."""
    port: Port
    body_limit_bytes: BodyLimit
    connections_limit: ConnectionsLimit
    address_connections_limit: Annotated[Whole, Field(ge=0, le=1_000_000)] = 0
    """The most connections of one address. 0: a quarter of all, at most 2000; those of this machine do not count."""
    read_timeout_s: Seconds = 30.0
    """How long a client may take to send its request."""
    trusted_proxies: _NetworkList = ""
    """Proxies whose X-Forwarded-For header is believed: addresses or networks, separated by spaces."""

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def local(self) -> bool:
        """Whether only programs of this machine can reach the server: no known proxy forwards requests of others."""
        return self.loopback and not self.trusted_proxies.strip()
