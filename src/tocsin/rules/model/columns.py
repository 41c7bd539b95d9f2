"""How a record's fields become columns: shared by what stores records and by what queries them."""

from __future__ import annotations

import re
from typing import Final

from tocsin.rules.model.types import ObjectType

OPEN: Final = "_open"  # what the declared columns cannot hold: undeclared fields, and NULLs that are not MISSING
COMMIT: Final = "_commit"  # the number of the commit that wrote the row
AT: Final = "_at"  # when that commit was made

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def physical(name: str) -> str:
    """A field's column: its own name where every engine can read it, an encoded one elsewhere.

    Names that begin with an underscore are encoded, so no field ever clashes with a column of ours.
    """
    return name if _PLAIN.fullmatch(name) else "_x" + name.encode().hex()


def keeps_open(kind: ObjectType) -> bool:
    """Whether objects of this type need the column OPEN (a struct without any field needs it to exist at all)."""
    return kind.open or not kind.fields or any(field.optional for field in kind.fields)
