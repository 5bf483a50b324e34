"""Reading a model, data, a config or a checkpoint never runs code from it, and nothing is sent anywhere."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.test_folder import make
from toolkit.checkpoint.folder import open_checkpoint
from toolkit.checkpoint.tensors import stored_tensors
from toolkit.config import ModelConfig, RunConfig
from toolkit.errors import UserError
from toolkit.models import load_model, load_tokenizer
from toolkit.parsing import parse

ROOT = Path(__file__).parents[1]


class Bomb:
    """A pickle that makes a file when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


@pytest.fixture
def trace(tmp_path: Path):
    """A file that must not be there at the end."""
    path = tmp_path / "trace"
    yield path
    assert not path.exists(), "code from a file was run"


def test_the_bomb_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "t")))
    assert (tmp_path / "t").exists()


def test_pickles_in_a_checkpoint_are_not_read(trace: Path, tmp_path: Path) -> None:
    """The stock metadata file of distributed checkpoints is a pickle; here it is no part of one."""
    path = make(tmp_path, 3)
    for name in (".metadata", "__0_0.distcp", "optimizer.pt", "scheduler.pkl"):
        (path / name).write_bytes(pickle.dumps(Bomb(trace)))
    assert open_checkpoint(path).fault is None
    assert list(stored_tensors(path)) == ["weights.w"]


def test_a_checkpoint_of_another_kind_is_refused(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-5"
    path.mkdir()
    (path / ".metadata").write_bytes(pickle.dumps(Bomb(trace)))
    assert "was not finished" in str(open_checkpoint(path).fault)


def test_weights_in_a_pickle_are_refused(trace: Path, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(trace)))
    with pytest.raises(UserError, match="safetensors"):
        load_model(ModelConfig(name_or_path=str(folder)), seed=0)


def test_code_that_comes_with_a_model_is_refused(trace: Path, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"from pathlib import Path\nPath({str(trace)!r}).touch()\n")
    with pytest.raises(UserError, match="comes with code of its own, which is not run"):
        load_model(ModelConfig(name_or_path=str(folder)), seed=0)
    load_tokenizer(ModelConfig(name_or_path=str(folder)))  # needs none of it


def test_yaml_makes_no_objects(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        f"output_dir: !!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [{trace}]]"
    )
    with pytest.raises(UserError):
        parse(RunConfig, ["--config", str(file)])


@pytest.mark.parametrize(
    "attack", ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ cycler.__init__.__globals__.os }}"]
)
def test_templates_stay_in_their_sandbox(attack: str, tiny_model: Path) -> None:
    tokenizer = load_tokenizer(ModelConfig(name_or_path=str(tiny_model)))
    tokenizer.chat_template = attack
    with pytest.raises(Exception, match=r"unsafe|undefined|no attribute"):
        print(tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False))


# What a machine without any network would do to a run, from its first import on.
NO_NETWORK = """
import socket
original = socket.socket.connect
def connect(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        open({trace!r}, "a").write(str(address) + chr(10))
        raise OSError("no network")
    return original(self, address)
socket.socket.connect = connect
lookup = socket.getaddrinfo
def getaddrinfo(host, *arguments, **options):
    if host not in ("127.0.0.1", "::1", "localhost", None):
        open({trace!r}, "a").write(str(host) + chr(10))
        raise OSError("no network")
    return lookup(host, *arguments, **options)
socket.getaddrinfo = getaddrinfo
"""


def test_a_local_run_asks_nobody(trace: Path, tmp_path: Path) -> None:
    """F07, without HF_HUB_OFFLINE."""
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK.format(trace=str(trace)))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path), str(ROOT)))  # this checkout, not an installed one
    command = [
        sys.executable,
        "recipes/sft.py",
        "--model.name_or_path",
        "recipes/demo/model",
        "--model.random_init",
        "true",
    ]
    command += ["--data.train", "recipes/demo/train.jsonl", "--data.max_rows", "50", "--data.eval_fraction", "0.1"]
    command += ["--train.max_steps", "2", "--checkpoint.save_every", "1", "--output_dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
