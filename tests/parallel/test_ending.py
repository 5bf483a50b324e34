"""The end of a process does not overtake worker threads that still let go of tensors."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from pathlib import Path

import pytest

from toolkit.parallel import ending

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are told apart by /proc")


def worker(stop: threading.Event, busy: float) -> threading.Thread:
    """A thread with the name of gloo's that works for `busy` seconds without the interpreter's lock, then waits."""
    started = threading.Event()

    def run() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(ending._WORKER)
        started.set()
        until = time.monotonic() + busy
        while time.monotonic() < until:
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 100_000)
        stop.wait()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait()
    return thread


@linux
@pytest.mark.parametrize(
    ("busy", "patience", "least", "most"), [(0.6, 10.0, 0.5, 5.0), (0.0, 10.0, 0.0, 2.0), (5.0, 0.3, 0.25, 2.0)]
)
def test_it_waits_for_a_thread_that_works_and_for_none_that_sleeps(busy, patience, least, most) -> None:
    stop = threading.Event()
    thread = worker(stop, busy)
    began = time.monotonic()
    ending._wait_for_workers(patience)
    taken = time.monotonic() - began
    assert least < taken < most
    stop.set()
    thread.join()


@linux
def test_gloos_threads_have_the_name_that_is_looked_for() -> None:
    """A later torch may name them otherwise; then nothing would be waited for."""
    import torch.distributed as dist

    store = dist.HashStore()
    group = dist.ProcessGroupGloo(store, 0, 1)
    end = time.monotonic() + 10.0  # a thread names itself once it runs
    while not ending._worker_states() and time.monotonic() < end:
        time.sleep(0.01)
    assert len(ending._worker_states()) >= 1
    del group
