"""Names of the hub, licenses and paths: what is told of them, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.card.command import command_of, file_of
from toolkit.card.origin import base_facts, license_of, without_home
from toolkit.config import ModelConfig, RunConfig
from toolkit.data.sources.locate import is_hub_id
from toolkit.launcher import Launch
from toolkit.parsing import parse, to_yaml


def test_a_local_folder_that_looks_like_an_id_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("org/model")
    assert is_hub_id("gpt2")
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert not is_hub_id("org/model")
    for name in ("./m", "/a/b", "a/b/c", "a--b/c", "~/m", "m.git"):
        assert not is_hub_id(name), name


def card(folder: Path, head: str) -> str:
    (folder / "README.md").write_text(f"---\n{head}\n---\n# Base\n", encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize(
    ("head", "found"),
    [
        ("license: mit", {"license": "mit"}),
        ("license: other\nlicense_name: x\nlicense_link: https://x.org", {"license": "other", "license_name": "x",
                                                                          "license_link": "https://x.org"}),
        ("license: other\nlicense_name: x\nlicense_link: LICENSE", {"license": "other", "license_name": "x"}),
        ("license_name: x", {}),
        ("license: [mit, x]", {}),
        ("language: en", {}),
        ("a: [", {}),
        ("- a", {}),
    ],
)  # fmt: skip
def test_a_license_is_what_the_bases_card_states(head: str, found: dict, tmp_path: Path) -> None:
    assert license_of(card(tmp_path, head), None, None, None) == found


def test_no_card_no_license(tmp_path: Path) -> None:
    assert license_of(str(tmp_path), None, None, None) == {}
    assert license_of("org/never-seen", "org/never-seen", None, None) == {}


def test_random_weights_have_no_license_of_a_base(tmp_path: Path) -> None:
    name = card(tmp_path, "license: mit")
    for random, license in ((False, {"license": "mit"}), (True, {})):
        model = ModelConfig(name_or_path=name, random_init=random)
        assert base_facts(model, model).license == license


def test_the_home_folder_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert without_home("train: /home/ann/x.jsonl\n- /home/ann\n") == "train: ~/x.jsonl\n- ~\n"
    for other in ("/home/anna/x", "/data/home/ann/x", "/home/bob/ann"):
        assert without_home(other) == other
    monkeypatch.setenv("HOME", "/")
    assert without_home("/data/x") == "/data/x"


def test_paths_are_as_the_user_wrote_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("DATA", "/mnt/secret")
    (tmp_path / "c.yaml").write_text("data:\n  train: [$DATA/a.jsonl, {path: $CONFIG_DIR/b.jsonl}]\n")
    config = parse(RunConfig, ["--config", str(tmp_path / "c.yaml"), "--output_dir", "~/out"])
    assert config.output_dir == "/home/ann/out"
    assert config.data.train[0] == "/mnt/secret/a.jsonl"
    text = to_yaml(config.as_written)
    assert "$DATA/a.jsonl" in text
    assert "path: $CONFIG_DIR/b.jsonl" in text
    assert "output_dir: ~/out" in text
    assert "/mnt" not in text
    assert "as_written" not in text
    assert RunConfig().as_written == RunConfig()


def test_the_command_has_what_spreads_the_work_and_no_machine(tmp_path: Path) -> None:
    words = ["python", "/opt/bin/accelerate", "launch", "--config_file", "/home/ann/configs/ddp.yaml"]
    words += ["--num_processes", "3", "--main_process_ip", "10.0.0.7", "--main_process_port=29501", "--cpu"]
    words += ["recipes/sft.py", "--mixed_precision", "fp16"]
    launch = Launch(tuple(words), Path("/home/ann/configs/ddp.yaml"), {}, False)
    said = command_of(launch, "recipes/sft.py")
    assert said.startswith("accelerate launch --config_file configs/ddp.yaml ")
    assert said.endswith(" recipes/sft.py --config config.yaml")
    assert "--num_processes 3" in said
    assert "--cpu" in said
    for absent in ("10.0.0.7", "29501", "ann", "fp16", "/opt"):
        assert absent not in said
    assert (
        command_of(Launch((), None, {}, False), "/x/y/recipes/sft.py") == "python recipes/sft.py --config config.yaml"
    )


def test_a_default_config_is_named_by_its_file() -> None:
    launch = Launch(("accelerate", "launch", "sft.py"), Path("/home/ann/.cache/default_config.yaml"), {}, False)
    assert (
        command_of(launch, "sft.py")
        == "accelerate launch --config_file default_config.yaml sft.py --config config.yaml"
    )
    assert file_of("accelerate_configs/ddp.yaml") == "accelerate_configs/ddp.yaml"
