"""A configuration says what the user wrote, from YAML and command line alike, or which key is wrong and where."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from toolkit.config import RunConfig, option
from toolkit.errors import UserError
from toolkit.parsing import parse, to_yaml
from toolkit.recipe_config import AnyRunConfig

ROOT = Path(__file__).parents[1]
RECIPE_CONFIGS = sorted((ROOT / "recipes" / "configs").rglob("*.yaml"))
LAYOUTS = sorted((ROOT / "accelerate_configs").glob("*.yaml"))


@dataclass
class Config(RunConfig):
    """Settings of a test."""

    output_dir: str = option("outputs/test", "folder", path=True)


def from_yaml(folder: Path, text: str, *argv: str) -> Config:
    file = folder / "c.yaml"
    file.write_text(text, encoding="utf-8")
    return parse(Config, ["--config", str(file), *argv])


def message(folder: Path, text: str | None, *argv: str) -> str:
    with pytest.raises(UserError) as info:
        parse(Config, list(argv)) if text is None else from_yaml(folder, text, *argv)
    assert "\n" not in str(info.value)
    return str(info.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-5", 0.00001), ("5E-6", 0.000005), ("1e5", 100000.0), ('"2e-4"', 0.0002), ("08", 8.0), ("3", 3.0)],
)
def test_every_spelling_of_a_number_is_that_number(tmp_path: Path, written: str, value: float) -> None:
    config = from_yaml(tmp_path, f"train:\n  learning_rate: {written}\n")
    typed = parse(Config, ["--train.learning_rate", written.strip('"')])
    joined = parse(Config, [f"--train.learning_rate={written.strip(chr(34))}"])
    for rate in (config.train.learning_rate, typed.train.learning_rate, joined.train.learning_rate):
        assert rate == value
        assert isinstance(rate, float)


@pytest.mark.parametrize("written", ["abc", "-1e-5", ".inf", ".nan", "12:30", "true", "null", "[1]"])
def test_what_is_no_learning_rate_is_refused_with_key_value_and_place(tmp_path: Path, written: str) -> None:
    said = message(tmp_path, f"seed: 1\ntrain:\n  learning_rate: {written}\n")
    assert "train.learning_rate" in said
    assert "c.yaml line 3" in said
    for argv in (["--train.learning_rate", written], [f"--train.learning_rate={written}"]):
        said = message(tmp_path, None, *argv)
        assert "train.learning_rate: " in said
        assert "the command line" in said


def test_a_value_in_the_message_is_the_one_given(tmp_path: Path) -> None:
    assert "abc" in message(tmp_path, "train:\n  learning_rate: abc\n")
    assert "-1e-05" in message(tmp_path, None, "--train.learning_rate", "-1e-5")
    assert "12:30" in message(tmp_path, None, "--train.learning_rate", "12:30")


@pytest.mark.parametrize("key", ["global_batch_size", "epochs", "schedule"])
def test_an_empty_value_does_not_become_none(tmp_path: Path, key: str) -> None:
    assert f"train.{key}: got null" in message(tmp_path, f"train:\n  {key}:\n")


def test_where_null_means_something_it_is_accepted(tmp_path: Path) -> None:
    config = from_yaml(tmp_path, "model:\n  dtype: null\ntrain:\n  max_steps: null\n")
    assert config.model.dtype is None
    assert config.train.max_steps is None


@pytest.mark.parametrize(
    ("yaml_text", "argv", "place"),
    [
        ("train:\n  epochs: 1\n", ["--train.epochs", "0"], "the command line"),
        ("train:\n  epochs: 0\n", [], "line 2"),
        ("train:\n  max_steps: 5\n", ["--train.max_steps", "abc"], "the command line"),
        ("train:\n  learning_rate: 1\n", ["--train.learning_rate", "true"], "the command line"),
        ("train:\n  learning_rate: true\n", ["--train.learning_rate", "1"], "line 2"),
    ],
)
def test_the_place_named_is_where_the_wrong_value_stands(
    tmp_path: Path, yaml_text: str, argv: list[str], place: str
) -> None:
    assert f"{place})" in message(tmp_path, yaml_text, *argv)


@pytest.mark.parametrize("word", ["False", "false", "no", '"False"', "off"])
def test_false_is_false(tmp_path: Path, word: str) -> None:
    assert from_yaml(tmp_path, f"train:\n  padding_free: {word}\n").train.padding_free is False
    assert parse(Config, ["--train.padding_free", word.strip('"')]).train.padding_free is False


@pytest.mark.parametrize("word", ["maybe", "0", "2"])
def test_what_is_neither_true_nor_false_is_refused(tmp_path: Path, word: str) -> None:
    assert "train.padding_free" in message(tmp_path, f"train:\n  padding_free: {word}\n")
    assert "train.padding_free" in message(tmp_path, None, "--train.padding_free", word)


@pytest.mark.parametrize("value", ["1", "1.5", "-0.1", "nan"])
def test_a_share_is_at_least_nothing_and_less_than_all(tmp_path: Path, value: str) -> None:
    assert "train.label_smoothing_factor" in message(tmp_path, None, f"--train.label_smoothing_factor={value}")
    assert parse(Config, ["--train.label_smoothing_factor", "0.999"]).train.label_smoothing_factor == 0.999


def test_all_unknown_keys_are_listed_at_once_with_the_nearest(tmp_path: Path) -> None:
    text = "learing_rate: 1e-3\ntrain:\n  sheduel: cosine\n  quantizaton: 4\n"
    said = message(tmp_path, text, "--data.max_lenght", "5", "--bogus=1")
    assert "unknown key learing_rate" in said
    assert "line 1), did you mean train.learning_rate?" in said
    assert "line 3), did you mean train.schedule?" in said
    assert "unknown key train.quantizaton" in said
    assert "unknown key data.max_lenght (the command line), did you mean data.max_length?" in said
    assert "unknown key bogus" in said


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("mixed_precision", "accelerate config"),
        ("train.bf16", "accelerate config"),
        ("num_processes", "accelerate config"),
        ("gradient_accumulation_steps", "train.global_batch_size"),
        ("lr", "train.learning_rate"),
        ("packing", "train.padding_free"),
    ],
)
def test_a_key_that_lives_elsewhere_says_where(tmp_path: Path, key: str, hint: str) -> None:
    assert hint in message(tmp_path, None, f"--{key}", "1")
    *section, leaf = key.split(".")
    text = f"{section[0]}:\n  {leaf}: 1\n" if section else f"{leaf}: 1\n"
    assert hint in message(tmp_path, text)


def test_duplicate_keys_are_refused_with_both_lines(tmp_path: Path) -> None:
    said = message(tmp_path, "seed: 1\ntrain:\n  epochs: 1\n  max_steps: 2\n  epochs: 2\nseed: 2\n")
    assert "duplicate key train.epochs" in said
    assert "line 3 and line 5" in said
    assert "line 1 and line 6" in said
    said = message(tmp_path, "data:\n  columns:\n    user: q\n    user: a\n")
    assert "duplicate key data.columns.user" in said


def test_a_key_may_stand_in_two_files_and_the_last_counts(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("seed: 1\nlog_every: 3\n")
    second.write_text("seed: 2\n")
    config = parse(Config, [f"--config={second}", "--config", str(first), "--log_every=5"])
    assert (config.seed, config.log_every) == (1, 5)


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "a: [\n", "train: 5\n", "train:\n", "? [a, b]\n: 2\n"])
def test_a_file_that_is_no_config_is_a_users_error(tmp_path: Path, text: str) -> None:
    assert "c.yaml" in message(tmp_path, text)


def test_a_missing_config_file_is_named_in_full(tmp_path: Path) -> None:
    assert str(tmp_path / "none.yaml") in message(tmp_path, None, "--config", str(tmp_path / "none.yaml"))
    assert "needs a file" in message(tmp_path, None, "--config")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("~/run one", "{home}/run one"),
        ("$FIELD/x", "/field value/x"),
        ("${FIELD}x", "/field valuex"),
        ("/a b/c#d", "/a b/c#d"),
        ("$CONFIG_DIR/x", "{config}/x"),
        ("./x", "./x"),
    ],
)
def test_paths_are_expanded_and_otherwise_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, expected: str
) -> None:
    monkeypatch.setenv("FIELD", "/field value")
    expected = expected.format(home=Path.home(), config=tmp_path)
    assert from_yaml(tmp_path, f"output_dir: {written}\n").output_dir == expected
    assert from_yaml(tmp_path, "seed: 1\n", "--output_dir", written).output_dir == expected
    assert from_yaml(tmp_path, f"data:\n  train: ['{written}', b]\n").data.train == [expected, "b"]


def test_config_dir_is_the_folder_of_the_file_that_names_it(tmp_path: Path) -> None:
    for name, text in {"a": "output_dir: $CONFIG_DIR/x\n", "b": "seed: 1\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "c.yaml").write_text(text)
    argv = ["--config", str(tmp_path / "a" / "c.yaml"), "--config", str(tmp_path / "b" / "c.yaml")]
    assert parse(Config, argv).output_dir == str(tmp_path / "a" / "x")


@pytest.mark.parametrize("written", ["$NOT_DEFINED_ANYWHERE/x", "~no-such-user-here/x"])
def test_what_cannot_be_expanded_is_refused(tmp_path: Path, written: str) -> None:
    assert f"output_dir: {written}" in message(tmp_path, f"output_dir: {written}\n")


def test_the_demo_is_used_only_when_neither_config_nor_model_nor_data_is_given(tmp_path: Path) -> None:
    demo, other = tmp_path / "demo.yaml", tmp_path / "other.yaml"
    demo.write_text("seed: 77\nlog_every: 3\n")
    other.write_text("log_every: 4\n")
    assert parse(Config, [], demo=demo).seed == 77
    overridden = parse(Config, ["--log_every", "9"], demo=demo)
    assert (overridden.seed, overridden.log_every) == (77, 9)
    for argv in (["--config", str(other)], [f"--config={other}"], ["--model.name_or_path", "m"], ["--data.train=d"]):
        assert parse(Config, argv, demo=demo).seed == 0


def test_the_resolved_config_reads_back_the_same(tmp_path: Path) -> None:
    argv = ["--train.learning_rate", "1e-5", "--data.delimiter", "\t", "--data.columns", "{user: 'no', assistant: å}"]
    config = parse(Config, [*argv, "--data.train", "[a b, 'c#d']", "--output_dir", "12:30"])
    assert dataclasses.asdict(from_yaml(tmp_path, to_yaml(config))) == dataclasses.asdict(config)


@pytest.mark.parametrize("file", RECIPE_CONFIGS, ids=lambda f: f"{f.parent.name}/{f.name}")
def test_every_shipped_recipe_config_parses(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOLLM2_DIR", "/models/smollm2")
    monkeypatch.setenv("FAQ_DIR", "/data/faq")
    module = importlib.import_module(f"recipes.{file.parent.name}")
    own = next(
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, RunConfig) and kind.__module__ == module.__name__
    )
    config = parse(own, ["--config", str(file)])
    assert config.model.name_or_path is not None
    assert config.data.train is not None
    assert parse(AnyRunConfig, ["--config", str(file)]).data == config.data


@pytest.mark.parametrize("file", LAYOUTS, ids=lambda f: f.name)
def test_every_shipped_layout_is_one_that_accelerate_reads(file: Path) -> None:
    import yaml
    from accelerate.commands.config.config_args import load_config_from_file

    from toolkit.launcher import _check_sections

    loaded = load_config_from_file(str(file))
    settings = yaml.safe_load(file.read_text())
    assert loaded.num_processes == settings["num_processes"]
    assert loaded.mixed_precision in ("no", "bf16", "fp16")
    _check_sections(file, settings)


def recipe(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "recipes" / "sft.py"), *argv],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("flag", ["--help", "--print_config"])
def test_help_and_print_config_answer_without_loading_torch(tmp_path: Path, flag: str) -> None:
    # A torch that cannot be imported stands in front of the real one.
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    (tmp_path / "transformers.py").write_text("raise SystemExit('transformers was imported')")
    done = recipe("--config", str(RECIPE_CONFIGS[-1]), flag, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 0, done.stderr
    assert "learning_rate" in done.stdout
    assert "peak learning rate" in done.stdout or flag == "--print_config"


def test_a_wrong_key_ends_a_real_process_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = recipe("--train.learing_rate", "1")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: unknown key train.learing_rate")
    assert done.stdout == ""


def test_other_ranks_wait_before_they_speak() -> None:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "recipes" / "sft.py"), "--bogus", "1"],
        env={**os.environ, "RANK": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        started = time.monotonic()
        assert process.stderr is not None
        line = process.stderr.readline()
        assert time.monotonic() - started > 2
        assert line.startswith("[rank 1] error: unknown key bogus")
        assert process.wait(timeout=30) == 2
    finally:
        process.kill()
