"""What watching costs: the training loop with heartbeat, watchdog and memory watch against the same loop without them.

    python benchmarks/watch.py

One process, one run, on the demo model (a step of some tens of milliseconds, so that the share is an upper bound for any
real model). Steps with and without take turns, on one thread, and are measured in processor time, which other work on the
machine disturbs less than wall time. The ratio still holds noise far above the cost, so the calls themselves are timed
too and given as a share of a step: below 1 % is what is promised.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from toolkit.config import ModelConfig, TrainConfig, WatchConfig
from toolkit.data.plan import BatchPlan
from toolkit.data.split import Capacity
from toolkit.data.tokens import TokenRows
from toolkit.health import Health
from toolkit.layout import build_layout
from toolkit.loop import Wishes, train
from toolkit.loss_scale import LossScale
from toolkit.models import load_model
from toolkit.monitor.heartbeat import Heartbeat
from toolkit.monitor.watchdog import Watchdog
from toolkit.objectives import ObjectiveModule
from toolkit.objectives.causal_lm import CausalLanguageModeling
from toolkit.optim import build_optimizer, build_schedule
from toolkit.steps import Feed

DEMO = Path(__file__).parents[1] / "recipes" / "demo" / "model"
MICRO_BATCHES = 2


def nothing(*ignored: object) -> None:
    """In the place of a beat and of what follows a step."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100, help="pairs of steps")
    arguments = parser.parse_args()

    layout = build_layout()
    torch.set_num_threads(1)
    module = ObjectiveModule(
        load_model(ModelConfig(name_or_path=str(DEMO), random_init=True), seed=0), CausalLanguageModeling()
    )
    module, optimizer = layout.accelerator.prepare(module, build_optimizer(module, TrainConfig()))
    rows = TokenRows.build([([5 + i % 50] * 64, [5 + i % 50] * 64) for i in range(64)])
    plan = BatchPlan(len(rows), 4 * MICRO_BATCHES, seed=0)
    feed = Feed(rows, Capacity(None, 4), 0, 1, True, 0)
    schedule = build_schedule(TrainConfig(), 10**6, nothing)
    health = Health(WatchConfig(), nothing)

    beat = Heartbeat()
    watch = Watchdog(WatchConfig(), layout, beat, Path(tempfile.gettempdir()) / "watch-logs", nothing)

    def one(start: int, *, watched: bool) -> float:
        """Processor seconds of one step."""

        def after(step: int, wished: Wishes) -> None:
            if watched:
                watch.step(step)

        began = time.process_time()
        train(
            layout, module, optimizer, feed.steps(plan, start, start + 1), schedule=schedule,
            max_grad_norm=1.0, seed=0, health=health, loss_scale=LossScale(), say=nothing, beat=beat if watched else nothing,
            record=nothing, wishes=Wishes, after_step=after,
        )  # fmt: skip
        return time.process_time() - began

    one(0, watched=False)
    # The thread runs during all steps; what it takes of the processor is measured by its own clock below.
    watch.start()
    pairs = list(measured(one, arguments.pairs))
    plain = statistics.median(without for without, _ in pairs)
    ratios = sorted(watched / without for without, watched in pairs)
    medians = statistics.median(watched for _, watched in pairs) / plain
    beats, round_, memory = cost_of_beats(beat), cost_of_a_round(watch), cost_of_memory(watch)
    watch.stop()
    per_step = beats + memory + plain * round_
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {MICRO_BATCHES} micro-batches a step")
    print(f"step without: {plain * 1e3:.1f} ms")
    print(
        f"step with / without: {medians:.4f} (ratio of medians over {len(ratios)} pairs; middle half of the ratios "
        f"{ratios[len(ratios) // 4]:.4f} to {ratios[-len(ratios) // 4 - 1]:.4f})"
    )
    print(
        f"beats {beats * 1e6:.1f} us a step, memory watch {memory * 1e6:.1f} us a step, the thread {round_:.4%} of one core"
    )
    print(f"in all {per_step / plain:.4%} of a step: {'below' if per_step < 0.01 * plain else 'NOT BELOW'} 1 %")


def measured(one: Callable[..., float], pairs: int) -> Iterator[tuple[float, float]]:
    """Seconds of a step (without, with); which comes first alternates, so that a drift of the machine cancels."""
    for pair in range(pairs):
        found = {}
        for turn, watched in enumerate((False, True) if pair % 2 else (True, False)):
            found[watched] = one(2 * pair + turn + 1, watched=watched)
        yield found[False], found[True]


def cost_of_beats(beat: Heartbeat, steps: int = 1000) -> float:
    """Seconds that the beats of one step take."""
    began = time.perf_counter()
    for step in range(steps):
        beat("data", step)
        for number in range(MICRO_BATCHES):
            beat("forward", step, number + 1)
            beat("backward", step, number + 1)
        beat("reduce", step)
        beat("update", step)
    return (time.perf_counter() - began) / steps


def cost_of_a_round(watch: Watchdog, rounds: int = 200) -> float:
    """Share of one core that the thread takes: a look every second and a full round every five."""
    now = time.monotonic() + 1e6
    began = time.thread_time()
    for _ in range(rounds):
        watch._publish(now)
    publish = (time.thread_time() - began) / rounds
    watch._published = now
    began = time.thread_time()
    for _ in range(rounds):
        watch._round(0.0, now)
    return (time.thread_time() - began) / rounds / watch._tick + publish / watch._interval


def cost_of_memory(watch: Watchdog, steps: int = 1000) -> float:
    """Seconds a step."""
    began = time.perf_counter()
    for step in range(steps):
        watch.step(step)
    return (time.perf_counter() - began) / steps


if __name__ == "__main__":
    main()
