"""The building blocks of settings: sections that refuse unknown keys, and validators for kinds of values."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from tocsin.wire.addresses import parse_endpoint


def number(value: object) -> object:
    # Python counts booleans as numbers, but `port = true` is a mistake.
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def folder(value: object) -> object:
    if isinstance(value, str) and (not value.strip() or "\0" in value):
        raise ValueError("must name a folder")
    # Shells expand `~` and files do not; nobody wants a folder that is really called `~`.
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


def networks(text: str) -> str:
    for part in text.split():
        try:
            ipaddress.ip_network(part, strict=False)
        except ValueError:
            raise ValueError(
                "must be addresses or networks with spaces between them, such as 127.0.0.1 10.0.0.0/8"
            ) from None
    return text


def private(text: str) -> str:
    if text not in ("auto", "allowed", "refused"):
        try:
            networks(" ".join(part for part in text.split() if parse_endpoint(part) is None) if text else "-")
        except ValueError:
            raise ValueError("must be auto, allowed, refused, or networks such as 10.0.0.0/8 or 10.0.0.5:80") from None
    return text


Networks = Annotated[str, AfterValidator(networks)]
Private = Annotated[str, AfterValidator(private)]
Whole = Annotated[int, BeforeValidator(number)]
Seconds = Annotated[float, BeforeValidator(number), Field(gt=0, le=86_400)]
Folder = Annotated[Path, BeforeValidator(folder)]
Memory = Annotated[str, Field(pattern=r"^[1-9]\d*[kmgtKMGT]$")]


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, hide_input_in_errors=True
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
