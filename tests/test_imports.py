"""Imports go one way: recipes -> toolkit -> its leaves."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLKIT = sorted((ROOT / "toolkit").rglob("*.py"))
DATA = sorted((ROOT / "toolkit" / "data").rglob("*.py"))
WITHOUT_TORCH = ("config", "recipe_config", "parsing", "errors", "token_units")


def imported(file: Path, *, top_level_only: bool = False) -> set[str]:
    """Dotted names that a file imports; `from a.b import c` counts as a.b and a.b.c."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide where a name comes from"
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def packages(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_the_files_are_there() -> None:
    assert len(TOOLKIT) > 20
    assert len(DATA) > 5


@pytest.mark.parametrize("file", TOOLKIT, ids=lambda f: str(f.relative_to(ROOT)))
def test_the_toolkit_knows_no_recipe_and_no_test(file: Path) -> None:
    assert not packages(imported(file)) & {"recipes", "tests", "conftest", "sft"}


@pytest.mark.parametrize("file", DATA, ids=lambda f: f.name)
def test_data_knows_nothing_of_training(file: Path) -> None:
    above = {"loop", "run", "layout", "monitor", "objectives", "optim", "models", "export", "evaluation", "steps"}
    used = {name.split(".")[1] for name in imported(file) if name.startswith("toolkit.")}
    assert not used & above


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_a_typo_does_not_wait_for_torch(name: str) -> None:
    used = imported(ROOT / "toolkit" / f"{name}.py")
    assert not packages(used) & {"torch", "transformers", "accelerate", "datasets", "peft"}
    assert {n.split(".")[1] for n in used if n.startswith("toolkit.")} <= set(WITHOUT_TORCH)


@pytest.mark.parametrize("file", sorted((ROOT / "recipes").glob("*.py")), ids=lambda f: f.name)
def test_a_recipe_loads_torch_only_after_its_config_is_read(file: Path) -> None:
    used = imported(file, top_level_only=True)
    assert not packages(used) & {"torch", "transformers", "accelerate", "datasets", "peft"}
    assert {n.split(".")[1] for n in used if n.startswith("toolkit.")} <= set(WITHOUT_TORCH)


def test_a_run_without_an_adapter_does_not_wait_for_peft() -> None:
    """It takes over a second to import, on every process of every run."""
    used = imported(ROOT / "recipes" / "sft.py") - imported(ROOT / "recipes" / "sft.py", top_level_only=True)
    modules = sorted(name for name in used if (ROOT / f"{name.replace('.', '/')}.py").is_file())
    assert len(modules) > 3
    text = f"import sys, {', '.join(modules)}; sys.exit('peft' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], cwd=ROOT, timeout=120, check=False).returncode == 0
