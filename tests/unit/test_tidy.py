"""The tree shows the design: one meaning for the name of a type, nouns for modules, folders that fit on a screen."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import tocsin

SOURCE: Final = Path(tocsin.__file__).parent
MODULES: Final = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")

FOLDER_LIMIT: Final = 15
NOUNS_IN_ING: Final = frozenset({"caching", "balancing", "matching", "landing", "serving"})
"""The packages that are called so; no other module or folder is named by what somebody does."""
IRREGULAR_PARTICIPLES: Final = frozenset(
    "begun bound found given gone held kept known made met ran said seen sent shown taken told".split()
)


def is_verb_form(word: str) -> bool:
    """Whether a module's last word is a gerund or a participle."""
    if word in NOUNS_IN_ING:
        return False
    is_regular = len(word) > 4 and word.endswith(("ing", "ed")) and word not in {"string", "feed", "seed"}
    return is_regular or word in IRREGULAR_PARTICIPLES


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


def test_a_folder_fits_on_a_screen() -> None:
    sizes = Counter(str(path.parent.relative_to(SOURCE)) for path in MODULES)
    assert {folder: size for folder, size in sizes.items() if size > FOLDER_LIMIT} == {}


def test_the_rule_of_names_tells_nouns_from_verb_forms() -> None:
    assert [word for word in ("meeting", "sparing", "declared", "kept", "ran") if not is_verb_form(word)] == []
    assert [word for word in ("caching", "landing", "settings", "string", "feed", "fanout") if is_verb_form(word)] == []


def test_every_suggestion_of_a_name_follows_one_rule() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if "import difflib" in path.read_text("utf-8")]
    assert [str(path.relative_to(SOURCE)) for path in paths] == ["rules/did_you_mean.py"]
