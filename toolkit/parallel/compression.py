"""Gradients of DDP that travel in fewer bytes, by the communication hooks of torch."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from toolkit.errors import UserError
from toolkit.launcher import COMM_STATE
from toolkit.parallel.choices import Choices


def compress_gradients(module: DistributedDataParallel, choices: Choices) -> None:
    """Register the hook that the layout file names. Raises UserError for options that PowerSGD does not have."""
    if choices.comm_hook == "fp16":
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif choices.comm_hook == "bf16":
        module.register_comm_hook(None, _bf16)
    elif choices.comm_hook != "no":
        batched = choices.comm_hook == "batched_power_sgd"
        hook = powerSGD_hook.batched_powerSGD_hook if batched else powerSGD_hook.powerSGD_hook
        try:
            state = powerSGD_hook.PowerSGDState(None, **choices.comm_state)
        except (TypeError, ValueError) as error:
            raise UserError(f"{COMM_STATE}: {' '.join(str(error).split())}") from None
        module.register_comm_hook(state, hook if dist.get_backend() == "nccl" else _in_turn(hook))


def _in_turn(hook: Callable) -> Callable:
    """PowerSGD sends in callbacks of what it has sent before. gloo runs those of several buckets at once, on each rank in
    an order of its own, and ranks then wait for each other for ever: so finish one bucket before the next."""

    # DDP looks at these annotations, so they must not be strings.
    def wait_for(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(hook(state, bucket).wait())
        return done

    return wait_for


# DDP looks at these annotations, so they must not be strings.
def _bf16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The stock hook. DDP refuses it by its name where NCCL is missing; gloo adds bf16 as well."""
    return default_hooks.bf16_compress_hook(state, bucket)
