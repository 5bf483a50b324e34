"""One function over many blocks, on all cores where that pays, with results in order and little held in memory."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from toolkit.errors import UserError

In = TypeVar("In")
Out = TypeVar("Out")

# Worker processes take seconds to import what they need; work that is done by then is done alone.
_ALONE_SECONDS = 4.0
_WAITING_BLOCKS = 3  # per worker: enough that none runs dry, few enough to hold in memory


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def ordered_map(work: Callable[[In], Out], items: Iterable[In], processes: int | None) -> Iterator[Out]:
    """`map(work, items)`, in this process for the first seconds and then, if there is more, in `processes` others.

    None: one for each core. `work` and the items must pickle. An exception of `work` is raised here, in its place.
    """
    remaining = iter(items)
    count = cores() if processes is None else processes
    deadline = time.monotonic() + (_ALONE_SECONDS if processes is None else 0.0)
    for item in remaining:
        if count > 1 and time.monotonic() > deadline:
            yield from _in_processes(work, _again(item, remaining), count)
            return
        yield work(item)


def _again(first: In, rest: Iterator[In]) -> Iterator[In]:
    yield first
    yield from rest


def _in_processes(work: Callable[[In], Out], items: Iterator[In], count: int) -> Iterator[Out]:
    # Spawned, not forked: the parent has threads of torch and tokenizers, which a fork would copy in mid-flight.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, _start_worker, (work,)) as pool:
        pending: deque[Future[Out]] = deque()
        starting = [pool.submit(_nothing) for _ in range(count)]
        try:
            for item in items:
                if not all(start.done() for start in starting):
                    yield work(item)  # until the workers have imported what they need
                    continue
                pending.append(pool.submit(_work, item))
                if len(pending) >= count * _WAITING_BLOCKS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "a process that tokenized data died, most likely for want of memory; set data.num_proc lower"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


_worker: Callable[[Any], Any]


def _start_worker(work: Callable[[Any], Any]) -> None:
    global _worker
    # The processes are the parallelism; threads in each would only fight over the cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker = work


def _nothing() -> None:
    """Done when a worker has started."""


def _work(item: Any) -> Any:
    return _worker(item)
