"""What a body takes in memory while its records are read and packed, beside its own bytes."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own, so that nothing of others counts; the high-water mark begins anew when the body is there.
MEASURED = """
import sys
from pathlib import Path
from tocsin.cluster.feeds.batches import BatchPacker
from tocsin.pipeline.sources.decoder import decoder
from tocsin.rules.model.types import BIGINT, Field, ObjectType
from tocsin.wire.errors import InputError

KIND = ObjectType((Field("id", BIGINT, optional=True),))

def read(form, body):
    packing = BatchPacker(KIND)
    for batch in decoder(form, KIND)(body):
        packing.add(batch)
    return packing.finish()

def peak_bytes():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10

form, body = sys.argv[1], eval(sys.argv[2])
read("json", b'{"id": 1}\\n' * 2_000)  # what is imported late is there
Path("/proc/self/clear_refs").write_text("5")
before = peak_bytes()
try:
    read(form, body)
except InputError:
    pass
print((peak_bytes() - before) / len(body))
"""

RECORD = """b'{"id":17,"kind":"flood","severity":3,"text":"some words that tell"}'"""
MULTIPLE = 8
"""How many times its own bytes a body of some MiB may take beside them."""


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is Linux's")
@pytest.mark.parametrize(
    ("form", "body"),
    [
        ("json", "b'[' + b','.join([b'{}'] * 1_400_000) + b']'"),
        ("json", "b'[' + b','.join([b'{}'] * 1_400_000)"),
        ("json", "b'[' + b','.join([b'[[]]'] * 1_000_000) + b']'"),
        ("json", "b'{}' * 2_000_000"),
        ("json", "b'{}\\n' * 1_400_000"),
        ("json", "b'1\\n' * 1_400_000"),
        ("json", f"b'[' + b','.join([{RECORD}] * 80_000) + b']'"),
        ("json", f"b'\\n'.join([{RECORD}] * 80_000)"),
        ("json", f"b'  \\n'.join([{RECORD}.replace(b',', b',\\n')] * 80_000)"),
        ("json", "b'{\"a\": [' + b','.join([b'[]'] * 1_400_000) + b']}'"),
        ("json", "b'{\"a\": \"' + b'x' * 4_000_000 + b'\"}'"),
        ("json", "b'[' + b','.join([b'{\"a\": [' + b','.join([b'[]'] * 5_000) + b']}'] * 400) + b']'"),
        ("csv", "b'id,a\\n' + b'1,some words that tell something to whoever reads\\n' * 90_000"),
        ("adm", f"b'\\n'.join([{RECORD}] * 80_000)"),
        ("adm", "b'{}' * 2_000_000"),
        ("xml", "b'<a>' + b'<r><id>1</id><t>some words that tell</t></r>' * 90_000 + b'</a>'"),
        ("xml", "b'<a>' + b'<r/>' * 1_400_000 + b'</a>'"),
    ],
)
def test_a_body_takes_a_small_multiple_of_its_bytes(form: str, body: str) -> None:
    told = subprocess.run([sys.executable, "-c", MEASURED, form, body], check=True, capture_output=True, text=True)
    assert float(told.stdout) < MULTIPLE


FILE_MEASURED = """
import io, sys
from pathlib import Path
from tocsin.pipeline.sources.formats import json_each

def peak_bytes():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10

file = io.BytesIO(eval(sys.argv[1]))
list(json_each.each(io.BytesIO(b'{"id": 1}\\n' * 2_000)))
Path("/proc/self/clear_refs").write_text("5")
before = peak_bytes()
for record in json_each.each(file):
    pass
print((peak_bytes() - before) / len(file.getvalue()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is Linux's")
@pytest.mark.parametrize(
    "content",
    [
        "b'[' + b','.join([b'{}'] * 3_000_000) + b']'",
        "b'{}\\n[' + b','.join([b'{}'] * 3_000_000) + b']'",
        "b'{}\\n' * 2_000_000",
    ],
)
def test_a_file_of_many_small_records_takes_a_small_multiple_of_its_bytes(content: str) -> None:
    told = subprocess.run([sys.executable, "-c", FILE_MEASURED, content], check=True, capture_output=True, text=True)
    assert float(told.stdout) < MULTIPLE
