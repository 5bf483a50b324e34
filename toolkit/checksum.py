"""Names for what a model is and for what it makes of rows, the same however it is spread over processes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch
import xxhash
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers import __version__ as transformers_version

from toolkit.data.tokens import TokenRows
from toolkit.layout import Layout

_NUMBERS_AT_ONCE = 2**22


def figures_name(layout: Layout, model: PreTrainedModel, weights: str, rows: TokenRows, data: str, *more: float) -> str:
    """Of the figures that `model` makes of `rows`: another after any change of what they depend on but the order of sums.

    weights: `checksum(layout, model)`. data: names the content that `rows` are of. more: settings that count.
    """
    adapters = {name: str(config) for name, config in sorted(getattr(model, "peft_config", {}).items())}
    described = model.config.to_dict() | {"_name_or_path": None}
    chosen = [None if part is None else xxhash.xxh3_128_hexdigest(part.tobytes()) for _, part in rows.parts]
    # In 16 bits, DDP rounds what autocast names and FSDP2 everything.
    computed = layout.mixed_precision, layout.mixed_precision != "no" and layout.is_fsdp
    versions = transformers_version, torch.__version__
    facts = [weights, described, adapters, versions, computed, data, chosen, len(rows), more]
    return xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True, default=str).encode())


@torch.no_grad()
def checksum(layout: Layout, model: torch.nn.Module) -> str:
    """Of the numbers in all parameters, bit for bit, and the same however they are sharded.

    Sums of integers do not depend on the order in which parts are added: of each parameter the sum of its words, and that of
    their squares, both modulo 2^64.
    """
    sums = torch.zeros(sum(1 for _ in model.parameters()), 2, dtype=torch.int64, device=layout.device)
    for place, parameter in enumerate(model.parameters()):
        for words in _own_words(layout, parameter.detach()):
            sums[place] += torch.stack([words.sum(), (words * words).sum()])
    if layout.accelerator.num_processes > 1:
        torch.distributed.all_reduce(sums)
    names = [name for name, _ in model.named_parameters()]
    return xxhash.xxh3_128_hexdigest(json.dumps([names, sums.tolist()]).encode())


def _own_words(layout: Layout, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The words, as int64, of the part that no other rank counts too."""
    if isinstance(tensor, DTensor):
        place = tensor.device_mesh.get_coordinate()
        assert place is not None
        mine = all(at == 0 for at, kind in zip(place, tensor.placements, strict=True) if kind.is_replicate())
        tensor = tensor.to_local()
    else:
        mine = layout.is_main
    if not mine:
        return
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    yield from (part.view(word).long() for part in tensor.contiguous().flatten().split(_NUMBERS_AT_ONCE))
