"""Trains the teacher of the demo of recipes/distill.py: the demo of recipes/sft.py, stored in bf16 to be small.

    python recipes/demo/make_teacher.py

Sums differ in their last bits from one processor to another, so the weights are not the same to the bit everywhere.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Train in a temporary folder, and leave the model in recipes/demo/teacher."""
    import torch
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        subprocess.run([sys.executable, str(HERE.parent / "sft.py"), "--output_dir", str(run)], check=True)
        target = HERE / "teacher"
        shutil.rmtree(target, ignore_errors=True)
        AutoModelForCausalLM.from_pretrained(run / "model", dtype=torch.bfloat16).save_pretrained(target)
    for file in (HERE / "model").iterdir():
        if file.name not in ("config.json", "generation_config.json"):
            shutil.copy(file, target)


if __name__ == "__main__":
    main()
