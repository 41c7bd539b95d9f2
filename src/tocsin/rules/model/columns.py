"""Maps the fields of a record to columns, for the code that stores records and the code that queries them.

`language` and `pipeline` must agree on every name, and `language` uses no disk; so the mapping is a rule that both
import.
"""

from __future__ import annotations

import re
from typing import Final

from tocsin.rules.model.types import ObjectType

OPEN: Final = "_open"  # what the declared columns cannot hold: undeclared fields, and NULLs that differ from MISSING
COMMIT: Final = "_commit"  # the number of the commit that wrote the row
AT: Final = "_at"  # the time of that commit

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def physical(name: str) -> str:
    """The column of a field: the field's name if every engine can read it, otherwise an encoded name.

    Names that begin with an underscore are encoded, so that no field clashes with a column of ours.
    """
    return name if _PLAIN.fullmatch(name) else "_x" + name.encode().hex()


def keeps_open(kind: ObjectType) -> bool:
    """Whether objects of this type need the column OPEN. A struct without fields needs it to exist at all."""
    return kind.open or not kind.fields or any(field.optional for field in kind.fields)
