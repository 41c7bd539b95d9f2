"""The tree shows the design: one meaning for the name of a type, nouns for modules, folders that fit on a screen."""

from __future__ import annotations

import ast
import builtins
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tocsin

SOURCE: Final = Path(tocsin.__file__).parent
TESTS: Final = Path(__file__).parents[1]
HELPERS: Final = sorted((TESTS / "support").rglob("[!_]*.py"))
EXAMPLES_AND_BENCHMARKS: Final = (TESTS.parent / "examples", TESTS.parent / "benchmarks")
MODULES: Final = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")

FOLDER_LIMIT: Final = 15
NOUNS_IN_ING: Final = frozenset({"caching", "balancing", "matching", "landing", "serving"})
"""The packages that are called so; no other module or folder is named by what somebody does."""
IRREGULAR_PARTICIPLES: Final = frozenset(
    "begun bound found given gone held kept known made met ran said seen sent shown taken told".split()
)
OTHER_NOUNS: Final = frozenset("ceiling feed mapping nothing seed setting speed string substring".split())
VERB_PACKAGES: Final = ("cli", "lab", "language", "rules", "sdk", "wire")
"""The packages whose public functions are not named by a participle or a gerund; other packages can join."""

INHERITANCE_LIMIT: Final = 2
FAMILIES: Final = {
    "Message": "what goes over the wire: one dataclass for each message",
    "Section": "a table of the settings: one Pydantic model for each",
}
"""Bases that do not count for the limit, with the reason. Interfaces and exceptions do not count either."""
LANGUAGE_FAMILIES: Final = {
    "Statement": "one dataclass for each kind of statement",
    "TypedSql": "a value that a variable names has more fields than a value",
    "Primitive": "a type that no declaration can name is a type all the same",
}
"""The only bases of ours in the language: records. A part of the translator is an object that another one has."""


def is_verb_form(word: str) -> bool:
    """Whether a module's last word is a gerund or a participle."""
    if word in NOUNS_IN_ING:
        return False
    is_regular = len(word) > 4 and word.endswith(("ing", "ed")) and word not in OTHER_NOUNS
    return is_regular or word in IRREGULAR_PARTICIPLES


def functions_named_by_verb_forms(module: ast.Module) -> Iterator[str]:
    """Yields public functions and methods whose first or only word is a participle or a gerund: `made`, `sent_bytes`.

    A property is named by what it is, so it may have one: `requested_bytes`. So may a predicate: `is_made`.
    """
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_property = any(ast.unparse(mark).endswith("property") for mark in node.decorator_list)
            if not is_property and is_verb_form(node.name.partition("_")[0]):
                yield node.name


def test_public_functions_are_named_by_verbs() -> None:
    found = {
        str(path.relative_to(SOURCE)): list(functions_named_by_verb_forms(ast.parse(path.read_text("utf-8"))))
        for package in VERB_PACKAGES
        for path in sorted((SOURCE / package).rglob("*.py"))
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_a_function_named_by_a_participle_is_found() -> None:
    module = ast.parse(
        "def made(): ...\ndef make(): ...\ndef _kept(): ...\ndef is_made(): ...\ndef feed_parser(): ...\n"
        "class A:\n async def asked_for(self): ...\n @property\n def requested_bytes(self): ..."
    )
    assert list(functions_named_by_verb_forms(module)) == ["made", "asked_for"]


def test_modules_and_folders_are_named_by_nouns() -> None:
    names = {part for path in MODULES for part in path.relative_to(SOURCE).with_suffix("").parts}
    assert sorted(name for name in names if is_verb_form(name.rpartition("_")[2])) == []


def type_names(module: ast.Module) -> Iterator[str]:
    """Yields the names of classes, and of aliases and type variables that other modules may use."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from (name for name in names if name[0].isupper() and (len(name) == 1 or not name.isupper()))


def test_the_name_of_a_type_is_defined_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for name in type_names(ast.parse(path.read_text("utf-8"))):
            places[name].append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_names_of_types_are_told_from_constants() -> None:
    module = ast.parse("class A: ...\nT = TypeVar('T')\nKind: TypeAlias = str\nLIMIT = 1\n_Own = int\nlog = make()")
    assert list(type_names(module)) == ["A", "T", "Kind"]


def test_the_name_of_a_helper_of_the_tests_is_defined_once_and_says_what_it_is() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in HELPERS:
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.name)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
    assert sorted(places.keys() & {"Model", "Place", "Story", "World"}) == []


def vague_loops(module: ast.Module) -> Iterator[int]:
    """Yields the lines of loops whose variable is called `one` instead of what it is."""
    for node in ast.walk(module):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            names = [part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)]
            if "one" in names:
                yield node.target.lineno


def test_a_loop_variable_names_the_thing() -> None:
    paths = [path for folder in (SOURCE, TESTS, *EXAMPLES_AND_BENCHMARKS) for path in folder.rglob("*.py")]
    found = {str(path): list(vague_loops(ast.parse(path.read_text("utf-8")))) for path in paths}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert list(vague_loops(ast.parse("for one in x: ...\n[a for a, one in y]\n[b for b in z]"))) == [1, 2]


def test_a_folder_fits_on_a_screen() -> None:
    sizes = Counter(str(path.parent.relative_to(SOURCE)) for path in MODULES)
    assert {folder: size for folder, size in sizes.items() if size > FOLDER_LIMIT} == {}


def test_the_rule_of_names_tells_nouns_from_verb_forms() -> None:
    assert [word for word in ("meeting", "sparing", "declared", "kept", "ran") if not is_verb_form(word)] == []
    assert [word for word in ("caching", "landing", "settings", "string", "feed", "fanout") if is_verb_form(word)] == []


def test_every_suggestion_of_a_name_follows_one_rule() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if "import difflib" in path.read_text("utf-8")]
    assert [str(path.relative_to(SOURCE)) for path in paths] == ["rules/did_you_mean.py"]


@dataclass(frozen=True)
class ClassBases:
    """A class of ours: its bases by their last names, those of ours apart from those of others."""

    module: str
    ours: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def is_interface(self) -> bool:
        """Whether it is a protocol or an abstract class that continues nothing: it says what, and not how."""
        return not self.ours and not {"ABC", "Protocol"}.isdisjoint(self.others)


def class_bases(module: str, source: str) -> Iterator[tuple[str, ClassBases]]:
    """Yields the names of all classes in a module, with their bases."""
    tree = ast.parse(source)
    own_names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("tocsin."):
            own_names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            own_names |= {alias.asname for alias in node.names if alias.asname and alias.name.startswith("tocsin.")}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            # Only what is before the brackets of a generic base counts: `Base[T]`.
            bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
            ours = tuple(base.rpartition(".")[2] for base in bases if base.partition(".")[0] in own_names)
            others = tuple(base.rpartition(".")[2] for base in bases if base.partition(".")[0] not in own_names)
            yield node.name, ClassBases(module, ours, others)


def is_exception(name: str, classes: Mapping[str, ClassBases]) -> bool:
    bases = classes[name]
    return any(issubclass(getattr(builtins, base, object), BaseException) for base in bases.others) or any(
        is_exception(base, classes) for base in bases.ours if base in classes
    )


def inheritance_depth(name: str, classes: Mapping[str, ClassBases]) -> int:
    """How many classes with code of ours a reader has to know in order to know this one, itself included."""
    if name in FAMILIES or classes[name].is_interface or is_exception(name, classes):
        return 0
    return 1 + max((inheritance_depth(base, classes) for base in classes[name].ours if base in classes), default=0)


def find_towers(classes: Mapping[str, ClassBases]) -> list[str]:
    return sorted(name for name in classes if inheritance_depth(name, classes) > INHERITANCE_LIMIT)


def all_classes() -> dict[str, ClassBases]:
    return {
        name: bases
        for path in SOURCE.rglob("*.py")
        for name, bases in class_bases(str(path.relative_to(SOURCE)), path.read_text("utf-8"))
    }


def test_no_class_is_a_tower_of_bases() -> None:
    assert find_towers(all_classes()) == []


def test_the_language_is_composed_and_not_inherited() -> None:
    classes = all_classes()
    found = {
        name: bases.ours
        for name, bases in classes.items()
        if bases.module.startswith("language/")
        and any(base not in LANGUAGE_FAMILIES and not classes[base].is_interface for base in bases.ours)
    }
    assert found == {}


def test_every_exception_from_the_rule_of_inheritance_is_needed() -> None:
    used = {base for bases in all_classes().values() for base in bases.ours}
    assert FAMILIES.keys() | LANGUAGE_FAMILIES.keys() <= used


def test_a_class_that_is_split_into_bases_is_found() -> None:
    tower = "from abc import ABC\nfrom tocsin.wire import errors as e\n" + "".join(
        f"class {name}({base}): ...\n"
        for name, base in (
            ("Paths", "ABC"), ("Calls", "Paths, ABC"), ("Operators", "Calls"), ("Queries", "Operators"),
            ("Error", "Exception"), ("InputError", "Error"), ("Missing", "InputError"), ("PastError", "e.Missing"),
            ("Message", "Generic[T]"), ("Group", "Message"), ("GroupPage", "Group"), ("Queue", "queue.Queue"),
        )
    )  # fmt: skip
    classes = dict(class_bases("x.py", tower))
    assert find_towers(classes) == ["Queries"]
    assert classes["PastError"].ours == ("Missing",)
    assert (classes["Queue"].ours, classes["Queue"].others) == ((), ("Queue",))
