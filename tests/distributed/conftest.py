"""Real processes through `accelerate launch`: every launch has a time limit and a free port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Time limits are for hangs; two launches at a time on two cores take twice as long.
PATIENCE = 2


@dataclass
class Finished:
    """A run that ended: its exit code, what it printed, and where it wrote."""

    code: int
    output: str
    folder: Path

    def metrics(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def steps(self) -> list[dict]:
        return [entry for entry in self.metrics() if "grad_norm" in entry]

    def evaluations(self) -> list[dict]:
        return [entry for entry in self.metrics() if "eval_loss" in entry]


def launch(script: Path, arguments: list[str], *, layout: str, flags: tuple[str, ...] = (), timeout: int = 240):
    """Start `script` under a layout of accelerate_configs/; returns (exit code, output)."""
    file = ROOT / "accelerate_configs" / f"{layout}.yaml"
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        str(file),
        "--main_process_port",
        "0",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "random", "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [*command, *flags, str(script), *arguments],
        capture_output=True, text=True, timeout=PATIENCE * timeout, env=environment, cwd=ROOT, check=False,
    )  # fmt: skip
    return process.returncode, process.stdout + process.stderr


@pytest.fixture
def sft(tmp_path: Path):
    """Run recipes/sft.py under a layout and return what came of it."""

    def run(name: str, layout: str, *arguments: str, flags: tuple[str, ...] = (), expect: int = 0) -> Finished:
        folder = tmp_path / name
        code, output = launch(
            ROOT / "recipes" / "sft.py", [*arguments, "--output_dir", str(folder)], layout=layout, flags=flags
        )
        assert (code == 0) == (expect == 0), output
        return Finished(code, output, folder)

    return run


@pytest.fixture
def script(tmp_path: Path):
    """Run a Python text under a layout; returns (exit code, output)."""

    def run(text: str, layout: str, *, flags: tuple[str, ...] = (), timeout: int = 120):
        path = tmp_path / "script.py"
        path.write_text(text, encoding="utf-8")
        return launch(path, [], layout=layout, flags=flags, timeout=timeout)

    return run


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's model with stored weights; its embeddings are tied."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder, demo = tmp_path_factory.mktemp("base"), ROOT / "recipes" / "demo" / "model"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(demo)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(demo).save_pretrained(folder)
    return folder
