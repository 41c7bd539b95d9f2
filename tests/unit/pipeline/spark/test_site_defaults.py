from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.pipeline.spark.site_defaults import site_defaults
from tocsin.wire.errors import UnavailableError

TEXT = r"""
# the site's
! also a comment
spark.a   one
  spark.b=two words
spark.c : three
spark.d=a=b
spark.e  first,\
         second
spark.f  C:\\x
spark.g
hadoop.x  not Spark's
"""


def test_the_file_is_read_as_java_reads_properties(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(TEXT)
    assert site_defaults({"SPARK_CONF_DIR": str(tmp_path)}) == {
        "spark.a": "one",
        "spark.b": "two words",
        "spark.c": "three",
        "spark.d": "a=b",
        "spark.e": "first,second",
        "spark.f": r"C:\x",
        "spark.g": "",
    }


def test_the_file_is_in_the_conf_folder_of_spark_home_unless_another_is_named(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.a 1")
    assert site_defaults({"SPARK_HOME": str(tmp_path)}) == {"spark.a": "1"}
    assert site_defaults({"SPARK_HOME": str(tmp_path), "SPARK_CONF_DIR": str(tmp_path)}) == {}
    assert site_defaults({}) == {}


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_bytes(b"\xff\xfe")
    with pytest.raises(UnavailableError, match=r"spark-defaults\.conf cannot be read"):
        site_defaults({"SPARK_CONF_DIR": str(tmp_path)})
