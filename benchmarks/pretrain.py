"""Pretraining: one step of a proto-value network, against the machine, against the reference's way, and what it holds.

Every variant lives in a process of its own, with its own memory allocator, and takes its steps in turn with the others;
times are medians over the turns, and so are ratios. Seconds are those on the wall, and need quiet cores: on two threads
a step waits for the slower one. With OMP_NUM_THREADS=1 they are seconds of processor time, which other people's
processes disturb little; only MinAtar's, which compare numbers of threads, stay those on the wall. The table says
which, and what the load was.
"""

import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from protovalue.config import PRESET
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import Dataset, open_dataset
from protovalue.data.sampler import Prefetcher, Sampler
from protovalue.indicators.precompute import PASS_BATCH, States
from protovalue.losses import successor_measure_loss
from protovalue.nets import layers
from protovalue.nets.encoders import make_encoder
from protovalue.nets.layers import max_pool
from protovalue.nets.memory import keep_freed_memory
from protovalue.nets.nature import NATURE
from protovalue.nets.patches import find_patches
from protovalue.presets import resolved
from protovalue.pretrain.loop import probe_of
from protovalue.pretrain.method_configs import PvnConfig
from protovalue.pretrain.pvn import ProtoValueNetwork
from protovalue.pretrain.trainer import Trainer
from protovalue.runs import Run

BATCH, TASKS, ACTIONS = 256, 100, 6
MATRIX = 3072  # rows and columns of the matrices whose product says how fast the machine is
WIDTHS, WIDTH_BATCH = (1, 2, 4, 8), 32
PAPER_TRANSITIONS, PAPER_STEPS = 50_000_000, 1_562_500
MANY = range(10**9)

clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def impala_macs(width: int) -> tuple[int, int]:
    """Multiply-adds of one 84 x 84 x 4 observation in the Impala encoder: all layers, and the first one alone."""
    a, b = 16 * width, 32 * width  # channels of the first stack, and of the other two
    first = 84 * 84 * 9 * 4 * a  # 4.1 million at width 1
    stacks = first + 4 * 42 * 42 * 9 * a * a  # 84 -> pool -> 42: four convolutions in two blocks, 16.3 million
    stacks += 42 * 42 * 9 * a * b + 4 * 21 * 21 * 9 * b * b  # 8.1 and 16.3 million
    stacks += 21 * 21 * 9 * b * b + 4 * 11 * 11 * 9 * b * b  # 4.1 and 4.5 million
    return stacks + 11 * 11 * b * 512 * width, first  # dense: 2.0 million


def step_flops(width: int, tasks: int, batch: int) -> int:
    """Floating-point operations that one step has to do, two to a multiply-add.

    Online network: forward, gradient of the weights, and gradient of the input, which the first convolution does not
    need. Target network: forward. Heads: of the taken action only, and of the mean over actions, which is one matrix.
    Not counted: pooling, ReLU, additions, Adam and the moving average.
    """
    encoder, first = impala_macs(width)
    heads = 512 * width * tasks
    return 2 * batch * ((3 * encoder - first + 3 * heads) + (encoder + heads))


# The reference's way, written plainly: default memory layout, indicator networks in every step, all actions' heads.


class ReferenceImpala(nn.Module):
    """Impala-CNN in PyTorch's default layout, with padded pooling and nothing in place."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((4, 16), (16, 32), (32, 32))
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in sizes)
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Sequential(nn.ReLU(), _conv3(b), nn.ReLU(), _conv3(b)) for _ in range(2)) for _, b in sizes
        )
        self.dense = nn.Linear(11 * 11 * 32, 512)

    def forward(self, obs: Tensor) -> Tensor:
        """Map (N, 4, 84, 84) uint8 to (N, 512)."""
        x = obs.to(torch.float32) / 255
        for conv, blocks in zip(self.convs, self.blocks, strict=True):
            x = conv(x)
            before = x.shape[2] % 2
            x = F.max_pool2d(F.pad(x, (before, 1, before, 1), value=-torch.inf), 3, 2)
            for block in blocks.children():
                x = x + block(x)
        return F.relu(self.dense(F.relu(x).flatten(1)))


def _conv3(channels: int) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, 3, padding=1)


class ReferenceIndicators(nn.Module):
    """Random Nature-DQN networks with ten tasks each, evaluated one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.networks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv2d(4, 32, 8, 4, padding=2), nn.ReLU()),
                *(nn.ZeroPad2d((1, 2, 1, 2)), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
                *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()),
                *(nn.Flatten(), nn.Linear(11 * 11 * 64, 512), nn.ReLU(), nn.Linear(512, 10)),
            )
            for _ in range(TASKS // 10)
        )

    def forward(self, obs: Tensor) -> Tensor:
        """Map (N, 4, 84, 84) uint8 to rewards (N, 100)."""
        x = obs.to(torch.float32) / 255
        return torch.cat([network(x) for network in self.networks], dim=1) >= 0


def reference_step(folder: Path) -> Callable[[], dict[str, float]]:
    """Return a function that takes one step the reference's way."""
    data = open_dataset(folder)
    data.load(1 << 30)
    sampler = Sampler(data, BATCH, 0)
    batches = iter(Prefetcher(sampler.batch, MANY, sampler.batch_bytes))
    online = nn.ModuleList([ReferenceImpala(), nn.Linear(512, TASKS * ACTIONS)])
    target = copy.deepcopy(online).requires_grad_(False)
    indicators = ReferenceIndicators().requires_grad_(False)
    adam = torch.optim.Adam(online.parameters(), 1e-4, eps=1.5e-4)

    def values(network: nn.ModuleList, obs: Tensor) -> Tensor:
        encoder, heads = network
        psi: Tensor = heads(encoder(obs)).view(-1, TASKS, ACTIONS)
        return psi

    def step() -> dict[str, float]:
        start = clock()
        batch = next(batches)
        obs, next_obs = torch.from_numpy(batch.obs.copy()), torch.from_numpy(batch.next_obs.copy())
        action, terminal = torch.from_numpy(batch.action), torch.from_numpy(batch.terminal)
        loss = successor_measure_loss(
            values(online, obs), values(target, next_obs), indicators(obs), action, terminal, 0.99
        )
        adam.zero_grad()
        loss.backward()
        adam.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.copy_(0.99 * old + 0.01 * new)
        return {"seconds": clock() - start}

    return step


class Ours:
    """The project's own step, as its trainer takes it, on the data set in `folder`."""

    def __init__(
        self, folder: Path, width: int | None = 1, tasks: int | None = TASKS, batch: int = BATCH, **settings: Any
    ) -> None:
        self.data = open_dataset(folder)
        config = replace(self.config(folder, self.data, width, tasks, batch), **settings)
        self.method = ProtoValueNetwork(config, self.data, self.shape, "cpu")
        self.data.load(1 << 30)
        run = Run.open(folder.parent / f"run-{os.getpid()}", {})  # held until the process ends
        self.trainer = Trainer(self.method, run, probe_of(self.data, self.data.env_id, "cpu"), "cpu", quiet=True)
        self.samples = iter(Prefetcher(self.method.sample, MANY, self.method.sampler.batch_bytes))

    @staticmethod
    def config(folder: Path, data: Dataset, width: int | None, tasks: int | None, batch: int) -> PvnConfig:
        """Return the settings: m = 1000 with as many networks as m = 100, because rewards are not what is measured."""
        config = PvnConfig(
            out=folder.parent,  # not looked at: the run is the trainer's
            data=(folder,),
            cache=folder.parent / "cache",
            width=PRESET if width is None else width,
            tasks=PRESET if tasks is None else tasks,
            batch_size=batch,
            tasks_per_module=100 if tasks == 1000 else 10,
        )
        return resolved(config, data.env_id)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of an observation."""
        return self.data.observation_shape

    def step(self) -> dict[str, float]:
        """Take one step; also say how long it waited for its batch."""
        start, asked = clock(), time.perf_counter()
        sample = next(self.samples)
        waited = time.perf_counter() - asked
        self.trainer.step(sample)
        return {"seconds": clock() - start, "waited": waited}

    def around(self) -> dict[str, float]:
        """Measure what surrounds a step, in seconds per step; at least one must have been taken.

        Batches are made in the background: what they take from the step is their processor time, shared out over the
        threads that would have used it.
        """
        method, config = self.method, self.method.config
        making, rewards, logging, saving = [], [], [], []
        for step in range(1, 8):
            start = time.thread_time()
            method.sample(step)
            making.append(time.thread_time() - start)
            start = time.thread_time()
            method.rewards(method.sampler.indices(step))
            rewards.append(time.thread_time() - start)
            start = time.perf_counter()
            self.trainer.log()
            logging.append(time.perf_counter() - start)
            start = time.perf_counter()
            self.trainer.save()
            saving.append(time.perf_counter() - start)
        threads = torch.get_num_threads()
        reward = statistics.median(rewards) / threads
        return {
            "sampling": statistics.median(making) / threads - reward,
            "rewards": reward,
            "logging": statistics.median(logging) / config.log_every,
            "checkpoints": statistics.median(saving) / config.checkpoint_every,
        }

    def profile(self) -> dict[str, float]:
        """Return the share of each operation in the time of two steps, the largest first."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            self.step()
            self.step()
        times = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
        largest = sorted(times, key=lambda name: -times[name])[:10]
        return {name.removeprefix("aten::"): times[name] / sum(times.values()) for name in largest}


def matmul_step() -> Callable[[], dict[str, float]]:
    """Return a function that measures the machine's floating-point operations per second."""
    a, b = torch.rand(MATRIX, MATRIX), torch.rand(MATRIX, MATRIX)

    def step() -> dict[str, float]:
        times = []
        for _ in range(3):
            start = clock()
            a @ b
            times.append(clock() - start)
        return {"flops": 2 * MATRIX**3 / statistics.median(times)}

    return step


def indicator_pass(folder: Path) -> dict[str, float]:
    """Compute the indicator rewards of a data set from nothing, and evaluate the same networks on one batch."""
    start = clock()
    ours = Ours(folder)  # nothing else in here takes long
    seconds = clock() - start
    found, obs = ours.method.sets[0].found, next(ours.samples)["frames"][:, :-1]
    assert found is not None
    times = []
    for _ in range(4):
        start = clock()
        found.indicator.rewards(obs)
        times.append(clock() - start)
    return {
        "seconds": seconds,
        "states": ours.data.num_transitions,
        "batch_seconds": statistics.median(times[1:]),
        **shared_patches(ours.data, found.indicator),
    }


def shared_patches(data: Dataset, indicator: Any) -> dict[str, float]:
    """Compare a batch of the pass, each different patch once for all networks, with whole images in each network."""
    obs, networks = States(data, final=False).observations(0, PASS_BATCH), indicator.networks
    patches = find_patches(obs, NATURE)

    def whole() -> Tensor:
        x = networks._input(obs)
        return torch.cat([module(x) for module in networks.modules_], dim=1)

    times: dict[str, list[float]] = {"whole": [], "shared": []}
    outputs = {}
    for _ in range(3):
        for name, function in (("whole", whole), ("shared", lambda: networks(obs))):
            start = clock()
            with torch.no_grad():
                outputs[name] = function()
            times[name].append(clock() - start)
    torch.testing.assert_close(outputs["whole"], outputs["shared"], rtol=0, atol=1e-5)
    seen = [len(patches.pixels), *(len(part) for part in patches.parts)]
    places = [patches.image.numel() * count for count in (21 * 21, 11 * 11, 11 * 11)]
    return {
        "shared_speed": statistics.median(w / s for w, s in zip(times["whole"], times["shared"], strict=True)),
        **{f"different_{layer}": found / all_ for layer, (found, all_) in enumerate(zip(seen, places, strict=True), 1)},
    }


def worker(variant: dict[str, Any]) -> None:
    """Answer requests on standard input, one line each: a number of steps, or the name of another measurement."""
    kind, folder = variant["kind"], Path(variant["folder"])
    if variant.get("threads"):
        torch.set_num_threads(variant["threads"])
    if variant.get("wall"):
        global clock
        clock = time.perf_counter
    if variant.get("keep", True):
        keep_freed_memory()
    if variant.get("pooled_by_torch"):
        layers.POOLED_BY_US = sys.maxsize
    ours = Ours(folder, variant["width"], variant["tasks"], variant["batch"]) if kind == "ours" else None
    serve(ours.step if ours else matmul_step() if kind == "matmul" else reference_step(folder), ours)


def peak() -> float:
    """Return the most memory that this process has had [MiB]; getrusage's begins with what its parent had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def serve(step: Callable[[], dict[str, float]], ours: "Ours | None" = None) -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        request = line.strip()
        answer: dict[str, float]
        if request == "peak":
            answer = {"mib": peak()}
        elif request in ("around", "profile"):
            answer = getattr(ours, request)()
        else:
            taken = [step() for _ in range(int(request))]
            answer = {name: statistics.median(one[name] for one in taken) for name in taken[0]}
        print("answer", json.dumps(answer), flush=True)
    os._exit(0)  # without waiting for batches that nobody will take


class Worker:
    """A variant in a process of its own."""

    def __init__(self, folder: Path, file: str = __file__, **options: Any) -> None:
        variant = {"kind": "ours", "folder": str(folder), "width": 1, "tasks": TASKS, "batch": BATCH, **options}
        self._process = subprocess.Popen(
            [sys.executable, file, json.dumps(variant)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "KINETO_LOG_LEVEL": "5"},
        )

    def ask(self, request: str | int) -> dict[str, float]:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(request, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("answer "):
                answer: dict[str, float] = json.loads(line.removeprefix("answer "))
                return answer
        raise RuntimeError(f"the process of a variant ended with code {self._process.wait()}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def workers(folder: Path, variants: dict[str, dict[str, Any]], file: str = __file__) -> Iterator[dict[str, Worker]]:
    """Start one process per variant, which runs `file`; each has taken a first, unmeasured step."""
    with ExitStack() as stack:
        started = {name: Worker(folder, file, **options) for name, options in variants.items()}
        for one in started.values():
            stack.callback(one.close)
        for one in started.values():
            one.ask(1)
        yield started


def in_turn(running: dict[str, Worker], rounds: int, steps: int = 1) -> dict[str, list[dict[str, float]]]:
    """Let every variant take steps in turn; return its answers by round."""
    answers: dict[str, list[dict[str, float]]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, one in running.items():
            answers[name].append(one.ask(steps))
    return answers


def median(answers: Sequence[dict[str, float]], field: str = "seconds") -> float:
    """Return the median over rounds."""
    return statistics.median(answer[field] for answer in answers)


def ratio(above: Sequence[dict[str, float]], below: Sequence[dict[str, float]]) -> float:
    """Return the median over rounds of the ratio of seconds."""
    return statistics.median(a["seconds"] / b["seconds"] for a, b in zip(above, below, strict=True))


def full_step(folder: Path, rounds: int, quick: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Measure a step against the machine and the reference's way; return numbers, and shares by operation."""
    variants: dict[str, dict[str, Any]] = {
        "matmul": {"kind": "matmul"},
        "ours": {},
        "ours, PyTorch's pooling": {"pooled_by_torch": True},
        "ours, default allocator": {"keep": False},
        "reference's way": {"kind": "reference", "keep": False},
    }
    if not quick:
        variants["reference's way, our allocator"] = {"kind": "reference"}
    result: dict[str, float] = {}
    with workers(folder, variants) as running:
        answers = in_turn(running, rounds)
        flops = step_flops(1, TASKS, BATCH)
        ours = answers["ours"]
        result["matrix product [GFLOP/s]"] = median(answers["matmul"], "flops") / 1e9
        result["arithmetic of a step [GFLOP]"] = flops / 1e9
        result["step [s]"] = median(ours)
        result["step [GFLOP/s]"] = flops / median(ours) / 1e9
        result["step / matrix product [FLOP/s]"] = statistics.median(
            flops / a["seconds"] / b["flops"] for a, b in zip(ours, answers["matmul"], strict=True)
        )
        result["PyTorch's pooling / ours [time]"] = ratio(answers["ours, PyTorch's pooling"], ours)
        result["default allocator / ours [time]"] = ratio(answers["ours, default allocator"], ours)
        result["reference's way [s]"] = median(answers["reference's way"])
        result["reference's way / ours [time]"] = ratio(answers["reference's way"], ours)
        if not quick:
            fast = answers["reference's way, our allocator"]
            result["reference's way, our allocator / ours [time]"] = ratio(fast, ours)
        for name in ("ours", "ours, PyTorch's pooling", "ours, default allocator", "reference's way"):
            result[f"peak memory, {name} [MiB]"] = running[name].ask("peak")["mib"]
        around = running["ours"].ask("around")
        around["waiting for a batch"] = median(ours, "waited")
        for name, seconds in around.items():
            result[f"share of a step: {name}"] = seconds / median(ours)
        result["share of a step: all of these"] = sum(around.values()) / median(ours)
        return result, running["ours"].ask("profile")


LAYERS = (  # of Impala 1x: name, how many, channels in and out, height and width
    ("4 to 16, 84x84", 1, 4, 16, 84),
    ("16 to 16, 42x42", 4, 16, 16, 42),
    ("16 to 32, 42x42", 1, 16, 32, 42),
    ("32 to 32, 21x21", 5, 32, 32, 21),
    ("32 to 32, 11x11", 4, 32, 32, 11),
)


def by_layer(rounds: int) -> dict[str, float]:
    """Measure each layer's passes alone against what bounds it: a matrix product's rate, or that of a copy of memory.

    The bytes are those that must be read and written once: of a convolution its input and output, of a pooling too
    (and where the maxima are, a byte each), of its gradient both gradients and where they were.
    """
    keep_freed_memory()
    square, long = torch.randn(2048, 2048), torch.randn(1 << 25)
    copied = torch.empty_like(long)
    works: dict[str, tuple[Callable[[], Any], float, float]] = {
        "matrix product": (lambda: square @ square, 2.0 * len(square) ** 3, 0.0),
        "copy": (lambda: copied.copy_(long), 0.0, 8.0 * len(long)),
    }
    for name, _, inputs, outputs, size in LAYERS:
        x = torch.randn(BATCH, inputs, size, size).contiguous(memory_format=torch.channels_last)
        weight, bias = torch.randn(outputs, inputs, 3, 3, requires_grad=True), torch.zeros(outputs)
        y = F.conv2d(x.requires_grad_(inputs > 4), weight, bias, 1, 1)
        wanted, slope = [weight, *([x] if inputs > 4 else [])], torch.randn_like(y)  # pixels need no gradient
        flops, moved = 2.0 * y.numel() * 9 * inputs, 4.0 * (x.numel() + y.numel())
        works[f"forward, {name}"] = (
            partial(F.conv2d, x.detach(), weight.detach(), bias, 1, 1), flops, moved
        )  # fmt: skip
        works[f"gradients, {name}"] = (
            partial(torch.autograd.grad, y, wanted, slope, retain_graph=True),
            flops * len(wanted), moved * len(wanted),
        )  # fmt: skip
    for outputs, size in ((16, 84), (32, 42), (32, 21)):
        x = torch.randn(BATCH, outputs, size, size).contiguous(memory_format=torch.channels_last).requires_grad_()
        pooled = max_pool(x)
        slope = torch.randn_like(pooled)
        works[f"pooling, {outputs} x {size}x{size}"] = (
            partial(max_pool, x.detach()), 0.0, 4.0 * x.numel() + 5.0 * pooled.numel()
        )  # fmt: skip
        works[f"its gradient, {outputs} x {size}x{size}"] = (
            partial(torch.autograd.grad, pooled, x, slope, retain_graph=True),
            0.0, 4.0 * x.numel() + 5.0 * pooled.numel(),
        )  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, (work, _, _) in works.items():
            start = clock()
            work()
            if turn:  # the first one does not count
                seconds[name].append(clock() - start)
    taken = {name: statistics.median(found) for name, found in seconds.items()}
    rate, bandwidth = works["matrix product"][1] / taken["matrix product"], works["copy"][2] / taken["copy"]
    result = {"matrix product [GFLOP/s]": rate / 1e9, "copy [GB/s]": bandwidth / 1e9}
    for name, (_, flops, moved) in list(works.items())[2:]:
        if flops:
            result[f"{name} [GFLOP/s]"] = flops / taken[name] / 1e9
        result[f"{name} [ms]"] = 1e3 * taken[name]
        result[f"{name}: share of its limit"] = max(flops / rate, moved / bandwidth) / taken[name]
    return result


def by_tasks(folder: Path, rounds: int) -> dict[str, float]:
    """Measure a step with m = 10, 100 and 1000 tasks."""
    with workers(folder, {str(m): {"tasks": m} for m in (10, 100, 1000)}) as running:
        answers = in_turn(running, rounds)
    result = {f"step, m = {m} [s]": median(answers[m]) for m in answers}
    return result | {f"step, m = {m} / m = 10 [time]": ratio(answers[m], answers["10"]) for m in ("100", "1000")}


def by_width(folder: Path, rounds: int, widths: Sequence[int]) -> dict[str, float]:
    """Measure a step and the memory of encoders of several widths at a small batch."""
    result: dict[str, float] = {}
    with workers(folder, {str(w): {"width": w, "batch": WIDTH_BATCH} for w in widths}) as running:
        answers = in_turn(running, rounds)
        for w in widths:
            result[f"width {w}, batch {WIDTH_BATCH} [samples/s]"] = WIDTH_BATCH / median(answers[str(w)])
            result[f"width {w}, batch {WIDTH_BATCH}, peak memory [MiB]"] = running[str(w)].ask("peak")["mib"]
    logs = np.log(widths)
    times = np.log([median(answers[str(w)]) for w in widths])
    arithmetic = np.log([step_flops(w, TASKS, WIDTH_BATCH) for w in widths])
    result["exponent of a step's time in the width"] = float(np.polyfit(logs, times, 1)[0])
    result["exponent of a step's arithmetic in the width"] = float(np.polyfit(logs, arithmetic, 1)[0])
    return result


def encoder_memory(width: int, recompute: bool) -> dict[str, float]:
    """Measure the features and the gradient of an encoder alone, so that its activations decide the peak."""
    encoder = make_encoder("impala", (4, 84, 84), width, torch.Generator())
    if recompute:
        encoder.recompute_activations()
    found: dict[str, float] = {}
    # The first does not count: gradients and compiled functions are there from then on.
    for batch in (WIDTH_BATCH // 2, WIDTH_BATCH // 2, WIDTH_BATCH):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
        start = clock()
        encoder(torch.zeros(batch, 4, 84, 84, dtype=torch.uint8)).sum().backward()
        found[f"seconds {batch}"] = clock() - start
        found[f"peak {batch}"] = peak()
    return found


def recomputing(width: int) -> dict[str, float]:
    """Compare activations that are kept with those that are computed again, and say what the paper's network takes.

    Activations grow with the width. They are measured at a small one, because at a large one the dense layer's gradient
    hides them. Besides, a step has parameters, gradients, a target network and Adam's two moments.
    """
    paper = make_encoder("impala", (4, 84, 84), WIDTHS[-1], torch.Generator())
    parameters = sum(p.numel() for p in paper.parameters()) * 4 / 2**20
    result, found = {}, {}
    for name in ("kept", "again"):
        asked = json.dumps({"kind": "encoder", "width": width, "recompute": name == "again"})
        # Each tensor is given back when it is freed, so that what is resident is what is in use.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
        output = subprocess.run(
            [sys.executable, __file__, asked], check=True, stdout=subprocess.PIPE, text=True, env=environment
        ).stdout
        found[name] = json.loads(output.splitlines()[-1])
        each = (found[name][f"peak {WIDTH_BATCH}"] - found[name][f"peak {WIDTH_BATCH // 2}"]) / (WIDTH_BATCH // 2)
        what = f"width {width}, activations {name}"
        result[f"{what}, batch {WIDTH_BATCH}, peak of the gradient [MiB]"] = found[name][f"peak {WIDTH_BATCH}"]
        result[f"{what}, each observation [MiB]"] = each
        result[f"activations {name}, a step of {BATCH} at width {WIDTHS[-1]}, as it follows [MiB]"] = (
            5 * parameters + BATCH * each * WIDTHS[-1] / width
        )
    times = [found[name][f"seconds {WIDTH_BATCH}"] for name in ("again", "kept")]
    result[f"width {width}, gradient, activations again / kept [time]"] = times[0] / times[1]
    return result


def one_off(folder: Path) -> dict[str, float]:
    """Measure the indicator pass, in a process of its own, and what it saves."""
    output = subprocess.run(
        [sys.executable, __file__, json.dumps({"kind": "pass", "folder": str(folder)})],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    found = json.loads(output.splitlines()[-1])
    per_state = found["seconds"] / found["states"]
    return {
        "indicator pass [states/s]": 1 / per_state,
        "networks on shared patches / on whole images [speed]": found["shared_speed"],
        **{f"different patches, convolution {layer} [share]": found[f"different_{layer}"] for layer in (1, 2, 3)},
        "networks on one batch, as in every step [s]": found["batch_seconds"],
        "steps to pay for the pass, per 1,000 states": 1000 * per_state / found["batch_seconds"],
        "the same for the paper's 50M states, share of its steps": PAPER_TRANSITIONS
        * per_state
        / found["batch_seconds"]
        / PAPER_STEPS,
    }


def minatar(folder: Path, rounds: int) -> dict[str, float]:
    """Measure a step of the small preset on MinAtar, on one thread and on two."""
    variants = {str(t): {"threads": t, "wall": True, "width": None, "tasks": None} for t in (1, 2)}
    with workers(folder, variants) as running:
        answers = in_turn(running, rounds, steps=100)
        around = running["1"].ask("around")
    return {
        "MinAtar step, 1 thread [ms]": 1000 * median(answers["1"]),
        "MinAtar step, 2 threads [ms]": 1000 * median(answers["2"]),
        "MinAtar, 1 thread [samples/s]": BATCH / median(answers["1"]),
        "MinAtar, share of a step: sampling, rewards, logging, checkpoints": sum(around.values())
        / median(answers["1"]),
    }


def main(quick: bool) -> None:
    """Print the table, the profile and a line of JSON."""
    result: dict[str, float] = {"load before": os.getloadavg()[0], "threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as name:
        atari, breakout = Path(name) / "pong" / "data", Path(name) / "breakout" / "data"
        data = collect(CollectConfig("atari/Pong", atari, steps=1_024 if quick else 6_000), quiet=True)
        assert data.num_actions == ACTIONS
        collect(CollectConfig("minatar/breakout", breakout, steps=20_000), quiet=True)
        result |= one_off(atari)  # first, because the others find its result in the cache
        numbers, profile = full_step(atari, 3 if quick else 7, quick)
        result |= numbers
        result |= by_layer(3 if quick else 9)
        if not quick:
            result |= by_tasks(atari, 5)
        result |= by_width(atari, 3, WIDTHS[:2] if quick else WIDTHS)
        result |= recomputing(WIDTHS[1])
        result |= minatar(breakout, 3 if quick else 7)
    result["load after"] = os.getloadavg()[0]
    seconds = "processor time" if clock is time.process_time else "time on the wall"
    print(f"seconds are {seconds}")
    for name, value in result.items():
        print(f"{name:<70}{value:>12,.3f}")
    print("\nshare of the step's time by operation")
    for name, share in profile.items():
        print(f"  {name:<68}{share:>12.1%}")
    print(json.dumps({"benchmark": "pretrain", "seconds": seconds, **result, "profile": profile}))


if __name__ == "__main__":  # a variant, in the process that `Worker` or `one_off` starts
    given = json.loads(sys.argv[1])
    if given["kind"] == "pass":
        keep_freed_memory()
        print(json.dumps(indicator_pass(Path(given["folder"]))), flush=True)
        os._exit(0)
    if given["kind"] == "encoder":
        print(json.dumps(encoder_memory(given["width"], given["recompute"])), flush=True)
        os._exit(0)
    worker(given)
