"""Seconds to save and to load the state of a run: this toolkit beside `accelerator.save_state`, in one run.

    python benchmarks/checkpoint.py                    # a Llama of 135 million parameters, fp32, AdamW: 1.6 GB
    python benchmarks/checkpoint.py --layers 6 --rounds 5

Both write weights and both moments of AdamW. This toolkit also computes a checksum of every file and waits until all is on
the disk (fsync); `save_state` does neither, so its time with a sync after it is given too. "stall" is what training waits
for: all of a save, or with `checkpoint.asynchronous` the copy to main memory. Contestants take turns; medians are printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from toolkit.checkpoint.folder import checkpoint_path
from toolkit.checkpoint.save import Saver
from toolkit.checkpoint.tensors import restore_tensors
from toolkit.config import CheckpointConfig, TrainConfig
from toolkit.layout import Layout, build_layout
from toolkit.objectives import ObjectiveModule
from toolkit.objectives.causal_lm import CausalLanguageModeling
from toolkit.optim import build_optimizer


def build(layout: Layout, layers: int) -> tuple[Any, Any]:
    """A model of SmolLM2-135M's shape after one optimizer step on made-up gradients."""
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    module = ObjectiveModule(AutoModelForCausalLM.from_config(config), CausalLanguageModeling())
    module, optimizer = layout.accelerator.prepare(module, build_optimizer(module, TrainConfig()))
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return module, optimizer


def timed(work: Callable[[], Any]) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(layout: Layout, folder: Path, layers: int, rounds: int) -> tuple[dict[str, float], int]:
    """Median seconds of every contestant, and the bytes of a checkpoint."""
    module, optimizer = build(layout, layers)
    times: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        times.setdefault(name, []).append(seconds)

    def make_saver(kind: str) -> Saver:
        """One that writes at once or in the background, and notes its times."""

        def saved(step: int, seconds: float, stalled: float) -> None:
            note(f"{kind} save", seconds)
            note(f"{kind} stall", stalled)

        (folder / kind).mkdir()
        config = CheckpointConfig(asynchronous=kind == "asynchronous", keep_last=1)
        return Saver(
            layout, folder / kind, config, small_files=lambda path: None, saved=saved, beat=lambda *_: None, say=print
        )

    savers = {kind: make_saver(kind) for kind in ("synchronous", "asynchronous")}

    def save(kind: str, number: int) -> None:
        savers[kind].save(number, module, optimizer, {"step": number}, None)
        savers[kind].finish()

    def save_state(number: int) -> None:
        shutil.rmtree(folder / "accelerate", ignore_errors=True)
        os.sync()
        seconds = timed(lambda: layout.accelerator.save_state(str(folder / "accelerate")))
        note("save_state", seconds)
        note("save_state, synced", seconds + timed(os.sync))

    # The order moves on in each round: what comes first pays for memory that the others find ready.
    contestants = [lambda n: save("synchronous", n), lambda n: save("asynchronous", n), save_state]
    plain = layout.accelerator.unwrap_model(module)
    for number in range(1, rounds + 1):
        for contestant in (*contestants[number % 3 :], *contestants[: number % 3]):
            os.sync()
            contestant(number)
        path = checkpoint_path(folder / "synchronous", number)
        note("load", timed(lambda path=path: restore_tensors(path, plain, optimizer)))
        note("load_state", timed(lambda: layout.accelerator.load_state(str(folder / "accelerate"))))
    medians = {name: statistics.median(found) for name, found in times.items()}
    return medians, sum(file.stat().st_size for file in path.iterdir())


def main() -> None:
    """Save and load in turns, print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write; default: the temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        middle, size = measure(build_layout(), Path(folder), arguments.layers, arguments.rounds)
    print(f"{size / 1e6:,.0f} MB, {arguments.rounds} rounds, medians")
    for name, seconds in middle.items():
        print(f"  {name:18} {seconds:6.2f} s")

    def ratio(ours: str, theirs: str) -> str:
        return f"{middle[ours] / middle[theirs]:.2f}"

    save = "synchronous save"
    print(f"save: {ratio(save, 'save_state')} of save_state's time, {ratio(save, 'save_state, synced')} with a sync")
    print(f"load: {ratio('load', 'load_state')} of load_state's time")
    print(f"stall of an asynchronous save: {ratio('asynchronous stall', 'synchronous stall')} of a synchronous one's")


if __name__ == "__main__":
    main()
