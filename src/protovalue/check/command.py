"""Does a device compute what the CPU does, and how fast? Real methods, indicators and agents on made-up pictures."""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.check.config import CheckConfig
from protovalue.data.dataset import Dataset, open_dataset
from protovalue.data.format import End, Manifest
from protovalue.data.writer import DatasetWriter
from protovalue.device import choose_device
from protovalue.encoder import FrozenEncoder
from protovalue.errors import UserError
from protovalue.indicators.registry import make_indicator
from protovalue.nets.encoders import make_encoder
from protovalue.online.agent import Agent, Rule
from protovalue.online.dqn import Dqn
from protovalue.online.linear_dqn import LinearDqn
from protovalue.online.replay import ReplayBatch
from protovalue.precision import Precision
from protovalue.presets import resolved
from protovalue.pretrain.loop import probe_of
from protovalue.pretrain.methods import method_class, method_names
from protovalue.pretrain.trainer import Trainer
from protovalue.progress import silenced
from protovalue.randomness import numpy_generator, torch_generator
from protovalue.runs import Run

SHAPE = (4, 84, 84)  # observations as Atari's
SQUARE = 24  # what moves over them [pixels]
ACTIONS, BATCH, SEEDS, TASKS, TRANSITIONS = 6, 16, 2, 20, 300
WIDTH: float = 1  # of the encoders
STATES = 128  # that indicators are compared on
METHODS: dict[Precision, tuple[float, ...]] = {"float32": (1e-3, 1e-2, 1e-2), "bfloat16": (0.02, 0.4, 0.1)}
"""How far losses, the first gradient and the features after all steps may be from the CPU's in float32, as a share of
their size. Sums in another order gave up to 1e-5, 2e-3 and 4e-3 here, bfloat16 up to 0.006, 0.24 and 0.02; both most in
spr. A gradient that is lost, or of another batch, is off by 1."""
AGENTS = (1e-3, 1e-3)
"""The same for the losses and the values of agents, which are in float32."""
BITS_OFF = 1e-3
"""Share of the indicators' bits that may differ: those of states whose score is the threshold, to rounding."""


@dataclass(frozen=True)
class Compared:
    """One comparison."""

    what: str
    precision: str
    off: tuple[float, ...]
    tolerance: tuple[float, ...]
    rate: float
    """Samples, states or updates per second."""
    yardstick: float
    """The same of the CPU."""
    unit: str

    @property
    def good(self) -> bool:
        """Whether all of it is near enough; a number that is none is not."""
        return all(off <= most for off, most in zip(self.off, self.tolerance, strict=True))


def check_command(config: CheckConfig) -> None:
    """Compare, and print a line for each comparison."""
    device = choose_device(config.device)
    threads = torch.get_num_threads()
    print(f"PyTorch {torch.__version__}, {_name(device)}; the yardstick is one thread of the CPU in float32")
    print("off by: losses, first gradient and features of a method; bits of an indicator; losses and values of agents")
    print(f"{'':<15} {'precision':<9} {'off by':<23} {'at most':<20} {'rate':>9} {'yardstick':>9}")
    found = []
    for one in compared(device, threads, config.steps):
        found.append(one)
        state = "" if one.good else "  WRONG"
        off, most = " ".join(f"{x:.1e}" for x in one.off), " ".join(f"{x:g}" for x in one.tolerance)
        rates = f"{one.rate:>9,.1f} {one.yardstick:>9,.1f} {one.unit}"
        print(f"{one.what:<15} {one.precision:<9} {off:<23} {most:<20} {rates}{state}", flush=True)
    wrong = [f"{one.what} in {one.precision}" for one in found if not one.good]
    if wrong:
        raise UserError(f"--device: {device} is not good: {len(wrong)} of {len(found)} are off: {', '.join(wrong)}")
    print(f"all {len(found)} comparisons are within their tolerance")


def compared(device: str, threads: int, steps: int) -> Iterator[Compared]:
    """Compare everything that computes on a device."""
    with tempfile.TemporaryDirectory(prefix="pvn-check-") as folder, silenced():
        data = _pictures(Path(folder) / "data")
        yield from _methods(data, Path(folder), device, threads, steps)
        yield from _indicators(data, device, threads)
        yield from _agents(data, device, threads, steps)


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


def _pictures(folder: Path) -> Dataset:
    """Write episodes of a bright square that moves over noise, so that states differ and follow each other."""
    rng, room = numpy_generator(0), SHAPE[1] - SQUARE
    manifest = Manifest(
        env_id="gym/Square-v0", env_options={"stack": SHAPE[0]}, frame_shape=SHAPE[1:], frame_dtype="uint8",
        stack=SHAPE[0], num_actions=ACTIONS, chunk_frames=64,
    )  # fmt: skip
    with DatasetWriter(folder, manifest, {"by": "pvn check"}) as writer:
        for start in range(0, TRANSITIONS, 50):
            at = rng.integers(0, room, 2)
            buffer = writer.begin(_square(rng, at))
            for _ in range(50):
                action = int(rng.integers(ACTIONS))
                at = np.clip(at + [(0, 3), (3, 0), (0, -3), (-3, 0), (5, 5), (-5, -5)][action], 0, room)
                buffer.add(action, float(at.sum() > room), _square(rng, at))
            buffer.end(End.TERMINATED if start % 100 else End.TRUNCATED)
    return open_dataset(folder)


def _square(rng: np.random.Generator, at: NDArray[Any]) -> NDArray[np.uint8]:
    frame = rng.integers(0, 40, SHAPE[1:], np.uint8)
    frame[at[0] : at[0] + SQUARE, at[1] : at[1] + SQUARE] = 220
    return frame


def _methods(data: Dataset, folder: Path, device: str, threads: int, steps: int) -> Iterator[Compared]:
    for name in method_names():
        if not method_class(name).needs_data:
            continue
        torch.set_num_threads(1)
        expected, cpu = _trained(name, data, folder, "cpu", "float32", steps)
        torch.set_num_threads(threads)
        precisions: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
        for precision in precisions:
            found, rate = _trained(name, data, folder, device, precision, steps)
            yield Compared(name, precision, _off(found, expected), METHODS[precision], rate, cpu, "samples/s")


def _trained(
    name: str, data: Dataset, folder: Path, device: str, precision: Precision, steps: int
) -> tuple[list[Tensor], float]:
    """Return losses, the first gradient and the features after all steps; and the samples per second."""
    cls = method_class(name)
    given: dict[str, Any] = {"batch_size": BATCH, "steps": steps, "architecture": "impala", "width": WIDTH}
    if hasattr(cls.Config, "cache"):
        given |= {"tasks": TASKS, "cache": folder / "cache"}
    config = cls.Config(
        out=folder / "run", data=(data.folders[0].path,), method=name, precision=precision, seed=1, **given
    )
    config = resolved(config, data.env_id, data.observation_shape[1:])
    method = cls(config, data, data.observation_shape, "cpu").to(device)
    with Run.open(folder / "runs" / f"{name}-{device}-{precision}-{torch.get_num_threads()}", {}) as run:
        trainer = Trainer(method, run, probe_of(data, data.env_id, device)[:64], device, quiet=True)
        losses, took, gradient = [], 0.0, torch.zeros(0)
        for step in range(steps):
            sample = method.sample(step)
            since = time.perf_counter()
            trainer.step(sample)
            losses.append(trainer.metrics()["loss"])  # waits for the device
            took += time.perf_counter() - since if step else 0.0  # the first one also chooses its kernels
            if not step:
                gradient = torch.cat([one.grad.flatten().cpu() for one in method.parameters() if one.grad is not None])
        with torch.inference_mode():
            features = method.encoder(trainer._probe).cpu()
    return [torch.tensor(losses), gradient, features], BATCH * (steps - 1) / took if took else float("nan")


def _off(found: list[Tensor], expected: list[Tensor]) -> tuple[float, ...]:
    """Return the lengths of differences, each by that of what is expected."""
    pairs = [(one.double(), other.double()) for one, other in zip(found, expected, strict=True)]
    return tuple(float((one - other).norm() / other.norm()) for one, other in pairs)


def _indicators(data: Dataset, device: str, threads: int) -> Iterator[Compared]:
    obs = probe_of(data, data.env_id, "cpu")[:STATES]
    for name in ("rni", "hash"):
        indicator = make_indicator(name, SHAPE, TASKS, 0.05, torch_generator(0))
        torch.set_num_threads(1)
        expected, cpu = _timed(indicator.scores, obs)
        limits = expected.kthvalue(round(0.95 * len(obs)), dim=0).values
        torch.set_num_threads(threads)
        indicator.to(device)
        there = obs.to(device)
        indicator.scores(there)  # the first one also chooses its kernels
        found, rate = _timed(indicator.scores, there)
        off = float(((found >= limits) != (expected >= limits)).float().mean())
        most = BITS_OFF if name == "rni" else 0.0
        yield Compared(f"indicator {name}", "float32", (off,), (most,), len(obs) * rate, len(obs) * cpu, "states/s")
        indicator.to("cpu")


def _timed(function: Callable[[Tensor], Tensor], obs: Tensor) -> tuple[Tensor, float]:
    since = time.perf_counter()
    found = function(obs).cpu()  # waits for the device
    return found, 1 / (time.perf_counter() - since)


def _agents(data: Dataset, device: str, threads: int, steps: int) -> Iterator[Compared]:
    batches = [_batch(data, step) for step in range(steps)]
    for name in ("linear", "finetune", "dqn"):
        torch.set_num_threads(1)
        expected, cpu = _learned(_agent(name, "cpu"), batches)
        torch.set_num_threads(threads)
        found, rate = _learned(_agent(name, device), batches)
        yield Compared(f"agent {name}", "float32", _off(found, expected), AGENTS, rate, cpu, "updates/s")


def _agent(name: str, device: str) -> Agent:
    """Make agents on a frozen encoder, or with encoders that are trained."""
    rule = Rule(learning_rate=1e-4, adam_epsilon=1.5e-4, max_gradient_norm=10.0, target_every=2, double=True)
    architecture = "nature" if name == "dqn" else "impala"
    encoder = make_encoder(architecture, SHAPE, WIDTH, torch_generator(0))
    if name == "linear":
        return LinearDqn(rule, range(SEEDS), ACTIONS, FrozenEncoder(encoder, {}).to(device), 1.0, device)
    return Dqn(rule, range(SEEDS), ACTIONS, encoder, 1.0, device)


def _batch(data: Dataset, step: int) -> ReplayBatch:
    """Draw frames for each seed; an agent on features makes its own of them."""
    rng = numpy_generator(step)
    index = rng.integers(data.num_transitions, size=SEEDS * 8)
    episode, at = data.locate(index)
    frames = data.windows(episode, at - SHAPE[0] + 1, SHAPE[0] + 1).reshape(SEEDS, 8, SHAPE[0] + 1, *SHAPE[1:])
    action = rng.integers(ACTIONS, size=(SEEDS, 8))
    reward, discount = rng.random((SEEDS, 8), np.float32), np.full((SEEDS, 8), 0.99, np.float32)
    return ReplayBatch(frames[:, :, :-1], action, reward, discount, frames[:, :, 1:], action)


def _learned(agent: Agent, batches: list[ReplayBatch]) -> tuple[list[Tensor], float]:
    """Return the values of the last batch and the losses of all, and the updates per second."""
    losses, took = [], 0.0
    for number, batch in enumerate(batches):
        since = time.perf_counter()
        result = agent.update(_as_seen(agent, batch))
        losses.append(result["loss"].cpu())
        took += time.perf_counter() - since if number else 0.0
    obs = batches[-1].obs
    values = agent.values(agent.see(np.ascontiguousarray(obs.reshape(-1, *obs.shape[2:])))).cpu()
    return [torch.cat(losses), values], (len(batches) - 1) / took if took else float("nan")


def _as_seen(agent: Agent, batch: ReplayBatch) -> ReplayBatch:
    if isinstance(agent, Dqn):
        return batch
    obs, following = (
        agent.see(np.ascontiguousarray(part.reshape(-1, *part.shape[2:]))).cpu().numpy()
        for part in (batch.obs, batch.next_obs)
    )
    return ReplayBatch(obs, batch.action, batch.reward, batch.discount, following, batch.slot)
