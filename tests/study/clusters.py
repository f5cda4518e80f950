"""Real clusters on this machine, for the tests: Ray with several nodes, and a SLURM of one node."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

PATIENCE = 600.0  # seconds until a cluster that does not start is given up


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until(condition: Callable[[], object], alive: Callable[[], object] = lambda: True) -> None:
    """Wait for something that will come, as long as whoever is to bring it is alive."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert alive()
        assert time.monotonic() < end
        time.sleep(0.1)


@dataclass
class RayNodes:
    """A Ray cluster of processes of this machine."""

    address: str
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def kill(self, node: int) -> None:
        """End a node as a power failure would: all of its processes, with what they run."""
        end_tree(self.nodes[node])


@contextlib.contextmanager
def ray_nodes(cpus: tuple[int, ...], memory: int = 1 << 33) -> Iterator[RayNodes]:
    """Start a head and further nodes with so many processors each; all of it is gone afterwards."""
    (port,) = free_ports(1)
    place = tempfile.mkdtemp(prefix="ray-")  # short: the names of sockets may have 107 characters
    cluster = RayNodes(f"127.0.0.1:{port}")
    ray = str(Path(sys.executable).with_name("ray"))
    # Ray's jobs give way to all else by default (niceness 15): beside other tests they would hardly go on
    own = {"RAY_DISABLE_IMPORT_WARNING": "1", "RAY_ADDRESS": "", "RAY_worker_niceness": "0"}
    try:
        for number, count in enumerate(cpus):
            where = (
                ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={place}"]
                if number == 0
                else [f"--address={cluster.address}"]
            )
            size = [f"--num-cpus={count}", f"--memory={memory}", "--object-store-memory=80000000"]
            words = [ray, "start", "--block", "--disable-usage-stats", "--node-ip-address=127.0.0.1", *where, *size]
            said = Path(place) / f"node-{number}"
            with said.open("w") as file:
                process = subprocess.Popen(words, stdout=file, stderr=file, env={**os.environ, **own})
            cluster.nodes.append(process)
            started = partial(_says, said, "Ray runtime started")
            wait_until(started, lambda process=process: process.poll() is None)  # type: ignore[misc]
        yield cluster
    finally:
        for process in reversed(cluster.nodes):
            end_tree(process)
        shutil.rmtree(place, ignore_errors=True)


def _says(file: Path, text: str) -> bool:
    return text in file.read_text()


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started, and wait for them."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        tree = [parent, *parent.children(recursive=True)]
        for one in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(tree, timeout=30)
    process.wait()


NO_SLURM = (
    ""
    if shutil.which("slurmctld") and shutil.which("munged") and os.geteuid() == 0
    else ("needs slurmctld, slurmd and munged (Debian: slurm-wlm and munge), and root")
)

CONFIG = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def one_node_slurm(folder: Path) -> Iterator[Path]:
    """Start a SLURM whose only node is this machine, and return its configuration; all of it is gone afterwards."""
    for name in ("spool", "state", "log", "munge"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "munge").chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    config.write_text(CONFIG.format(host=host, folder=folder, ports=free_ports(2), cpus=os.cpu_count()))
    env = {**os.environ, "SLURM_CONF": str(config)}
    munge = [
        "munged", "--force", f"--key-file={key}", f"--socket={folder}/munge/socket", f"--pid-file={folder}/munged.pid",
        f"--log-file={folder}/log/munged.log", f"--seed-file={folder}/munge.seed",
    ]  # fmt: skip
    try:
        for words in (munge, ["slurmctld"], ["slurmd"]):
            subprocess.run(words, check=True, env=env, capture_output=True)
        wait_until(lambda: "idle" in subprocess.run(["sinfo", "-h"], capture_output=True, text=True, env=env).stdout)
        yield config
    finally:
        subprocess.run(["scancel", "--me", "--signal=KILL"], env=env, capture_output=True, check=False)
        subprocess.run(["scancel", "--me"], env=env, capture_output=True, check=False)
        for name in ("slurmd", "slurmctld", "munged"):
            end_daemon(folder / f"{name}.pid")


def end_daemon(file: Path) -> None:
    """End a process by the file that has its number."""
    with contextlib.suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
        process = psutil.Process(int(file.read_text()))
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except psutil.TimeoutExpired:
            process.kill()
