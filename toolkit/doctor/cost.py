"""What communication costs in a training step: bytes, seconds at the measured speed, and its part of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.doctor.collectives import Line, bus_factor
from toolkit.errors import UserError

ALL, INSIDE, ACROSS = "all", "inside a node", "across nodes"
# torch's DistributedDataParallel reduces gradients in buckets of 25 MiB (bucket_cap_mb).
_BUCKET = 25 * 1024**2
_GRADIENT_BYTES = 4  # gradients are reduced in fp32 on every layout
_USUAL_LAYERS = 32

Lines = Mapping[tuple[str, str], Line]  # by group and operation


@dataclass(frozen=True)
class Model:
    """What is trained. layers: whose parameters FSDP gathers at once, each."""

    parameters: float
    layers: int
    said: str


@dataclass(frozen=True)
class Work:
    """One optimizer step of one device. compute_seconds: its forward and backward, None if not known.

    parameter_bytes: 4, or 2 where parameters are gathered in bf16.
    """

    micro_batches: int
    parameter_bytes: int
    compute_seconds: float | None


@dataclass(frozen=True)
class Cost:
    """Of one optimizer step on one rank. link_bytes: that cross the rank's link; seconds: without any overlap."""

    layout: str
    link_bytes: float
    seconds: float
    compute_seconds: float | None

    @property
    def share(self) -> float | None:
        """Part of the step that is communication when none of it overlaps with computing."""
        return None if self.compute_seconds is None else self.seconds / (self.seconds + self.compute_seconds)

    @property
    def hidden_share(self) -> float | None:
        """The same when it overlaps perfectly: the step then is as long as the longer of the two."""
        if self.compute_seconds is None:
            return None
        longer = max(self.seconds, self.compute_seconds)
        return (longer - self.compute_seconds) / longer


def count_parameters(folder: str) -> Model:
    """Parameters and layers of a model folder or name, from its config alone: no weight is loaded or made."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from toolkit.config import ModelConfig
    from toolkit.models import check_model_source

    try:
        check_model_source(ModelConfig(name_or_path=folder))
        path = Path(folder).expanduser()
        # A config may name code of its own; asked here, transformers would wait for an answer on standard input.
        config = AutoConfig.from_pretrained(str(path) if path.exists() else folder, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).removeprefix(f"model.name_or_path: {folder}: ").split())[:200]
        raise UserError(f"--model {folder}: {reason}") from None
    parameters = sum(p.numel() for p in model.parameters())
    layers = int(getattr(config.get_text_config(), "num_hidden_layers", _USUAL_LAYERS))
    return Model(parameters, layers, f"{parameters:,.0f} parameters in {layers} layers ({config.model_type})")


def assumed_model(parameters: float) -> Model:
    """A model of which only the size is known."""
    return Model(parameters, _USUAL_LAYERS, f"{parameters:.3g} parameters, assumed to lie in {_USUAL_LAYERS} layers")


def compute_seconds(parameters: float, tokens: float, flops: float) -> float:
    """Forward and backward of `tokens`: 6 operations a parameter and token (Kaplan et al. 2020, arXiv:2001.08361, 2.1)."""
    return 6 * parameters * tokens / flops


def step_costs(model: Model, work: Work, ranks: int, nodes: int, lines: Lines) -> list[Cost]:
    """Of the layouts that these ranks can run: DDP, FSDP2, and HSDP where there are several nodes with several ranks."""
    costs = [ddp(model, work, ranks, lines), fsdp2(model, work, ranks, lines)]
    if nodes > 1 and ranks > nodes and ranks % nodes == 0 and (INSIDE, "all_gather") in lines:
        costs.append(hsdp(model, work, ranks // nodes, nodes, lines))
    return costs


def ddp(model: Model, work: Work, ranks: int, lines: Lines) -> Cost:
    """All gradients once a step: an all-reduce of 4 bytes a parameter, in buckets."""
    amount = _GRADIENT_BYTES * model.parameters
    seconds = lines[ALL, "all_reduce"].seconds(amount, math.ceil(amount / _BUCKET))
    return Cost("DDP", bus_factor("all_reduce", ranks) * amount, seconds, work.compute_seconds)


def fsdp2(model: Model, work: Work, ranks: int, lines: Lines) -> Cost:
    """In every micro-batch: parameters gathered in forward and in backward, gradients scattered, a layer at a time."""
    return Cost("FSDP2", *_sharded(model, work, ranks, lines, ALL), work.compute_seconds)


def hsdp(model: Model, work: Work, ranks_a_node: int, nodes: int, lines: Lines) -> Cost:
    """FSDP2 inside a node, and once a step an all-reduce across nodes of each rank's shard of the gradients.

    All ranks of a node do the latter at once over what one rank alone was measured with, so the node's whole gradient is
    charged: an upper bound where a node has several network cards.
    """
    link_bytes, seconds = _sharded(model, work, ranks_a_node, lines, INSIDE)
    amount = _GRADIENT_BYTES * model.parameters
    seconds += lines[ACROSS, "all_reduce"].seconds(amount, model.layers + 1)
    link_bytes += bus_factor("all_reduce", nodes) * amount / ranks_a_node
    return Cost("HSDP, a shard group a node", link_bytes, seconds, work.compute_seconds)


def _sharded(model: Model, work: Work, ranks: int, lines: Lines, group: str) -> tuple[float, float]:
    """Bytes over a rank's link and seconds of FSDP2 in a group, over all micro-batches of a step."""
    gathered, scattered = work.parameter_bytes * model.parameters, _GRADIENT_BYTES * model.parameters
    messages = model.layers + 1  # embeddings, norm and head are the one beyond the layers
    seconds = 2 * lines[group, "all_gather"].seconds(gathered, messages)
    seconds += lines[group, "reduce_scatter"].seconds(scattered, messages)
    link_bytes = bus_factor("all_gather", ranks) * (2 * gathered + scattered)
    return work.micro_batches * link_bytes, work.micro_batches * seconds


def assumptions(model: Model, work: Work, tokens: float | None, flops: float | None) -> list[str]:
    """What the figures rest on, for people."""
    lines = [
        f"{model.said}; all are trained, gradients are reduced in fp32",
        f"FSDP2: {work.micro_batches} micro-batch{'es' if work.micro_batches > 1 else ''} a step, parameters gathered in "
        f"{'bf16' if work.parameter_bytes == 2 else 'fp32'} in forward and again in backward",
        "a message takes latency + size / bandwidth of the fitted line, also where it is larger than any measured",
    ]
    if tokens is not None and flops is not None:
        lines.append(
            f"computing: 6 x parameters x {tokens:,.0f} tokens at the measured {flops / 1e12:.3g} TFLOP/s; real steps compute "
            "slower, so the part of communication is an upper bound"
        )
    elif work.compute_seconds is not None:
        lines.append(f"computing: {work.compute_seconds:g} s a step, as given")
    return lines
