"""Memory of each process under DDP, FSDP2 and tensor parallelism, on CPU processes: bytes per parameter of the whole model.

    python benchmarks/memory.py [--parameters 135] [--ranks 2 4]

Trains a randomly made model of SmolLM2-135M's shape (or wider) for three steps of short rows with fp32 AdamW, through the
toolkit's own loading, spreading and loop, and samples the anonymous memory of every process (what it has allocated; pages of
files that it maps are the system's to take back). The runtime, as it is before the model is loaded, is not counted, and the C
library is told to give freed memory back (MALLOC_MMAP_THRESHOLD_).
The formulas: DDP 16 (weights, gradients, two moments); FSDP2 16 / ranks, and while it loads 4 for the whole model in each
process unless each reads its part.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from toolkit.layout import Layout

ROOT = Path(__file__).parents[1]
PART = ("--fsdp_cpu_ram_efficient_loading", "true")


def main() -> None:
    """Make the model, run every layout, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parameters", type=int, default=135, help="about how many million parameters")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(Path(arguments.worker), Path(arguments.result))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        count = make_model(model, arguments.parameters)
        print(f"{count / 1e6:.1f} million parameters, fp32; bytes per parameter, largest of the ranks\n")
        print("| layout | ranks | loading | training | of DDP | weights, gradients, moments by formula |")
        print("|---|---|---|---|---|---|")
        for ranks in arguments.ranks:
            reference = None
            rows = [
                ("DDP", "ddp", (), 16.0),
                ("FSDP2", "fsdp2", (), 16 / ranks),
                ("FSDP2, each its part", "fsdp2", PART, 16 / ranks),
            ]
            if ranks % 2 == 0:
                sizes = ("--parallelism_config_dp_shard_size", str(ranks // 2))
                rows.append(("FSDP2 x tensor parallel 2", "fsdp2_tp", sizes, 16 / ranks))
            for name, layout, flags, formula in rows:
                loading, training = measure(layout, ranks, flags, model, count)
                reference = reference or training
                print(
                    f"| {name} | {ranks} | {loading:.1f} | {training:.1f} | {training / reference:.2f} | {formula:.1f} |",
                    flush=True,
                )


def make_model(folder: Path, millions: int) -> int:
    """A Llama with SmolLM2-135M's proportions and about so many parameters, saved with random weights."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    layers = max(1, round((millions - 28.3) / 3.54))
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def measure(layout: str, ranks: int, flags: tuple[str, ...], model: Path, count: int) -> tuple[float, float]:
    """Largest growth over all ranks while loading and while training, in bytes per parameter."""
    found = on_layout(
        layout, ["--num_processes", str(ranks), *flags], [str(Path(__file__).resolve()), "--worker", str(model)]
    )
    assert len(found) == ranks
    return max(f["loading"] for f in found) / count, max(f["training"] for f in found) / count


def on_layout(layout: str, flags: list[str], worker: list[str]) -> list[dict[str, float]]:
    """Launch a worker under a layout; what each of its processes wrote as JSON into the folder that it is given as --result."""
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
        command += [
            f"accelerate_configs/{layout}.yaml",
            "--main_process_port",
            "0",
            *flags,
            *worker,
            "--result",
            results,
        ]
        # glibc keeps what is freed in blocks below a threshold that grows with use; fixed, memory is what is in use.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        return [json.loads(file.read_text()) for file in Path(results).iterdir()]


class Peak(threading.Thread):
    """Samples the anonymous memory of this process; `take` gives the largest since the last take, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._largest = 0

    def run(self) -> None:
        """Until the process ends."""
        while True:
            self._largest = max(self._largest, anonymous_bytes())
            time.sleep(0.005)

    def take(self) -> int:
        """The largest, and begin anew."""
        largest, self._largest = max(self._largest, anonymous_bytes()), 0
        return largest


def anonymous_bytes() -> int:
    """What /proc says that this process has allocated and touched."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon; this needs Linux")


def work(model_folder: Path, results: Path) -> None:
    """One rank: load, spread, train, and write down the peaks."""
    import gc

    from toolkit.config import ModelConfig
    from toolkit.layout import build_layout
    from toolkit.models import load_model
    from toolkit.parallel.loading import distributed_config

    layout = build_layout()
    gc.collect()
    runtime = anonymous_bytes()
    peak = Peak()
    peak.start()
    mesh = distributed_config(layout.choices)
    model = load_model(ModelConfig(name_or_path=str(model_folder)), seed=0, sharded=mesh)
    loading, training = (size - runtime for size in train_three_steps(layout, model, peak))
    file = results / str(layout.accelerator.process_index)
    file.write_text(json.dumps({"loading": loading, "training": training}))
    layout.wait()


def train_three_steps(layout: Layout, model: PreTrainedModel, peak: Peak) -> tuple[int, int]:
    """Spread `model` and train it on rows of 16 tokens; the peaks until it is spread, and from then on, in bytes."""
    import numpy as np

    from toolkit.attention import ISOLATED
    from toolkit.config import TrainConfig, WatchConfig
    from toolkit.data.plan import BatchPlan
    from toolkit.data.split import Capacity
    from toolkit.data.tokens import TokenRows
    from toolkit.health import Health
    from toolkit.loop import Wishes, train
    from toolkit.loss_scale import LossScale
    from toolkit.monitor.heartbeat import Heartbeat
    from toolkit.objectives.causal_lm import CausalLanguageModeling
    from toolkit.optim import Schedule
    from toolkit.parallel.spread import spread
    from toolkit.run import rehearse
    from toolkit.steps import Feed

    model.set_attn_implementation(ISOLATED)
    module, optimizer = spread(layout, model, CausalLanguageModeling(), TrainConfig())
    loading = peak.take()
    generator = np.random.default_rng(0)
    rows = TokenRows.build([(ids, ids) for ids in generator.integers(3, 49152, (8 * layout.dp_size, 16)).tolist()])
    rehearse(
        layout, module, optimizer, rows, padding_free=True, pad_token_id=0
    )  # as every run does before its first step
    feed = Feed(rows, Capacity(None, 2), layout.dp_rank, layout.dp_size, True, 0)
    plan = BatchPlan(len(rows), 4 * layout.dp_size, seed=0, shuffle=False)
    train(
        layout, module, optimizer, feed.steps(plan, 0, 3), schedule=Schedule(1e-5, 3, 0, "constant"), max_grad_norm=1.0,
        seed=0, health=Health(WatchConfig(), print), loss_scale=LossScale(), beat=Heartbeat(), say=print,
        record=lambda result: None, wishes=Wishes, after_step=lambda step, wished: None,
    )  # fmt: skip
    return loading, peak.take()


if __name__ == "__main__":
    main()
