"""The documents keep up with the code: what the code has is told, and what is told is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from examples.emergency import data
from tests.support import doc_tables
from tests.support.doc_tables import complete_application
from tocsin.broker.accounts.policy import AT_ONCE, LIMITS, AccountPolicy
from tocsin.cli.commands import check
from tocsin.cluster.catalog import metadata
from tocsin.cluster.data_folder.inspection.inspection import CHECKED, NOT_CHECKED
from tocsin.lab.experiments import registry
from tocsin.language.functions import function_registry, geo_functions, spatial_functions, temporal_functions
from tocsin.language.functions.collections import array_aggregates, array_functions
from tocsin.language.syntax import parser, parser_datasets, script
from tocsin.language.syntax.statements import CreateFunction
from tocsin.rules.caching.admission import ADMISSION
from tocsin.rules.caching.eviction import EVICTION
from tocsin.rules.caching.expiry import EXPIRY
from tocsin.rules.caching.settings import CachingSettings
from tocsin.rules.model.types import PRIMITIVES
from tocsin.serving.metrics import ServerMetrics
from tocsin.settings import OTHER_VARIABLES
from tocsin.settings.broker import BrokerLimitSettings
from tocsin.store.broker.checks import PERSON_LIMIT
from tocsin.wire.errors import TocsinError
from tocsin.wire.subscriber import PASSWORD_LIMIT_BYTES

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])

_CODE = re.compile(r"`([^`\n]+)`")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def document(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def table_after(text: str, line: str) -> dict[str, list[str]]:
    """The rows of the first table under a heading or another line: its first cell's code → the other cells."""
    section = text.split(f"\n{line}\n", 1)[1].split("\n| ---", 1)[1]
    rows = [line.strip("|").split(" | ") for line in section.split("\n\n", 1)[0].splitlines()[1:]]
    return {cells[0].strip().strip("`"): [cell.strip() for cell in cells[1:]] for cells in rows}


def test_there_are_documents() -> None:
    assert {"README.md", "ARCHITECTURE.md", "language.md", "CHANGELOG.md"} <= {path.name for path in DOCUMENTS}


# ---------------------------------------------------------------- the language


def names_called(text: str) -> set[str]:
    """Every word in code that could be a function: before a bracket, or standing alone."""
    code = " ".join(_CODE.findall(text))
    return set(re.findall(r"\b([a-z][a-z0-9_]*)\b", code))


@pytest.mark.parametrize(
    "functions",
    [spatial_functions.FUNCTIONS, geo_functions.FUNCTIONS, temporal_functions.FUNCTIONS, function_registry.SPARK_NAMES],
    ids=["spatial", "geodesy", "temporal", "spark-names"],
)
def test_every_function_of_the_language_is_in_its_reference(functions: dict[str, Any]) -> None:
    missing = set(functions) - names_called(document("docs/language.md"))
    assert missing == set()


def test_every_function_of_collections_is_in_the_reference() -> None:
    told = names_called(document("docs/language.md"))
    assert {f"array_{name}" for name in array_aggregates.NAMES} | array_functions.NAMES <= told


def test_every_statement_is_in_the_reference() -> None:
    told = document("docs/language.md")
    for opener in parser.STATEMENTS:
        assert re.search(rf"^\| `{opener} ", told, re.MULTILINE), opener


def test_every_type_name_is_in_the_reference() -> None:
    told = names_called(document("docs/language.md"))
    assert {name for name in PRIMITIVES if " " not in name} <= told


def test_every_index_kind_is_in_the_reference() -> None:
    table = table_after(document("docs/language.md"), "## Indexes")
    assert {name.split("`")[0] for name in table} == set(parser_datasets.INDEX_KINDS)


def test_every_metadata_dataset_is_in_the_reference() -> None:
    told = document("docs/language.md")
    for name in metadata.DATASETS:
        assert f"`Metadata.{name}`" in told


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_statement_that_a_document_shows_can_be_parsed(path: Path) -> None:
    for shown in re.findall(r"^```sql\n(.*?)^```$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        assert list(script.statements(shown))


# ---------------------------------------------------------------- operations


@pytest.mark.parametrize("page", sorted({page for page, _ in doc_tables.TABLES}))
def test_generated_tables_are_those_of_the_code(page: str) -> None:
    """`./dev docs` writes them."""
    assert doc_tables.with_generated_tables(page, document(page)) == document(page)


def test_every_other_variable_is_told() -> None:
    told = document("docs/operations.md")
    assert all(f"`{name}`" in told for name in OTHER_VARIABLES)


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    metrics = ServerMetrics()
    complete_application(metrics)
    kept = {family.name: family for family in metrics.registry.collect() if family.name.startswith("tocsin_")}
    names = {f"{name}_total" if family.type == "counter" else name for name, family in kept.items()}
    assert set(table_after(document("docs/operations.md"), "## Metrics")) == names


# ---------------------------------------------------------------- accounts


def test_the_table_of_an_applications_limits_is_that_of_the_code() -> None:
    told = table_after(document("docs/accounts.md"), "### Limits")
    assert {name: cells[0] for name, cells in told.items()} == LIMITS
    assert {name: cells[1] for name, cells in told.items()} == {name: f"`broker.limits.{name}`" for name in LIMITS}
    of_settings = {name: getattr(BrokerLimitSettings(), name) for name in AccountPolicy().limits}
    assert of_settings == AccountPolicy().limits


def test_the_bounds_of_names_and_passwords_are_those_of_the_code() -> None:
    told = " ".join(document("docs/accounts.md").split())
    policy = AccountPolicy()
    assert f"up to {PERSON_LIMIT} printable characters" in told
    assert f"{policy.password_characters} characters at least and {PASSWORD_LIMIT_BYTES:,} bytes at most" in told
    assert f"{policy.cost.passes} passes over {policy.cost.memory_kib // 1024} MiB" in told
    assert f"{policy.waiting} may wait" in told
    assert f"After {policy.wrong_passwords} wrong passwords" in told
    assert policy.wrong_passwords_per_hour == 60
    assert f"up to {AT_ONCE:,} users" in told


# ---------------------------------------------------------------- caching policies


@pytest.mark.parametrize(
    ("kind", "table"),
    [("eviction", EVICTION), ("expiry", EXPIRY), ("admission", ADMISSION)],
    ids=["eviction", "expiry", "admission"],
)
def test_every_caching_policy_has_a_page_and_every_page_a_policy(kind: str, table: dict[str, Any]) -> None:
    pages = {path.stem for path in ROOT.glob(f"docs/policies/{kind}-*.md")}
    assert pages == {f"{kind}-{name}" for name in table}
    index = document("docs/policies/README.md")
    for name in table:
        text = document(f"docs/policies/{kind}-{name}.md")
        assert text.startswith(f"# {kind.capitalize()} `{name}")
        assert "**Use it**" in text
        assert f"[`{name}`]({kind}-{name}.md)" in index


def test_the_table_of_caching_settings_is_that_of_the_code() -> None:
    told = table_after(document("docs/policies/README.md"), "## Settings")
    assert {name: cells[0] for name, cells in told.items()} == {
        field.name: f"`{field.default}`" for field in fields(CachingSettings)
    }


# ---------------------------------------------------------------- the lab


def test_every_experiment_is_in_the_table_of_experiments_with_its_report() -> None:
    told = table_after(document("docs/lab.md"), "## The experiments")
    assert set(told) == set(registry.EXPERIMENTS)
    for name in told:
        report = " ".join(document(f"docs/lab/{name}.md").split())
        assert f"tocsin lab run {name} --seed" in report
        claims = registry.experiment(name).claims
        # A claim that was added or reworded makes the committed report old.
        assert [claim.says for claim in claims if f"- {claim.says} - where:" not in report] == []


def test_every_report_of_the_lab_names_the_code_that_made_its_numbers() -> None:
    reports = sorted((ROOT / "docs" / "lab").glob("*.md"))
    assert len(reports) > len(registry.EXPERIMENTS), "the live half has its own"
    named = re.compile(r"\bTocsin \d\S*, code [0-9a-f]{8}[;.] ")
    assert [path.name for path in reports if not named.search(" ".join(path.read_text("utf-8").split()))] == []


def test_every_line_of_a_report_fits_into_the_width_of_the_docs() -> None:
    lines = [line for path in (ROOT / "docs" / "lab").glob("*.md") for line in path.read_text("utf-8").splitlines()]
    assert max(map(len, lines)) <= 120


# ---------------------------------------------------------------- HTTP


def test_every_route_is_in_the_table_of_routes() -> None:
    told = document("docs/http.md")
    for route in complete_application(ServerMetrics()).router.routes():
        if route.method != "HEAD":
            assert f"| `{route.method}` | `{route.resource.canonical}` |" in told


def test_every_error_code_is_in_the_table_of_errors() -> None:
    def tree(top: type[TocsinError]) -> Iterator[type[TocsinError]]:
        for below in top.__subclasses__():
            if below.__module__ == TocsinError.__module__:
                yield below
                yield from tree(below)

    told = document("docs/http.md").split("## Errors")[1]
    for error in tree(TocsinError):
        assert re.search(rf"^\| [0-9, ]*\b{error.status}\b[0-9, ]* \| `{error.code}` \|", told, re.MULTILINE), error


# ---------------------------------------------------------------- all documents


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    prose = _FENCED.sub("", path.read_text("utf-8"))
    for target in _LINK.findall(prose):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), target
        assert not anchor or anchor in anchors(found.read_text("utf-8")), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_names_a_place_on_somebodys_machine(path: Path) -> None:
    own = re.compile(r"/(?:home|root|Users|work)/|\.\./\.\.|/tmp/")
    assert own.findall(path.read_text("utf-8")) == []


def test_the_architecture_is_one_page() -> None:
    assert len(document("docs/ARCHITECTURE.md").splitlines()) <= 80


def test_every_room_is_in_the_architecture() -> None:
    told = document("docs/ARCHITECTURE.md")
    rooms = [path for path in (ROOT / "src" / "tocsin").iterdir() if (path / "__init__.py").exists()]
    assert rooms
    assert [room.name for room in rooms if f"{room.name}/" not in told] == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "journey.md", "glossary.md"])
def test_files_that_the_map_names_are_there(page: str) -> None:
    files = re.findall(r"`((?:\w+/)+\w+\.py)`", document(f"docs/{page}"))
    assert files
    roots = (ROOT, ROOT / "src" / "tocsin")
    assert [file for file in files if not any((root / file).exists() for root in roots)] == []


def test_a_result_passes_through_few_files() -> None:
    walk = document("docs/journey.md").partition("## One result")[2].partition("\n## ")[0]
    assert 0 < len(set(re.findall(r"`((?:\w+/)+\w+\.py)`", walk))) < 37


def test_classes_of_the_glossary_are_there() -> None:
    pattern = re.compile(r"^class (\w+)|^(\w+) = NewType\(", re.MULTILINE)
    texts = [path.read_text("utf-8") for path in (ROOT / "src" / "tocsin").rglob("*.py")]
    classes = {name for text in texts for names in pattern.findall(text) for name in names} | {"Event"}
    named = {
        name
        for line in document("docs/glossary.md").splitlines()
        if line.count("|") > 3
        for name in re.findall(r"`([A-Z]\w+)(?:\.\w+)?`", line.split("|")[3])
    }
    assert named
    assert sorted(named - classes) == []


# ---------------------------------------------------------------- the example


def test_the_shelters_in_the_file_are_those_of_the_generator() -> None:
    assert document("examples/emergency/shelters.json") == data.shelters_json(data.default_shelters())


def test_the_example_says_how_far_each_of_its_functions_looks_back() -> None:
    told = table_after(document("examples/emergency/README.md"), "## Functions")
    made = [
        statement
        for statement in script.statements(document("examples/emergency/schema.sql"))
        if isinstance(statement, CreateFunction)
    ]
    looks_back = {
        f"{function.name}({', '.join(function.parameters)})": set(re.findall(r'duration\("PT(\d+)S"\)', function.body))
        for function in made
    }
    assert {name: {cells[0].removesuffix(" s")} for name, cells in told.items()} == looks_back
    assert len(made) == 7


def test_all_in_the_data_folder_is_checked_or_said_not_to_be() -> None:
    tree = document("docs/datasets.md").split("    tocsin-data/\n", 1)[1].split("\n\n", 1)[0]
    named = set(re.findall(r"^ {6}([^\s/]+)", tree, re.MULTILINE))
    assert named == CHECKED | NOT_CHECKED.keys()
    told = " ".join(str(check.app.help_epilogue).split())
    for name, why in NOT_CHECKED.items():
        assert name in (unchecked := told.split("Not checked:")[1].split(". ")[0])
        assert why in unchecked
        assert f"`{name}" in document("docs/datasets.md").split("`tocsin check`")[1].split("\n\n")[0]


def test_the_same_seed_makes_the_same_world() -> None:
    now = datetime(2026, 11, 15, tzinfo=UTC)

    def world() -> list[Any]:
        rng = Random(7)
        return [*data.reports(rng, 20, until=now), *data.locations(rng, 45, at=now), *data.shelters(rng, 120)]

    made = world()
    assert made == world()
    assert len({record.name for record in made if isinstance(record, data.Shelter)}) == 120
    assert len({record.user_name for record in made if isinstance(record, data.UserLocation)}) == 45


def test_who_walks_arrives_and_does_not_walk_further() -> None:
    here, goal = data.WELLINGTON, data.near(Random(7), data.WELLINGTON, 5_000)
    way_m = data.distance_m(here, goal)
    half = data.towards(here, goal, way_m / 2)
    assert abs(data.distance_m(here, half) - way_m / 2) < 5
    assert abs(data.distance_m(half, goal) - way_m / 2) < 5
    assert data.towards(here, goal, way_m + 100) == goal
    assert data.towards(goal, goal, 100) == goal


def test_distances_of_the_example_are_those_on_the_ground() -> None:
    wellington, auckland = data.Place(-41.2866, 174.7756), data.Place(-36.8485, 174.7633)
    assert 492_000 < data.distance_m(wellington, auckland) < 495_000
    assert data.distance_m(wellington, wellington) == 0
