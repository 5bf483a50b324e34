"""What this machine has to train on."""

from __future__ import annotations


def count_accelerators() -> int:
    """Accelerators that a process here sees."""
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0
