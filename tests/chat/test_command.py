"""`toolkit chat` as a user types it: in a pipe, with a file, in a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from toolkit.config import AdapterConfig

COMMAND = [sys.executable, "-c", "from toolkit.cli import main; main()", "chat"]
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def chat(*arguments: object, said: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=said, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False, encoding="utf-8",
    )  # fmt: skip


def by_transformers(folder: Path, messages: list[dict[str, str]], tokens: int) -> str:
    """The answer as a script without this toolkit has it."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_a_pipe_is_answered_with_the_answers_alone_and_history(talker: Path) -> None:
    done = chat(talker, "--max_new_tokens", 9, said="to\n\nin the\n/reset\nto\n/nothing\n/quit\nto\n")
    assert done.returncode == 0, done.stderr
    first = by_transformers(talker, [{"role": "user", "content": "to"}], 9)
    history = [{"role": "user", "content": "to"}, {"role": "assistant", "content": first}]
    second = by_transformers(talker, [*history, {"role": "user", "content": "in the"}], 9)
    assert done.stdout == f"{first}\n{second}\n{first}\n"
    assert "there is no command /nothing" in done.stderr


def test_a_file_is_answered_into_a_file(adapter_run: Callable[..., Path], talker: Path, tmp_path: Path) -> None:
    run, rows, output = adapter_run(AdapterConfig(method="lora")), tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    texts = ["to", "in the question", "answer", "a of to and in is"]
    lines = [{"messages": [{"role": "user", "content": text}]} for text in texts]
    lines[2]["messages"].append({"role": "assistant", "content": "the"})
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    arguments = (run, "--compare", "--prompts", rows, "--output", output, "--max_new_tokens", 9, "--batch_size", 3)
    done = chat(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    found = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [one["row"] for one in found] == [1, 2, 3, 4]
    assert [one.get("reference") for one in found] == [None, None, "the", None]
    assert list(found[2]) == ["row", "prompt", "base", "answer", "reference"]
    for one, text in zip(found, texts, strict=True):
        assert one["prompt"] == [{"role": "user", "content": text}]
        assert one["base"] == by_transformers(talker, one["prompt"], 9)
        assert one["base"] != one["answer"]
    before = output.read_bytes()
    again = chat(*arguments)
    assert again.returncode == 2
    assert f"--output: {output} exists already" in again.stderr
    assert output.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if "partial" in file.name] == []


def test_a_model_without_template_continues_text_and_says_so(talker: Path, tmp_path: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(talker), AutoTokenizer.from_pretrained(talker)
    tokenizer.chat_template = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    done = chat(tmp_path, "--max_new_tokens", 9, said="to the\nto the\n")
    inputs = tokenizer("to the", return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=9, do_sample=False)
    text = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert done.stdout == f"{text}\n{text}\n"
    assert done.stderr.count("no chat template") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere"], "/nowhere does not exist"),
        (["RUN", "--prompts", "x"], "--prompts FILE and --output FILE go together"),
        (["RUN", "--prompts", "/nowhere.jsonl", "--output", "/tmp/never.jsonl"], "/nowhere.jsonl does not exist"),
        (["RUN", "--temperature", "0.5"], "--temperature means nothing without --do_sample"),
        (["RUN", "--do_sample", "--temperature", "0"], "--temperature must be above 0"),
        (["RUN", "--do_sample", "--top_p", "nan"], "--top_p must be above 0"),
        (["RUN", "--max_new_tokens", "0"], "--max_new_tokens must be at least 1"),
        (["RUN", "--compare"], "has no config.yaml of a run beside it"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], message: str, talker: Path) -> None:
    done = chat(*[str(talker) if one == "RUN" else one for one in arguments])
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


class Terminal:
    """The command in a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        self.seen, self.read = "", 0
        self.process, self.screen = pty.fork()
        if self.process == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background has it ignored
            os.execvpe(sys.executable, [*COMMAND, *map(str, arguments)], {**ENVIRONMENT, "TERM": "xterm"})

    def until(self, text: str, seconds: float = 60.0) -> str:
        """What came since the last one until `text` did."""
        end, start = time.monotonic() + seconds, self.read
        while text not in self.seen[start:]:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            assert self.more(1.0), f"ended without {text!r}: {self.seen!r}"
        self.read = self.seen.index(text, start) + len(text)
        return self.seen[start : self.read]

    def more(self, seconds: float) -> bool:
        """Read what comes within this time; False when the command has ended."""
        ready = select.select([self.screen], [], [], seconds)[0]
        if ready:
            try:
                self.seen += os.read(self.screen, 4096).decode("utf-8", "replace")
            except OSError:
                return False
        return True

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def end(self) -> int:
        """The exit code, once it has ended by itself."""
        while self.more(60.0):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def test_ctrl_c_stops_an_answer_and_ctrl_d_the_conversation(talker: Path, tmp_path: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(talker), AutoTokenizer.from_pretrained(talker)
    model.config.max_position_embeddings = 10**6
    # It goes on and on, and says something that can be seen.
    letters = set(tokenizer.convert_tokens_to_ids(list("abcdefgh")))
    model.generation_config.suppress_tokens = sorted(set(range(len(tokenizer))) - letters)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    terminal = Terminal(tmp_path, "--max_new_tokens", 100_000)
    terminal.until("> ")
    terminal.type("to\n")
    terminal.until("to\r\n")
    for _ in range(20):
        terminal.more(5.0)
    terminal.type("\x03")
    terminal.until("(stopped)")
    terminal.until("> ")
    time.sleep(1.0)  # readline shows its prompt a moment before it waits for signals
    terminal.type("\x03")
    terminal.until("/quit or Ctrl-D ends")
    terminal.until("> ")
    terminal.type("/help\n")
    terminal.until("/reset begins anew")
    terminal.until("> ")
    terminal.type("\x04")
    assert terminal.end() == 0
    assert "\x1b[" not in terminal.seen.replace("\x1b[?2004h", "").replace("\x1b[?2004l", "")


def test_two_columns_grow_in_a_terminal(adapter_run: Callable[..., Path]) -> None:
    terminal = Terminal(adapter_run(AdapterConfig(method="lora")), "--compare", "--max_new_tokens", 9)
    terminal.until("> ")
    terminal.type("to\n")
    shown = terminal.until("> ")
    assert shown.count("fine-tuned") >= 2, "while it comes, and when it is there"
    terminal.type("/quit\n")
    assert terminal.end() == 0
