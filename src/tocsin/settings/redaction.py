"""Recognizes secrets among free settings, such as the entries for Spark, by the words of their keys and the form of
their values.

Rather hide a harmless value than show a secret: these are more words than Spark redacts (spark.redaction.regex).
"""

from __future__ import annotations

import re
from typing import Final

_WORDS: Final = (
    r"(?:key|secret|pass|pwd|pw(?![a-z])|token|credential|auth|bearer|basic|jwt|cookie|login|private|signature"
    r"|(?<![a-z])(?:sig|sas)(?![a-z]))"
)
_SECRET_KEY: Final = re.compile(_WORDS, re.IGNORECASE)
# A secret inside a value: a header, a parameter of an address (its signs may be escaped), a property of Java, a field
# of JSON.
_SECRET_PARAMETER: Final = re.compile(
    rf"({_WORDS}(?:[^\s=:&%]|%(?!20|3[ad]))*(?:[\s=:]|%20|%3[ad])+)\S.*", re.IGNORECASE | re.DOTALL
)
# An address without a scheme can have user information, too. The last @ ends it: a password may contain others.
_USER_INFO: Final = re.compile(r"^([\[({'\"]*(?:[\w+.-]+://)?).*@", re.DOTALL)
# Secrets that are recognized without a word: JSON web tokens, and the tokens of AWS, GitHub, GitLab, Slack and Tocsin.
_TOKEN: Final = re.compile(r"\b(?:eyJ|AKIA|ASIA|gh[oprsu]_|github_pat_|glpat-|xox[a-z]-|tocsin_)[\w.+/=-]{16,}")


def names_secret(key: str) -> bool:
    """Whether the key of a setting says that its value is a secret."""
    return _SECRET_KEY.search(key) is not None


def mask_secrets(text: str) -> str:
    """Returns the text without tokens, without user information, and without what follows the name of a secret."""
    return _TOKEN.sub("…", _SECRET_PARAMETER.sub(r"\1…", _USER_INFO.sub(r"\1…@", text)))
