from __future__ import annotations

import pytest

from tocsin.pipeline.spark import masters
from tocsin.wire.errors import UnavailableError


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[4,2]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://h:7077", False),
        ("yarn", False),
        ("k8s://https://h", False),
    ],
)
def test_a_local_master_is_told_from_one_with_processes_of_its_own(master: str, expected: bool) -> None:
    assert masters.is_local(master) == expected


def test_workers_elsewhere_with_tables_on_this_disk_are_refused_with_the_remedy() -> None:
    with pytest.raises(UnavailableError, match="spark://h:7077 cannot read") as raised:
        masters.refuse_local_tables("spark://h:7077", is_storage_local=True)
    assert "cluster.storage.url" in str(raised.value.hint)
    masters.refuse_local_tables("spark://h:7077", is_storage_local=False)
    masters.refuse_local_tables("local[*]", is_storage_local=True)


def test_executors_reach_the_driver_on_the_interface_of_the_master() -> None:
    assert masters.driver_host("spark://127.0.0.1:7077") == "127.0.0.1"
    assert masters.driver_host("spark://127.0.0.1:7077,10.0.0.2:7077") == "127.0.0.1"
    assert masters.driver_host("yarn") is None
    assert masters.driver_host("spark://nowhere.invalid:7077") is None
