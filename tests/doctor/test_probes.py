"""Experiments of one rank with a real folder, a real port and a small web server."""

from __future__ import annotations

import http.server
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.doctor import peers, probes
from toolkit.doctor.facts import source_digest


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A web server that says 404 to everything; yields the requests it had."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not on standard error."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield asked
    server.shutdown()
    server.server_close()


def test_a_hub_that_answers_anything_is_there(hub: list[str]) -> None:
    found = probes.look_at_hub()
    assert (found.offline, found.fault) == ("", "")
    assert len(hub) == 1


def test_offline_makes_no_request(hub: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert probes.look_at_hub().offline == "HF_HUB_OFFLINE"
    assert hub == []


def test_a_hub_that_never_answers_is_given_up(hub: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{mute.getsockname()[1]}")
        monkeypatch.setattr(probes, "_HUB_SECONDS", 0.3)
        assert probes.look_at_hub().fault


def test_a_wrong_endpoint_is_a_fault_of_the_probe_and_not_of_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "huggingface.co")
    assert probes.look_at_hub().fault == "it is not a web address"


def test_what_takes_too_long_or_fails_is_replaced() -> None:
    def fail() -> str:
        raise OSError

    assert probes.within(5, lambda: "x", "otherwise") == "x"
    assert probes.within(5, fail, "otherwise") == "otherwise"
    assert probes.within(0.05, lambda: time.sleep(2) or "x", "otherwise") == "otherwise"


def test_folders_are_tried_and_left_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    found = probes.look_at_folders(str(tmp_path / "runs" / "one"))
    assert found["output"].looked_in == str(tmp_path)
    assert found["output"].fault == ""
    assert found["output"].free > 0
    assert found["cache"].path == str(tmp_path / "cache" / "tokens")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["cache", "tokens"]


def test_a_folder_in_a_file_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("TOOLKIT_CACHE", str(file))
    found = probes.look_at_folders(str(file / "run"))
    assert found["output"].fault == f"{file} is a file"
    assert "cannot write" in found["cache"].fault


def test_the_digest_of_sources_changes_with_contents_and_names(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    first = source_digest(tmp_path)
    (tmp_path / "notes.txt").write_text("no source")
    assert source_digest(tmp_path) == first
    (tmp_path / "a.py").write_text("x = 2\n")
    second = source_digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, source_digest(tmp_path)}) == 3


def test_peers_on_one_clock_agree_within_what_is_uncertain() -> None:
    server = peers.ClockServer()
    try:
        found = peers.try_peers({7: ("127.0.0.1", server.port)})[7]
    finally:
        server.close()
    assert found.fault == ""
    assert 0 < found.uncertain < 1
    assert abs(found.ahead) <= found.uncertain + 1e-3


def test_a_clock_that_is_ahead_is_seen_as_ahead() -> None:
    """A server that answers with a time 100 s later than ours."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            while connection.recv(1):
                connection.sendall(struct.pack("!d", time.time() + 100))

    threading.Thread(target=serve, daemon=True).start()
    found = peers.try_peer("127.0.0.1", listener.getsockname()[1])
    listener.close()
    assert found.ahead == pytest.approx(100, abs=0.5)


def test_the_fastest_of_several_round_trips_tells_the_clock() -> None:
    """All answers but one are held back after the clock was read, so that they seem to come from a clock that is behind."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            count = 0
            while connection.recv(1):
                now, count = time.time(), count + 1
                time.sleep(0 if count == 3 else 0.1)
                connection.sendall(struct.pack("!d", now))

    threading.Thread(target=serve, daemon=True).start()
    found = peers.try_peer("127.0.0.1", listener.getsockname()[1])
    listener.close()
    assert found.uncertain < 0.04
    assert abs(found.ahead) < 0.04


def test_a_closed_port_and_a_peer_that_hangs_up_are_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert peers.try_peer("127.0.0.1", port).fault == f"127.0.0.1:{port} Connection refused"
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
    assert peers.try_peer("127.0.0.1", listener.getsockname()[1]).fault
    listener.close()
