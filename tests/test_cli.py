"""The `toolkit` command as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "from toolkit.cli import main; main()", "layouts"]


def test_layouts_lists_every_file_with_its_heading() -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    files = sorted((ROOT / "accelerate_configs").glob("*.yaml"))
    assert len(files) >= 6
    for file in files:
        heading = file.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
        assert f"{file.name}\n    {heading}\n" in done.stdout


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(COMMAND, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_inspect_shows_the_same_supervised_text_of_the_same_rows_in_any_form(tmp_path: Path) -> None:
    faq = pytest.importorskip("zaragoza_construction_faq")
    folder = Path(faq.__file__).parent / "data"
    columns = ["--data.columns", "{user: q, assistant: a}"]
    forms = {"faq-en.jsonl": columns, "faq-en.csv": columns, "faq-en-alpaca.jsonl": [], "faq-en-sharegpt.jsonl": []}
    command = [sys.executable, "-c", "from toolkit.cli import main; main()", "inspect", "--json", "--rows", "3"]
    command += ["--model.name_or_path", str(ROOT / "recipes" / "demo" / "model"), "--data.max_length", "4000"]
    environment = {**os.environ, "TOOLKIT_CACHE": str(tmp_path)}
    found = []
    for name, more in forms.items():
        done = subprocess.run(
            [*command, "--data.train", str(folder / name), *more],
            capture_output=True, text=True, timeout=120, env=environment, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)["rows"]
        found.append(
            ["".join(t["text"] for block in row["blocks"] for t in block["tokens"] if t["supervised"]) for row in shown]
        )
    answers = {json.loads(line)["a"] for line in (folder / "faq-en.jsonl").read_text(encoding="utf-8").splitlines()}
    assert len(found[0]) == 3
    assert all(text.removesuffix("<|im_end|>") in answers and text.endswith("<|im_end|>") for text in found[0])
    assert found[0] == found[1] == found[2] == found[3]


def test_prepare_makes_once_and_says_a_mistake_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from toolkit.cli import main; main()", "prepare"]
    command += ["--model.name_or_path", str(ROOT / "recipes" / "demo" / "model")]
    environment = {**os.environ, "TOOLKIT_CACHE": str(tmp_path)}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more], capture_output=True, text=True, timeout=120, env=environment, check=False
        )

    file = str(ROOT / "recipes" / "demo" / "eval.jsonl")
    first, second, wrong = run("--data.train", file), run("--data.train", file), run("--data.trian", file)
    assert "prepared: 200 rows" in first.stdout
    assert "tokenized before" not in first.stdout
    assert "tokenized before" in second.stdout
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
    assert "did you mean data.train?" in wrong.stderr
