"""Which ranks are measured together: inside each node, one of each node, and all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import distributed

from toolkit.doctor.collectives import Group, Measured, measure
from toolkit.doctor.cost import ACROSS, ALL, INSIDE


def rank_groups(node_of_rank: list[int]) -> dict[str, list[list[int]]]:
    """For each name the groups of ranks, each of two or more. Groups of one name share no rank and run at once."""
    nodes: dict[int, list[int]] = {}
    for rank, node in enumerate(node_of_rank):
        nodes.setdefault(node, []).append(rank)
    groups = {
        INSIDE: list(nodes.values()),
        ACROSS: [[ranks[0] for ranks in nodes.values()]],
        ALL: [list(range(len(node_of_rank)))],
    }
    several = {name: [ranks for ranks in found if len(ranks) > 1] for name, found in groups.items()}
    return {name: found for name, found in several.items() if found}


def measure_groups(
    node_of_rank: list[int], rank: int, device: torch.device, seconds: float, say: Callable[[str], None]
) -> list[Measured]:
    """This rank's measurements, in all its groups. Every rank calls this. The same ranks are measured once, under the first
    name, and the others say the same. seconds: for everything together, about."""
    groups = rank_groups(node_of_rank)
    distinct = {tuple(map(tuple, found)) for found in groups.values()}
    done: dict[tuple[tuple[int, ...], ...], list[Measured]] = {}
    results = []
    for name, found in groups.items():
        key = tuple(map(tuple, found))
        if key not in done:
            say(f"measuring collectives {name}")
            done[key] = _measure(name, found, rank, device, seconds / len(distinct))
        results += [replace(one, group=name) for one in done[key]]
    return results


def _measure(name: str, groups: list[list[int]], rank: int, device: torch.device, seconds: float) -> list[Measured]:
    handles: dict[int, Group] = {}
    for index, ranks in enumerate(groups):
        # Every rank takes part in making every group, also in those it is not a member of.
        whole = len(ranks) == distributed.get_world_size()
        handles[index] = None if whole else distributed.new_group(ranks)
    # Nobody computes or communicates beside those who are measured.
    distributed.barrier()
    results: list[Measured] = []
    for index, ranks in enumerate(groups):
        if rank in ranks:
            results = measure(name, ranks, handles[index], device, seconds)
    distributed.barrier()
    return results


def slowest_of_each(results: dict[int, list[Measured]]) -> list[Measured]:
    """One result for each group name and operation: of several groups of one name the one with the slowest largest message.

    results: by rank, what `measure_groups` returned there.
    """
    chosen: dict[tuple[str, str], Measured] = {}
    for rank in sorted(results):
        for one in results[rank]:
            known = chosen.get((one.group, one.operation))
            if known is None or (one.ranks != known.ranks and one.timings[-1].seconds > known.timings[-1].seconds):
                chosen[one.group, one.operation] = one
    return list(chosen.values())
