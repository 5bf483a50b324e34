"""The first seconds of a run: processes that work together, an output folder, and the checkpoint to go on from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformers import PretrainedConfig

from toolkit.build import check_modules, check_recipe
from toolkit.checkpoint.changes import config_changes, refuse_unless_allowed
from toolkit.checkpoint.folder import Checkpoint, find_checkpoints
from toolkit.checkpoint.resume import named_checkpoint, newest_whole, set_later_aside, verified
from toolkit.checkpoint.retention import remove_leftovers
from toolkit.config import RunConfig
from toolkit.errors import UserError
from toolkit.hub import check_push
from toolkit.launcher import Launch
from toolkit.layout import Layout, build_layout
from toolkit.models import check_model_source, load_config
from toolkit.monitor.banner import note
from toolkit.monitor.heartbeat import Heartbeat
from toolkit.monitor.watchdog import Watchdog, collective_timeout, record_collectives
from toolkit.parallel.context import check_context_parallel
from toolkit.parallel.loading import check_sharded_loading, check_tensor_parallel
from toolkit.run_folder import RunFolder, claim, holds_run, take_over
from toolkit.stopping import StopRequest


@dataclass(frozen=True)
class Run:
    """A run that has begun.

    checkpoint: what it goes on from, None from the beginning. finished: it had ended before, there is nothing to do.
    say: prints a line, on the main process. beat: told where this process is. stop: set when it is asked to end.
    watch: told of every optimizer step; ends a run that stands still.
    """

    config: RunConfig
    layout: Layout
    folder: RunFolder
    checkpoint: Checkpoint | None
    finished: bool
    say: Callable[[str], None]
    beat: Heartbeat
    stop: StopRequest
    watch: Watchdog


def start(config: RunConfig) -> Run:
    """Begin a run, or go on with one. Everything that can be wrong with the output folder and the checkpoint is found
    here, before data or weights are read. Raises UserError.
    """
    stop = StopRequest(config.watch.stop_grace_seconds)
    stop.install()
    logs = RunFolder.of(config).logs
    record_collectives(logs)
    layout = build_layout(collective_timeout(config.watch))
    say = note if layout.is_main else _silent
    layout.on_main(lambda: check_push(config))  # only the main process uploads, so only it needs a token
    check_recipe(config, sharded=layout.choices.sharded_loading, fsdp=layout.is_fsdp)
    layout.on_main(lambda: check_modules(config))
    if layout.choices.sharded_loading or layout.choices.context > 1:
        check_model_source(config.model)
        _check_sizes(layout, load_config(config.model), padding_free=config.train.padding_free)
    folder, checkpoint, finished = layout.on_main(lambda: open_folder(config, layout.launch, say))
    _refuse_private_disks(layout, folder)
    if checkpoint is not None and not finished:
        whole = verified(layout, checkpoint, fall_back=config.resume == "auto", say=say)
        if whole is None:
            say("resume: no checkpoint is whole; the run starts from the beginning")
            layout.on_main(lambda: claim(config, layout.launch, replace=True))
        checkpoint = whole
    beat = Heartbeat()
    watch = Watchdog(config.watch, layout, beat, logs, say).start()
    return Run(config, layout, folder, checkpoint, finished, say, beat, stop, watch)


def open_folder(
    config: RunConfig, launch: Launch, say: Callable[[str], None]
) -> tuple[RunFolder, Checkpoint | None, bool]:
    """The run's folder, the checkpoint to go on from, and whether all is done already (main process only)."""
    if config.resume == "never":
        return claim(config, launch), None, False
    if config.overwrite:
        raise UserError(
            "resume and overwrite are both set: one goes on with the run in output_dir, the other removes it"
        )
    folder = RunFolder.of(config)
    if config.resume != "auto":
        checkpoint = named_checkpoint(Path(config.resume))
        _refuse_changes(config, checkpoint)
        if checkpoint.path.parent.resolve() != folder.path.resolve():
            return claim(config, launch), checkpoint, False
        remove_leftovers(folder.path)
        set_later_aside(folder.path, checkpoint.step, say)
        return take_over(config, launch), checkpoint, False
    if not holds_run(config):
        say(f"resume: there is no run in {folder.path} yet; this one starts from the beginning")
        return claim(config, launch), None, False
    if folder.finished:
        whole = [one for one in find_checkpoints(folder.path) if one.fault is None]
        if not whole or not any(change.alters for change in config_changes(whole[-1].record.get("config", {}), config)):
            return folder, None, True
    for name in remove_leftovers(folder.path):
        say(f"resume: {name} was being written or removed when the run ended; it is gone")
    newest = newest_whole(folder.path, say)
    if newest is None:
        say(f"resume: {folder.path} has no whole checkpoint; the run starts from the beginning")
        return claim(config, launch, replace=True), None, False
    _refuse_changes(config, newest)
    return take_over(config, launch), newest, False


def _refuse_changes(config: RunConfig, checkpoint: Checkpoint) -> None:
    """Before anything in the folder is touched."""
    refuse_unless_allowed(config_changes(checkpoint.record.get("config") or {}, config), config.allow_changes)


def _check_sizes(layout: Layout, model: PretrainedConfig, *, padding_free: bool) -> None:
    if layout.choices.tensor > 1:
        check_tensor_parallel(model, layout.choices.tensor)
    if layout.choices.sharded_loading:
        check_sharded_loading(model)
    if layout.choices.context > 1:
        check_context_parallel(model, layout.choices.context, padding_free=padding_free)


def _refuse_private_disks(layout: Layout, folder: RunFolder) -> None:
    """Every rank writes its part of a checkpoint into the same folder."""
    missing = layout.gather_objects([] if folder.path.is_dir() else [layout.accelerator.process_index])
    if missing:
        raise UserError(
            f"output_dir: rank {missing[0]} does not see {folder.path}, which rank 0 has made; give a folder on a file "
            "system that all nodes share"
        )


def _silent(message: str) -> None:
    """What a rank other than the main one says."""
