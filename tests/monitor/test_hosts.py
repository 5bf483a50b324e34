"""Hosts by rank, in messages about one that is lost."""

from __future__ import annotations

from datetime import timedelta

import pytest

from toolkit import errors
from toolkit.config import WatchConfig
from toolkit.monitor.hang import alone
from toolkit.monitor.hosts import Host, Hosts, gather_hosts, names, this_host
from toolkit.monitor.watchdog import collective_timeout

ONE, TWO, SIX = Host("node1", "10.0.0.1"), Host("node2", "10.0.0.2"), Host("node6", "fd00::6")
SEVERAL = Hosts((ONE, ONE, TWO, TWO, SIX))


def test_the_address_is_told_where_there_is_more_than_one_host() -> None:
    assert [SEVERAL.of(rank) for rank in (1, 2)] == ["node1 (10.0.0.1)", "node2 (10.0.0.2)"]
    assert Hosts((ONE, ONE)).of(1) == "node1"
    # Machines that were copied may all have one name.
    assert Hosts((ONE, Host("node1", "10.0.0.9"))).of(1) == "node1 (10.0.0.9)"
    assert Hosts((ONE, Host("node7"))).of(1) == "node7"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Connection closed by peer [10.0.0.2]:4711", "10.0.0.2 is node2, of ranks 2, 3"),
        ("connect [::ffff:10.0.0.1]:80 to 10.0.0.2:99", "10.0.0.1 is node1, of ranks 0, 1; 10.0.0.2 is node2, of ranks 2, 3"),
        ("Connection reset by peer [fd00::6]:4711", "fd00::6 is node6, of rank 4"),
        ("110.0.0.2 and 10.0.0.22 and fd00::61 are others", ""),
        ("Timed out waiting 10000ms", ""),
    ],
)  # fmt: skip
def test_addresses_in_an_error_are_given_names(text: str, found: str) -> None:
    assert SEVERAL.named_in(text) == found
    assert Hosts((TWO, TWO)).named_in(text) == ""


def test_this_host_has_the_address_that_leads_to_the_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "4711")
    assert this_host() == Host("here", "127.0.0.1")
    monkeypatch.setenv("MASTER_ADDR", "no.such.host.invalid")
    assert this_host() == Host("here")
    monkeypatch.delenv("MASTER_ADDR")
    assert this_host() == Host("here")
    assert gather_hosts(lambda mine: [*mine, TWO]) == Hosts((Host("here"), TWO))


def test_ranks_in_words() -> None:
    assert names([3]) == "rank 3"
    assert names([2, 0]) == "ranks 0, 2"
    assert names(range(12)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, ... (12 of them)"


def test_a_rank_that_has_lost_the_store_names_the_host_that_holds_it() -> None:
    mine = {
        "rank": 3,
        "host": "node2 (10.0.0.2)",
        "silent": 16.0,
        "phase": "reduce",
        "step": 7,
        "place": "loop.py:1 train",
    }
    text = alone(mine, "node1 (10.0.0.1)")
    assert text.startswith(
        "hang: rank 3 on node2 (10.0.0.2) has not moved for 16 s, in reduce of step 7 at loop.py:1 train"
    )
    assert "rank 0 on node1 (10.0.0.1) cannot be reached: the network to that host is cut" in text
    text = alone(mine, "node2 (10.0.0.2)")
    assert "the store on this host, node2 (10.0.0.2), does not answer" in text
    assert "network" not in text


class Knowing:
    """A witness that knows of hosts alone."""

    def named_in(self, text: str) -> str:
        return SEVERAL.named_in(text)


def test_a_broken_connection_names_the_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "witness", Knowing())
    hint = errors._hint("RuntimeError: Connection closed by peer [10.0.0.2]:4711")
    assert "ended without a word (10.0.0.2 is node2, of ranks 2, 3), as one does" in hint
    assert errors._hint("RuntimeError: a bug [10.0.0.2]") == ""


@pytest.mark.parametrize(("minutes", "expected"), [(10.0, 65.0), (60.0, 365.0), (0.1, 30.0), (0.0, 30.0)])
def test_collectives_wait_longer_than_the_watchdog_in_its_longest_phase(minutes: float, expected: float) -> None:
    assert collective_timeout(WatchConfig(hang_timeout=minutes)) == timedelta(minutes=expected)
