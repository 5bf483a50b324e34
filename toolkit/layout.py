"""The layout: what the launcher decided about devices, sharding and precision. It never changes what is learned."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import psutil
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs, PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy
from torch.nn.parallel import DistributedDataParallel

from toolkit.errors import UserError
from toolkit.launcher import Launch, read_launch
from toolkit.parallel.choices import Choices, read_choices

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class Layout:
    """The devices of a run and how the model lies on them.

    dp_rank, dp_size: this process's place among those that read different rows. Always use them for data, never the
    global rank: processes that share a model shard by tensor or context parallelism read the same rows.
    choices: what the layout file decides besides. collective_timeout: after which a collective gives up by itself.
    """

    accelerator: Accelerator
    launch: Launch
    name: str
    dp_rank: int
    dp_size: int
    choices: Choices = field(default_factory=Choices)
    collective_timeout: timedelta = COLLECTIVE_TIMEOUT

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.accelerator.device

    @property
    def is_main(self) -> bool:
        """True on the one process that prints and writes files."""
        return self.accelerator.is_main_process

    @property
    def is_fsdp(self) -> bool:
        """True when parameters are sharded."""
        return self.accelerator.distributed_type == DistributedType.FSDP

    @property
    def mixed_precision(self) -> str:
        """'no', 'bf16' or 'fp16', as the accelerate config says."""
        return self.choices.mixed_precision

    @property
    def speaks(self) -> bool:
        """True on the one process of those that compute the same: its figures count."""
        return self.accelerator.process_index % self.choices.tensor == 0

    @property
    def first_of_rows(self) -> bool:
        """True on one of the processes that read the same rows."""
        return self.accelerator.process_index % (self.choices.tensor * self.choices.context) == 0

    @property
    def context_rank(self) -> int:
        """Which part of its rows this process works on, of `choices.context`."""
        return self.accelerator.process_index // self.choices.tensor % self.choices.context

    @property
    def draws(self) -> int:
        """Number of this process among those that draw random numbers of their own."""
        return self.accelerator.process_index // self.choices.tensor

    def context_group(self, backend: str | None = None) -> torch.distributed.ProcessGroup:
        """The processes that hold the other parts of the same rows. All processes must ask for it together."""
        size, found = self.choices.context, None
        for first in range(0, self.accelerator.num_processes, size):
            group = torch.distributed.new_group(list(range(first, first + size)), backend=backend)
            if first <= self.accelerator.process_index < first + size:
                found = group
        assert found is not None
        return found

    @property
    def averaged_over(self) -> int:
        """Processes over which the wrapper averages gradients: those with rows or positions of their own."""
        return self.dp_size * self.choices.context

    def describe(self) -> str:
        """One line for people: name, processes, device, precision."""
        processes = self.accelerator.num_processes
        file = f", {self.launch.config_file}" if self.launch.config_file else ""
        plural = "process" if processes == 1 else "processes"
        return f"{self.name}, {processes} {plural} on {self.device.type}, data-parallel size {self.dp_size}{file}"

    def warnings(self) -> list[str]:
        """What works but is not what everybody wants."""
        found = []
        if self.choices.comm_hook.endswith("power_sgd"):
            found.append(
                "warning: PowerSGD keeps what it left out of each gradient on its rank, which no checkpoint holds: a resumed "
                "run does not follow the same curve to the bit"
            )
        if self.mixed_precision == "bf16" and self.device.type == "cpu" and not cpu_has_bf16():
            found.append(
                "warning: this CPU has no bf16 instructions, so bf16 is many times slower than fp32 here; "
                "use --mixed_precision no"
            )
        return found

    def sum(self, *values: torch.Tensor | float, votes: Sequence[float] = ()) -> list[torch.Tensor]:
        """Sums of scalars over all ranks, in one collective, as float64 [] tensors on the device.

        Of `values`, which processes that share a model shard have alike, each is counted once; `votes` are each process's
        own.
        """
        # MPS has no float64; everywhere else it keeps token counts and loss sums exact.
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        stacked = torch.stack([torch.as_tensor(v, dtype=dtype, device=self.device) for v in (*values, *votes)])
        if self.accelerator.num_processes > 1:
            if not self.speaks:
                stacked[: len(values)] = 0.0
            torch.distributed.all_reduce(stacked)
        return list(stacked)

    def largest(self, value: int) -> int:
        """The largest of every rank's value, on every rank."""
        if self.accelerator.num_processes == 1:
            return value
        highest = torch.tensor(value, device=self.device)
        torch.distributed.all_reduce(highest, op=torch.distributed.ReduceOp.MAX)
        return int(highest.item())

    def gather_objects(self, items: list[Any]) -> list[Any]:
        """The concatenation of every rank's list, in rank order, on every rank."""
        if self.accelerator.num_processes == 1:
            return items
        gathered: list[Any] = [None] * self.accelerator.num_processes
        torch.distributed.all_gather_object(gathered, items)
        return [item for part in gathered for item in part]

    def on_main(self, function: Callable[[], T]) -> T:
        """What `function` returns on the main process, on every process. Its UserError is raised on every process too."""
        if self.accelerator.num_processes == 1:
            return function()
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome[0] = function()
            except UserError as error:
                outcome[1] = str(error)
        torch.distributed.broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise UserError(outcome[1])
        return outcome[0]

    def wait(self) -> None:
        """Meet all other processes."""
        self.accelerator.wait_for_everyone()

    def shard_again(self, module: torch.nn.Module) -> None:
        """Free parameters that FSDP2 keeps gathered after a forward without backward; nothing to do elsewhere."""
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()

    @contextlib.contextmanager
    def micro_batch(self, module: torch.nn.Module, *, last: bool) -> Iterator[None]:
        """Around the forward and backward of one micro-batch of a step; gradients are complete after the `last`.

        DDP keeps gradients local until the last one. FSDP2 reduces every micro-batch, since deferring it would keep a
        whole unsharded gradient on each device; across replicas (HSDP) the all-reduce waits for the last one.
        """
        if isinstance(module, FSDPModule):
            module.set_is_last_backward(last)
            module.set_requires_all_reduce(last)
            yield
        elif last or not isinstance(module, DistributedDataParallel):
            yield
        else:
            with self.accelerator.no_sync(module):
                yield


def build_layout(collective_timeout: timedelta = COLLECTIVE_TIMEOUT) -> Layout:
    """Make the Accelerator from what the launcher said, and make sure that all processes work together.

    collective_timeout: longer than the watchdog waits, which says who is missing where a library would not.
    Raises UserError when processes were started as strangers, or the layout asks for what is not supported.
    """
    launch = read_launch()
    _refuse_strangers(launch)
    if not torch.accelerator.is_available():
        _let_cpus_stand_in_for_accelerators(collective_timeout)
        _use_all_cores(launch)
    choices = read_choices(launch)
    accelerator = _accelerator(choices, collective_timeout)
    together = choices.tensor * choices.context  # processes that read the same rows
    layout = Layout(
        accelerator,
        launch,
        _name(accelerator, choices),
        accelerator.process_index // together,
        accelerator.num_processes // together,
        choices,
        collective_timeout,
    )
    _check_together(layout)
    if layout.is_fsdp:
        _correct_fsdp(accelerator, choices)
    return layout


def _correct_fsdp(accelerator: Accelerator, choices: Choices) -> None:
    plugin = accelerator.state.fsdp_plugin
    if choices.mixed_precision == "bf16":
        # accelerate's own policy also reduces gradients and returns the loss in bf16, which changes the maths.
        plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if isinstance(plugin.cpu_offload, CPUOffloadPolicy) and not torch.accelerator.is_available():
        # Pinned memory is what an accelerator copies from.
        plugin.cpu_offload = CPUOffloadPolicy(pin_memory=False)


def _accelerator(choices: Choices, collective_timeout: timedelta) -> Accelerator:
    """The Accelerator, without those tasks that the toolkit does itself: see `parallel` and `loss_scale`."""
    # The group of accelerators is made here. NCCL's own timeout, 10 minutes, would come together with the watchdog's.
    handlers = [
        DistributedDataParallelKwargs(gradient_as_bucket_view=True),
        InitProcessGroupKwargs(timeout=collective_timeout),
    ]
    # The loop owns accumulation; compiling and recomputing in place keeps the names of parameters and the random state.
    hidden: dict[str, str | None] = {
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": None,
        "ACCELERATE_DYNAMO_BACKEND": None,
        "FSDP_ACTIVATION_CHECKPOINTING": None,
    }
    # For good, since transformers looks at it while it loads: it would fill the weights of the first process only, where
    # it can give each process its part (`parallel.loading`).
    os.environ.pop("FSDP_CPU_RAM_EFFICIENT_LOADING", None)
    if choices.tensor > 1 or choices.replicate == 1 or choices.shard * choices.context == 1:
        # Plain FSDP2 over all processes, or a section that holds our keys only, of which accelerate could not make a mesh.
        # With tensor parallelism the mesh is that of transformers, which shards the model while it loads.
        hidden["ACCELERATE_USE_PARALLELISM_CONFIG"] = None
    elif choices.context > 1:
        # Parameters are sharded over the devices of a context-parallel group too; its attention is ours.
        hidden["PARALLELISM_CONFIG_DP_SHARD_SIZE"] = str(choices.shard * choices.context)
        hidden["PARALLELISM_CONFIG_CP_SIZE"] = "1"
    # fp16: accelerate's scaler loses a batch at each overflow and does not run on CPUs, so autocast and scale are ours.
    precision = "no" if choices.mixed_precision == "fp16" else choices.mixed_precision
    with _environment(hidden):
        return Accelerator(mixed_precision=precision, kwargs_handlers=handlers)


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Variables that are others, or not there (None), for a while."""
    before = {name: os.environ.get(name) for name in changes}

    def put(values: Mapping[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    put(changes)
    try:
        yield
    finally:
        put(before)


def cpu_has_bf16() -> bool:
    """True where matrix products in bf16 have instructions of their own (AVX512-BF16, AMX, recent ARM)."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


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


def _refuse_strangers(launch: Launch) -> None:
    """Several processes that know nothing of each other would each train the whole run and overwrite one another."""
    started = int(os.environ.get("WORLD_SIZE", "0"))
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", os.environ.get("OMPI_COMM_WORLD_SIZE", "1")))
    if started == 0 and not launch.command and tasks > 1:
        raise UserError(
            f"{tasks} tasks were started that do not know of each other; start one task per node with accelerate launch, "
            "or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each"
        )
    if started == 0 and launch.requested_processes > 1:
        raise UserError(
            f"accelerate launch was asked for {launch.requested_processes} processes but its distributed type starts one "
            "that trains alone; use --config_file accelerate_configs/ddp.yaml or another file there"
        )


def _name(accelerator: Accelerator, choices: Choices) -> str:
    if accelerator.distributed_type != DistributedType.FSDP:
        return "DDP" if accelerator.num_processes > 1 else "single"
    name = "FSDP2"
    if choices.replicate > 1:
        name = f"HSDP {choices.replicate} replicas x {choices.shard} shards"
    if choices.tensor > 1:
        name += f" x tensor parallel {choices.tensor}"
    if choices.context > 1:
        name += f" x context parallel {choices.context}"
    return name


def _check_together(layout: Layout) -> None:
    """A reduced 1 must come back as the number of processes that were started."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    kind = layout.accelerator.distributed_type
    if kind not in (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.FSDP):
        raise UserError(f"distributed type {kind.value} is not supported; choose a file in accelerate_configs/")
    together = int(layout.sum(votes=[1.0])[0].item())
    if together != world:
        raise UserError(
            f"{world} processes were started but {together} train together; use a file in accelerate_configs/ "
            "and start it with accelerate launch"
        )
