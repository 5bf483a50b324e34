"""One maker, many takers; nothing half made is ever taken."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from toolkit.data.cache import cache_folder, obtain
from toolkit.errors import UserError


def quiet(what: str, done: int, total: int) -> None:
    pass


def make(folder: Path, progress) -> None:
    folder.mkdir()
    with (folder.parent / "made").open("a") as file:
        file.write("x")
    time.sleep(0.5)
    (folder / "report.json").write_text("{}")


def take(folder: str) -> None:
    entry, _ = obtain(Path(folder), "entry", make, quiet)
    assert (entry / "report.json").is_file()


def die_at_work(folder: str) -> None:
    def dying(entry: Path, progress) -> None:
        entry.mkdir()
        (entry / "rubbish").touch()
        os._exit(1)

    obtain(Path(folder), "entry", dying, quiet)


def test_many_processes_make_an_entry_once(tmp_path: Path) -> None:
    """C09."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=take, args=(str(tmp_path),)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "made").read_text() == "x"


def test_the_next_takes_over_where_a_maker_died(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die_at_work, args=(str(tmp_path),))
    process.start()
    process.join(60)
    assert process.exitcode == 1
    entry, was_there = obtain(tmp_path, "entry", make, quiet)
    assert not was_there
    assert [file.name for file in entry.iterdir()] == ["report.json"]
    assert obtain(tmp_path, "entry", make, quiet) == (entry, True)


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def failing(folder: Path, progress) -> None:
        folder.mkdir()
        raise UserError("row 3")

    with pytest.raises(UserError, match="row 3"):
        obtain(tmp_path, "entry", failing, quiet)
    assert not [file for file in tmp_path.iterdir() if file.is_dir()]


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "a"))
    assert cache_folder(None) == tmp_path / "a" / "tokens"
    assert cache_folder(str(tmp_path / "b")) == tmp_path / "b" / "tokens"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"data\.cache_dir: cannot write"):
        cache_folder(str(tmp_path / "file"))
