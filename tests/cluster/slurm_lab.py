"""A real SLURM of two nodes on this machine: munged, slurmctld and two slurmd, started by hand in a temporary folder.

Each node says that it has one GPU, so that scripts for GPUs are accepted; nothing is behind it.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.cluster.running import free_ports, wait_until

PACKAGES = "slurmctld slurmd slurm-client munge"
_COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "sinfo")
_FREEZER = Path("/sys/fs/cgroup/freezer")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL"}


def missing() -> str:
    """Why there can be no lab here, with what to do; empty when there can be one."""
    absent = [name for name in _COMMANDS if shutil.which(name, path=_PATH) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install {PACKAGES}"
    if os.geteuid() != 0:
        return "the daemons of SLURM are started as root; run these tests as root"
    return ""


@dataclass
class Lab:
    """The running daemons. `proctrack` is how jobs' processes are followed.

    With cgroups, as on most clusters, a signal for a step reaches the process that srun has started and no other; with
    linuxproc it reaches all that descend from it, so what passes there proves less about signals.
    """

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="slurm-lab-")))
    proctrack: str = ""
    nodes: tuple[str, str] = ("", "")
    _daemons: list[subprocess.Popen] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which SLURM's commands speak to this lab."""
        return {**os.environ, "PATH": _PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> Lab:
        """Start the daemons; returns when both nodes are idle. `stop` must be called in any case."""
        self.proctrack = "proctrack/cgroup" if _cgroups_can_be_used() else "proctrack/linuxproc"
        # cgroups are named after nodes: names of their own for labs that run at the same time.
        self.nodes = (f"lab{os.getpid()}-1", f"lab{os.getpid()}-2")
        for name in ("log", "state", "spool", "munge"):
            (self.folder / name).mkdir()
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)
        (self.folder / "slurm.conf").write_text(_configuration(self.folder, self.proctrack, self.nodes))
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        (self.folder / "cgroup.conf").write_text(
            f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={_FREEZER.parent}\nCgroupAutomount=no\n"
        )
        munge = self.folder / "munge"
        self._daemon(
            "munged", "--foreground", "--force", "--num-threads=2", f"--key-file={self.folder / 'munge.key'}",
            f"--socket={munge / 'socket'}", f"--pid-file={munge / 'pid'}", f"--log-file={munge / 'log'}",
            f"--seed-file={munge / 'seed'}",
        )  # fmt: skip
        wait_until((munge / "socket").exists, 10, self.logs)
        self._daemon("slurmctld", "-D", "-i")
        for node in self.nodes:
            self._daemon("slurmd", "-D", "-N", node)
        wait_until(lambda: self._idle() == 2, 30, self.logs)
        return self

    def stop(self) -> None:
        """End all jobs and daemons, each by its process id, and remove the folder."""
        if any(daemon.poll() is None for daemon in self._daemons):
            with suppress(subprocess.SubprocessError, OSError):
                self.command("scancel", "--partition=lab")
                wait_until(lambda: not self.command("squeue", "--noheader"), 15, str)
        for daemon in self._daemons:
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in self._left_over():
            with suppress(psutil.Error):
                process.kill()
        for node in self.nodes:
            for folder in sorted(_FREEZER.glob(f"slurm_{node}/**/"), reverse=True):
                with suppress(OSError):
                    folder.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *parts: str, folder: Path | None = None, **environment: str) -> str:
        """What a command prints, started in `folder`. Raises AssertionError when it fails."""
        done = subprocess.run(
            parts,
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment | environment,
            cwd=folder,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(parts)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, script: Path, folder: Path, **environment: str) -> Job:
        """Hand in a batch script from a folder, with variables besides those of this process."""
        number = self.command("sbatch", "--parsable", str(script), folder=folder, **environment)
        return Job(self, int(number.split(";")[0]))

    def logs(self) -> str:
        """The last lines of all daemons."""
        files = [*sorted((self.folder / "log").iterdir()), *(self.folder / "munge").glob("log")]
        return "\n".join(f"{file.name}:\n" + "\n".join(file.read_text().splitlines()[-15:]) for file in files)

    def _daemon(self, name: str, *arguments: str) -> None:
        command = [str(shutil.which(name, path=_PATH)), *arguments]
        with (self.folder / "log" / f"{len(self._daemons)}-{name}.out").open("w") as log:
            daemon = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment, cwd=self.folder, start_new_session=True
            )
        self._daemons.append(daemon)

    def _idle(self) -> int:
        for daemon in self._daemons:
            assert daemon.poll() is None, f"{daemon.args} has ended:\n{self.logs()}"
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"], capture_output=True, text=True, timeout=20,
            env=self.environment, check=False,
        )  # fmt: skip
        return len(done.stdout.split())

    def _left_over(self) -> list[psutil.Process]:
        """Processes of this lab's jobs, and those that looked after them."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get("SLURM_CONF") == str(
                    self.folder / "slurm.conf"
                ):
                    found.append(process)
        return found


@dataclass(frozen=True)
class Job:
    """A job of the lab, by its number."""

    lab: Lab
    number: int

    def show(self) -> dict[str, str]:
        """What `scontrol show job` knows of it: JobState, Restarts, ExitCode, NodeList, ..."""
        shown = self.lab.command("scontrol", "show", "job", str(self.number))
        return dict(part.split("=", 1) for part in shown.split() if "=" in part)

    @property
    def state(self) -> str:
        """RUNNING, COMPLETED, ..."""
        return self.show()["JobState"]

    @property
    def output(self) -> str:
        """What the batch script and its steps have printed."""
        path = Path(self.show()["StdOut"])
        return path.read_text() if path.exists() else ""

    def until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait for something to happen while the job goes on."""

        def happened() -> bool:
            there = ready()
            assert there or self.state not in _ENDED, f"the job has ended:\n{self._told()}"
            return there

        wait_until(happened, seconds, self._told)

    def ended(self, seconds: float) -> dict[str, str]:
        """Wait until the job has left its nodes for good; returns what is known of it."""
        wait_until(lambda: self.state in _ENDED, seconds, self._told)
        return self.show()

    def signal(self, name: str) -> None:
        """Send a signal to the batch script alone, as SLURM does before the time limit with `--signal=B:NAME@seconds`."""
        self.lab.command("scancel", "--batch", f"--signal={name}", str(self.number))

    def start_now(self) -> None:
        """Release a job that was put back into the queue: SLURM holds it for two minutes."""
        # In the second in which it has ended, a node takes its new start for the old one: "Job credential revoked".
        time.sleep(1.5)
        self.lab.command("scontrol", "update", f"JobId={self.number}", "StartTime=now")

    def _told(self) -> str:
        return f"{self.show()}\n{self.output}"


def _cgroups_can_be_used() -> bool:
    """Version 1 of cgroups with a freezer in which folders can be made. (Version 2 needs systemd.)"""
    probe = _FREEZER / f"probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def _configuration(folder: Path, proctrack: str, nodes: Sequence[str]) -> str:
    """slurm.conf: all on the loopback device, all state in `folder`. Both nodes claim all of this machine."""
    controller, *ports = free_ports(1 + len(nodes))
    lines = [
        "ClusterName=lab",
        "SlurmctldHost=localhost(127.0.0.1)",
        f"SlurmctldPort={controller}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge/socket",
        "CredType=cred/munge",
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
        f"StateSaveLocation={folder}/state",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmdPidFile={folder}/slurmd.%n.pid",
        f"SlurmdLogFile={folder}/log/slurmd.%n.log",
        "MpiDefault=none",
        f"ProctrackType={proctrack}",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "GresTypes=gpu",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1",
        "ReturnToService=2",
        "JobRequeue=1",
        "KillWait=10",
        "MinJobAge=600",
        "SlurmdParameters=config_overrides",
        # Scripts make a port of the job's number: other numbers for labs that run at the same time.
        f"FirstJobId={random.randint(1000, 19000)}",
    ]
    cores = max(2, os.cpu_count() or 2)
    lines += [
        f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cores} RealMemory=8000 Gres=gpu:1"
        for node, port in zip(nodes, ports, strict=True)
    ]
    lines.append(f"PartitionName=lab Nodes={','.join(nodes)} Default=YES MaxTime=10 State=UP")
    return "\n".join(lines) + "\n"
