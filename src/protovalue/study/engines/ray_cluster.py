"""Stages on a Ray cluster: for each a detached actor that runs its command line in a process beside it.

What crosses is text: Ray takes the class below by its name, and its arguments are the words of a command.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from protovalue.errors import UserError
from protovalue.study.engines.cluster import Cluster, Gone
from protovalue.study.folder import warn_once
from protovalue.study.resources import Ask, Node, ask_text, misfit
from protovalue.study.worker import FOLLOW, Order

NAMESPACE = "protovalue"
PASSED_ON = ("PYTHONPATH", "PROTOVALUE_")  # beginnings of the environment variables that a stage gets from here
LAST_WORDS = 2.0  # seconds that an actor stays after its process, so that whoever waits for it hears of its end


class StageProcess:
    """What runs on a node: the process of one stage. It ends with this, and this ends with it."""

    def __init__(self, words: list[str], place: str, environment: dict[str, str], seconds: float | None) -> None:
        """Start the process here, not in a call: a call would be lost with the process that makes it."""
        for name, value in environment.items():
            os.environ[name] = value
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, cwd=place)
        threading.Thread(target=self._follow, args=(seconds,), daemon=True).start()

    def _follow(self, seconds: float | None) -> None:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        time.sleep(LAST_WORDS)
        import ray

        ray.kill(ray.get_runtime_context().current_actor)  # to end the process would be reported as a crash

    def wait(self) -> int:
        """Return its exit code when it has ended."""
        return self._process.wait()


class RayCluster(Cluster):
    """The Ray cluster at an address."""

    name = "ray"

    def __init__(self, address: str | None, root: Path, threads: int, asks: Mapping[str, Ask], jobs: int | None):
        """Connect; an address that does not answer is a UserError."""
        self._address = address or os.environ.get("RAY_ADDRESS") or "auto"
        self._ray = _connected(self._address)
        heads = [node["NodeID"] for node in self._ray.nodes() if "node:__internal_head__" in node["Resources"]]
        self._id = heads[0][:12] if heads else ""
        self._actors: dict[str, Any] = {}
        self._waits: dict[str, Any] = {}
        try:
            super().__init__(root, threads, asks, jobs)
        except BaseException:
            self.close()
            raise

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that are alive."""
        found = []
        for node in self._ray.nodes():
            have = node["Resources"]
            if node["Alive"]:
                sizes = (int(have.get(name, 0)) for name in ("CPU", "GPU", "memory"))
                found.append(Node(node["NodeManagerHostname"], *sizes))
        return found

    def launch(self, title: str, order: Order, ask: Ask, losses: int) -> str:
        """Make the actor of a stage; Ray starts it where there is room, however long that takes."""
        words = order.command()
        words.insert(words.index("protovalue.study.worker") + 1, FOLLOW)
        environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        options: dict[str, Any] = {"num_gpus": ask.gpus} if ask.gpus else {}
        with _quiet():
            handle = f"{title}@{self._id}"
            self._actors[handle] = (
                self._ray.remote(StageProcess)
                .options(
                    name=title,
                    namespace=NAMESPACE,
                    lifetime="detached",
                    max_restarts=0,
                    max_concurrency=4,
                    num_cpus=ask.cpus,
                    memory=ask.memory,
                    **options,
                )
                .remote(words, str(order.place), environment, ask.seconds if ask.given else None)
            )
        return handle

    def find(self, title: str) -> str | None:
        """Return the name with the cluster's if there is such an actor."""
        handle = f"{title}@{self._id}"
        return handle if self._actor(handle) is not None else None

    def states(self, handles: Sequence[str]) -> Mapping[str, Gone | None] | None:
        """Return which actors are over."""
        self._name_waiting()
        states: dict[str, Gone | None] = {}
        for handle in handles:
            if handle not in self._waits:
                actor = self._actor(handle)
                if actor is None:
                    if handle.endswith(f"@{self._id}"):  # of another cluster only its signs of life can tell
                        states[handle] = Gone("it is gone: its node died, or it was killed")
                    continue
                self._waits[handle] = actor.wait.remote()
            states[handle] = self._state(handle)
        return states

    def _state(self, handle: str) -> Gone | None:
        done, _ = self._ray.wait([self._waits[handle]], timeout=0)
        if not done:
            return None
        try:
            return Gone(f"its process ended with code {self._ray.get(done[0])} and said nothing")
        except self._ray.exceptions.ActorUnavailableError:
            del self._waits[handle]  # it may come back; if it does not, Ray will say that it died
            return None
        except self._ray.exceptions.RayError as error:
            text = str(error).partition("\n")[0] or type(error).__name__
            node = next((line.strip() for line in str(error).splitlines() if "node" in line and "died" in line), text)
            return Gone(f"it is gone: {node}")

    def _actor(self, handle: str) -> Any:
        if handle not in self._actors:
            try:
                self._actors[handle] = self._ray.get_actor(handle.partition("@")[0], namespace=NAMESPACE)
            except ValueError:
                return None
        return self._actors[handle]

    def _name_waiting(self) -> None:
        """Name stages that wait for a node that is not there any more."""
        nodes = self.nodes()
        for stage in self._followed:
            ask = self._asks.get(stage)
            lacks = misfit(ask, nodes) if ask else ""
            if ask and lacks:
                warn_once(f"{stage} may wait for ever: it asks for {ask_text(ask)}, and {lacks}")

    def end(self, handle: str) -> None:
        """End an actor; its process ends with it."""
        actor = self._actor(handle)
        if actor is not None:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)

    def forget(self, handle: str) -> None:
        """Drop the actor; it ends by itself."""
        self._actors.pop(handle, None)
        self._waits.pop(handle, None)

    def describe(self) -> str:
        """Say which cluster it is, and how large."""
        nodes = self.nodes()
        return f"on Ray at {self._address}, {len(nodes)} node(s), {sum(node.cpus for node in nodes)} cpus"

    def close(self) -> None:
        """Leave the cluster; its actors stay."""
        self._actors.clear()
        self._waits.clear()
        with _quiet():
            self._ray.shutdown()


def _connected(address: str) -> Any:
    try:
        with _quiet():
            import ray
    except ImportError:
        raise UserError("--engine ray: needs another package; in the checkout: pip install -e '.[ray]'") from None
    if address != "auto":
        _check_answers(address)
    try:
        with _quiet():
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        text = str(error).strip().partition("\n")[0]
        raise UserError(f"--ray-address: found {address}, where no cluster can be joined: {text}") from None
    return ray


def _check_answers(address: str) -> None:
    """Refuse an address where nothing listens: Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or "/" in address:
        raise UserError(f"--ray-address: found {address}, expected auto or HOST:PORT, as `ray start` prints it")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"--ray-address: found {address}, which does not answer: {reason}") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out warnings about Ray's own future, which no user of ours can do anything about."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    sys.stderr.flush()
