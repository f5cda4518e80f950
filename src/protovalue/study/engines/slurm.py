"""Stages as jobs of SLURM, submitted through submitit: each a batch file with the words of one command.

submitit's usual way is to pickle a function; here it writes the command itself, and nothing is pickled.
"""

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protovalue.config import flag
from protovalue.errors import UserError, unknown
from protovalue.files import make_folder
from protovalue.study.engines.cluster import Cluster, Gone
from protovalue.study.folder import warn_once
from protovalue.study.jobs import JOBS, last_line
from protovalue.study.resources import MB, Ask, Node
from protovalue.study.worker import Order

TRIES, PAUSE = 6, 10.0  # for a controller that is busy for a while: how often, and seconds between
_BUSY = ("unable to contact slurm controller", "socket timed out", "connection refused", "temporarily")
_ALIVE = {
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING",
    "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT",
}  # fmt: skip
_OVER = {
    "TIMEOUT": Gone("its time limit was reached"),
    "CANCELLED": Gone("it was cancelled"),
    "PREEMPTED": Gone("it was preempted"),
    "NODE_FAIL": Gone("its node failed"),
    "BOOT_FAIL": Gone("its node did not start"),
    "DEADLINE": Gone("its deadline passed", lost=False),
    "OUT_OF_MEMORY": Gone("out of memory; [resources] memory of the study file asks for more", lost=False),
}
SET_HERE = {
    "partition": "--partition", "account": "--account", "job_name": "nothing: the study names its jobs",
    "cpus_per_task": "[resources] cpus", "gpus": "[resources] gpus", "gpus_per_node": "[resources] gpus",
    "gres": "[resources] gpus", "mem": "[resources] memory", "time": "[resources] time", "nodes": "nothing: one",
    "ntasks": "nothing: one", "array": "nothing: every stage is a job", "output": "nothing: logs/ has it",
    "error": "nothing: logs/ has it", "signal": "nothing: a stage needs it for its checkpoint",
    "requeue": "--retries", "wrap": "nothing: the stage is the command", "chdir": "nothing: where the study runs",
}  # fmt: skip


class Slurm(Cluster):
    """The SLURM whose commands are on this machine."""

    name = "slurm"

    def __init__(
        self, partition: str | None, account: str | None, more: Mapping[str, str], root: Path, threads: int,
        asks: Mapping[str, Ask], jobs: int | None,
    ) -> None:  # fmt: skip
        """Find the partition, and let SLURM say beforehand what it would refuse."""
        self._submitit = _submitit()
        self._partition, self._account, self._more = partition, account, more
        self._folder = root.absolute() / JOBS / self.name
        super().__init__(root, threads, asks, jobs)
        self._try_out(asks)

    def nodes(self) -> Sequence[Node]:
        """Return the nodes of the partition that are not down; the default partition, if none is named."""
        rows = [line.split("|") for line in _asked("sinfo", "-h", "-N", "-o", "%P|%N|%c|%m|%G|%t").splitlines()]
        names = {row[0].rstrip("*"): row[0].endswith("*") for row in rows}
        if self._partition is None:
            self._partition = next((name for name, default in names.items() if default), None)
        if self._partition is None:
            raise UserError(f"--partition: found none, and SLURM has no default; expected one of {', '.join(names)}")
        wanted = self._partition.split(",")
        for name in wanted:
            if name not in names:
                raise UserError(f"--partition: {unknown('partition', name, names)}")
        down = ("down", "drain", "drng", "fail", "maint", "unk")
        return [
            Node(row[1], int(row[2]), _gpus(row[4]), int(row[3].rstrip("+")) * MB)
            for row in rows
            if row[0].rstrip("*") in wanted and not row[5].startswith(down)
        ]

    def _try_out(self, asks: Mapping[str, Ask]) -> None:
        """Let SLURM check every kind of request without submitting it: partition, account, limits, options."""
        first: dict[Ask, str] = {}
        for stage, ask in asks.items():
            first.setdefault(ask, stage)
        for ask, stage in first.items():
            words = [f"{flag(name)}={value}" for name, value in self._parameters(ask, 0).items() if value is not None]
            extra = [f"{flag(name)}={value}" if value else flag(name) for name, value in self._more.items()]
            ran = subprocess.run(
                ["sbatch", "--test-only", *words, *extra, "--wrap", "true"], capture_output=True, text=True, check=False
            )
            if ran.returncode:
                said = "; ".join(line.removeprefix("sbatch: ") for line in ran.stderr.strip().splitlines()[:2])
                raise UserError(f"--engine slurm: sbatch refuses {stage}: {said}")

    def _parameters(self, ask: Ask, losses: int) -> dict[str, Any]:
        """Return sbatch's options for a stage; an estimated time is doubled whenever the job was lost."""
        seconds = ask.seconds if ask.given or ask.seconds is None else ask.seconds * 2**losses
        return {
            "partition": self._partition,
            "account": self._account,
            "cpus_per_task": ask.cpus,
            "gpus_per_node": ask.gpus or None,
            "mem": f"{-(-ask.memory // MB)}M",
            "time": None if seconds is None else max(2, -(-int(seconds) // 60)),
        }

    def launch(self, title: str, order: Order, ask: Ask, losses: int) -> str:
        """Submit the batch file of a stage; a controller that is busy is asked again."""
        make_folder(self._folder)
        executor = self._submitit.SlurmExecutor(self._folder)
        more = {"no-requeue": True, "chdir": str(order.place), **{k: v or True for k, v in self._more.items()}}
        executor.update_parameters(
            job_name=title, additional_parameters=more, stderr_to_stdout=True, **self._parameters(ask, losses)
        )
        errors = (self._submitit.core.utils.FailedJobError, self._submitit.core.utils.FailedSubmissionError)
        for left in reversed(range(TRIES)):
            try:
                return str(executor._submit_command(shlex.join(order.command())).job_id)
            except errors as error:
                found = self.find(title)  # an answer that came too late does not mean that it was not taken
                if found is not None:
                    return found
                text = " ".join(str(error).split())
                if not left or not any(sign in text.lower() for sign in _BUSY):
                    raise UserError(f"sbatch: {text[-400:]}; what runs goes on, the same command finds it") from None
                time.sleep(PAUSE)
        raise AssertionError

    def find(self, title: str) -> str | None:
        """Return the number of the job of a name."""
        try:
            found = _asked("squeue", "--me", "-h", "-t", "all", "-n", title, "-o", "%i").split()
        except UserError:
            return None
        return found[0] if found else None

    def states(self, handles: Sequence[str]) -> Mapping[str, Gone | None] | None:
        """Return what the queue says of our jobs; ended ones are in it for some minutes."""
        try:
            text = _asked("squeue", "--me", "-h", "-t", "all", "-o", "%i|%T|%r")
        except UserError as error:
            warn_once(str(error))
            return None
        states: dict[str, Gone | None] = {}
        for line in text.splitlines():
            number, state, why = line.split("|", 2)
            if number in handles:
                states[number] = None if state in _ALIVE else _OVER.get(state) or self._failed(number, state, why)
        return states

    def _failed(self, number: str, state: str, why: str) -> Gone:
        """Say what is known of a job that ended without a word of its own: what srun printed, above all."""
        said = last_line(self._folder / f"{number}_0_log.out")
        return Gone(f"{state.lower()} ({said or why})", lost=False)

    def end(self, handle: str) -> None:
        """Cancel a job."""
        cancel_job(handle)

    def forget(self, handle: str) -> None:
        """Hold nothing: the queue forgets it by itself."""

    def close(self) -> None:
        """Hold nothing."""

    def describe(self) -> str:
        """Say which partition it is, and how large."""
        count, cpus = len(self._nodes), sum(node.cpus for node in self._nodes)
        return f"on SLURM, partition {self._partition}, {count} node(s), {cpus} cpus"


def cancel_job(handle: str) -> bool:
    """Cancel a job by its number, where SLURM's commands are; return whether it was."""
    if not handle.isascii() or not handle.isdigit() or shutil.which("scancel") is None:
        return False
    return subprocess.run(["scancel", handle], capture_output=True, check=False).returncode == 0


def read_more(words: Sequence[str]) -> dict[str, str]:
    """Read --slurm: sbatch's own options as key=value, or a key alone."""
    found: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        name = re.sub("-", "_", key.removeprefix("--"))
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise UserError(f"--slurm: found {word!r}, expected an option of sbatch as KEY=VALUE, such as qos=long")
        if name in SET_HERE:
            raise UserError(f"--slurm: found {word!r}, expected {SET_HERE[name]} for that")
        if name in found:
            raise UserError(f"--slurm: found {key} twice, expected it once")
        found[name] = value
    return found


def _submitit() -> Any:
    try:
        # Or it configures logging when it is imported, which closes every handler that there is in this process.
        os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
        import submitit
    except ImportError:
        raise UserError("--engine slurm: needs another package; in the checkout: pip install -e '.[slurm]'") from None
    missing = [name for name in ("sbatch", "squeue", "sinfo", "scancel", "srun") if shutil.which(name) is None]
    if missing:
        raise UserError(f"--engine slurm: found no {missing[0]} here, expected a machine that jobs are submitted from")
    return submitit


def _asked(*words: str) -> str:
    """Ask one of SLURM's commands."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    try:
        ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, env=environment)
    except subprocess.TimeoutExpired:
        raise UserError(f"{words[0]}: found no answer in 60 s, expected SLURM's controller") from None
    if ran.returncode:
        said = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        raise UserError(f"{words[0]}: {said}")
    return ran.stdout


def _gpus(gres: str) -> int:
    """Count the GPUs of a node: gpu:4, gpu:a100:4(S:0-1), with other things beside them."""
    return sum(int(found) for found in re.findall(r"(?:^|,)gpu(?::[^:,(]+)?:(\d+)", gres))
