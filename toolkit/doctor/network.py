"""Names, interfaces, ports and the hub: can ranks find each other, and on which cable?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from toolkit.doctor.facts import Facts
from toolkit.doctor.findings import Finding, Level, compare, first_of_each_node, who

_DOWN = ("DOWN", "INIT")


def check_network(facts: Sequence[Facts]) -> list[Finding]:
    """All findings of this file but `check_reachable`, which needs an experiment."""
    nodes = first_of_each_node(facts)
    return [
        check_interface_names(nodes),
        check_interface(nodes),
        check_hostname(nodes),
        check_infiniband(nodes),
        check_hub(nodes),
    ]


def check_interface_names(nodes: Sequence[Facts]) -> Finding:
    """GLOO_SOCKET_IFNAME names an interface, NCCL_SOCKET_IFNAME beginnings of names ("^": all but these, "=": exactly)."""
    for setting, chosen in (("GLOO_SOCKET_IFNAME", _gloo_interfaces), ("NCCL_SOCKET_IFNAME", nccl_interfaces)):
        wrong = [one for one in nodes if one.settings.get(setting) and not chosen(one)]
        if wrong:
            there = ", ".join(sorted(wrong[0].network.addresses)) or "none"
            return Finding(
                "network.interface_names",
                "fault",
                f"{setting}={wrong[0].settings[setting]} matches no interface with an address ({who(wrong)})",
                f"unset it, or use one of those on that host: {there}",
            )
    named = [s for s in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if nodes[0].settings.get(s)]
    return Finding("network.interface_names", "ok", ", ".join(named) or "none set, defaults are used")


def check_interface(nodes: Sequence[Facts]) -> Finding:
    """Which interface the traffic between nodes takes; where they differ a slow one may be among them."""
    return compare(
        "network.interface",
        "traffic between nodes by" if len(nodes) > 1 else "traffic to other nodes would go by",
        nodes,
        _carrier,
        "warning",
        "look whether these are equally fast; set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME where they are not",
    )


def check_hostname(nodes: Sequence[Facts]) -> Finding:
    """gloo tells its peers the address that the host's own name resolves to; 127.* there means themselves to them."""
    astray = [
        one
        for one in nodes
        if not one.network.gloo and (one.network.hostname_address or "127.0.0.1").startswith("127.")
    ]
    if not astray:
        return Finding("network.hostname", "ok", "host names resolve to addresses that others can use")
    resolved = astray[0].network.hostname_address or "nothing"
    what = f"the host name resolves to {resolved} ({who(astray)})"
    remedy = "set GLOO_SOCKET_IFNAME to the interface between the nodes, or correct the host's line in /etc/hosts"
    if len({one.machine.machine for one in nodes}) == 1:
        return Finding(
            "network.hostname", "ok", f"{what}; fine on one machine, several nodes would not find each other"
        )
    level: Level = "fault" if nodes[0].device_kind == "cpu" else "warning"
    return Finding(
        "network.hostname",
        level,
        f"{what}, so with gloo the other nodes would connect to themselves",
        remedy,
    )


def check_infiniband(nodes: Sequence[Facts]) -> Finding:
    """InfiniBand or RoCE devices and whether their first port is up."""
    down = [one for one in nodes if any(state in _DOWN for state in one.network.infiniband.values())]
    if down:
        names = ", ".join(n for n, state in down[0].network.infiniband.items() if state in _DOWN)
        return Finding(
            "network.infiniband",
            "warning",
            f"port 1 of {names} is not active ({who(down)})",
            "ask who runs the cluster, or name the active ones in NCCL_IB_HCA",
        )
    return compare(
        "network.infiniband",
        "InfiniBand devices:",
        nodes,
        lambda one: (
            ", ".join(f"{n} x {s}" for s, n in sorted(Counter(one.network.infiniband.values()).items())) or "none"
        ),
        "warning",
        "nodes without them make every step as slow as plain Ethernet",
    )


def check_reachable(nodes: Sequence[Facts], reached: dict[int, dict[int, str]]) -> Finding:
    """Every node opened a free port; every other node connected to it.

    reached: by node, for each other node that it tried, why it failed, empty if it did not.
    """
    if len(nodes) == 1:
        return Finding("network.reachable", "ok", "one node, nothing to reach")
    host = {one.node: one.host for one in nodes}
    failed = []
    for one in nodes:
        tried = reached.get(one.node)
        if tried is None:
            failed.append(f"{one.host} (node {one.node}) did not report")
            continue
        for other in host:
            if other != one.node and (why := tried.get(other, "not tried")):
                failed.append(f"{one.host} to {host[other]}: {why}")
    if failed:
        more = f"; and {len(failed) - 4} more" if len(failed) > 4 else ""
        return Finding(
            "network.reachable",
            "fault",
            "; ".join(failed[:4]) + more,
            "open all ports between the nodes (firewall, security group): collectives use free ports of the system's range",
        )
    return Finding("network.reachable", "ok", f"{len(nodes)} nodes reach each other's free ports")


def check_hub(nodes: Sequence[Facts]) -> Finding:
    """The hub answers, or the settings say that nobody needs it."""
    asked = [one for one in nodes if one.hub is not None]
    offline = [one for one in asked if one.hub and one.hub.offline]
    failed = [one for one in asked if one.hub and one.hub.fault]
    if offline and len(offline) < len(asked):
        rest = [one for one in asked if one not in offline]
        return Finding(
            "network.hub",
            "warning",
            f"offline on {who(offline)}, not on {who(rest)}",
            "set HF_HUB_OFFLINE alike everywhere: ranks would read different files",
        )
    if failed:
        hub = failed[0].hub
        assert hub is not None
        return Finding(
            "network.hub",
            "warning",
            f"{hub.endpoint} does not answer: {hub.fault} ({who(failed)})",
            "use folders and downloaded models with HF_HUB_OFFLINE=1, or set HF_ENDPOINT or HTTPS_PROXY",
        )
    if offline:
        assert offline[0].hub is not None
        return Finding("network.hub", "ok", f"offline ({offline[0].hub.offline}); only folders and downloaded files")
    return Finding("network.hub", "ok", f"{asked[0].hub.endpoint} answers" if asked and asked[0].hub else "not asked")


def nccl_interfaces(one: Facts) -> list[str]:
    """Interfaces that NCCL_SOCKET_IFNAME allows, in NCCL's order of the list; all but loopback and docker without it."""
    names, setting = list(one.network.addresses), one.network.nccl
    if not setting:
        return [n for n in names if not n.startswith(("lo", "docker"))]
    exclude, setting = setting.startswith("^"), setting.removeprefix("^")
    exact, setting = setting.startswith("="), setting.removeprefix("=")
    wanted = [w for w in setting.split(",") if w]

    def matches(name: str) -> bool:
        return name in wanted if exact else name.startswith(tuple(wanted))

    return [n for n in names if matches(n) != exclude]


def address_for_peers(one: Facts) -> str:
    """The address of the interface that collective traffic takes; that of the route where the settings name none."""
    by_nccl = nccl_interfaces(one) if one.network.nccl else []
    chosen = _gloo_interfaces(one) if one.device_kind == "cpu" else by_nccl
    return one.network.addresses[chosen[0]] if chosen else one.network.route_address or "127.0.0.1"


def _gloo_interfaces(one: Facts) -> list[str]:
    return [name for name in one.network.gloo.split(",") if name in one.network.addresses]


def _carrier(one: Facts) -> str:
    if one.device_kind != "cpu" and any(state not in _DOWN for state in one.network.infiniband.values()):
        return "InfiniBand"
    chosen = next((n for n, a in one.network.addresses.items() if a == address_for_peers(one)), "")
    return chosen or one.network.route_interface or "loopback only"
