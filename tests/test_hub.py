"""push_to_hub: never by itself, refused at the start where it cannot work, and never at the price of the model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import toolkit.hub
from tests.hub_server import Hub, hub
from toolkit.checkpoint.changes import config_changes
from toolkit.config import RunConfig
from toolkit.errors import UserError
from toolkit.hub import check_push

ROOT = Path(__file__).parents[1]
PUSH = {"push_to_hub": True, "hub_model_id": "me/mine"}

UPLOAD = """
import sys
from pathlib import Path
from toolkit.config import RunConfig
from toolkit.errors import exit_with_message
from toolkit.hub import check_push, upload
config = RunConfig(push_to_hub=True, hub_model_id="me/mine", hub_private_repo=sys.argv[2] == "private")
check_push(config)
exit_with_message(lambda: print("at", upload(config, Path(sys.argv[1]))))
"""


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with a network and a token."""
    monkeypatch.setattr(toolkit.hub, "is_offline_mode", lambda: False)
    monkeypatch.setattr(toolkit.hub, "get_token", lambda: "hf_x")


def refused(**settings) -> str:
    with pytest.raises(UserError) as info:
        check_push(RunConfig(**settings))
    assert "\n" not in str(info.value)
    return str(info.value)


def test_it_is_off_by_default_and_private(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert RunConfig().push_to_hub is False
    assert RunConfig().hub_private_repo is True
    monkeypatch.setattr(toolkit.hub, "get_token", lambda: pytest.fail("asked for a token"))
    check_push(RunConfig(hub_model_id="me/mine"))


@pytest.mark.usefixtures("online")
def test_what_cannot_work_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    check_push(RunConfig(**PUSH))
    assert "set hub_model_id" in refused(push_to_hub=True)
    for bad in ("a/b/c", "me/-x", "me/a..b", "", "me/a b"):
        assert refused(push_to_hub=True, hub_model_id=bad).startswith("hub_model_id: "), bad
    monkeypatch.setattr(toolkit.hub, "get_token", lambda: None)
    assert "HF_TOKEN" in refused(**PUSH)
    monkeypatch.setattr(toolkit.hub, "is_offline_mode", lambda: True)
    assert "HF_HUB_OFFLINE" in refused(**PUSH)


def test_it_does_not_alter_what_is_learned() -> None:
    changes = config_changes({}, RunConfig(**PUSH, hub_private_repo=False))
    pushing = [change for change in changes if change.name in ("push_to_hub", "hub_model_id", "hub_private_repo")]
    assert len(pushing) == 3
    assert not any(change.alters for change in pushing)


def uploaded(state: Hub, folder: Path, visibility: str = "private") -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": state.address, "HF_TOKEN": "hf_secret", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", UPLOAD, str(folder), visibility],
        capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "README.md").write_text("---\ntags: [x]\n---\n# Mine\n")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.mark.parametrize("visibility", ["private", "public"])
def test_the_folder_is_sent(model: Path, visibility: str) -> None:
    with hub() as state:
        done = uploaded(state, model, visibility)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"at {state.address}/me/mine\n"
    assert state.files == {file.name: file.read_bytes() for file in model.iterdir()}
    assert state.created[0]["visibility"] == visibility
    assert (state.created[0]["organization"], state.created[0]["name"]) == ("me", "mine")
    assert state.tokens == {"Bearer hf_secret"}


@pytest.mark.parametrize("step", ["/api/", "/commit/"])
def test_a_failed_upload_says_how_to_do_it_by_hand(model: Path, step: str) -> None:
    with hub() as state:
        state.refuse = step
        done = uploaded(state, model)
    assert done.returncode == 1
    assert done.stderr.startswith("failed: push_to_hub: me/mine: ")
    assert done.stderr.count("\n") == 1
    assert f"the model is in {model}; to upload it: hf upload me/mine '{model}' . --private" in done.stderr
    assert "hf_secret" not in done.stdout + done.stderr
    assert (model / "model.safetensors").read_bytes() == b"weights"


def test_nothing_goes_to_a_public_repository_by_accident(model: Path) -> None:
    with hub() as state:
        state.exists_public = True
        done = uploaded(state, model)
        assert done.returncode == 1
        assert "is a public repository and hub_private_repo is true" in done.stderr
        assert state.files == {}
        done = uploaded(state, model, "public")
        assert done.returncode == 0, done.stderr
        assert len(state.files) == 2
