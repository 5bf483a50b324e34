"""Blocks of documents: every token once, no block too long, as full as a plain best-fit-decreasing makes them."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.data.packed import pack
from toolkit.data.packing import pack_across, pack_whole
from toolkit.data.tokens import TokenRows

LENGTHS = {
    "many": np.random.default_rng(0).integers(1, 65, 3000),
    "long": np.random.default_rng(1).integers(1, 900, 40),
    "one": np.array([7]),
    "equal": np.full(33, 20),
    "full": np.full(5, 64),
}


def covered(packing, lengths: np.ndarray) -> None:
    """Every token of every document lies in exactly one piece."""
    seen = [np.zeros(n, int) for n in lengths]
    for document, start, size in zip(packing.documents, packing.starts, packing.sizes, strict=True):
        assert size > 0
        seen[document][start : start + size] += 1
    assert all((tokens == 1).all() for tokens in seen)


@pytest.mark.parametrize("name", LENGTHS)
def test_across_loses_nothing_and_fills_every_block_but_the_last(name: str) -> None:
    lengths = LENGTHS[name].astype(np.int32)
    packing = pack_across(lengths, 64, seed=3)
    covered(packing, lengths)
    total = int(lengths.sum())
    assert packing.lengths.tolist() == [64] * (total // 64) + [total % 64] * (total % 64 > 0)
    if name == "many":
        assert packing.documents.tolist() != sorted(packing.documents.tolist()), "a random order"
        assert packing.documents.tolist() != pack_across(lengths, 64, seed=4).documents.tolist()
        np.testing.assert_array_equal(packing.documents, pack_across(lengths, 64, seed=3).documents)


def best_fit_decreasing(lengths: np.ndarray, size: int) -> list[int]:
    """Room left in each block, one document at a time."""
    rooms: list[int] = []
    for length in sorted(lengths.tolist(), reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms[rooms.index(min(fitting))] -= length
        else:
            rooms.append(size - length)
    return rooms


@pytest.mark.parametrize("name", ["many", "one", "equal", "full"])
def test_whole_documents_lie_as_best_fit_decreasing_puts_them(name: str) -> None:
    lengths = LENGTHS[name].astype(np.int32)
    packing = pack_whole(lengths, 64)
    covered(packing, lengths)
    assert not packing.starts.any()
    np.testing.assert_array_equal(packing.sizes, lengths[packing.documents])
    assert sorted(64 - packing.lengths) == sorted(best_fit_decreasing(lengths, 64))


def rows_of(*documents: list[int]) -> TokenRows:
    return TokenRows.build([(ids, ids) for ids in documents])


def test_blocks_as_rows() -> None:
    said: list[str] = []
    documents = rows_of([1, 2, 3, 4, 5], [6, 7], [8, 9, 10])
    blocks = pack(documents, size=4, how="across", isolated=True, seed=0, note=said.append)
    more = pack(documents, size=2, how="across", isolated=True, seed=0, note=lambda line: None)
    assert len(more.values) == len(more) > len(documents), "more blocks than documents"
    assert len(blocks) == 3
    assert blocks.lengths.tolist() == [4, 4, 2]
    stream = np.concatenate([blocks.ids(i) for i in range(3)]).tolist()
    first = stream.index(1)
    assert stream[first : first + 5] == [1, 2, 3, 4, 5], "a document goes on in the next block"
    assert sorted(stream) == list(range(1, 11))
    for block in range(3):
        pieces = blocks.pieces(block)
        assert np.concatenate([ids for ids, _ in pieces]).tolist() == blocks.ids(block).tolist()
        for ids, labels in pieces:
            assert labels.tolist() == [-100, *ids.tolist()[1:]]
        assert int((blocks.labels(block) != -100).sum()) == blocks.labels_per_row[block]
    assert blocks.label_tokens == 10 - sum(len(blocks.pieces(i)) for i in range(3))
    assert "3 documents in 3 blocks of up to 4 tokens" in said[0]
    joined = pack(documents, size=4, how="across", isolated=False, seed=0, note=said.append)
    assert [len(joined.pieces(i)) for i in range(3)] == [1, 1, 1]
    assert joined.label_tokens == 7
    np.testing.assert_array_equal(joined.ids(1), blocks.ids(1))


def test_blocks_do_not_mix_sources() -> None:
    both = rows_of([1, 1, 1], [2, 2]).joined(rows_of([7, 7], [8, 8, 8]))
    blocks = pack(both, size=4, how="across", isolated=True, seed=0, note=lambda line: None)
    assert blocks.starts.tolist() == [0, 2, 4]
    assert {int(i) for block in (0, 1) for i in blocks.ids(block)} == {1, 2}
    assert {int(i) for block in (2, 3) for i in blocks.ids(block)} == {7, 8}
    assert blocks.origin(2) in ("row:1", "row:2")
