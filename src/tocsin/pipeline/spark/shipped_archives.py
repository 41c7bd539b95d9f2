"""Packs what Python workers on other machines import: our own modules, and the folder of users' modules.

An archive is named by its content: the same files give the same name, and changed files give a new one, so that no
worker ever imports a mixture.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import tocsin
from tocsin.wire.errors import LimitError

SIZE_LIMIT_BYTES: Final = 64 << 20
"""The most that a folder of users' modules may hold: every executor fetches all of it."""
_PACKAGE: Final = "tocsin"
# What workers are asked to run. Users' functions get and return values of the model.
ROOTS: Final = ("tocsin.pipeline.python.worker", "tocsin.pipeline.spark.worker_report", "tocsin.rules.model.values")
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the earliest that a ZIP archive can hold


def pack(files: Mapping[str, bytes], folder: Path, kind: str) -> Path:
    """Writes an archive of the files and returns its path; an archive of the same content is not written again."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{len(name.encode())} {len(content)} {name}".encode() + content)
    path = folder / f"{kind}-{digest.hexdigest()[:32]}.zip"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.draft")
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(files.items()):
                archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
        draft.replace(path)
    return path


# ------------------------------------------------------------ our own modules


def worker_modules(roots: Sequence[str] = ROOTS) -> dict[str, Path]:
    """Returns our modules that the roots import, directly or not: names in the archive, and their files."""
    base = Path(tocsin.__file__).parents[1]
    waiting, found = list(roots), {}
    while waiting:
        module = waiting.pop()
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            file = _file_of(base.joinpath(*parts[:count]))
            if file is None:
                break  # the last part is a name within a module
            name = str(file.relative_to(base))
            if name not in found:
                found[name] = file
                waiting += [name for name in imported_modules(file) if name.partition(".")[0] == _PACKAGE]
    return dict(sorted(found.items()))


def foreign_packages() -> set[str]:
    """The packages of others that these modules import: what workers must have installed."""
    tops = {name.partition(".")[0] for file in worker_modules().values() for name in imported_modules(file)}
    return tops - set(sys.stdlib_module_names) - {_PACKAGE, "pyspark"}  # Spark's workers bring PySpark


def pack_worker_modules(folder: Path) -> Path:
    return pack({name: file.read_bytes() for name, file in worker_modules().items()}, folder, "tocsin-package")


def imported_modules(file: Path) -> Iterator[str]:
    """Yields what a module imports at run time; for `from a import b` that is `a.b`, which may be no module."""
    for node in _run_nodes(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _run_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _run_nodes(child)


def _file_of(path: Path) -> Path | None:
    package, module = path / "__init__.py", path.with_name(f"{path.name}.py")
    return next((file for file in (package, module) if file.is_file()), None)


# ------------------------------------------------------------ users' modules


def users_files(folder: Path) -> list[Path]:
    """The files of the folder in their order, without hidden ones and compiled ones."""
    found = []
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        found += [Path(where, name) for name in sorted(files) if not name.startswith(".")]
    return found


def pack_users_files(folder: Path, destination: Path) -> Path:
    """Raises LimitError if the folder is too large to be sent to every executor."""
    files: dict[str, bytes] = {}
    size_bytes = 0
    for file in users_files(folder):
        try:
            content = file.read_bytes()
        except OSError:
            continue  # removed since it was listed, or not readable: the import says what is missing
        size_bytes += len(content)
        if size_bytes > SIZE_LIMIT_BYTES:
            raise LimitError(
                f"the files in {folder} exceed the {SIZE_LIMIT_BYTES >> 20} MiB that Spark's workers are sent",
                hint="keep only the modules of functions there, and install large packages on the workers",
            )
        files[file.relative_to(folder).as_posix()] = content
    return pack(files, destination, "tocsin-functions")
