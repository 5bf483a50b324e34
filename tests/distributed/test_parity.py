"""`toolkit parity` on real processes: layouts that agree, one that does not, and a recipe that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
DEMO = (
    "--config",
    str(ROOT / "recipes" / "configs" / "sft" / "demo.yaml"),
    "--data.eval",
    "null",
    "--data.max_rows",
    "300",
)
BEFORE_TRAINING = "    objective = CausalLanguageModeling("
BROKEN = "model.layers.1.mlp.up_proj.weight"
# What one rank does to one gradient before the ranks add theirs up.
HOOK = f"""
    import os

    if os.environ.get("RANK") == "1":
        dict(model.named_parameters())["{BROKEN}"].register_hook(lambda gradient: gradient * 1.5)
"""


def parity(recipe: str, layouts: str, folder: Path, *flags: str, steps: int = 3) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from toolkit.cli import main; main()", "parity", recipe, "--layouts", layouts]
    command += ["--steps", str(steps), "--output", str(folder), "--cpu", "--", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "150"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=500, cwd=ROOT, env=environment, check=False
    )  # fmt: skip


def test_layouts_agree_and_the_tables_say_so(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    done = parity("sft", "single,ddp,fsdp2,fsdp2_tp", folder, *DEMO)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((folder / "parity.json").read_text())
    assert [(row["name"], row["verdict"]) for row in record["layouts"]] == [
        ("single", "reference"), ("ddp", "same"), ("fsdp2", "same"), ("fsdp2_tp", "same"),
    ]  # fmt: skip
    norms = [[point["gradient_norms"] for point in row["curve"]] for row in record["layouts"]]
    assert [len(curve) for curve in norms] == [3, 3, 3, 3]
    for row, curve in zip(record["layouts"][1:], norms[1:], strict=True):
        for step, (mine, wanted) in enumerate(zip(curve, norms[0], strict=True), 1):
            assert list(mine) == list(wanted), row["name"]
            assert mine == pytest.approx(wanted, rel=1e-5), (row["name"], step)
    # Names of the plain model, which has no others; the tied output matrix once.
    finished = AutoModelForCausalLM.from_pretrained(folder / "single" / "model")
    assert list(norms[0][0]) == [name for name, _ in finished.named_parameters()]
    assert "lm_head.weight" not in norms[0][0]
    for row in record["layouts"]:
        for point in row["curve"]:
            total = sum(value**2 for value in point["gradient_norms"].values()) ** 0.5
            assert total == pytest.approx(point["grad_norm"], rel=1e-6)
    page = (folder / "parity.md").read_text()
    assert page.count("\n| ") == 5 + 1 + 5
    again = parity("sft", "single,ddp", folder)
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)


def test_a_gradient_that_one_rank_spoils_is_found_at_its_first_step(tmp_path: Path) -> None:
    text = (ROOT / "recipes" / "sft.py").read_text(encoding="utf-8")
    assert text.count(BEFORE_TRAINING) == 1
    spoiled = tmp_path / "spoiled.py"
    spoiled.write_text(text.replace(BEFORE_TRAINING, HOOK + BEFORE_TRAINING), encoding="utf-8")
    done = parity(str(spoiled), "single,ddp", tmp_path / "p", *DEMO)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads((tmp_path / "p" / "parity.json").read_text())["layouts"][1]
    assert found["verdict"] == "differs from step 1"
    assert found["comparison"]["first"]["parameters"] == [BROKEN]
    assert found["comparison"]["learning_rate_equal"]
    assert found["comparison"]["rows_equal"]
    assert f"1 of {len(found['curve'][0]['gradient_norms'])} parameters" in done.stdout
    assert BROKEN in done.stdout


def test_a_recipes_own_mistake_comes_through(tmp_path: Path) -> None:
    done = parity("sft", "single,ddp", tmp_path / "p", "--train.learing_rate", "1")
    assert done.returncode == 2
    assert "did you mean train.learning_rate" in done.stderr
    assert not (tmp_path / "p" / "ddp.log").exists()
    # A mistake that only one layout minds: bf16 weights, and a file that asks for fp32 ones beside bf16 products.
    done = parity("sft", "single,ddp_bf16", tmp_path / "q", *DEMO, "--model.dtype", "bfloat16", steps=1)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "failed, exit code 2" in done.stdout
    assert "ddp_bf16: error: model.dtype: bfloat16" in done.stdout
