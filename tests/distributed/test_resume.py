"""Law 4: a resumed run is the uninterrupted run. Bitwise on the same layout, within law 1 on any other.

Dropout draws by (seed, step, rank), so it is in the runs that are compared to the bit, and not in those on other layouts.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.distributed.conftest import Finished
from toolkit.checkpoint.folder import open_checkpoint
from toolkit.checkpoint.tensors import read_tensors, stored_tensors

pytestmark = pytest.mark.distributed

DEMO = Path(__file__).parents[2] / "recipes" / "demo"
TIMES = {"seconds", "data_seconds", "tokens_per_second"}
STEPS, STOP = 9, 5
LAYOUTS = {
    "single": ("single", ()),
    "DDP x 2": ("ddp", ()),
    "DDP x 3": ("ddp", ("--num_processes", "3")),
    "FSDP2 x 2": ("fsdp2", ()),
    "FSDP2 x 4": ("fsdp2", ("--num_processes", "4")),
    "HSDP 2 x 2": ("hsdp", ()),
    "FSDP2 x tensor parallel": ("fsdp2_tp", ()),
    "FSDP2 x context parallel": ("fsdp2_cp", ()),
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Ragged rows, seven steps an epoch: after step 5 a run is in mid-epoch and in mid-schedule."""
    folder = tmp_path_factory.mktemp("resume")
    generator = random.Random(0)

    def text(longest: int) -> str:
        return "x" + "".join(generator.choices("abcdefghijklm    ", k=generator.randint(1, longest)))

    for name, count in (("train", 73), ("eval", 8)):
        rows = [{"prompt": text(30), "completion": text(60)} for _ in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = {
        "model.name_or_path": DEMO / "model",
        "model.random_init": "true",
        "data.train": folder / "train.jsonl",
        "data.eval": folder / "eval.jsonl",
        "train.global_batch_size": 11,
        "train.max_steps": STEPS,
        "train.learning_rate": "1e-3",
        "train.warmup_steps": 3,
        "train.weight_decay": 0.1,
        "train.max_tokens_per_micro_batch": 150,
        "checkpoint.save_every": STOP,
        "checkpoint.save_every_minutes": 0,
    }
    return [str(part) for key, value in settings.items() for part in (f"--{key}", value)]


@pytest.fixture(scope="module")
def dropout(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The same model with dropout."""
    folder = tmp_path_factory.mktemp("dropout")
    for file in (DEMO / "model").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.1}), encoding="utf-8")
    return ["--model.name_or_path", str(folder)]


def curve(run: Finished) -> list[dict]:
    return [
        {k: v for k, v in entry.items() if k not in TIMES} for entry in run.metrics() if "save_seconds" not in entry
    ]


def weights(run: Finished) -> dict[str, torch.Tensor]:
    return load_file(run.folder / "model" / "model.safetensors")


# Stops like a pre-empted process, once, in the middle of a run.
INTERRUPTED = """
import os, runpy, signal, sys
from pathlib import Path
import toolkit.loop
original = toolkit.loop.Wishes
marker = Path({marker!r} + os.environ.get("RANK", "0"))
import toolkit.agenda
after = toolkit.agenda.Agenda.after_step
def after_step(self, step, wished):
    if step == {step} - 1 and not marker.exists() and int(os.environ.get("RANK", "0")) == {rank}:
        marker.write_text("")
        os.kill(os.getpid(), signal.{signal})
    after(self, step, wished)
toolkit.agenda.Agenda.after_step = after_step
sys.argv[0] = {recipe!r}
runpy.run_path({recipe!r}, run_name="__main__")
"""


@pytest.fixture
def interrupted(tmp_path: Path):
    """A run that is stopped by a signal so that step `STOP` is its last one; returns (exit code, output)."""
    from tests.distributed.conftest import ROOT, launch

    def run(folder: Path, layout: str, arguments: list[str], *, flags=(), rank: int = 0, signal: str = "SIGTERM"):
        script = tmp_path / "interrupted.py"
        text = INTERRUPTED.format(
            marker=str(folder) + ".killed", step=STOP, rank=rank, signal=signal, recipe=str(ROOT / "recipes" / "sft.py")
        )
        script.write_text(text, encoding="utf-8")
        return launch(script, [*arguments, "--output_dir", str(folder)], layout=layout, flags=flags)

    return run


@pytest.fixture(scope="module")
def whole(recipe: list[str], tmp_path_factory: pytest.TempPathFactory):
    """The uninterrupted run on a layout, made once."""
    from tests.distributed.conftest import ROOT, launch

    made: dict[str, Finished] = {}

    def run(name: str, changes: list[str] | None = None) -> Finished:
        key = f"{name} {changes}"
        if key not in made:
            layout, flags = LAYOUTS[name]
            folder = tmp_path_factory.mktemp("whole") / "run"
            arguments = [*recipe, *(changes or []), "--output_dir", str(folder)]
            code, output = launch(ROOT / "recipes" / "sft.py", arguments, layout=layout, flags=flags)
            assert code == 0, output
            made[key] = Finished(code, output, folder)
        return made[key]

    return run


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_stopped_run_goes_on_to_the_bit(
    name: str, recipe: list[str], dropout: list[str], whole, interrupted, sft, tmp_path: Path
) -> None:
    """D01, with the signal on the last rank, at another step than checkpoints are due."""
    layout, flags = LAYOUTS[name]
    changes = dropout if name in ("single", "DDP x 2", "FSDP2 x 2") else []
    recipe = [*recipe, *changes, "--checkpoint.save_every", "4"]
    ranks = {"single": 1, "DDP x 2": 2, "DDP x 3": 3, "FSDP2 x 2": 2}.get(name, 4)
    code, output = interrupted(tmp_path / "run", layout, recipe, flags=flags, rank=ranks - 1)
    assert code != 0
    assert f"checkpoint-{STOP} of {STEPS} steps is saved" in output, output
    assert "Traceback" not in output.split("checkpoint-5 of")[0], output
    assert {path.name for path in (tmp_path / "run").glob("checkpoint-*")} == {"checkpoint-4", f"checkpoint-{STOP}"}
    resumed = sft("run", layout, *recipe, "--resume", "auto", flags=flags)
    assert f"going on after step {STOP} of {STEPS}" in resumed.output
    assert curve(resumed) == curve(whole(name, changes))
    expected = weights(whole(name, changes))
    for key, value in weights(resumed).items():
        assert torch.equal(value, expected[key]), key


# Several runs in one launch: most of the time of a short one is the start of its processes.
SEVERAL = """
import sys
sys.path.insert(0, {root!r})
from accelerate.state import AcceleratorState
from recipes.sft import main
for arguments in {runs!r}:
    AcceleratorState._reset_state()
    sys.argv[1:] = arguments
    main()
"""


@pytest.mark.parametrize("there", LAYOUTS)
def test_a_checkpoint_of_any_layout_goes_on_under_any_other(
    there: str, recipe: list[str], whole, script, tmp_path
) -> None:
    """D08, D09."""
    runs = {here: tmp_path / f"from {here}" for here in LAYOUTS}
    arguments = [
        [*recipe, "--resume", str(whole(here).folder / f"checkpoint-{STOP}"), "--output_dir", str(folder)]
        for here, folder in runs.items()
    ]
    layout, flags = LAYOUTS[there]
    text = SEVERAL.format(root=str(DEMO.parents[1]), runs=arguments)
    code, output = script(text, layout, flags=flags, timeout=200)
    assert code == 0, output
    assert output.count(f"going on after step {STOP} of {STEPS}") == len(LAYOUTS)
    assert output.count("resume: layout.") >= len(LAYOUTS) - 1
    expected = [entry for entry in curve(whole("single")) if entry["step"] > STOP]
    reference = weights(whole("single"))
    for here, folder in runs.items():
        resumed = Finished(code, output, folder)
        assert [entry["step"] for entry in curve(resumed)] == [entry["step"] for entry in expected]
        for mine, wanted in zip(curve(resumed), expected, strict=True):
            for key, value in wanted.items():
                assert mine[key] == pytest.approx(value, rel=1e-5), (here, key, mine, wanted)
        assert weights(resumed).keys() == reference.keys()
        for key, value in weights(resumed).items():
            assert (value - reference[key]).abs().max() < 1e-4, (here, key)


def test_a_save_in_the_background_writes_the_same_bits(recipe: list[str], whole, sft) -> None:
    """Training goes on while the state of an earlier step is written."""
    run = sft("run", "fsdp2", *recipe, "--checkpoint.asynchronous", "true", "--checkpoint.keep_last", "9")
    assert curve(run) == curve(whole("FSDP2 x 2"))
    there = whole("FSDP2 x 2").folder / f"checkpoint-{STOP}"
    shards = {f.name: f.checksum for f in open_checkpoint(there).files if f.name.startswith("shard")}
    assert len(shards) == 2
    found = open_checkpoint(run.folder / there.name)
    assert {f.name: f.checksum for f in found.files if f.name.startswith("shard")} == shards
    [saved] = [entry for entry in run.metrics() if "save_seconds" in entry]
    assert saved["step"] == STOP
    assert saved["save_stall_seconds"] > 0


def test_a_checkpoint_is_a_model_without_its_run(recipe: list[str], whole, tmp_path: Path) -> None:
    """D15, D16: from shards of four ranks to a folder that transformers loads, each tied weight once."""
    run = whole("FSDP2 x 4")
    done = subprocess.run(
        [sys.executable, "-c", "from toolkit.cli import main; main()", "export", str(run.folder / f"checkpoint-{STOP}"),
         str(tmp_path / "model")], capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.chat_template
    assert model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert stored.keys() == weights(run).keys()
    tensors = stored_tensors(run.folder / f"checkpoint-{STOP}")
    into = {f"weights.model.{name}": torch.zeros_like(value) for name, value in stored.items()}
    assert into.keys() <= tensors.keys()
    read_tensors(run.folder / f"checkpoint-{STOP}", into)
    for name, value in stored.items():
        assert torch.equal(into[f"weights.model.{name}"], value), name


def test_a_longer_run_goes_on_along_the_new_schedule(recipe: list[str], whole, sft, tmp_path: Path) -> None:
    """D03: refused without permission, then the rate of each step is that of a run of the new length."""
    shutil.copytree(whole("single").folder, tmp_path / "run")
    longer = [*recipe, "--train.max_steps", "12", "--resume", "auto"]
    refused = sft("run", "single", *longer, expect=2)
    assert f"train.max_steps: {STEPS} -> 12" in refused.output
    assert "--allow_changes [train.max_steps]" in refused.output
    run = sft("run", "single", *longer, "--allow_changes", "[train.max_steps]")
    assert "9 -> 12 steps: from step 6 on" in run.output
    rates = [entry["learning_rate"] for entry in run.steps() if entry["step"] > STOP]
    # Linear from the peak at step 3 (counted from 0) to zero at step 12.
    assert rates == pytest.approx([1e-3 * (1 - (k - 3) / 9) for k in range(5, 12)])
    again = sft("run", "single", *longer, "--allow_changes", "[train.max_steps]")
    assert "is complete already" in again.output
