"""The Accelerator of a layout: what accelerate does of it, and what is kept from it because the toolkit does it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import timedelta

import psutil
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs, PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

from toolkit.launcher import Launch
from toolkit.parallel.choices import Choices


def make_accelerator(launch: Launch, choices: Choices, collective_timeout: timedelta) -> Accelerator:
    """The Accelerator, without those tasks that the toolkit does itself: see `parallel` and `loss_scale`."""
    if not torch.accelerator.is_available():
        _let_cpus_stand_in_for_accelerators(collective_timeout)
        _use_all_cores(launch)
    # The group of accelerators is made here. NCCL's own timeout, 10 minutes, would come together with the watchdog's.
    handlers = [
        DistributedDataParallelKwargs(gradient_as_bucket_view=True),
        InitProcessGroupKwargs(timeout=collective_timeout),
    ]
    # For good, since transformers looks at it while it loads: it would fill the weights of the first process only, where
    # it can give each process its part (`parallel.loading`).
    os.environ.pop("FSDP_CPU_RAM_EFFICIENT_LOADING", None)
    # fp16: accelerate's scaler loses a batch at each overflow and does not run on CPUs, so autocast and scale are ours.
    precision = "no" if choices.mixed_precision == "fp16" else choices.mixed_precision
    with _environment(_kept_from_accelerate(choices)):
        accelerator = Accelerator(mixed_precision=precision, kwargs_handlers=handlers)
    if accelerator.distributed_type == DistributedType.FSDP:
        _correct_fsdp(accelerator, choices)
    return accelerator


def _kept_from_accelerate(choices: Choices) -> dict[str, str | None]:
    """Variables that the launcher has set and accelerate must not act on, with what it sees instead; None, nothing."""
    # The loop owns accumulation; compiling and recomputing in place keeps the names of parameters and the random state.
    changes: dict[str, str | None] = {
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": None,
        "ACCELERATE_DYNAMO_BACKEND": None,
        "FSDP_ACTIVATION_CHECKPOINTING": None,
    }
    if choices.tensor > 1 or choices.replicate == 1 or choices.shard * choices.context == 1:
        # Plain FSDP2 over all processes, or a section that holds our keys only, of which accelerate could not make a mesh.
        # With tensor parallelism the mesh is that of transformers, which shards the model while it loads.
        changes["ACCELERATE_USE_PARALLELISM_CONFIG"] = None
    elif choices.context > 1:
        # Parameters are sharded over the devices of a context-parallel group too; its attention is ours.
        changes["PARALLELISM_CONFIG_DP_SHARD_SIZE"] = str(choices.shard * choices.context)
        changes["PARALLELISM_CONFIG_CP_SIZE"] = "1"
    return changes


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Variables that are others, or not there (None), for a while."""
    before = {name: os.environ.get(name) for name in changes}
    _put(changes)
    try:
        yield
    finally:
        _put(before)


def _put(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _correct_fsdp(accelerator: Accelerator, choices: Choices) -> None:
    plugin = accelerator.state.fsdp_plugin
    if choices.mixed_precision == "bf16":
        # accelerate's own policy also reduces gradients and returns the loss in bf16, which changes the maths.
        plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if isinstance(plugin.cpu_offload, CPUOffloadPolicy) and not torch.accelerator.is_available():
        # Pinned memory is what an accelerator copies from.
        plugin.cpu_offload = CPUOffloadPolicy(pin_memory=False)


def _let_cpus_stand_in_for_accelerators(collective_timeout: timedelta) -> None:
    """On a machine without accelerators, let DDP and FSDP files run as they are on CPU processes.

    accelerate starts FSDP only on accelerators; with an FSDP file on CPUs it would run N unconnected trainings. The FSDP
    branch of `AcceleratorState` looks for the distributed type MULTI_GPU, so the shared state is given that value. This is
    the one place where the toolkit reaches into a library; a test fails as soon as accelerate no longer needs it.
    """
    os.environ["ACCELERATE_USE_CPU"] = "true"
    distributed = int(os.environ.get("LOCAL_RANK", "-1")) != -1
    state = PartialState(cpu=True, **({"timeout": collective_timeout} if distributed else {}))
    if distributed and os.environ.get("ACCELERATE_USE_FSDP", "false") == "true":
        state._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def _use_all_cores(launch: Launch) -> None:
    """accelerate gives each CPU worker one thread; share the cores among them unless the user chose a number."""
    if not launch.user_chose_threads:
        local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
        available = min(cores, len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else cores
        torch.set_num_threads(max(1, available // local_processes))
