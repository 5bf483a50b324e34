"""A pseudo-random order of any number of rows, computed place by place: nothing is stored or shuffled."""

from __future__ import annotations

import math

import numpy as np

_ROUNDS = 8


def permute(places: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """The rows at `places` of a pseudo-random permutation of `range(size)`, in O(len(places)).

    A balanced Feistel network over the next power of four, walked until the value lands below `size` (cycle walking;
    Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Integer arithmetic only: the order does not
    depend on a library's version.
    """
    half = np.uint64(max(1, math.ceil(math.log2(max(size, 2)) / 2)))
    low = np.uint64((1 << int(half)) - 1)
    keys = [
        _mix(np.uint64((seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03 + r) % 2**64)) for r in range(_ROUNDS)
    ]

    def encrypt(values: np.ndarray) -> np.ndarray:
        left, right = values >> half, values & low
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & low)
        return (left << half) | right

    out = encrypt(np.asarray(places).astype(np.uint64))
    outside = out >= np.uint64(size)
    while outside.any():
        out[outside] = encrypt(out[outside])
        outside = out >= np.uint64(size)
    return out.astype(np.int64)


def _mix(value: np.ndarray | np.uint64) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every output bit depends on every input bit."""
    with np.errstate(over="ignore"):
        value = np.asarray(value, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
