"""What LOAD reads: files on the cluster's own disks, as checked records, a bounded number at a time.

    LOAD DATASET d USING localfs (("path"="localhost:///data/x.json"), ("format"="json"))

Formats: `json`, `adm` (the original's literals, such as `circle("1.0,2.0 0.5")`), `csv` and `delimited-text`, `xml`
(the option `record` names a record's element; without it they are those directly in the root), `parquet`.

Promises. Options are checked and files found before the first record; a file or a record that cannot be read is an
InputError that names the file, the line and the field. Memory does not grow with the files. Nothing is written here.
"""

from __future__ import annotations

import glob
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final
from uuid import uuid4

from tocsin.pipeline.sources import decoder
from tocsin.pipeline.sources.formats import adm_text, delimited_text, json_text, parquet, xml_text
from tocsin.pipeline.sources.reader_types import BadFile, BadRecord, Found
from tocsin.rules.model.json_form import reader
from tocsin.rules.model.type_check import RecordError
from tocsin.rules.model.types import ObjectType
from tocsin.wire.errors import InputError, NotFoundError, StatementError

ADAPTERS: Final = ("localfs",)
# Each format, and the options that it takes besides `path` and `format`.
FORMATS: Final[Mapping[str, tuple[str, ...]]] = {**decoder.FORMATS, "parquet": ()}
BATCH_BYTES: Final = 32 << 20  # a batch ends here, however few its records are

_HOST: Final = re.compile(r"[A-Za-z0-9_.\-]*://")
_GZIP: Final = b"\x1f\x8b"
_BUFFER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LoadSource:
    """The options of a LOAD, understood. The files are those that were there when it was asked for."""

    files: tuple[Path, ...]
    format: str
    form: delimited_text.DelimitedFormat
    record: str = ""  # the element of a record in XML


def batches(
    options: Mapping[str, str],
    type: ObjectType,  # noqa: A002 - what it is everywhere
    *,
    adapter: str = "localfs",
    generate: tuple[str, ...] | None = None,
    batch_rows: int = 20_000,
) -> Iterator[list[dict[str, Any]]]:
    """The records, checked. At the path `generate` a new uuid is put where there is nothing."""
    # Not a generator itself: a wrong option is told at once, not when somebody begins to read.
    return _batches(source(adapter, options), type, generate, batch_rows)


def source(adapter: str, options: Mapping[str, str]) -> LoadSource:
    """Check the options and find the files."""
    if adapter.lower() not in ADAPTERS:
        raise InputError(f"there is no adapter {adapter!r}", hint=f"known: {', '.join(ADAPTERS)}")
    given = {name.lower(): value for name, value in options.items()}
    for needed in ("path", "format"):
        if not given.get(needed, "").strip():
            raise InputError(
                f'the option "{needed}" is missing', hint='such as ("path"="/data/x.json"), ("format"="json")'
            )
    wanted = given["format"].strip().lower()
    if wanted not in FORMATS:
        raise InputError(f"there is no format {given['format']!r}", hint=f"known: {', '.join(FORMATS)}")
    known = ("path", "format", *FORMATS[wanted])
    for name in given:
        if name not in known:
            raise InputError(f"the format {wanted} has no option {name!r}", hint=f"known: {', '.join(known)}")
    form = delimited_text.form_of(given, header=wanted == "csv")
    return LoadSource(_files(given["path"]), wanted, form, given.get("record", "").strip())


# ---------------------------------------------------------------- where the files are


def without_hosts(paths: str) -> Iterator[str]:
    """The paths in a text such as `localhost:///data/a.json, /data/b.json`."""
    for written in paths.split(","):
        text = written.strip()
        if not text:
            continue
        if "\0" in text:
            raise InputError("a path cannot contain NUL")
        host = _HOST.match(text)
        if host is not None:
            text = text[host.end() :]
            if not text.startswith("/"):
                raise InputError(
                    f"after the host the path must be absolute, got {written.strip()!r}",
                    hint='such as "localhost:///data/x.json"',
                )
        yield text


def _files(paths: str) -> tuple[Path, ...]:
    found: list[Path] = []
    for text in without_hosts(paths):
        try:
            found += _expanded(text)
        except OSError as error:
            raise _unreadable(text, error) from error
        except UnicodeEncodeError:
            raise InputError("a path must be Unicode text") from None
    if not found:
        raise InputError('the option "path" names no file')
    return tuple(found)


def _expanded(text: str) -> list[Path]:
    path = Path(text).absolute()
    if not path.exists() and glob.has_magic(text):
        matching = [Path(each).absolute() for each in sorted(glob.glob(text, recursive=True))]  # noqa: PTH207
        files = [file for each in matching for file in ([] if each.is_dir() else _checked(each))]
        if not files:
            raise NotFoundError(f"no file matches {text}")
        return files
    if path.is_dir():
        files = [file for each in _inside(path) for file in _checked(each)]
        if not files:
            raise NotFoundError(f"there is no file in the folder {path}")
        return files
    return _checked(path)


def _inside(folder: Path) -> Iterator[Path]:
    def give_up(error: OSError) -> None:
        raise error

    for here, folders, names in os.walk(folder, onerror=give_up):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        # What begins so is not data by an old custom: _SUCCESS, .x.crc.
        yield from (Path(here, name) for name in sorted(names) if not name.startswith((".", "_")))


def _checked(path: Path) -> list[Path]:
    # A pipe or a device would never end, or never begin.
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{path} is not a file")
    with path.open("rb"):
        return [path]


def _unreadable(path: Path | str, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFoundError(f"there is no file {path}", hint="the path is one of the machine that the cluster runs on")
    return InputError(f"{path} cannot be read: {error.strerror or error}")


# ---------------------------------------------------------------- what is in them


def _batches(
    wanted: LoadSource, kind: ObjectType, generate: tuple[str, ...] | None, batch_rows: int
) -> Iterator[list[dict[str, Any]]]:
    check = reader(kind)
    batch: list[dict[str, Any]] = []
    batch_bytes = 0
    unit = "record" if wanted.format == "parquet" else "line"
    for path in wanted.files:
        place = 0
        try:
            for place, record, size_bytes in _found(path, wanted, kind, generate):  # noqa: B007 - for the error
                if generate is not None:
                    _fill(record, generate)
                batch.append(check(record))
                batch_bytes += size_bytes
                if len(batch) >= batch_rows or batch_bytes >= BATCH_BYTES:
                    yield batch
                    batch, batch_bytes = [], 0
        except RecordError as error:
            raise _refused(path, unit, place, error.field, error.reason) from None
        except BadRecord as error:
            raise _refused(path, unit, error.place, error.field, error.reason) from None
        except BadFile as error:
            raise StatementError(f"{path} cannot be loaded: {error}", file=str(path)) from error
    if batch:
        yield batch


def _found(path: Path, wanted: LoadSource, kind: ObjectType, generate: tuple[str, ...] | None) -> Iterator[Found]:
    if wanted.format == "parquet":
        yield from parquet.read(path)
        return
    with opened(path) as file:
        if wanted.format == "json":
            yield from json_text.read(file)
        elif wanted.format == "adm":
            yield from adm_text.read(file)
        elif wanted.format == "xml":
            yield from xml_text.read(file, kind, wanted.record)
        else:
            generated = generate[0] if generate is not None and len(generate) == 1 else None
            yield from delimited_text.read(file, kind, wanted.form, generated)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked where it is gzip, whatever its name."""
    try:
        with io.BufferedReader(io.FileIO(path), _BUFFER_BYTES) as file:
            if file.peek(2)[:2] != _GZIP:
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked, io.BufferedReader(unpacked, _BUFFER_BYTES) as buffered:
                yield buffered
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadFile(f"it is not gzip, or damaged: {error}") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _fill(record: dict[str, Any], at: tuple[str, ...]) -> None:
    inside: Any = record
    for step in at[:-1]:
        inside = inside.setdefault(step, {})
        if inside.__class__ is not dict:
            return  # the check will say what is wrong with it
    if at[-1] not in inside:
        inside[at[-1]] = uuid4()


def _refused(path: Path, unit: str, place: int, field: str, reason: str) -> StatementError:
    said = f"{field}: {reason}" if field else reason
    # `line` is the script's: the file's has another name.
    details = {"file": str(path), f"file_{unit}": place, "field": field or None}
    return StatementError(f"{path}, {unit} {place}: {said}", hint="nothing was loaded", **details)  # type: ignore[arg-type]
