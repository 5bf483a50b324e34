"""Bandwidths, the fitted line and the cost of a step, against figures worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.doctor.collectives import Line, Measured, Timing, bus_factor, fit
from toolkit.doctor.cost import Work, assumed_model, compute_seconds, count_parameters, step_costs
from toolkit.doctor.groups import rank_groups, slowest_of_each
from toolkit.errors import UserError

ROOT = Path(__file__).parents[2]


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert [bus_factor("all_reduce", n) for n in (2, 4, 8)] == [1.0, 1.5, 1.75]
    assert [bus_factor("all_gather", n) for n in (2, 4)] == [0.5, 0.75]
    assert [bus_factor("reduce_scatter", n) for n in (2, 4)] == [0.5, 0.75]
    # 1,000 bytes in 2 s are 500 bytes/s of the message; four ranks send 1.5 times that.
    timing = Timing(1000, 2.0)
    assert Measured("all", "all_reduce", [0, 1, 2, 3], [timing], Line(0, 1), False).bus_bandwidth(timing) == 750.0


def test_the_line_is_found_again_whatever_the_sizes() -> None:
    line = Line(latency=50e-6, bandwidth=2e9)
    found = fit([Timing(size, line.seconds(size)) for size in (8192, 65536, 2**22, 2**30)])
    assert found.latency == pytest.approx(50e-6, rel=1e-9)
    assert found.bandwidth == pytest.approx(2e9, rel=1e-9)


def test_latency_is_not_lost_in_the_noise_of_large_messages() -> None:
    exact = Line(latency=100e-6, bandwidth=1e9)
    noisy = [Timing(s, exact.seconds(s) * n) for s, n in ((8192, 1.0), (65536, 1.0), (2**24, 0.9), (2**28, 1.1))]
    found = fit(noisy)
    # In plain seconds the 10 % of the largest, 27 ms, would drown a latency of 0.1 ms.
    assert found.latency == pytest.approx(100e-6, rel=0.1)
    assert found.bandwidth == pytest.approx(1e9, rel=0.1)


def test_times_that_are_too_long_count_as_much_as_those_that_are_too_short() -> None:
    exact = Line(latency=100e-6, bandwidth=1e9)
    found = fit([Timing(s, exact.seconds(s) * n) for s in (8192, 2**16, 2**24, 2**28) for n in (0.5, 2.0)])
    assert found.latency == pytest.approx(100e-6, rel=1e-6)
    assert found.bandwidth == pytest.approx(1e9, rel=1e-6)


def test_neither_latency_nor_bandwidth_is_ever_negative_or_without_end() -> None:
    faster_than_linear = fit([Timing(1000, 0.1), Timing(2000, 0.5)])
    assert faster_than_linear.latency == 0.0
    # Time per byte alone: the geometric mean of 0.1 / 1000 and 0.5 / 2000.
    assert faster_than_linear.bandwidth == pytest.approx(1 / (1e-4 * 2.5e-4) ** 0.5)
    falling = fit([Timing(1000, 0.5), Timing(2000, 0.1)])
    assert falling.seconds(1500) == pytest.approx((0.5 * 0.1) ** 0.5, rel=0.01)
    assert 0 < falling.bandwidth < 1e6
    one = fit([Timing(4000, 2.0)])
    assert (one.latency, one.bandwidth) == (0.0, pytest.approx(2000.0))


def test_one_slow_small_message_does_not_hide_the_bandwidth() -> None:
    # As measured on a busy machine: the first size took longer than the three after it.
    milliseconds = {2**13: 3.16, 2**16: 0.203, 2**19: 0.357, 2**22: 6.09, 2**24: 20.5, 2**26: 149.0}
    found = fit([Timing(size, ms / 1000) for size, ms in milliseconds.items()])
    assert 0.2e9 < found.bandwidth < 1.5e9
    assert 0.1e-3 < found.latency < 1e-3


def lines(bandwidth: float, latency: float = 0.0) -> dict[tuple[str, str], Line]:
    groups, operations = ("all", "inside a node", "across nodes"), ("all_reduce", "all_gather", "reduce_scatter")
    return {(g, o): Line(latency, bandwidth) for g in groups for o in operations}


def test_bytes_and_seconds_of_a_step() -> None:
    # 8e9 parameters on 8 ranks of one node, 10 GB/s for every message.
    work = Work(micro_batches=4, parameter_bytes=2, compute_seconds=15.2)
    ddp, fsdp2 = step_costs(assumed_model(8e9), work, ranks=8, nodes=1, lines=lines(10e9))
    # DDP: 4 x 8e9 = 32 GB reduced once; 2 x 7/8 of it cross a link.
    assert (ddp.link_bytes, ddp.seconds) == (pytest.approx(56e9), pytest.approx(3.2))
    assert ddp.share == pytest.approx(3.2 / 18.4)
    assert ddp.hidden_share == 0.0
    # FSDP2, four times: 16 GB gathered twice and 32 GB scattered = 64 GB of messages; 7/8 of them cross a link.
    assert (fsdp2.link_bytes, fsdp2.seconds) == (pytest.approx(4 * 56e9), pytest.approx(4 * 6.4))
    assert fsdp2.hidden_share == pytest.approx((25.6 - 15.2) / 25.6)


def test_latency_is_paid_for_every_message() -> None:
    work = Work(micro_batches=2, parameter_bytes=4, compute_seconds=None)
    ddp, fsdp2 = step_costs(assumed_model(25 * 2**20), work, ranks=2, nodes=1, lines=lines(1e30, latency=1.0))
    # 100 MiB of gradients are four buckets of 25 MiB; 32 layers and the rest are 33 messages, three times, twice.
    assert (ddp.seconds, fsdp2.seconds) == (pytest.approx(4.0), pytest.approx(198.0))
    assert ddp.share is None


def test_hsdp_shards_inside_and_reduces_across() -> None:
    found = lines(10e9) | {("across nodes", "all_reduce"): Line(0.0, 1e9)}
    work = Work(micro_batches=1, parameter_bytes=4, compute_seconds=None)
    hsdp = step_costs(assumed_model(1e9), work, ranks=8, nodes=2, lines=found)[2]
    # Inside, on 4 ranks: three messages of 4 GB, 0.4 s each, 3/4 over a link. Across: 4 GB at 1 GB/s over the node's
    # link, of which each of four ranks sends its quarter with factor 2 x 1/2.
    assert hsdp.seconds == pytest.approx(1.2 + 4.0)
    assert hsdp.link_bytes == pytest.approx(9e9 + 1e9)
    assert len(step_costs(assumed_model(1e9), work, ranks=2, nodes=2, lines=found)) == 2


def test_computing_is_six_operations_a_parameter_and_token() -> None:
    assert compute_seconds(1e9, 1000, 1e12) == 6.0


def test_parameters_are_counted_from_a_config(tiny_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(tiny_model)
    model = count_parameters(str(tiny_model))
    assert model.parameters == loaded.num_parameters()
    assert model.layers == 3


def test_a_model_that_is_not_there_is_said_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^--model \./nowhere: path does not exist") as caught:
        count_parameters("./nowhere")
    assert "\n" not in str(caught.value)


def test_groups_inside_across_and_all() -> None:
    assert rank_groups([0, 0, 1, 1]) == {
        "inside a node": [[0, 1], [2, 3]],
        "across nodes": [[0, 2]],
        "all": [[0, 1, 2, 3]],
    }
    assert rank_groups([0, 0]) == {"inside a node": [[0, 1]], "all": [[0, 1]]}
    assert rank_groups([0, 1]) == {"across nodes": [[0, 1]], "all": [[0, 1]]}


def test_of_several_nodes_the_slowest_is_reported() -> None:
    def one(ranks: list[int], seconds: float) -> Measured:
        return Measured("inside a node", "all_reduce", ranks, [Timing(1, 0.1), Timing(9, seconds)], Line(0, 1), False)

    fast, slow = one([0, 1], 1.0), one([2, 3], 2.0)
    assert slowest_of_each({0: [fast], 1: [fast], 2: [slow], 3: [slow]}) == [slow]
