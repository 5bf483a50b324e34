"""Processes that cannot work together, or disagree with the recipe, end in seconds with one message."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parents[2]
STRANGERS = r"""
import sys
from accelerate import Accelerator
from accelerate.utils import DistributedType
accelerator = Accelerator()
# One write, so that the lines of two processes cannot mix.
sys.stdout.write(f"type {accelerator.distributed_type.value} processes {accelerator.num_processes}\n")
"""
TOGETHER = """
import sys
import torch
from toolkit.errors import exit_with_message
from toolkit.layout import build_layout
def main():
    layout = build_layout()
    total = layout.sum(1.0)[0].item()
    threads = torch.get_num_threads()
    # One write, so that lines of several ranks cannot mix.
    sys.stdout.write(f"rank {layout.dp_rank} of {layout.dp_size} {layout.name} sum {total} threads {threads}\\n")
    sys.stdout.flush()
    layout.wait()
exit_with_message(main)
"""
ONE_RANK_FAILS = """
import time
from toolkit.errors import UserError, exit_with_message
from toolkit.layout import build_layout
def main():
    layout = build_layout()
    if layout.dp_rank == 1:
        raise UserError("rank one found something")
    layout.wait()
    layout.sum(1.0)
    time.sleep(60)
exit_with_message(main)
"""
PRECISION = """
import torch
from torch.distributed.tensor import DTensor
from toolkit.config import ModelConfig, TrainConfig
from toolkit.layout import build_layout
from toolkit.models import load_model
from toolkit.objectives import ObjectiveModule
from toolkit.objectives.causal_lm import CausalLanguageModeling
from toolkit.optim import build_optimizer
layout = build_layout()
model = load_model(ModelConfig(name_or_path="recipes/demo/model", random_init=True), seed=0)
module = ObjectiveModule(model, CausalLanguageModeling())
module, _ = layout.accelerator.prepare(module, build_optimizer(module, TrainConfig()))
parameters = list(module.parameters())
if layout.is_main:
    print("dtypes", {str(p.dtype) for p in parameters}, "sharded", all(isinstance(p, DTensor) for p in parameters), flush=True)
layout.wait()
"""


def test_accelerate_still_needs_the_stand_in_for_accelerators(script) -> None:
    """When this fails, accelerate shards on CPUs by itself: remove `_let_cpus_stand_in_for_accelerators`."""
    code, output = script(STRANGERS, "fsdp2")
    assert code == 0, output
    assert output.count("type NO processes 1") == 2, output


@pytest.mark.parametrize(
    ("layout", "flags", "name", "processes"),
    [("ddp", (), "DDP", 2), ("fsdp2", (), "FSDP2", 2), ("hsdp", (), "HSDP 2 replicas x 2 shards", 4)],
)
def test_all_processes_of_a_layout_work_together(layout, flags, name, processes, script) -> None:
    code, output = script(TOGETHER, layout, flags=flags)
    assert code == 0, output
    for rank in range(processes):
        assert f"rank {rank} of {processes} {name} sum {float(processes)} threads 1" in output, output


def test_processes_that_are_done_end_in_order(script) -> None:
    """A process group that is left to the interpreter's end aborts its process, not always: so twelve of them end here."""
    talk = TOGETHER.replace(
        "    layout.wait()\n", "    for _ in range(20):\n        layout.sum(1.0)\n    layout.wait()\n"
    )
    for _ in range(3):
        code, output = script(talk, "ddp", flags=("--num_processes", "4"))
        assert code == 0, output


def test_sharded_weights_under_bf16_are_fp32_masters(script) -> None:
    """C13."""
    code, output = script(PRECISION, "fsdp2_bf16")
    assert code == 0, output
    assert "dtypes {'torch.float32'} sharded True" in output, output


def test_a_failure_of_one_rank_ends_all_of_them_with_its_reason(script) -> None:
    started = time.monotonic()
    code, output = script(ONE_RANK_FAILS, "ddp")
    assert code != 0
    assert time.monotonic() - started < 50, "the other rank waited"
    assert output.count("[rank 1] error: rank one found something") == 1, output


def launched(*arguments: str, flags: tuple[str, ...], **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0", *flags]
    return subprocess.run(
        [*command, "recipes/sft.py", *arguments], capture_output=True, text=True, timeout=100, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, check=False,
    )  # fmt: skip


def test_a_user_error_is_printed_once_by_two_processes(tmp_path: Path) -> None:
    started = time.monotonic()
    flags = ("--config_file", "accelerate_configs/ddp.yaml")
    done = launched("--train.learing_rate", "1", "--output_dir", str(tmp_path / "run"), flags=flags)
    assert time.monotonic() - started < 30
    assert done.stderr.count("error: unknown key train.learing_rate") == 1, done.stderr


@pytest.mark.parametrize(
    ("changes", "flags", "message"),
    [
        ({"distributed_type": "NO", "num_processes": 2}, (), "asked for 2 processes"),
        ({"distributed_type": "MULTI_CPU", "num_processes": 2}, (), "asked for 2 processes"),
        ({"fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_foward": True}}, (), "fsdp_reshard_after_forward"),
        ({"fsdp_config": {"fsdp_version": 1}}, (), "fsdp_version: 1 is not supported"),
    ],
)
def test_a_layout_that_cannot_be_meant_is_refused(changes, flags, message, tmp_path: Path) -> None:
    base = "fsdp2" if "fsdp_config" in changes else "single"
    settings = yaml.safe_load((ROOT / "accelerate_configs" / f"{base}.yaml").read_text()) | changes
    file = tmp_path / "layout.yaml"
    file.write_text(yaml.safe_dump(settings))
    done = launched("--output_dir", str(tmp_path / "run"), flags=("--config_file", str(file), *flags))
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert message in errors[0]
    assert not (tmp_path / "run").exists()


def test_mixed_precision_in_a_recipe_is_an_error_that_names_its_owner(tmp_path: Path) -> None:
    """C22: the layout owns precision, so the two can never disagree."""
    done = subprocess.run(
        [sys.executable, "recipes/sft.py", "--mixed_precision", "no"], capture_output=True, text=True, cwd=ROOT, check=False
    )  # fmt: skip
    assert done.returncode == 2
    assert "mixed_precision in the accelerate config file" in done.stderr
