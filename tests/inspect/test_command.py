"""`toolkit inspect` as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def inspect(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from toolkit.cli import main; main()", "inspect", *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", **environment},
    )  # fmt: skip


def test_the_demo_as_json_and_as_a_page(tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    done = inspect("--config", "recipes/configs/sft/demo.yaml", "--rows", "2", "--json", "--html", str(page),
                   "--data.max_length", "64", "--seed", "5")  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)  # and nothing else is there
    rows = (ROOT / "recipes/demo/train.jsonl").read_text(encoding="utf-8").splitlines()
    assert figures["train"]["rows"] == len(rows)
    assert figures["train"]["lengths"]["max_length"] == 64
    assert len(figures["rows"]) == 2
    assert figures["layout"]["total_steps"] == 500
    assert figures["repeats"]["overlap_rows"] == 0
    assert f"page: {page}" in done.stderr
    assert "shape messages" in done.stderr
    assert page.stat().st_size < 1_000_000
    assert "</html>" in page.read_text(encoding="utf-8")


def test_a_csv_with_any_text_prints_on_an_ascii_terminal(tmp_path: Path) -> None:
    """F14."""
    file = tmp_path / "mine.csv"
    file.write_text("q,a\nhello 🎉,你好\nagain,<script>\n", encoding="utf-8")
    done = inspect(
        "--model.name_or_path", "recipes/demo/model", "--data.train", str(file), "--data.columns.user", "q",
        "--data.columns.assistant", "a", PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 rows" in done.stdout
    assert "\\u4f60\\u597d" in done.stdout
    assert "[[" in done.stdout


def test_mistakes_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    demo = ("--config", "recipes/configs/sft/demo.yaml")
    for arguments, said in (
        ((*demo, "--html", str(tmp_path / "no" / "out.html")), "does not exist"),
        ((*demo, "--html", str(tmp_path)), "is a folder"),
        ((*demo, "--data.max_lenght", "5"), "did you mean data.max_length"),
        ((*demo, "--rows", "-1"), "--rows must be at least 0"),
    ):
        done = inspect(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
