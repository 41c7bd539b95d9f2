"""Finds a function by its name in a worker: imports its module, again if its files have changed.

A worker process outlives a query, and its modules would stay as they were when it first imported them. When a file has
changed, all modules of the folder are forgotten together, because they may import each other.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tocsin.pipeline.python.protocol import CallError, Code
from tocsin.pipeline.python.sandbox import FunctionTimeoutError, describe_error, limit_time
from tocsin.rules.did_you_mean import did_you_mean

PythonCallable = Callable[..., Any]

_imports: dict[str, Code] = {}  # per folder as people call it, the code that was imported last
_found: dict[tuple[str, str], PythonCallable] = {}


def function(code: Code) -> PythonCallable:
    """Returns the function. The CallError says why it cannot be used."""
    shown_folder = code.shown_folder or code.folder
    last = _imports.get(shown_folder)
    if last is None or (last.version, last.folder) != (code.version, code.folder):
        _forget(code.folder if last is None else last.folder)
        _imports[shown_folder] = code
    key = code.folder, code.target
    if key not in _found:
        _found[key] = _look_up(code)
    return _found[key]


def check(code: Code, arity: int) -> None:
    """Raises CallError unless the function exists and takes this many arguments."""
    callable_ = function(code)
    if inspect.iscoroutinefunction(callable_) or inspect.isasyncgenfunction(callable_):
        raise CallError(f"{code.target} is async", "give a plain function", usable=False)
    try:
        inspect.signature(callable_).bind(*[None] * arity)
    except TypeError as error:
        count = "1 argument" if arity == 1 else f"{arity} arguments"
        raise CallError(f"{code.target} cannot be called with {count}: {error}", usable=False) from None
    except ValueError:
        pass  # some functions written in C have no signature


def _forget(folder: str) -> None:
    """Forgets the modules of the folder, so that their next import reads the present files."""
    # Collect all names before removing any: a namespace package needs its parent to compute its path.
    names = [name for name, module in list(sys.modules.items()) if _is_inside(module, folder)]
    for name in names:
        del sys.modules[name]
    # The next version may be in another folder, whose modules have the same names.
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    for key in [target for target in _found if target[0] == folder]:
        del _found[key]
    importlib.invalidate_caches()


def _is_inside(module: Any, folder: str) -> bool:
    return any(Path(place).is_relative_to(folder) for place in _places(module))


def _places(module: Any) -> list[str]:
    file = getattr(module, "__file__", None)
    return [file] if isinstance(file, str) else [str(entry) for entry in getattr(module, "__path__", None) or ()]


def _look_up(code: Code) -> PythonCallable:
    name, _, attribute = code.target.partition(":")
    module = _imported(name, code)
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            where = _places(module)
            functions = (name_ for name_ in dir(target) if callable(getattr(target, name_)))
            hint = did_you_mean(part, functions) or (f"it was read from {_shown(where[0], code)}" if where else None)
            raise CallError(f"the Python module {name} has no function {attribute}", hint, usable=False)
        target = getattr(target, part)
    if not callable(target):
        raise CallError(f"{code.target} is no function, but of type {type(target).__name__}", usable=False)
    return target  # type: ignore[no-any-return]


def _shown(place: str, code: Code) -> str:
    """Returns the place of a file as people know it."""
    inside = Path(place).is_relative_to(code.folder)
    return (
        str(Path(code.shown_folder) / Path(place).relative_to(code.folder)) if code.shown_folder and inside else place
    )


def _imported(name: str, code: Code) -> Any:
    if code.folder not in sys.path:
        # At the end of the path: a file in the folder must not replace a module of Python with the same name.
        sys.path.append(code.folder)
    # Compiled files are compared by whole seconds: an edit within the same second would go unnoticed.
    sys.dont_write_bytecode = True
    try:
        with limit_time(code.timeout_s):
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            file = f"{name.replace('.', '/')}.py"
            hint = (
                f"put {file} into {code.shown_folder or code.folder}, or install its package for the cluster's Python"
            )
            raise CallError(f"there is no Python module {name}", hint, usable=False) from None
        raise _unusable(name, error, code) from None
    except (Exception, SystemExit, FunctionTimeoutError) as error:
        raise _unusable(name, error, code) from None
    own = Path(code.folder, *name.split("."))
    hidden = own.with_suffix(".py").is_file() or (own / "__init__.py").is_file()
    if hidden and not _is_inside(module, code.folder):
        raise CallError(
            f"the Python module {name} in {code.shown_folder or code.folder} is hidden by another of that name",
            f"rename it; the other is {(_places(module) or ['a part of Python'])[0]}",
            usable=False,
        )
    return module


def _unusable(name: str, error: BaseException, code: Code) -> CallError:
    return CallError(
        f"the Python module {name} cannot be imported: {describe_error(error, code)}", "mend its file", usable=False
    )
