"""Channels about texts: what hostile texts and keywords cost, and what no statement may call."""

from __future__ import annotations

from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.support.channel_compiler import (
    NOW,
    PREVIOUS,
    REPORTS,
    FakeDatasets,
    Version,
    answers,
    compiled,
    planned,
    shown,
)
from tests.support.channel_worlds import report
from tocsin.language.channels.compiler import CalledFunction, Scan
from tocsin.language.functions import text_search
from tocsin.language.translate.expressions import TranslationError
from tocsin.language.types.typed_sql import FunctionError
from tocsin.pipeline.channels import run_query
from tocsin.pipeline.channels.interests import InterestTable

CONTAINS = "select value r.id from Reports r where contains(r.note, k) and is_new(r)"


def world(*notes: str) -> FakeDatasets:
    rng = Random(1)
    return FakeDatasets({REPORTS.name: [Version(report(rng, i) | {"note": note}, 2) for i, note in enumerate(notes)]})


def test_a_long_text_is_not_copied_for_each_of_the_thousands_of_keywords_that_it_has(spark: SparkSession) -> None:
    """With a copy of the text for each keyword, the rows would take several gigabytes, more than Spark has here."""
    words = [f"word{i:05}x" for i in range(3_000)]
    text = " ".join(words) * 20
    query = compiled(spark, ["k"], CONTAINS)
    with shown(spark, world(text, text + "!", "short")) as made:
        found = answers(spark, query, made, [(word,) for word in words])
    assert all(sorted(ids) == ["0", "1"] for ids in found)


def test_subscriptions_for_very_common_words_cost_their_matches_only(spark: SparkSession) -> None:
    """Each pair of an interest and a text is joined once, however often the text has the word."""
    query = compiled(spark, ["k"], CONTAINS)
    wanted = ["the", "e", "", "the the", *(f"the {i}" for i in range(1_000))]
    with shown(spark, world("the the the", "of the sea", "")) as made:
        found = answers(spark, query, made, [(word,) for word in wanted])
    assert found[:4] == [["0", "1"], ["0", "1"], ["0", "1", "2"], ["0"]]
    assert found[4:] == [[]] * 1_000


def test_all_get_all_where_no_parameter_occurs_and_a_result_leaves_spark_once(spark: SparkSession) -> None:
    query = compiled(spark, ["k"], "select value r.note from Reports r where is_new(r)")
    planned(spark, query)
    interests = InterestTable(spark, query)
    interests.change(((i, (i,)) for i in range(50)), ())
    with shown(spark, world("a", "b", "c")) as made:

        def view_of(scan: Scan | CalledFunction) -> str:
            assert isinstance(scan, Scan)
            return made.tokens[scan.dataset.name, scan.new]

        moment = run_query.ExecutionMoment(NOW, PREVIOUS, {watched.since: 1 for watched in query.watched})
        matches = run_query.query_matches(spark, query, interests, view_of, moment)
        results = run_query.encode_results(matches, query, ())
    interests.close()
    assert len(results) == 150
    assert sorted(results.texts) == [b'"a"', b'"b"', b'"c"']
    assert matches.num_rows - matches.column("payload").null_count == 3


@pytest.mark.parametrize("name", sorted(text_search.NAMES))
def test_no_statement_calls_the_functions_of_keys(spark: SparkSession, name: str) -> None:
    with pytest.raises(TranslationError, match="cannot be called here"):
        compiled(spark, ["k"], f"select value r.id from Reports r where r.kind = k and {name}(r.note, r.kind)")


@pytest.mark.parametrize(
    "call",
    [
        'ftcontains(r.note, k, {"mode": "some"})',
        'ftcontains(r.note, k, {"config": "x"})',
        'ftcontains(r.note, k, {"mode": r.kind})',
        "ftcontains(r.note, k, r)",
        "ftcontains(r.note)",
        'ftcontains(r.note, k, {"mode": "any"}, 1)',
    ],
)
def test_ftcontains_takes_a_mode_that_is_known_before(spark: SparkSession, call: str) -> None:
    with pytest.raises((TranslationError, FunctionError), match="ftcontains takes a text, words"):
        compiled(spark, ["k"], f"select value r.id from Reports r where is_new(r) and {call}")
