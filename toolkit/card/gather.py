"""From a run that has ended to the facts of its card: what happened, not what was asked for, wherever the two can differ."""

from __future__ import annotations

import dataclasses
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from toolkit.adapters.adapted import is_adapted, numbers
from toolkit.card.command import command_of
from toolkit.card.facts import CardFacts, Metric
from toolkit.card.origin import base_facts, without_home
from toolkit.card.sources import eval_sources, train_sources
from toolkit.config import RunConfig
from toolkit.data.prepared import PreparedData
from toolkit.evaluation import Answer
from toolkit.layout import Layout
from toolkit.models import describe_dtypes
from toolkit.monitor.progress import logged
from toolkit.optim import build_schedule
from toolkit.parsing import to_yaml
from toolkit.start import Run

TOOLKIT = "toolkit"  # the name of this package
_PACKAGES = (TOOLKIT, "torch", "transformers", "accelerate", "datasets", "tokenizers")
# What the card says elsewhere, in words.
_SAID_ELSEWHERE = ("model.name_or_path", "model.revision", "model.gguf_file", "data.train", "data.eval", "adapter.")


def gather(
    run: Run,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: PreparedData,
    evaluations: Mapping[str, Mapping[str, float]],
    before: Sequence[Answer],
    after: Sequence[Answer],
) -> CardFacts:
    """The facts of a run whose model has been written (main process only)."""
    config, written, layout = run.config, run.config.as_written, run.layout
    sizes = [(numbers(p), p.requires_grad) for p in model.parameters()]
    adapter = None
    if is_adapted(model):
        from toolkit.card.adapter import adapter_facts

        adapter = adapter_facts(model, config)
    # The default of ending is the tokenizer's; what the folder says is what a user gets.
    ends = GenerationConfig.from_pretrained(run.folder.model).eos_token_id
    stops = [ends] if isinstance(ends, int) else list(ends or [])
    return CardFacts(
        title=(config.hub_model_id or run.folder.path.name).rsplit("/", 1)[-1],
        recipe=Path(sys.argv[0]).stem,
        toolkit=TOOLKIT,
        base=base_facts(config.model, written.model),
        parameters=sum(count for count, _ in sizes),
        trained=sum(count for count, trains in sizes if trains),
        adapter=adapter,
        quantization=_quantization(config),
        train=train_sources(config, data),
        eval=eval_sources(config, data),
        held_out=data.eval is not None and config.data.eval is None,
        streamed=None if data.stream is None else data.stream.read_by_all,
        training=training_facts(config, layout, model, logged(run.folder.metrics), _last_step(run)),
        settings=dict(changed(written, type(config)())),
        layout=layout_facts(layout),
        versions=versions(config, layout),
        metrics=metrics(evaluations, before, after),
        exact_rows=len(after),
        exact_tokens=config.generate_max_tokens,
        resumed_after=None if run.checkpoint is None else run.checkpoint.step,
        chat=bool(tokenizer.chat_template),
        stops={str(tokenizer.convert_ids_to_tokens(token)): token for token in stops},
        command=command_of(layout.launch, sys.argv[0]),
        config_yaml=without_home(to_yaml(written)),
        hub_model_id=config.hub_model_id if config.push_to_hub else None,
    )


def training_facts(
    config: RunConfig, layout: Layout, model: torch.nn.Module, log: Sequence[Mapping[str, Any]], steps: int
) -> dict[str, str]:
    """What the settings became, and what `log` (metrics.jsonl) says of the steps that were taken."""
    train = config.train
    schedule = build_schedule(train, steps, lambda message: None)
    taken = [entry for entry in log if "label_tokens" in entry]
    facts = {"optimizer steps": f"{steps:,}", "global batch size": f"{train.global_batch_size:,} rows"}
    if taken and taken[-1]["step"] == steps:
        facts["epochs"] = f"{taken[-1]['epoch']:.4g}"
    if [entry["step"] for entry in taken] == list(range(1, steps + 1)):  # not when they began in another run's folder
        facts["tokens seen"] = (
            f"{sum(e['tokens'] for e in taken):,}, {sum(e['label_tokens'] for e in taken):,} of them learnt"
        )
        facts["time in steps"] = f"{sum(e['seconds'] for e in taken):,.1f} s"
    betas = f" (β1 {train.adam_beta1:g}, β2 {train.adam_beta2:g}, ε {train.adam_epsilon:g})"
    return facts | {
        "learning rate": f"{schedule.peak:.6g}, {schedule.shape}, {schedule.warmup_steps:,} warm-up steps",
        "optimizer": train.optimizer + (betas if train.optimizer == "adamw" else ""),
        "weight decay": f"{train.weight_decay:g}",
        "gradient clipping": f"{train.max_grad_norm:g}" if train.max_grad_norm else "none",
        "precision": f"weights {describe_dtypes(model)}; mixed precision: {layout.mixed_precision}",
        "seed": f"{config.seed}",
    }


def layout_facts(layout: Layout) -> dict[str, str]:
    """Devices, and how the model lay on them."""
    device = layout.device.type
    if device == "cuda":
        device = f"{torch.cuda.get_device_name(layout.device)} ({device})"
    facts = {
        "layout": layout.name,
        "processes": f"{layout.accelerator.num_processes}",
        "data-parallel size": f"{layout.dp_size}",
        "device": device,
    }
    file = layout.launch.config_file
    return facts | ({} if file is None else {"accelerate config": file.name})


def versions(config: RunConfig, layout: Layout) -> dict[str, str]:
    """Of Python and the packages that took part."""
    names = [*_PACKAGES, *["peft"] * config.adapter.wanted, *["bitsandbytes"] * bool(config.model.quantization)]
    found = {"python": platform.python_version(), **{name: version(name) for name in names}}
    return found | ({"cuda": str(torch.version.cuda)} if layout.device.type == "cuda" else {})


def metrics(
    evaluations: Mapping[str, Mapping[str, float]], before: Sequence[Answer], after: Sequence[Answer]
) -> tuple[Metric, ...]:
    """Each figure of the evaluations, and the exact match of generated answers."""
    first, last = evaluations.get("before", {}), evaluations.get("after", {})
    counted = {name for name, value in last.items() if isinstance(value, int)}  # how much was evaluated, not how well
    found = [Metric(name, first.get(name), last.get(name)) for name in last if name not in counted]
    if after:
        found.append(Metric("exact_match", _exact(before), _exact(after)))
    return tuple(found)


def changed(section: Any, defaults: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, value) of the settings that alter what is learnt and are not at their defaults."""
    for item in dataclasses.fields(section):
        key, value, default = prefix + item.name, getattr(section, item.name), getattr(defaults, item.name)
        if dataclasses.is_dataclass(value) and dataclasses.is_dataclass(default):
            yield from changed(value, default, f"{key}.")
        elif item.metadata.get("alters", True) and value != default and not key.startswith(_SAID_ELSEWHERE):
            yield key, str(value).lower() if isinstance(value, bool) else without_home(str(value))


def _exact(answers: Sequence[Answer]) -> float | None:
    return sum(answer.exact for answer in answers) / len(answers) if answers else None


def _last_step(run: Run) -> int:
    taken = [entry["step"] for entry in logged(run.folder.metrics) if "label_tokens" in entry]
    return int(taken[-1]) if taken else 0 if run.checkpoint is None else run.checkpoint.step


def _quantization(config: RunConfig) -> str | None:
    kind = config.model.quantization
    return f"{kind}, scales quantized too" if kind and config.model.double_quantization else kind
