"""`output_dir`: claimed before anything slow happens, never mixed with another run, cleaned only of its own files."""

from __future__ import annotations

import glob
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit import errors
from toolkit.checkpoint.folder import MARKER, find_checkpoints
from toolkit.checkpoint.retention import remove_leftovers
from toolkit.config import RunConfig, SourceConfig
from toolkit.errors import UserError
from toolkit.launcher import Launch, settings_in_force
from toolkit.parsing import to_yaml

_MANIFEST = ".toolkit-run.json"
# Everything a run may write, directories last.
_ENTRIES = (
    "config.yaml",
    "accelerate_config.yaml",
    "metrics.jsonl",
    "gradient_norms.jsonl",
    "predictions.jsonl",
    "model",
    "merged",
)
_PARTIAL = "model.partial"  # the model while it is being written
# A run that died had no time to note these; in a folder with our manifest they are ours by name.
_OURS_BY_NAME = ("metrics.jsonl", "gradient_norms.jsonl", "predictions.jsonl")


@dataclass(frozen=True)
class RunFolder:
    """Where each product of a run goes."""

    path: Path

    @staticmethod
    def of(config: RunConfig) -> RunFolder:
        """The folder that a config names, unclaimed."""
        return RunFolder(Path(config.output_dir).absolute())

    @property
    def metrics(self) -> Path:
        """One JSON object per optimizer step and per evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def gradient_norms(self) -> Path:
        """One JSON object per optimizer step, with `log_gradient_norms`."""
        return self.path / "gradient_norms.jsonl"

    @property
    def predictions(self) -> Path:
        """One JSON object per generated answer."""
        return self.path / "predictions.jsonl"

    @property
    def model(self) -> Path:
        """The finished model, a Hugging Face folder."""
        return self.path / "model"

    @property
    def logs(self) -> Path:
        """What a run that hangs writes: the stacks of each rank."""
        return self.path / "logs"

    @property
    def finished(self) -> bool:
        """True when a run has ended here and left its model."""
        return bool(_read_manifest(self.path).get("finished")) and self.model.is_dir()

    def record_files(self, *, finished: bool = False) -> None:
        """Note every file that exists now as written by this run; only noted files are ever removed."""
        found = []
        for entry in map(self.path.joinpath, _ENTRIES):
            found += sorted(f for f in entry.rglob("*") if f.is_file()) if entry.is_dir() else [entry] * entry.exists()
        names = [str(file.relative_to(self.path)) for file in found]
        text = json.dumps({"finished": finished, "files": names}, indent=1)
        part = self.path / (_MANIFEST + ".partial")
        part.write_text(text, encoding="utf-8")
        part.replace(self.path / _MANIFEST)


def note_merged(run: Path) -> None:
    """Note `merged` as the run's own, where `run` is a run's folder: with `overwrite` it goes with the model it was made of."""
    folder = RunFolder(run.absolute())
    if (folder.path / _MANIFEST).exists():
        folder.record_files(finished=folder.finished)


def holds_run(config: RunConfig) -> bool:
    """True when a run has claimed `output_dir` before."""
    return (Path(config.output_dir).absolute() / _MANIFEST).exists()


def take_over(config: RunConfig, launch: Launch) -> RunFolder:
    """Go on in the folder of an earlier run, with this start's configs beside what it wrote (main process only)."""
    folder = RunFolder.of(config)
    try:
        _write_configs(folder, config, launch)
    except OSError as error:
        raise UserError(f"output_dir: cannot write to {folder.path}: {error.strerror}") from None
    return folder


def claim(config: RunConfig, launch: Launch, *, replace: bool = False) -> RunFolder:
    """Create or take `output_dir` and write the resolved config and the layout's config into it (main process only).

    replace: as `overwrite`. Raises UserError when the folder holds a run and neither is true, holds foreign files where
    ours would go, is a place that must never be cleaned, or cannot be written.
    """
    path = Path(config.output_dir).absolute()
    _refuse_precious(path, config)
    if path.exists() and not path.is_dir():
        raise UserError(f"output_dir: {path} is a file; give a folder")
    manifest = path / _MANIFEST
    earlier: list[Path] | None = None
    if manifest.exists():
        if not config.overwrite and not replace:
            raise UserError(
                f"output_dir: {path} already holds a run; --resume auto goes on with it, --overwrite true replaces it, or "
                "choose another output_dir"
            )
        earlier = _files_of_run(path)
    # Before anything is removed, so that a refused run has changed nothing.
    foreign = _foreign(path, earlier)
    if foreign:
        raise UserError(f"output_dir: {path} has {', '.join(foreign)} that no run wrote; choose another output_dir")
    try:
        if earlier is not None:
            _remove_run(path, earlier)
        path.mkdir(parents=True, exist_ok=True)
        manifest.write_text('{"files": []}', encoding="utf-8")
    except OSError as error:
        raise UserError(f"output_dir: cannot write to {path}: {error.strerror}") from None
    folder = RunFolder.of(config)
    _write_configs(folder, config, launch)
    errors.undo = lambda: _release(path)
    return folder


def _release(path: Path) -> None:
    """Give up a folder that was claimed in vain: a mistake was found before the run has done anything."""
    done = [path / "metrics.jsonl", path / "model", *(checkpoint.path for checkpoint in find_checkpoints(path))]
    if any(place.exists() for place in done):
        return
    _remove_run(path, _files_of_run(path))
    (path / _MANIFEST).unlink(missing_ok=True)
    if not any(path.iterdir()):
        path.rmdir()


def _write_configs(folder: RunFolder, config: RunConfig, launch: Launch) -> None:
    path = folder.path
    (path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    (path / "accelerate_config.yaml").write_text(_layout_record(launch), encoding="utf-8")
    folder.record_files()


def _refuse_precious(path: Path, config: RunConfig) -> None:
    """A run's folder may be emptied one day; these never may."""
    precious: dict[str, Path] = {"the file system's root": Path("/"), "your home": Path.home()}
    precious["the working directory"] = Path.cwd()
    sources: list[Any] = [config.model.name_or_path]
    for source in (config.data.train, config.data.eval):
        listed = source if isinstance(source, list) else [source]
        sources += [one.path if isinstance(one, SourceConfig) else one for one in listed]
    for source in filter(None, sources):
        found = Path(str(source)).expanduser()
        if glob.has_magic(str(source)):
            found = found.parent
        if found.exists():
            precious[f"where {source} lies"] = found.absolute() if found.is_dir() else found.absolute().parent
    for what, place in precious.items():
        if os.path.realpath(path) == os.path.realpath(place):
            raise UserError(f"output_dir: {path} is {what}; give a folder of its own, such as {path / 'run'}")


def _files_of_run(path: Path) -> list[Path]:
    """Files inside `path` that its manifest lists. A manifest that was edited must not lead outside the folder."""
    try:
        listed = [path / name for name in _read_manifest(path)["files"]]
    except (KeyError, TypeError):
        raise UserError(f"output_dir: {path / _MANIFEST} cannot be read; choose another output_dir") from None
    for checkpoint in find_checkpoints(path):
        listed += [checkpoint.path / file.name for file in checkpoint.files]
        listed += [checkpoint.path / MARKER] * bool(checkpoint.files)
    listed += [*path.glob("logs/rank-*.txt"), *path.glob("logs/nccl-trace-rank-*")]
    return [file for file in listed if file.is_file() and file.resolve().is_relative_to(path.resolve())]


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _foreign(path: Path, ours: list[Path] | None) -> list[str]:
    """What stands where a run writes, and no run wrote; `ours` are the files of an earlier run, None without one."""
    checkpoints = [checkpoint.path.name for checkpoint in find_checkpoints(path)]
    if ours is None:
        return [name for name in (*_ENTRIES, _PARTIAL, *checkpoints) if os.path.lexists(path / name)]
    removable = {*ours, *map(path.joinpath, _OURS_BY_NAME)}
    there: list[Path] = []
    for entry in map(path.joinpath, (*_ENTRIES, *checkpoints)):
        if entry.is_dir() and not entry.is_symlink():
            there += (file for file in entry.rglob("*") if file.is_symlink() or not file.is_dir())
        elif os.path.lexists(entry):
            there.append(entry)
    return sorted(str(file.relative_to(path)) for file in there if file not in removable)


def _remove_run(path: Path, files: list[Path]) -> None:
    """Remove the files of an earlier run and the folders that this empties, nothing else."""
    for file in (*files, *map(path.joinpath, _OURS_BY_NAME)):
        file.unlink(missing_ok=True)
    shutil.rmtree(path / _PARTIAL, ignore_errors=True)
    remove_leftovers(path)
    for folder in sorted({folder for file in files for folder in file.parents if path in folder.parents}, reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _layout_record(launch: Launch) -> str:
    lines = [f"# {key}={value}" for key, value in settings_in_force().items()]
    head = "# What the launcher passed on, flags included:\n" + "\n".join(lines) + "\n"
    if launch.config_file is None:
        return (
            head + "# No accelerate config file: " + (" ".join(launch.command) or "started without a launcher") + "\n"
        )
    return head + f"# {launch.config_file}:\n" + launch.config_file.read_text(encoding="utf-8")
