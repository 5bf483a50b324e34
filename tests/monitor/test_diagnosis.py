"""From the places of all ranks to who holds them up, and the text that ends such a run."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from toolkit.monitor.diagnosis import Place, diagnose, report
from toolkit.monitor.where import locate


def at(
    rank: int, phase: str, step: int = 5, micro: int = 0, where: str = "loop.py:1 train", host: str = "host", **more
) -> Place:
    return Place(rank, host, "cpu", phase, step, micro, 600.0, where, **more)


CASES = {
    "behind in data": ([at(0, "backward", micro=1), at(1, "data"), at(2, "backward", micro=1)], (1,), "stuck in data"),
    "behind in forward": ([at(0, "reduce"), at(1, "forward", micro=2)], (1,), "stuck in forward of micro-batch 2"),
    "behind in an earlier step": ([at(0, "data", 6), at(1, "update", 5)], (1,), "stuck in update"),
    "two are behind": ([at(0, "data"), at(1, "data"), at(2, "forward", micro=1)], (0, 1), "ranks 0, 1 are stuck"),
    "saving": ([at(0, "save"), at(1, "data", 6), at(2, "data", 6)], (0,), "stuck in save"),
    "evaluating alone": ([at(0, "forward", 6, 1), at(1, "evaluate"), at(2, "forward", 6, 1)], (1,), "stuck in evaluate"),
    "still starting": ([at(0, "start", 0), at(1, "evaluate", 0)], (0,), "stuck in start"),
    "answering before training": ([at(0, "generate", 0), at(1, "evaluate", 0)], (0,), "stuck in generate"),
    "evaluating before the first step": ([at(0, "evaluate", 0), at(1, "data", 0)], (0,), "stuck in evaluate"),
    "restoring": ([at(0, "restore"), at(1, "data")], (0,), "stuck in restore"),
    "a backward that is no collective": (
        [at(0, "backward", micro=1), at(1, "backward", micro=2)], (0,), "stuck in backward of micro-batch 1",
    ),
    "ahead of a sum of losses": (
        [at(0, "reduce"), at(1, "update"), at(2, "reduce")], (1,), "did not take part in the sum of the losses",
    ),
    "ahead of a sum of gradients": (
        [at(0, "backward", micro=1), at(1, "reduce")], (1,), "did not take part in the sum of the gradients",
    ),
    "one of many is late in reduce": (
        [at(0, "reduce"), *(at(rank, "forward", 6, 1) for rank in range(1, 8))], (0,), "stuck in reduce",
    ),
    "all in a collective": ([at(0, "reduce"), at(1, "reduce")], (), "the network, or collectives that do not match"),
    "all in data": ([at(0, "data"), at(1, "data")], (), "all ranks are stuck in data"),
    "one line of many": (
        [at(0, "reduce"), at(1, "reduce", where="mine.py:3 f"), at(2, "reduce")], (1,), "rank 1 is at mine.py:3 f",
    ),
    "one that does not wait": (
        [at(0, "forward", micro=1, waiting=True), at(1, "forward", micro=1, where="mine.py:3 f")],
        (1,), "rank 1 is stuck in forward of micro-batch 1 of step 5 at mine.py:3 f",
    ),
    "two lines of two": ([at(0, "reduce"), at(1, "reduce", where="mine.py:3 f")], (), "at different lines"),
    "no answer": ([at(0, "reduce"), at(1, "backward", micro=1, answers=False)], (1,), "stopped or killed, or its node"),
    "no answer, though another is behind": ([at(0, "data"), at(1, "reduce", answers=False)], (1,), "does not answer"),
    "the other host": (
        [at(0, "forward", micro=1), at(1, "data", host="node2 (10.0.0.2)", answers=False)],
        (1,), "rank 1 on node2 (10.0.0.2) cannot be reached (last seen in data of step 5, 600 s ago): the network to that host",
    ),
    "two other hosts": (
        [at(0, "reduce"), *(at(rank, "reduce", host=f"node{rank}", answers=False) for rank in (1, 2))],
        (1, 2), "rank 1 on node1 and rank 2 on node2 cannot be reached",
    ),
    "many other hosts": (
        [at(0, "reduce"), *(at(rank, "reduce", host=f"node{rank}", answers=False) for rank in range(1, 8))],
        (1, 2, 3, 4, 5, 6, 7), "rank 4 on node4 and those of 3 other hosts cannot be reached",
    ),
    "one of two ranks on the other host": (
        [at(0, "reduce"), at(1, "reduce", host="node2"), at(2, "reduce", host="node2", answers=False)],
        (2,), "rank 2 on node2 does not answer any more",
    ),
    "alone": ([at(0, "data")], (0,), "the process is stuck in data of step 5 at loop.py:1 train"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_cause(case: str) -> None:
    places, ranks, words = CASES[case]
    found = diagnose(places)
    assert found.ranks == ranks
    assert words in found.cause
    assert found.remedy
    assert "\n" not in found.cause + found.remedy


def test_the_report_marks_the_cause_and_has_a_row_for_every_rank() -> None:
    places = [at(1, "data", called_from="outer.py:2 g"), at(0, "reduce"), at(2, "reduce", answers=False)]
    text = report(places, diagnose(places), "out/logs")
    lines = text.splitlines()
    rows = [line for line in lines if "  600 s  " in line]
    assert [row.split()[0] for row in rows] == ["0", "1", "2"]
    assert "2 <--" in rows[2]
    assert "<--" not in rows[0] + rows[1]
    assert "from outer.py:2 g" in rows[1]
    assert "does not answer" in rows[2]
    assert lines[-1] == "  stacks of all threads: out/logs"


def test_the_line_that_is_named_is_ours_not_a_librarys() -> None:
    def stuck(started: threading.Event, end: threading.Event) -> None:
        started.set()
        end.wait()  # the innermost frames are threading's

    started, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=stuck, args=(started, end), daemon=True)
    thread.start()
    started.wait()
    time.sleep(0.1)
    where = locate(sys._current_frames()[thread.ident or 0])
    end.set()
    assert where.place.startswith("tests/monitor/test_diagnosis.py:") or "test_diagnosis.py:" in where.place
    assert where.place.endswith(" stuck")
    assert not where.waiting
