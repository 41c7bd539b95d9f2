"""WITH {…} of channels and datasets."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tocsin.cluster.channels.retention import ChannelOptions, channel_options
from tocsin.cluster.statements.options import dataset_options
from tocsin.language.syntax import script
from tocsin.language.syntax import statements as st
from tocsin.language.translate.expressions import TranslationError

NOW = datetime(2026, 11, 15, tzinfo=UTC)


def options(text: str) -> ChannelOptions:
    (found,) = script.statements(f"CREATE CONTINUOUS CHANNEL c() {{ 1 }} {text}")
    assert isinstance(found, st.CreateChannel)
    return channel_options(found, NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ChannelOptions()),
        ("WITH {}", ChannelOptions()),
        ('WITH {"retention": duration("P1DT1S")}', ChannelOptions(86_401.0)),
        ('WITH {"retention": "P1M"}', ChannelOptions(30 * 86_400.0)),
        ('WITH {"retention": "PT0.5S", "retention-bytes": 1000000000000}', ChannelOptions(0.5, 10**12)),
    ],
)
def test_retention_is_by_age_and_by_size(text: str, expected: ChannelOptions) -> None:
    assert options(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"retention": 5}', "retention: must be a duration"),
        ('{"retention": "five"}', "retention: expected an ISO 8601 duration"),
        ('{"retention": duration("five")}', "retention: expected an ISO 8601 duration"),
        ('{"retention": "PT0S"}', "retention: must be longer than nothing"),
        ('{"retention-bytes": 0}', "retention-bytes: must be a number of bytes"),
        ('{"retention-bytes": 1.5}', "retention-bytes: must be a number of bytes"),
        ('{"retention-bytes": true}', "retention-bytes: must be a number of bytes"),
        ('{"retention-bytes": x}', "the option retention-bytes must be a constant"),
        ('{"size": 1}', "unknown option size"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(TranslationError, match=said):
        options(f"WITH {text}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"history": 0}', "history: must be a number of commits from 1 to 1,000,000, got 0"),
        ('{"history": 2000000}', "history: must be a number of commits from 1 to 1,000,000, got 2000000"),
        ('{"retention": "P1"}', "retention: expected an ISO 8601 duration"),
        ('{"size": 1}', "unknown option size"),
    ],
)
def test_the_options_of_a_dataset_are_refused_by_name_too(text: str, said: str) -> None:
    (found,) = script.statements(f"CREATE DATASET D(T) PRIMARY KEY id WITH {text}")
    assert isinstance(found, st.CreateDataset)
    with pytest.raises(TranslationError, match=said):
        dataset_options(found, NOW, history=1_000)
