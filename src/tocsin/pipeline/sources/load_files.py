"""Reads the files of a LOAD from the cluster's own disks, as checked records, a bounded number at a time.

    LOAD DATASET d USING localfs (("path"="localhost:///data/x.json"), ("format"="json"))

Formats: `json`, `adm` (the original's literals, such as `circle("1.0,2.0 0.5")`), `csv` and `delimited-text`, `xml`
(the option `record` names a record's element; by default records are the elements directly in the root), `parquet`.

Promises. Options are checked and files found before the first record. A file or a record that cannot be read raises an
InputError that names the file, the line and the field. Memory does not grow with the files. Nothing is written.
"""

from __future__ import annotations

import glob
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final
from uuid import uuid4

from tocsin.pipeline.sources import decoder
from tocsin.pipeline.sources.formats import adm_text, delimited_text, json_text, parquet, xml_text
from tocsin.pipeline.sources.reader_types import BadFile, BadRecord, ReadRecord
from tocsin.rules.model.json_form import reader
from tocsin.rules.model.type_check import RecordError
from tocsin.rules.model.types import ObjectType
from tocsin.wire.errors import InputError, NotFoundError, StatementError

ADAPTERS: Final = ("localfs",)
# Each format, and the options that it takes besides `path` and `format`.
FORMATS: Final[Mapping[str, tuple[str, ...]]] = {**decoder.FORMATS, "parquet": ()}

NODE_NAME: Final = re.compile(r"(asterix_)?nc\d{0,9}", re.IGNORECASE)
"""The name of one of AsterixDB's nodes: this machine. A path after it may be relative."""
_HOST: Final = re.compile(r"[A-Za-z0-9_.\-]*://")
_GZIP: Final = b"\x1f\x8b"
_BUFFER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileFormat:
    """The format of files, with its options."""

    format: str
    form: delimited_text.DelimitedFormat
    record: str = ""  # the element of a record in XML

    @property
    def unit(self) -> str:
        """What the place of a record counts."""
        return "record" if self.format == "parquet" else "line"


@dataclass(frozen=True, slots=True)
class LoadSource:
    """The parsed options of a LOAD. `files` are the files that existed at the time of the request."""

    files: tuple[Path, ...]
    how: FileFormat


def batches(
    options: Mapping[str, str],
    type: ObjectType,  # noqa: A002 - what it is everywhere
    *,
    adapter: str = "localfs",
    generate: tuple[str, ...] | None = None,
    batch_rows: int = 20_000,
    batch_bytes: int = 32 << 20,
) -> Iterator[list[dict[str, Any]]]:
    """Yields the checked records. Sets a new uuid at the path `generate` where a record has none."""
    # Not a generator itself: a wrong option raises at once, not when the reading begins.
    return _batches(source(adapter, options), type, generate, batch_rows, batch_bytes)


def source(adapter: str, options: Mapping[str, str]) -> LoadSource:
    """Checks the options and finds the files."""
    if adapter.lower() not in ADAPTERS:
        raise InputError(f"there is no adapter {adapter!r}", hint=f"known: {', '.join(ADAPTERS)}")
    chosen_options = {name.lower(): value for name, value in options.items()}
    for required in ("path", "format"):
        if not chosen_options.get(required, "").strip():
            raise InputError(
                f'the option "{required}" is missing', hint='such as ("path"="/data/x.json"), ("format"="json")'
            )
    chosen_format = chosen_options["format"].strip().lower()
    if chosen_format not in FORMATS:
        raise InputError(f"there is no format {chosen_options['format']!r}", hint=f"known: {', '.join(FORMATS)}")
    known = ("path", "format", *FORMATS[chosen_format])
    for name in chosen_options:
        if name not in known:
            raise InputError(f"the format {chosen_format} has no option {name!r}", hint=f"known: {', '.join(known)}")
    return LoadSource(_files(chosen_options["path"]), check_format(chosen_format, chosen_options))


def check_format(format: str, options: Mapping[str, str]) -> FileFormat:  # noqa: A002 - what it is everywhere
    """Parses the options of the format. Raises InputError if an option makes no sense."""
    form = delimited_text.form_of(options, header=format == "csv")
    return FileFormat(format, form, options.get("record", "").strip())


# ---------------------------------------------------------------- finding the files


def without_hosts(paths: str) -> Iterator[str]:
    """The paths in a text such as `localhost:///data/a.json, /data/b.json`."""
    for entry in paths.split(","):
        text = entry.strip()
        if not text:
            continue
        if "\0" in text:
            raise InputError("a path cannot contain NUL")
        host = _HOST.match(text)
        if host is not None:
            name, text = host[0].removesuffix("://"), text[host.end() :]
            if not text.startswith("/") and NODE_NAME.fullmatch(name) is None:
                raise InputError(
                    f"after the host the path must be absolute, got {entry.strip()!r}",
                    hint='such as "localhost:///data/x.json"',
                )
        yield text


def _files(paths: str) -> tuple[Path, ...]:
    files: list[Path] = []
    for text in without_hosts(paths):
        try:
            files += _expanded(text)
        except OSError as error:
            raise _unreadable(text, error) from error
        except UnicodeEncodeError:
            raise InputError("a path must be Unicode text") from None
    if not files:
        raise InputError('the option "path" names no file')
    return tuple(files)


def _expanded(text: str) -> list[Path]:
    path = Path(text).absolute()
    if not path.exists() and glob.has_magic(text):
        matching = [Path(match).absolute() for match in sorted(glob.glob(text, recursive=True))]  # noqa: PTH207
        files = [file for path_found in matching for file in ([] if path_found.is_dir() else _checked(path_found))]
        if not files:
            raise NotFoundError(f"no file matches {text}")
        return files
    if path.is_dir():
        files = [file for path_found in _inside(path) for file in _checked(path_found)]
        if not files:
            raise NotFoundError(f"there is no file in the folder {path}")
        return files
    return _checked(path)


def _inside(folder: Path) -> Iterator[Path]:
    def give_up(error: OSError) -> None:
        raise error

    for here, folders, names in os.walk(folder, onerror=give_up):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        # By an old convention such names are not data: _SUCCESS, .x.crc.
        yield from (Path(here, name) for name in sorted(names) if not name.startswith((".", "_")))


def _checked(path: Path) -> list[Path]:
    # Reading a pipe or a device might never end, or never begin.
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{path} is not a file")
    with path.open("rb"):
        return [path]


def _unreadable(path: Path | str, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFoundError(f"there is no file {path}", hint="the path is one of the machine that the cluster runs on")
    return InputError(f"{path} cannot be read: {error.strerror or error}")


# ---------------------------------------------------------------- reading the files


def _batches(
    source: LoadSource, kind: ObjectType, generate: tuple[str, ...] | None, most_rows: int, most_bytes: int
) -> Iterator[list[dict[str, Any]]]:
    check = reader(kind)
    batch: list[dict[str, Any]] = []
    batch_bytes = 0
    generated = generate[0] if generate is not None and len(generate) == 1 else None
    unit = source.how.unit
    for path in source.files:
        place = 0
        try:
            for item in read_records(path, source.how, kind, json_text.read, generated):
                if isinstance(item, BadRecord):
                    raise item
                place, record, size_bytes = item
                if generate is not None:
                    _fill(record, generate)
                batch.append(check(record))
                batch_bytes += size_bytes
                if len(batch) >= most_rows or batch_bytes >= most_bytes:
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


def read_records(
    path: Path,
    how: FileFormat,
    kind: ObjectType,
    read_json: Callable[[BinaryIO], Iterator[ReadRecord | BadRecord]],
    generated: str | None = None,
) -> Iterator[ReadRecord | BadRecord]:
    """Yields the records of a file, and what is wrong where there is none. `read_json` decides how strictly JSON is
    read; delimited text may leave out the field `generated`."""
    with open_unpacked(path) as file:
        if how.format == "parquet":
            yield from parquet.each(path)
        elif how.format == "json":
            yield from read_json(file)
        elif how.format == "adm":
            yield from adm_text.each(file)
        elif how.format == "xml":
            yield from xml_text.each(file, kind, how.record)
        else:
            yield from delimited_text.each(file, kind, how.form, generated)


@contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Opens the bytes of a file and unpacks gzip, whatever the file's name."""
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
    container: Any = record
    for step in at[:-1]:
        container = container.setdefault(step, {})
        if container.__class__ is not dict:
            return  # the type check reports what is wrong with it
    if at[-1] not in container:
        container[at[-1]] = uuid4()


def _refused(path: Path, unit: str, place: int, field: str, reason: str) -> StatementError:
    problem = f"{field}: {reason}" if field else reason
    # `line` is the line of the script, so the line of the file has another name.
    details = {"file": str(path), f"file_{unit}": place, "field": field or None}
    return StatementError(f"{path}, {unit} {place}: {problem}", hint="nothing was loaded", **details)  # type: ignore[arg-type]
