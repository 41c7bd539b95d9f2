"""Who may import whom. The table below is the rule; the test reads every file's imports without running any."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tocsin"

ALL = frozenset({"*"})


@dataclass(frozen=True, slots=True)
class PackageRule:
    """`ours`: the packages it may import, itself included always. `others`: third-party packages, `*` for any."""

    ours: frozenset[str]
    others: frozenset[str] = ALL


def package_rule(ours: str = "", others: str = "*") -> PackageRule:
    return PackageRule(frozenset(ours.split()), frozenset(others.split()))


# A package is a folder or a file directly under src/tocsin. One that is not listed here fails.
PACKAGES: dict[str, PackageRule] = {
    # pure: the standard library, and numpy where arrays are the point
    "rules": package_rule("", others="numpy"),
    # what crosses a process boundary, light enough for every client
    "wire": package_rule("rules", others="orjson"),
    # rules has no dependencies, and the wire needs it anyway: clients back off and find records as servers do
    "sdk": package_rule("rules wire settings", others="aiohttp orjson"),
    "faults": package_rule("", others=""),
    "uncancellable": package_rule("", others=""),
    # the wall clock and the disk, for all that have either: stores, Spark, servers and the lab
    "clock": package_rule("", others=""),
    "durable_files": package_rule("", others=""),
    "settings": package_rule("rules wire", others="pydantic pydantic_core pydantic_settings"),
    # files at a URL: the only one that opens, lists, syncs or removes a file of a dataset
    "storage": package_rule("wire durable_files", others="pyarrow"),
    "language": package_rule("rules wire faults"),
    "store": package_rule("rules wire faults uncancellable clock durable_files"),
    "pipeline": package_rule("rules wire language faults clock durable_files storage"),
    "serving": package_rule("rules wire faults"),
    "cluster": package_rule(
        "rules wire language pipeline storage store serving settings faults uncancellable clock durable_files"
    ),
    # brokers and the cluster meet at the model and on the wire only
    "broker": package_rule("rules wire store serving settings faults uncancellable clock"),
    "coordinator": package_rule("rules wire store serving settings faults"),
    "overlay": package_rule("rules wire serving settings faults"),
    # the lab runs the cores; `SERVERS` keeps it from the rest of those processes, and it installs without Spark. Where
    # it plays to the live system, that is processes of their own, met over the wire
    "lab": package_rule(
        "rules wire sdk broker coordinator overlay settings faults durable_files",
        others="numpy pyarrow matplotlib psutil",
    ),
    # edges: they speak the wire protocol; the command line starts servers through `compose`, and experiments
    "cli": package_rule("rules wire sdk settings faults compose compose_broker lab"),
    "dashboard": package_rule("wire sdk settings"),
    # with compose_broker and broker/app.py, the only file that names concrete classes
    "compose": package_rule("*"),
    # and, so that brokers start without the engine, the one for them
    "compose_broker": package_rule("rules wire broker store serving settings faults"),
    "__init__": package_rule("", others=""),
}
# Standard modules with which a pure package would reach for I/O, a clock or another thread.
IMPURE = frozenset(
    "asyncio concurrent http logging multiprocessing os selectors shutil signal socket socketserver sqlite3 ssl "
    "subprocess tempfile threading time urllib".split()
)
PURE = ("rules",)
# Whoever only talks to Tocsin must not have to install the engine.
LIGHT = ("wire", "sdk")
ENGINE = frozenset({"pyspark", "pyarrow", "deltalake", "py4j"})
# The command line imports these inside functions only: `tocsin sql` must not load Spark or NumPy to ask a question.
LAZY = {"cli": frozenset({"compose", "compose_broker", "lab"})}
# The state machines inside servers: as pure as the rules, so that the lab can run them.
CORES = frozenset({"broker/core", "coordinator/core", "overlay/core"})
SERVERS = frozenset({"broker", "coordinator", "overlay"})


@dataclass(frozen=True, slots=True)
class Import:
    module: str
    line: int
    at_top: bool


def imports(source: str, package: str) -> Iterator[Import]:
    """Every module that the source imports, at run time or for types; relative ones made absolute."""
    tree = ast.parse(source)
    inside = {id(each) for node in ast.walk(tree) if isinstance(node, FUNCTIONS) for each in ast.walk(node)}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from tocsin import cluster` imports a package although it names the package.
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"importlib.import_module", "__import__"}:
            names = [str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        for name in names:
            yield Import(name, getattr(node, "lineno", 0), id(node) not in inside)


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def broken_rules(name: str, source: str, package: str) -> list[str]:
    """What a source file of the package `name` imports against the table."""
    rule = PACKAGES.get(name)
    if rule is None:
        return [f"{name} is not in the table of packages: say there what it may import"]
    found = []
    for import_ in imports(source, package):
        top, _, rest = import_.module.partition(".")
        why = ""
        if top == "tocsin":
            target = rest.partition(".")[0]
            allowed = rule.ours | {name}
            if target in PACKAGES and target not in allowed and "*" not in rule.ours:
                why = f"{name} may import of ours only: {' '.join(sorted(allowed))}"
            elif target in LAZY.get(name, ()) and import_.at_top:
                why = f"{name} imports {target} inside functions only"
            elif name == "lab" and target in SERVERS and not rest.startswith(f"{target}.core"):
                why = "the lab runs the cores, never the servers around them"
        elif top == "__future__":
            continue
        elif name in LIGHT and top in ENGINE:
            why = f"{name} must work without the engine"
        elif top in sys.stdlib_module_names:
            why = f"{name} is pure: no I/O, clock or threads" if name in PURE and top in IMPURE else ""
        elif top not in rule.others and "*" not in rule.others:
            why = f"{name} may import of others only: {' '.join(sorted(rule.others)) or 'nothing'}"
        if why:
            found.append(f"line {import_.line} imports {import_.module}: {why}")
    return found


def broken_core_rules(core: str, source: str) -> list[str]:
    """What a file of a core imports that it may not: of ours the rules, the wire and itself, of others nothing."""
    package = f"tocsin.{core.replace('/', '.')}"
    found = []
    for import_ in imports(source, package):
        top = import_.module.partition(".")[0]
        ours = import_.module.startswith(("tocsin.rules.", "tocsin.wire.", f"{package}."))
        pure = top == "__future__" or (top in sys.stdlib_module_names and top not in IMPURE)
        if not (ours or pure):
            found.append(
                f"line {import_.line} imports {import_.module}: a core imports rules, wire and itself, and does no I/O"
            )
    return found


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of_file(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def package_of(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE.parent).parent.parts)


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_imports_only_what_its_package_may(file: Path) -> None:
    assert broken_rules(package_of_file(file), file.read_text(), package_of(file)) == []


@pytest.mark.parametrize("core", sorted(CORES))
def test_a_core_imports_only_rules_and_wire(core: str) -> None:
    broken = {str(file): broken_core_rules(core, file.read_text()) for file in (SOURCE / core).rglob("*.py")}
    assert {file: found for file, found in broken.items() if found} == {}


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        (
            "from tocsin.rules.caching.caches import ResultCaches\nfrom tocsin.broker.core import events\nimport heapq",
            True,
        ),
        ("from tocsin.wire.errors import NotFoundError", True),
        ("from tocsin.broker.delivery import fanout", False),
        ("from tocsin.settings import BrokerSettings", False),
        ("import asyncio", False),
        ("import time", False),
        ("import aiohttp", False),
    ],
)
def test_the_rule_of_cores_tells_good_imports_from_bad(source: str, allowed: bool) -> None:
    assert (broken_core_rules("broker/core", source) == []) == allowed


def test_baselines_never_import_tocsin() -> None:
    baselines = sorted((ROOT / "benchmarks" / "baselines").rglob("*.py"))
    ours = [
        f"{file.relative_to(ROOT)}:{import_.line}"
        for file in baselines
        for import_ in imports(file.read_text(), "benchmarks.baselines")
        if import_.module.partition(".")[0] == "tocsin"
    ]
    assert ours == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("rules", "from tocsin.wire import errors"),
        ("rules", "from tocsin import wire"),
        ("rules", "from ..wire import errors"),
        ("rules", "import pydantic"),
        ("rules", "import time"),
        ("rules", "def now():\n    import asyncio"),
        ("rules", "if TYPE_CHECKING:\n    from tocsin.cluster import server"),
        ("rules", "import importlib\nimportlib.import_module('tocsin.store')"),
        ("rules", "import tocsin.faults"),
        ("wire", "import pyarrow.parquet"),
        ("sdk", "from deltalake import DeltaTable"),
        ("sdk", "from tocsin.cluster import server"),
        ("pipeline", "from tocsin.settings import Settings"),
        ("pipeline", "from tocsin.store import base"),
        ("cluster", "import tocsin.broker.core"),
        ("broker", "from tocsin.pipeline import session"),
        ("cli", "from tocsin.compose import start"),
        ("lab", "from tocsin.broker.delivery import fanout"),
        ("lab", "def run():\n    from pyspark.sql import SparkSession"),
        ("lab", "from deltalake import DeltaTable"),
        ("lab", "from tocsin.pipeline import session"),
        ("cli", "from tocsin.lab.experiments import registry"),
        ("attic", "import os"),
    ],
)
def test_a_forbidden_import_is_detected(name: str, source: str) -> None:
    assert broken_rules(name, source, f"tocsin.{name}") != []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("rules", "import numpy as np\nfrom dataclasses import dataclass\nfrom tocsin.rules.model import types"),
        ("rules", "from .model import types"),
        ("cli", "def up():\n    from tocsin.compose import start"),
        ("compose", "from tocsin.cluster import server\nfrom tocsin.store import sqlite"),
        ("pipeline", "import pyspark\nfrom tocsin.language import parse"),
        ("lab", "from tocsin.broker.core import Broker"),
        ("lab", "import numpy as np\nfrom pyarrow import parquet\nfrom tocsin.rules.caching import admission"),
        ("cli", "def run():\n    from tocsin.lab.experiments import registry"),
    ],
)
def test_an_allowed_import_passes(name: str, source: str) -> None:
    assert broken_rules(name, source, f"tocsin.{name}") == []


# Standard modules with which a module would reach for files.
FILE_MODULES = frozenset("glob io os pathlib shutil tempfile".split())
STORED = [SOURCE / "pipeline" / "datasets", SOURCE / "pipeline" / "views.py"]


def stored_files() -> list[Path]:
    return sorted(file for place in STORED for file in ([place] if place.is_file() else place.rglob("*.py")))


@pytest.mark.parametrize("file", stored_files(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_only_the_storage_touches_a_file_of_a_dataset(file: Path) -> None:
    source = file.read_text()
    modules = {import_.module.partition(".")[0] for import_ in imports(source, package_of(file))}
    assert modules.isdisjoint(FILE_MODULES)
    calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
    assert calls.isdisjoint({"open", "pa.OSFile", "pa.memory_map", "sync_file", "sync_folder"})
