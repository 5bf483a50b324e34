"""Rows in three flat arrays come back as they went in."""

from __future__ import annotations

import numpy as np

from toolkit.data.tokens import TokenRows

ROWS = [([5, 6, 7], [-100, 6, 7]), ([8, 9], [8, 9]), ([1, 2, 3, 4], [-100, -100, -100, -100])]


def test_rows_come_back_and_the_first_token_is_never_a_label() -> None:
    rows = TokenRows.build(ROWS)
    assert len(rows) == 3
    assert rows.lengths.tolist() == [3, 2, 4]
    assert [rows.ids(i).tolist() for i in range(3)] == [[5, 6, 7], [8, 9], [1, 2, 3, 4]]
    assert [rows.labels(i).tolist() for i in range(3)] == [[-100, 6, 7], [-100, 9], [-100] * 4]
    assert rows.label_tokens == 3


def test_a_selection_of_a_selection_and_of_nothing() -> None:
    rows = TokenRows.build(ROWS)
    chosen = rows.select(np.array([0, 2]))
    assert [chosen.ids(i).tolist() for i in range(2)] == [[5, 6, 7], [1, 2, 3, 4]]
    assert chosen.labels(0).tolist() == [-100, 6, 7]
    assert chosen.lengths.tolist() == [3, 4]
    assert [chosen.origin(i) for i in range(2)] == ["row:1", "row:3"]
    again = chosen.select(np.array([1]))
    assert (again.ids(0).tolist(), again.origin(0)) == ([1, 2, 3, 4], "row:3")
    assert len(rows.select(np.array([], dtype=int))) == 0
    assert TokenRows.build([]).label_tokens == 0


def test_no_python_object_per_row() -> None:
    rows = TokenRows.build(([i, i + 1], [-100, i + 1]) for i in range(1000))
    [(store, _)] = rows.parts
    assert store.ids.nbytes == 2000 * 4
    assert store.supervised.nbytes == 2000
    assert store.offsets.nbytes == 1001 * 8
