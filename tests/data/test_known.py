"""What is known of rows reaches the objective as it is, also under FSDP2 in bf16, which rounds a module's inputs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.distributed.fsdp._fully_shard._fsdp_common import _cast_fp_tensor
from torch.distributed.utils import _apply_to_tensors

from toolkit.data.collate import collate
from toolkit.data.teaching import Teaching
from toolkit.data.tokens import TokenRows


def test_nothing_is_rounded_on_the_way_into_a_module(tmp_path: Path) -> None:
    plain = TokenRows.build([([1, 2, 3], [-100, 2, 3]), ([4, 5], [-100, 5])], values=[0.1, 0.7])
    Teaching.create(tmp_path / "t", 3, 2)
    Teaching.write(
        tmp_path / "t", 0, np.array([[2, 9], [3, 8], [5, 7]], np.int32), np.full((3, 2), -1.2345678, np.float32)
    )
    reference = np.array([[-237.123], [-11.4321]], np.float32)
    rows = TokenRows(plain.parts, reference, Teaching.open(tmp_path / "t", plain.labels_per_row))
    for padding_free in (True, False):
        batch = collate(rows, np.array([1, 0]), padding_free=padding_free, pad_token_id=0)
        batch = type(batch)(
            **{**vars(batch), "known": batch.known.but(seen=torch.tensor([[0.3]]), places=torch.arange(2))}
        )
        cast = _apply_to_tensors(partial(_cast_fp_tensor, torch.bfloat16), batch)
        for one in (cast, cast.to(torch.device("cpu"))):
            assert one.known.reference.tolist() == reference[[1, 0]].tolist()
            assert one.known.values.tolist() == np.float32([0.7, 0.1]).tolist()
            assert one.known.seen.tolist() == np.float32([[0.3]]).tolist()
            assert one.known.places.tolist() == [0, 1]
            ids, log_probs = one.known.teacher
            assert ids.tolist() == [[5, 7], [2, 9], [3, 8]]
            assert (log_probs == np.float32(-1.2345678)).all()
