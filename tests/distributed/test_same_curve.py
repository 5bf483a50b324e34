"""Law 1: a layout never changes the maths. The same recipe on every layout gives the same curve."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.distributed

RELATIVE = 1e-5
ROOT = Path(__file__).parents[2]
DEMO = ROOT / "recipes" / "demo"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Ragged rows (2 to 150 tokens), a global batch that no rank count divides, a short last batch, some clipping."""
    folder = tmp_path_factory.mktemp("ragged")
    generator = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz     "

    def text(longest: int) -> str:
        return "x" + "".join(generator.choices(letters, k=generator.randint(1, longest)))

    # Letters at random: a task that is learned to the end makes gradients of which only rounding is left.
    rows = [{"prompt": text(40), "completion": text(100)} for _ in range(117)]
    for name, part in (("train", rows[:103]), ("eval", rows[103:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    settings = {
        "model.name_or_path": DEMO / "model",
        "model.random_init": "true",
        "data.train": folder / "train.jsonl",
        "data.eval": folder / "eval.jsonl",
        "train.global_batch_size": 11,
        "train.max_steps": 20,
        "train.learning_rate": "1e-3",
        "train.warmup_steps": 3,
        "train.weight_decay": 0.1,
        "train.max_grad_norm": 1.0,
        "train.max_tokens_per_micro_batch": 200,
        "eval_every": 20,
    }
    return [str(part) for key, value in settings.items() for part in (f"--{key}", value)]


@pytest.fixture(scope="module")
def reference(recipe: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, the whole global batch at once: no accumulation, nothing to get wrong."""
    from tests.distributed.conftest import launch

    folder = tmp_path_factory.mktemp("reference") / "run"
    whole = ["--train.max_tokens_per_micro_batch", "100000", "--output_dir", str(folder)]
    code, output = launch(ROOT / "recipes" / "sft.py", [*recipe, *whole], layout="single")
    assert code == 0, output
    assert "1 micro-batches per device" in output
    return folder


def curve(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_curve(run: Path, reference: Path, relative: float = RELATIVE, of_norm: float = RELATIVE) -> None:
    ours, theirs = curve(run), curve(reference)
    assert len(ours) == len(theirs) == 22  # 20 steps, evaluation before and after
    bounds = {"loss": relative, "grad_norm": of_norm, "eval_loss": relative, "eval_perplexity": 10 * relative}
    # Whether a token is the most probable one is decided by the last bit.
    bounds |= {} if relative == RELATIVE else {"eval_token_accuracy": 0.1}
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine.keys() == wanted.keys()
        for key in wanted.keys() - {"seconds", "data_seconds", "tokens_per_second"}:
            assert mine[key] == pytest.approx(wanted[key], rel=bounds.get(key, RELATIVE)), (key, mine, wanted)


# Bounds of loss and of gradient norm, relative. bf16 keeps 8 bits of mantissa, 2^-8 = 0.4 % per product, fp16 11 bits;
# PowerSGD sends approximations from its third step on.
EXACT = (RELATIVE, RELATIVE)
BF16, FP16, POWER_SGD = (1e-2, 5e-2), (1e-3, 5e-3), (5e-2, 0.3)
NO_CUT = ("--train.max_tokens_per_micro_batch", "null")
PAIR = ("--num_processes", "2", "--parallelism_config_dp_shard_size", "1")

LAYOUTS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], tuple[float, float]]] = {
    "single, accumulation 8": (
        "single",
        ("--train.max_tokens_per_micro_batch", "150", "--train.micro_batch_size", "2"),
        (),
        EXACT,
    ),
    "padded": ("single", ("--train.padding_free", "false", "--train.micro_batch_size", "3"), (), EXACT),
    "blocks compiled": ("single_compile", (), (), EXACT),
    "DDP x 2": ("ddp", (), (), EXACT),
    "DDP x 3": ("ddp", (), ("--num_processes", "3"), EXACT),
    "DDP x 2, accumulation 4": ("ddp_accumulate", NO_CUT, (), EXACT),
    "FSDP2 x 2": ("fsdp2", (), (), EXACT),
    "FSDP2 x 4": ("fsdp2", (), ("--num_processes", "4"), EXACT),
    "FSDP2 x 2, activations recomputed": ("fsdp2_checkpointing", (), (), EXACT),
    "FSDP2 x 2, offloaded": ("fsdp2_offload", (), (), EXACT),
    "FSDP2 x 2, each its part": ("fsdp2", (), ("--fsdp_cpu_ram_efficient_loading", "true"), EXACT),
    "HSDP 2 x 2": ("hsdp", (), (), EXACT),
    "HSDP 2 x 2, each its part": ("hsdp", (), ("--fsdp_cpu_ram_efficient_loading", "true"), EXACT),
    "FSDP2 x 2, tensor parallel x 2": ("fsdp2_tp", (), (), EXACT),
    "tensor parallel x 2": ("fsdp2_tp", (), PAIR, EXACT),
    "FSDP2 x 2, context parallel x 2": ("fsdp2_cp", (), (), EXACT),
    "FSDP2 x 2, context parallel x 2, each its part": (
        "fsdp2_cp",
        (),
        ("--fsdp_cpu_ram_efficient_loading", "true"),
        EXACT,
    ),
    "context parallel x 2": ("fsdp2_cp", (), PAIR, EXACT),
    "DDP bf16": ("ddp_bf16", (), (), BF16),
    "DDP fp16": ("ddp_fp16", (), (), FP16),
    "FSDP2 bf16": ("fsdp2_bf16", (), (), BF16),
    "tensor parallel bf16": ("fsdp2_tp", (), ("--mixed_precision", "bf16"), BF16),
    "tensor parallel x 2 bf16": ("fsdp2_tp", (), (*PAIR, "--mixed_precision", "bf16"), BF16),
    "DDP, gradients in bf16": ("ddp_comm_bf16", (), (), BF16),
    "DDP, gradients in fp16": ("ddp_comm_fp16", (), (), FP16),
    "DDP, PowerSGD": ("ddp_powersgd", (), (), POWER_SGD),
}


def test_every_layout_file_is_in_the_table() -> None:
    assert {entry[0] for entry in LAYOUTS.values()} == {
        file.stem for file in (ROOT / "accelerate_configs").glob("*.yaml")
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_same_curve_on_every_layout(name: str, recipe: list[str], reference: Path, sft) -> None:
    layout, arguments, flags, bounds = LAYOUTS[name]
    run = sft(name.replace(" ", "_").replace(",", ""), layout, *recipe, *arguments, flags=flags)
    assert_same_curve(run.folder, reference, *bounds)
    saved = AutoModelForCausalLM.from_pretrained(run.folder / "model").state_dict()
    wanted = AutoModelForCausalLM.from_pretrained(reference / "model").state_dict()
    assert saved.keys() == wanted.keys()
    files = [load_file(folder / "model" / "model.safetensors") for folder in (run.folder, reference)]
    assert files[0].keys() == files[1].keys(), "tied weights are stored once"
    if bounds == EXACT:
        for key, value in wanted.items():
            assert (saved[key] - value).abs().max() < 1e-4, key
    else:
        steps = zip(curve(run.folder)[1:21], curve(reference)[1:21], strict=True)
        worst = max(abs(mine["grad_norm"] / wanted["grad_norm"] - 1) for mine, wanted in steps)
        assert worst > RELATIVE, "nothing was rounded: the layout's precision was not in force"


def test_ranks_without_a_row_take_part_in_everything(recipe: list[str], tmp_path: Path, sft) -> None:
    """Law 2: three rows on four ranks, and an output matrix of its own that only labelled rows reach."""
    shutil.copytree(DEMO / "model", tmp_path / "untied")
    config = json.loads((tmp_path / "untied" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "untied" / "config.json").write_text(
        json.dumps({**config, "tie_word_embeddings": False}), encoding="utf-8"
    )
    changed = [
        "--model.name_or_path",
        str(tmp_path / "untied"),
        "--train.global_batch_size",
        "3",
        "--train.max_steps",
        "3",
    ]
    one = sft("one", "single", *recipe, *changed)
    four = sft("four", "fsdp2", *recipe, *changed, flags=("--num_processes", "4"))
    assert len(one.steps()) == len(four.steps()) == 3
    for mine, wanted in zip(four.steps(), one.steps(), strict=True):
        for key in ("loss", "grad_norm", "label_tokens"):
            assert mine[key] == pytest.approx(wanted[key], rel=RELATIVE), key


def test_answers_are_in_file_order_and_complete_on_three_processes(recipe: list[str], sft) -> None:
    short = ("--train.max_steps", "1", "--generate_rows", "10", "--generate_max_tokens", "4")
    runs = [
        sft("one", "single", *recipe, *short),
        sft("three", "ddp", *recipe, *short, flags=("--num_processes", "3")),
    ]
    first, second = [
        [json.loads(line) for line in (run.folder / "predictions.jsonl").read_text().splitlines()] for run in runs
    ]
    assert [entry["row"] for entry in first] == list(range(10))
    assert first == second
