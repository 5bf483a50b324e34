"""The layout: what the launcher decided about devices, sharding and precision. It never changes what is learned."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from toolkit.errors import UserError
from toolkit.launcher import Launch, read_launch
from toolkit.parallel.accelerator import make_accelerator
from toolkit.parallel.choices import Choices, read_choices
from toolkit.parallel.ending import leave_together

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
    def tensor_rank(self) -> int:
        """Which part of the matrices this process has, of `choices.tensor`; all of them compute the same figures."""
        return self.accelerator.process_index % self.choices.tensor

    @property
    def model_parallel_rank(self) -> int:
        """This process's place among those that read the same rows."""
        return self.accelerator.process_index % (self.choices.tensor * self.choices.context)

    @property
    def context_rank(self) -> int:
        """Which part of its rows this process works on, of `choices.context`."""
        return self.accelerator.process_index // self.choices.tensor % self.choices.context

    @property
    def rng_rank(self) -> int:
        """This process's place among those that draw random numbers of their own."""
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
        if self.choices.comm_hook != "no" and self.accelerator.num_processes == 1:
            found.append(
                f"warning: ddp_comm_hook: {self.choices.comm_hook} compresses what processes send each other; there is one"
            )
        elif self.choices.comm_hook.endswith("power_sgd"):
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
            if self.tensor_rank:
                stacked[: len(values)] = 0.0
            torch.distributed.all_reduce(stacked)
        return list(stacked)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the data-parallel ranks of a tensor of any shape, each of which fills other parts of it."""
        if self.accelerator.num_processes > 1:
            if self.model_parallel_rank:
                values = torch.zeros_like(values)
            torch.distributed.all_reduce(values)
        return values

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

    def part(self) -> None:
        """The last meeting of all processes. From here on each is alone, and none waits for another that takes its time."""
        self.wait()
        leave_together()

    def shard_again(self, module: torch.nn.Module) -> None:
        """Free parameters that FSDP2 keeps gathered after a forward without backward; nothing to do elsewhere."""
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()

    def clear_gradients(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Before the first backward of a step.

        DDP's gradients are views into its buckets, which stay. They are zeroed and not let go: those of the next
        accumulation would be allocated beside the buckets, 4 bytes per parameter more.
        """
        # The optimizer's parameters: after a forward, the module of FSDP2 may show gathered ones.
        optimizer.zero_grad(set_to_none=not isinstance(module, DistributedDataParallel))

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
    choices = read_choices(launch)
    accelerator = make_accelerator(launch, choices, collective_timeout)
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
    atexit.register(leave_together)
    return layout


def cpu_has_bf16() -> bool:
    """True where matrix products in bf16 have instructions of their own (AVX512-BF16, AMX, recent ARM)."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


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
