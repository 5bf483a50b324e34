"""The stages of an examination, which every process goes through; the main one collects, judges and publishes.

First all that needs no process group, over the launcher's store. Then the group, under a time limit: whatever it is stuck in,
the main process publishes what is known by then and ends.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from toolkit.doctor.cost import Model, assumed_model, count_parameters
from toolkit.doctor.facts import Facts, Place, gather
from toolkit.doctor.findings import Finding
from toolkit.doctor.meeting import Meeting, Unreachable, meet, part
from toolkit.doctor.network import address_for_peers
from toolkit.doctor.options import Options
from toolkit.doctor.peers import ClockServer, Tried, try_peers
from toolkit.doctor.probes import look_at_folders, look_at_hub, look_at_network
from toolkit.doctor.report import Record, Report, judge, measured_from_json, measured_to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from toolkit.layout import Layout

Publish = Callable[[Report], None]

_SHARE_SECONDS = 6.0  # network file systems show a new file after some seconds at most
_GRACE = 15.0  # seconds that the main process has to publish before others end themselves
# With one of these a process group cannot form, so it is not tried.
_HOPELESS = ("devices.kind", "devices.usable", "devices.enough")


def examine(options: Options, place: Place, publish: Publish) -> None:
    """Examine this host and, with others, the group. `publish` is called once, on the main process. Under a launcher this
    ends the process when a stage takes too long. Raises UserError, and Unreachable when the main process is."""
    model = _model(options) if place.rank == 0 else None
    _say(place, f"examining {'this host' if place.world_size == 1 else f'{place.world_size} processes'}")
    facts = gather(
        place,
        look_at_folders(options.output_dir),
        look_at_hub() if place.local_rank == 0 else None,
        look_at_network(os.environ.get("MASTER_ADDR") if place.world_size > 1 else None),
    )
    meeting, record = meet(place, options.wait), Record(place.world_size)
    record.mixed_precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    missing = _roll_call(meeting, facts, record, options.wait)
    if missing:
        record.extra.append(_missing(missing, options.wait))
        if meeting.is_main:
            publish(judge(record, options, model))
        _leave(meeting, 1)
    _share_folders(meeting, facts, record)
    _meet_peers(meeting, facts, record)
    if _worth_a_group(meeting, record, options, model):
        _with_group(meeting, facts, record, options, lambda: publish(judge(record, options, model)))
    report = judge(record, options, model) if meeting.is_main else None
    if report is not None:
        publish(report)
    if place.world_size > 1:
        _leave(meeting, report.exit_code if report else 0)


def _model(options: Options) -> Model | None:
    if options.model:
        return count_parameters(options.model)
    return assumed_model(options.parameters) if options.parameters else None


def _roll_call(meeting: Meeting, facts: Facts, record: Record, wait: float) -> list[int]:
    """Fill record.facts on the main process; the ranks that did not come, on every rank."""
    meeting.tell("facts", facts.to_json())
    if meeting.is_main:
        ranks = range(meeting.place.world_size)
        found = meeting.collect("facts", ranks, time.monotonic() + wait)
        record.facts = [Facts.from_json(found[rank]) for rank in sorted(found)]
        missing = [rank for rank in ranks if rank not in found]
        meeting.tell("missing", missing)
        return missing
    return _from_main(meeting, "missing", wait + _GRACE)


def _from_main(meeting: Meeting, name: str, seconds: float) -> Any:
    found = meeting.hear(name, 0, time.monotonic() + seconds)
    if found is None:
        raise Unreachable(f"the main process did not go on within {seconds:.0f} s ({name})")
    return found


def _missing(missing: list[int], wait: float) -> Finding:
    names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return Finding(
        "group.complete",
        "fault",
        f"{'ranks' if len(missing) > 1 else 'rank'} {names} did not come within {wait:.0f} s",
        "look at what these processes printed; they reach the main process at MASTER_ADDR:MASTER_PORT, or --wait longer",
    )


def _share_folders(meeting: Meeting, facts: Facts, record: Record) -> None:
    """The main process writes a file with a nonce into each folder; the others look for it."""
    record.seen = {what: {} for what in facts.folders}
    written: dict[str, Path] = {}
    if meeting.is_main:
        nonce = secrets.token_hex(16)
        for what, folder in facts.folders.items():
            if not folder.fault:
                file = Path(folder.looked_in) / f".doctor-{nonce}"
                try:
                    file.write_text(nonce, encoding="ascii")
                    written[what] = file
                except OSError:
                    pass
        meeting.tell("nonce", dict.fromkeys(written, nonce))
    try:
        nonces = _from_main(meeting, "nonce", _GRACE + _SHARE_SECONDS)
        files = {what: Path(facts.folders[what].looked_in) / f".doctor-{nonce}" for what, nonce in nonces.items()}
        meeting.tell("seen", _look_for(files, nonces))
        if meeting.is_main:
            until = time.monotonic() + _SHARE_SECONDS + _GRACE
            for rank, seen in meeting.collect("seen", range(meeting.place.world_size), until).items():
                for what, found in seen.items():
                    record.seen[what][rank] = found
    finally:
        for file in written.values():
            file.unlink(missing_ok=True)


def _look_for(files: dict[str, Path], nonces: dict[str, str]) -> dict[str, bool]:
    """For each folder whether its file shows up with the right contents."""
    until = time.monotonic() + _SHARE_SECONDS
    seen = dict.fromkeys(files, False)
    while True:
        for what in [what for what, found in seen.items() if not found]:
            with suppress(OSError):
                seen[what] = files[what].read_text(encoding="ascii") == nonces[what]
        if all(seen.values()) or time.monotonic() > until:
            return seen
        time.sleep(0.2)


def _meet_peers(meeting: Meeting, facts: Facts, record: Record) -> None:
    """One process of each node connects to all other nodes; the main one also compares clocks. Nothing on one node."""
    place = meeting.place
    if place.world_size == place.local_size:
        return
    firsts = [one.rank for one in record.facts if one.local_rank == 0]
    server = ClockServer() if place.local_rank == 0 else None
    try:
        if server is not None:
            meeting.tell("door", [place.node, address_for_peers(facts), server.port])
        if meeting.is_main:
            doors = meeting.collect("door", firsts, time.monotonic() + _GRACE)
            meeting.tell("doors", list(doors.values()))
        doors_told = _from_main(meeting, "doors", 3 * _GRACE)
        if server is not None:
            tried = try_peers({node: (address, port) for node, address, port in doors_told if node != place.node})
            meeting.tell("tried", {str(node): [t.fault, t.ahead, t.uncertain] for node, t in tried.items()})
        if meeting.is_main:
            # Sixteen connections at once, five seconds each when nobody answers.
            until = time.monotonic() + _GRACE + 6.0 * (1 + len(firsts) // 16)
            _note_peers(record, place.node, meeting.collect("tried", firsts, until))
            meeting.tell("peers done", True)
        elif server is not None:
            _from_main(meeting, "peers done", 4 * _GRACE + 6.0 * (1 + place.world_size // 16))
    finally:
        if server is not None:
            server.close()


def _note_peers(record: Record, main_node: int, tried: dict[int, Any]) -> None:
    node_of = {one.rank: one.node for one in record.facts}
    for rank, found in tried.items():
        results = {int(node): Tried(*result) for node, result in found.items()}
        record.reached[node_of[rank]] = {node: t.fault for node, t in results.items()}
        if node_of[rank] == main_node:
            record.offsets = {node: (t.ahead, t.uncertain) for node, t in results.items() if not t.fault}


def _worth_a_group(meeting: Meeting, record: Record, options: Options, model: Model | None) -> bool:
    """The main process decides for all."""
    if meeting.is_main:
        faults = [one.name for one in judge(record, options, model).faults]
        hopeless = [name for name in faults if name in _HOPELESS]
        if hopeless:
            what = f"no process group was tried, because of {', '.join(hopeless)}"
            record.extra.append(Finding("group.formed", "fault", what, "remove the faults above first"))
        meeting.tell("go", not hopeless)
    return bool(_from_main(meeting, "go", 2 * _GRACE))


def _with_group(
    meeting: Meeting, facts: Facts, record: Record, options: Options, publish_what_is_known: Callable[[], None]
) -> None:
    """Form the group, time matrix products and collectives."""
    place = meeting.place
    several = place.world_size > 1

    def late(what: str, seconds: float) -> None:
        """A stage takes too long: the main process publishes what is known, and every process ends."""
        if meeting.is_main:
            others = meeting.collect("formed", range(place.world_size), time.monotonic())
            told = _by_reason({rank: why for rank, why in others.items() if why})
            text = f"{what} took longer than {seconds:.0f} s{f' ({told})' if told else ''}"
            record.extra.append(Finding("group.formed", "fault", text, _GROUP_ADVICE))
            publish_what_is_known()
        else:
            time.sleep(_GRACE)
        os._exit(1)

    with _limit(late, "forming a process group", options.wait, several):
        layout = _form(meeting, record, options.wait)
    if layout is None:
        return
    if several:
        record.layout, record.mixed_precision = layout.describe(), layout.mixed_precision
        record.extra.append(Finding("group.formed", "ok", f"{layout.describe()}, they reach each other"))
    with _limit(late, "multiplying matrices", options.wait, several):
        _speed(meeting, layout, record, options)
    if several and options.seconds:
        # A slow network may need several times what is asked for: three messages of each size are the least.
        with _limit(late, "measuring collectives", options.wait + 4 * options.seconds, several):
            _collectives(meeting, facts, layout, record, options)
    if several:
        with _limit(late, "the last meeting", options.wait, several):
            layout.wait()


_GROUP_ADVICE = (
    "look at the findings on the network; NCCL_DEBUG=INFO or TORCH_CPP_LOG_LEVEL=INFO tell more, --wait gives more time"
)


@contextmanager
def _limit(late: Callable[[str, float], None], what: str, seconds: float, several: bool) -> Iterator[None]:
    """Call `late` from another thread when the body takes longer: a collective that waits cannot be interrupted."""
    timer = threading.Timer(seconds, late, (what, seconds))
    timer.daemon = True
    if several:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _form(meeting: Meeting, record: Record, wait: float) -> Layout | None:
    """The layout, or None where one rank could not make it."""
    from toolkit.errors import UserError
    from toolkit.layout import build_layout

    why, layout = "", None
    try:
        layout = build_layout()
    except UserError:
        raise
    except Exception as error:  # whatever the backend raises is a finding
        why = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    meeting.tell("formed", why)
    if meeting.is_main:
        reasons = meeting.collect("formed", range(meeting.place.world_size), time.monotonic() + wait)
        ranks = range(meeting.place.world_size)
        failed = {rank: reasons.get(rank, "it did not say whether it is ready") for rank in ranks}
        told = _by_reason({rank: text for rank, text in failed.items() if text})
        if told:
            record.extra.append(Finding("group.formed", "fault", told, _GROUP_ADVICE))
        meeting.tell("formed by all", not told)
    return layout if _from_main(meeting, "formed by all", wait + _GRACE) else None


def _by_reason(reasons: dict[int, str]) -> str:
    """ "ranks 0, 1: reason", once for each reason."""
    ranks: dict[str, list[str]] = {}
    for rank, why in reasons.items():
        ranks.setdefault(why, []).append(str(rank))
    return "; ".join(f"rank{'s' if len(r) > 1 else ''} {', '.join(r[:8])}: {why}" for why, r in ranks.items())


def _speed(meeting: Meeting, layout: Layout, record: Record, options: Options) -> None:
    """All ranks at once, as in training, in the precision of the layout."""
    import torch

    from toolkit.doctor.speed import matmul_flops

    dtype = torch.bfloat16 if layout.mixed_precision == "bf16" else torch.float32
    layout.wait()
    mine = matmul_flops(layout.device, dtype)
    meeting.tell("speed", [mine, torch.get_num_threads()])
    if meeting.is_main:
        found = meeting.collect("speed", range(meeting.place.world_size), time.monotonic() + options.wait)
        record.flops = {rank: flops for rank, (flops, _) in found.items()}
        record.threads = {rank: threads for rank, (_, threads) in found.items()}


def _collectives(meeting: Meeting, facts: Facts, layout: Layout, record: Record, options: Options) -> None:
    from toolkit.doctor.groups import measure_groups, slowest_of_each

    place = meeting.place
    nodes = layout.gather_objects([facts.node])
    results = measure_groups(nodes, place.rank, layout.device, options.seconds, lambda text: _say(place, text))
    meeting.tell("timings", measured_to_json(results))
    if meeting.is_main:
        found = meeting.collect("timings", range(place.world_size), time.monotonic() + options.wait)
        record.measured = slowest_of_each({rank: measured_from_json(one) for rank, one in found.items()})


def _leave(meeting: Meeting, code: int) -> NoReturn:
    """End this process of several. Tearing a process group down may wait for those who have gone; there is nothing to keep."""
    sys.stdout.flush()
    with suppress(Unreachable):
        part(meeting, "done")
    os._exit(code)


def _say(place: Place, text: str) -> None:
    if place.rank == 0:
        print(f"doctor: {text}", file=sys.stderr, flush=True)
