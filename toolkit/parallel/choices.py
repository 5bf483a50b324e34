"""What a layout file chooses, read from where accelerate puts it, and refused where nothing here does it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.errors import UserError
from toolkit.launcher import ACCUMULATION, COMM_HOOK, COMM_STATE, Launch

_COMM_HOOKS = ("no", "fp16", "bf16", "power_sgd", "batched_power_sgd")  # accelerate's DDPCommunicationHookType
_PRECISIONS = ("no", "bf16", "fp16")


@dataclass(frozen=True)
class Choices:
    """The decisions of a layout file, apart from those that accelerate carries out by itself.

    accumulation: micro-batches of each device in a step, None where they are derived; accumulation_source: who says so.
    comm_hook, comm_state: compression of DDP's gradients on the wire, with accelerate's names.
    compile_backend, compile_mode: how torch.compile treats the repeated blocks of the model; None leaves them as they are.
    sharded_loading: each process reads its own part of the weights only, by transformers; always so with tensor parallelism.
    replicate, shard, tensor, context: sizes of the device mesh, outermost first; 1 where nothing is spread that way.
    """

    mixed_precision: str = "no"
    accumulation: int | None = None
    accumulation_source: str = ""
    comm_hook: str = "no"
    comm_state: dict[str, Any] = field(default_factory=dict)
    compile_backend: str | None = None
    compile_mode: str | None = None
    activation_checkpointing: bool = False
    sharded_loading: bool = False
    cpu_offload: bool = False
    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    context: int = 1

    def said(self) -> list[str]:
        """What is done besides, for people; nothing that the name of the layout says."""
        found = [f"gradients sent in {self.comm_hook}"] * (self.comm_hook != "no")
        if self.compile_backend is not None:
            mode = f", mode {self.compile_mode}" if self.compile_mode else ""
            found.append(f"repeated blocks compiled by {self.compile_backend}{mode}, for lengths that change")
        found += ["activations recomputed in backward"] * self.activation_checkpointing
        if self.sharded_loading:
            found.append(
                "each process loads its part, cut by transformers' plan for the model (not by fsdp_auto_wrap_policy)"
            )
        return found

    @property
    def start_loss_scale(self) -> float | None:
        """Where gradients pass through fp16 their loss is scaled, so that small ones do not vanish and large ones fit.

        2^16 as in torch.amp.GradScaler; gradients that only travel in fp16 begin at 1 and are scaled down at need.
        """
        if self.mixed_precision == "fp16":
            return 65536.0
        return 1.0 if self.comm_hook == "fp16" else None


def read_choices(launch: Launch, environment: Mapping[str, str] = os.environ) -> Choices:
    """What the layout file says, from the file and from the variables that accelerate makes of it.

    Raises UserError for what is not supported and for two owners of one decision that disagree.
    """
    _refuse(environment)
    section = launch.settings.get("parallelism_config") or {}
    accumulation, source = _accumulation(launch, environment)
    hook = str(section.get(COMM_HOOK, "no")).lower()
    if hook not in _COMM_HOOKS:
        raise UserError(f"{launch.config_file}: {COMM_HOOK}: {hook} is not known; known: {', '.join(_COMM_HOOKS)}")
    fsdp = environment.get("ACCELERATE_USE_FSDP", "false") == "true"
    if hook != "no" and fsdp:
        raise UserError(f"{launch.config_file}: {COMM_HOOK} compresses the gradients of DDP; with FSDP2 remove it")
    if section.get(COMM_STATE) and not hook.endswith("power_sgd"):
        raise UserError(f"{launch.config_file}: {COMM_STATE} belongs to {COMM_HOOK}: power_sgd, which is {hook}")
    for key in section:
        if key.removeprefix("parallelism_config_") in ("cp_backend", "cp_comm_strategy"):
            raise UserError(
                f"{launch.config_file}: {key} chooses among ways that are not used here; remove it (docs/layouts.md)"
            )
    compiler = environment.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if compiler != "no" and environment.get("ACCELERATE_DYNAMO_USE_FULLGRAPH", "false").lower() == "true":
        raise UserError("dynamo_config: dynamo_use_fullgraph: true cannot be: attention is not compiled; remove it")
    mode = environment.get("ACCELERATE_DYNAMO_MODE", "default")
    sizes = _sizes(environment, fsdp=fsdp)
    efficient = environment.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "false") == "true"
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision == "fp16" and fsdp:
        raise UserError(
            "mixed_precision: fp16 with FSDP2 is not supported; use bf16, or accelerate_configs/ddp_fp16.yaml"
        )
    return Choices(
        mixed_precision=precision,
        accumulation=accumulation,
        accumulation_source=source,
        comm_hook=hook,
        comm_state=dict(section.get(COMM_STATE) or {}),
        compile_backend=None if compiler == "no" else compiler,
        compile_mode=None if mode == "default" else mode,
        activation_checkpointing=environment.get("FSDP_ACTIVATION_CHECKPOINTING", "false") == "true",
        sharded_loading=fsdp and (efficient or sizes["tensor"] > 1),
        cpu_offload=fsdp and environment.get("FSDP_OFFLOAD_PARAMS", "false") == "true",
        **sizes,
    )


def _accumulation(launch: Launch, environment: Mapping[str, str]) -> tuple[int | None, str]:
    """Micro-batches per device and step, and who says so; (None, "") where nobody does."""
    found: dict[str, int] = {}
    for section in ("parallelism_config", "fsdp_config", "deepspeed_config"):
        value = (launch.settings.get(section) or {}).get(ACCUMULATION)
        if value is not None:
            found[f"{ACCUMULATION} in {launch.config_file} ({section})"] = _count(value, str(launch.config_file))
    typed = launch.flag(ACCUMULATION)
    if typed is not None:  # as any flag of the launcher, it overrides the file
        found = {f"--{ACCUMULATION} of accelerate launch": _count(typed, "accelerate launch")}
    variable = environment.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
    if variable is not None:
        found["the variable ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = _count(variable, "the environment")
    if len(set(found.values())) > 1:
        said = " and ".join(f"{where} is {value}" for where, value in found.items())
        raise UserError(f"{said}; keep one, or make them equal")
    return next(((value, where) for where, value in found.items()), (None, ""))


def _count(value: Any, where: str) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise UserError(f"{where}: {ACCUMULATION} must be a whole number of at least 1, got {value}")
    return number


def _sizes(environment: Mapping[str, str], *, fsdp: bool) -> dict[str, int]:
    """Sizes of the device mesh, which must multiply to the number of processes."""
    world = int(environment.get("WORLD_SIZE", "1"))
    names = {"replicate": "DP_REPLICATE", "shard": "DP_SHARD", "tensor": "TP", "context": "CP"}
    given = {name: _size(environment, f"PARALLELISM_CONFIG_{key}_SIZE") for name, key in names.items()}
    product = given["replicate"] * given["shard"] * given["tensor"] * given["context"]
    if product == 1:
        return given | ({"shard": world} if fsdp else {"replicate": world})
    if not fsdp:
        raise UserError("parallelism_config: its sizes need distributed_type: FSDP with fsdp_version: 2")
    if given["tensor"] > 1 and given["context"] > 1:
        raise UserError("parallelism_config: tp_size and cp_size cannot both be more than 1")
    if product != world:
        said = " x ".join(f"{key.lower()}_size {given[name]}" for name, key in names.items() if given[name] > 1)
        raise UserError(
            f"parallelism_config: {said} is {product}, but num_processes is {world}; make them equal (flags: "
            "--parallelism_config_dp_shard_size and so on; toolkit launch derives them)"
        )
    return given


def _size(environment: Mapping[str, str], variable: str) -> int:
    text = environment.get(variable, "1")
    if not text.isdigit() or not int(text):
        raise UserError(f"{variable.lower()}: must be a whole number of at least 1, got {text}")
    return int(text)


def _refuse(environment: Mapping[str, str]) -> None:
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in _PRECISIONS:
        raise UserError(f"mixed_precision: {precision} is not supported; use {', '.join(_PRECISIONS)}")
    for kind in ("DEEPSPEED", "MEGATRON_LM"):
        if environment.get(f"ACCELERATE_USE_{kind}", "false") == "true":
            raise UserError(
                f"{kind.lower()} is not supported; choose a file in accelerate_configs/ (fsdp2.yaml shards)"
            )
    if environment.get("ACCELERATE_USE_FSDP", "false") == "true" and environment.get("FSDP_VERSION", "1") != "2":
        raise UserError(
            "fsdp_config.fsdp_version: 1 is not supported; set it to 2, as in accelerate_configs/fsdp2.yaml"
        )
    if environment.get("PARALLELISM_CONFIG_SP_SIZE", "1") != "1":
        raise UserError(
            "parallelism_config_sp_size is accelerate's name for DeepSpeed's sequence parallelism, which is not supported; "
            "use parallelism_config_cp_size, as in accelerate_configs/fsdp2_cp.yaml"
        )
