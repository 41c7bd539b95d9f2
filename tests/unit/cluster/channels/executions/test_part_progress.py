"""The progress of an execution in parts is counted at once and due from time to time."""

from __future__ import annotations

from tocsin.cluster.channels.executions.part_progress import PartProgress


def test_progress_is_due_at_most_every_ten_seconds_and_counts_all_parts() -> None:
    progress = PartProgress(10.0)
    assert progress.begin(100.0)
    due_s = [now_s for now_s in range(101, 141) if progress.count_part(7, float(now_s))]
    assert due_s == [110, 120, 130, 140]
    assert (progress.parts, progress.results) == (40, 280)


def test_parts_begin_once_in_an_execution_and_anew_in_the_next() -> None:
    progress = PartProgress(10.0)
    assert progress.begin(0.0)
    assert not progress.count_part(0, 1.0)
    assert not progress.begin(2.0)
    assert progress.parts == 1
    progress.end()
    assert progress.begin(3.0)
    assert (progress.parts, progress.results) == (0, 0)
    assert not progress.count_part(5, 11.0), "the line of the beginning counts"
    assert progress.count_part(5, 13.0)
