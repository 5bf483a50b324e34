"""Saving: a partial folder, every rank's tensors, the marker, a rename. At once or while training goes on."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from toolkit.checkpoint.folder import PARTIAL, checkpoint_path, find_checkpoints, seal
from toolkit.checkpoint.retention import retire
from toolkit.checkpoint.shards import ShardWriter, quietly
from toolkit.checkpoint.tensors import run_tensors
from toolkit.config import CheckpointConfig
from toolkit.errors import UserError
from toolkit.layout import Layout

SmallFiles = Callable[[Path], None]


class Saver:
    """Writes the checkpoints of a run. All ranks call it alike.

    small_files: writes what belongs to a checkpoint besides tensors (config, tokenizer) into a folder; main process only.
    saved: gets (step, seconds to write, seconds that training stood still) when a checkpoint is complete.
    """

    def __init__(
        self,
        layout: Layout,
        folder: Path,
        config: CheckpointConfig,
        *,
        small_files: SmallFiles,
        saved: Callable[[int, float, float], None],
        beat: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._layout, self._folder, self._config = layout, folder, config
        self._small_files, self._saved, self._beat, self._say = small_files, saved, beat, say
        self._alone = layout.accelerator.num_processes == 1
        # A group of its own: it must not mix with the collectives of training, nor need an accelerator.
        self._group = (
            None if self._alone else torch.distributed.new_group(backend="gloo", timeout=layout.collective_timeout)
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if config.asynchronous else None
        self._in_flight: Future[float] | None = None
        self._stalled, self._last_step = (0, 0.0), -1

    def save(
        self,
        step: int,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        record: dict[str, Any],
        best: int | None,
    ) -> None:
        """Save the state after `step` optimizer steps; in the background if so configured, one at a time.

        Raises UserError if this or an earlier save failed and `checkpoint.on_save_error` is stop.
        """
        if step == self._last_step:  # asked to stop just after it was due
            return
        self._last_step = step
        started = time.perf_counter()
        self.finish()
        self._beat("save")
        self._layout.shard_again(module)
        tensors = run_tensors(self._layout.accelerator.unwrap_model(module), optimizer)
        if self._pool is None:
            job: Future[float] = Future()
            try:
                job.set_result(self._write(step, tensors, record, best))
            except (Exception, CheckpointException) as error:  # told by `finish`
                job.set_exception(error)
        else:
            copy = BlockingAsyncStager().stage(tensors)
            job = self._pool.submit(self._write, step, copy, record, best)
        self._in_flight, self._stalled = job, (step, time.perf_counter() - started)
        if self._pool is None:
            self.finish()

    def failed(self) -> bool:
        """True when this rank knows that the save in flight went wrong; `finish` tells how."""
        return self._in_flight is not None and self._in_flight.done() and self._in_flight.exception() is not None

    def finish(self) -> None:
        """Wait for the save in flight, if any. Raises UserError when it failed and the run is to stop then."""
        if self._in_flight is None:
            return
        self._beat("save")
        job, self._in_flight = self._in_flight, None
        step, stalled = self._stalled
        try:
            seconds = job.result()
        except (Exception, CheckpointException) as error:
            message = self._explain(step, error)
            if self._config.on_save_error == "stop":
                raise UserError(message) from None
            self._say(f"warning: {message}; training goes on (checkpoint.on_save_error)")
            return
        self._saved(step, seconds, stalled)

    def _write(self, step: int, tensors: dict[str, torch.Tensor], record: dict[str, Any], best: int | None) -> float:
        started = time.perf_counter()
        partial = checkpoint_path(self._folder, step).with_name(checkpoint_path(self._folder, step).name + PARTIAL)

        def complete(files: list) -> None:
            self._small_files(partial)
            seal(partial, files, record)

        try:
            # What one rank fails with, all are told, by the library.
            with quietly():
                dcp.save(
                    tensors,
                    storage_writer=ShardWriter(partial, complete, self._alive),
                    process_group=self._group,
                    no_dist=self._alone,
                )
        except (Exception, CheckpointException):
            if self._layout.is_main:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        if self._layout.is_main:
            retire(self._folder, self._config.keep_last, best)
        return time.perf_counter() - started

    def _alive(self) -> None:
        if self._pool is None:  # in the background, the main thread is somewhere else
            self._beat("save")

    def _explain(self, step: int, error: BaseException) -> str:
        """The first rank's reason."""
        failures = getattr(error, "failures", None) or {0: (error, None)}
        rank, (reason, _) = min(failures.items())
        where = checkpoint_path(self._folder, step)
        said = f"{type(reason).__name__}: {reason}"
        if isinstance(reason, OSError):
            said = reason.strerror or str(reason)
            if reason.errno in (errno.ENOSPC, errno.EDQUOT):
                said += f", {free_bytes(self._folder):,} bytes are free"
        on = "" if self._alone else f" on rank {rank}"
        return f"checkpoint {where} could not be written{on}: {said}; earlier checkpoints are untouched"


def free_bytes(folder: Path) -> int:
    """Bytes that can still be written where `folder` is."""
    return shutil.disk_usage(folder).free


def check_disk(
    folder: Path, size: int, config: CheckpointConfig, small_files: SmallFiles, say: Callable[[str], None]
) -> None:
    """Before step 1, on the main process: write and remove all that is small, and compare the free space with what is
    going to be written. size: bytes of the tensors of one checkpoint.

    Raises UserError if the folder cannot be written or not even one checkpoint fits; warns if those that are kept at the
    same time do not.
    """
    trial = folder / f"dry-save{PARTIAL}"
    try:
        small_files(trial)
    except OSError as error:
        raise UserError(f"output_dir: cannot write to {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    if config.save_every is None and not config.save_every_minutes and config.keep_best is None:
        return
    free, kept = free_bytes(folder), [c for c in find_checkpoints(folder) if c.fault is None]
    if free < size and not kept:
        raise UserError(
            f"output_dir: a checkpoint needs about {size:,} bytes, {free:,} are free in {folder}; free some, choose "
            "another output_dir, or set checkpoint.save_every_minutes to 0 to train without checkpoints"
        )
    count = config.keep_last + 1 + (config.keep_best is not None)
    missing = size * (count - len(kept))
    if free < missing:
        say(
            f"warning: {count} checkpoints of about {size:,} bytes can lie in {folder} at a time, which needs {missing:,} "
            f"bytes more, and {free:,} are free (checkpoint.keep_last: {config.keep_last}; a new one is whole before an old "
            "one goes)"
        )
