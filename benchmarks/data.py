"""Data sets: how fast batches are drawn and experience is collected, and how small an Atari frame is on disk.

MinAtar's games are compared with the package `minatar`, in processor time: with its bare loop (act, state, and reset at
the end of an episode), and with its games behind our interface, stacks, time limit and all.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import minatar
import numpy as np
import torch
import zstandard
from torch import nn

from protovalue.data import format as fmt
from protovalue.data.collect import collect, manifest_of
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import open_dataset
from protovalue.data.sampler import Prefetcher, Sampler
from protovalue.envs.base import PythonEnv
from protovalue.envs.minatar import GAMES
from protovalue.envs.options import EnvOptions
from protovalue.envs.registry import make

BATCH = 256
STICKY = EnvOptions(sticky=0.25)


def evict(folder: Path) -> None:
    """Drop a folder's files from the page cache, so that the next read is from the disk."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def gather_rates(folder: Path, batches: int) -> tuple[float, float]:
    """Stacked transitions per second of the sampler on one thread: from a cold open, and warm."""
    evict(folder)
    start = time.perf_counter()
    sampler = Sampler(open_dataset(folder), BATCH, seed=0)
    for step in range(batches):
        sampler.batch(step)
    cold = batches * BATCH / (time.perf_counter() - start)
    rates = []
    for repeat in range(3):
        start = time.perf_counter()
        for step in range(batches):
            sampler.batch(repeat * batches + step)
        rates.append(batches * BATCH / (time.perf_counter() - start))
    return cold, statistics.median(rates)


def memory_growth(folder: Path, batches: int) -> float:
    """MiB by which the process has grown after opening the data set and drawing batches from all over it."""

    def resident() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    before = resident()
    sampler = Sampler(open_dataset(folder), BATCH, seed=1)
    for step in range(batches):
        sampler.batch(step)
    return resident() - before


def learner() -> Callable[[np.ndarray], None]:
    """A step of the first layer and pooling of an Impala network, forward and backward."""
    net = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.MaxPool2d(3, 2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def learn(obs: np.ndarray) -> None:
        x = torch.from_numpy(obs).to(torch.float32, memory_format=torch.channels_last).div_(255)
        net(x).square().mean().backward()

    return learn


def learner_slowdown(folder: Path, steps: int) -> float:
    """How much longer a learner's steps take when the prefetcher feeds it than when it always gets one batch.

    The learner is the first layer and pooling of an Impala network, forward and backward, on all cores: far cheaper
    than a whole network, so that the share is an upper bound.
    """
    sampler, learn = Sampler(open_dataset(folder), BATCH, seed=0), learner()
    fixed = sampler.batch(0)
    times: dict[str, list[float]] = {"alone": [], "fed": []}
    learn(fixed.obs)
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(steps):
            learn(fixed.obs)
        times["alone"].append(time.perf_counter() - start)
        with Prefetcher(sampler.batch, range(steps), sampler.batch_bytes) as batches:
            start = time.perf_counter()
            for batch in batches:
                learn(batch.obs)
            times["fed"].append(time.perf_counter() - start)
    return statistics.median(times["fed"]) / statistics.median(times["alone"])


def checking_cost(folder: Path, steps: int) -> tuple[float, float]:
    """Return the share of a learner's step that the checks of what it reads take, and the seconds of the first ones.

    An episode's actions, rewards and chunk records are checked when it is first read, the frames' chunks always. The
    learner is that of `learner_slowdown`, and the batches are drawn beside it, so that the share is an upper bound.
    """
    data = open_dataset(folder)
    start = time.perf_counter()
    data.check_episodes(np.arange(data.num_episodes))
    first = time.perf_counter() - start
    sampler, learn = Sampler(data, BATCH, seed=0), learner()
    spent = {"checks": 0.0}

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                spent["checks"] += time.perf_counter() - start

        return call

    with (
        mock.patch.object(fmt, "crc32", timed(fmt.crc32)),
        mock.patch.object(zstandard, "frame_content_size", timed(zstandard.frame_content_size)),
        mock.patch.object(data, "check_episodes", timed(data.check_episodes)),
    ):
        batches = [sampler.batch(step) for step in range(steps)]
    learn(batches[0].obs)
    start = time.perf_counter()
    for batch in batches:
        learn(batch.obs)
    return spent["checks"] / (time.perf_counter() - start), first


def bare(game: str, steps: int, seed: int) -> None:
    """Step the bare environment, 16 games at a time, from nothing to the last step."""
    env, rng = make(game, 16), np.random.default_rng(seed)
    env.reset(seed=seed)
    for _ in range(steps // 16):
        env.step(rng.integers(env.num_actions, size=16))


def compressing(game: str, steps: int, seed: int) -> None:
    """Step the bare environment and compress the frames of every episode, and do nothing else: no more is possible."""
    env, rng = make(game, 16), np.random.default_rng(seed)
    codec, chunk = manifest_of(env).codec, manifest_of(env).chunk_frames
    obs, _ = env.reset(seed=seed)
    frames = np.empty((steps // 16 + 1, *obs[:, -1].shape), obs.dtype)
    ended = np.ones(frames.shape[:2], bool)  # whether an episode begins there
    frames[0] = obs[:, -1]
    for t in range(1, len(frames)):
        obs, _, terminated, truncated, _ = env.step(rng.integers(env.num_actions, size=16))
        frames[t], ended[t] = obs[:, -1], terminated | truncated
    for i in range(16):
        for first, last in pairwise([*np.flatnonzero(ended[:, i]), len(frames)]):
            for start in range(first, last, chunk):
                codec.encode(frames[start : min(start + chunk, last), i])


def package_loop(game: str, steps: int, seed: int) -> None:
    """Step the package's own environment: one game, its frame after every step, and a new start after every end."""
    one = PackageGame(game.partition("/")[2])
    one.reset(seed)
    play(one, np.random.default_rng(seed).integers(len(one.actions), size=steps))


def collect_shares(game: str, steps: int, folder: Path) -> dict[str, float]:
    """Speed of collecting as a share of the bare environment's, all from nothing to the last step; alternating.

    Of MinAtar also as a share of the package's, and how near compressing alone would come to the bare environment.
    """

    def collecting(game: str, steps: int, seed: int) -> None:
        collect(CollectConfig(game, folder / f"{game.replace('/', '-')}-{seed}", steps=steps, seed=seed), quiet=True)

    runs = {"bare environment": bare, "collecting": collecting}
    if game.startswith("minatar/"):
        runs |= {"bare package": package_loop, "bare environment and compressing": compressing}
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(3):
        for name, run in runs.items():
            start = time.perf_counter()
            run(game, steps, repeat)
            rates[name].append(steps / (time.perf_counter() - start))
    speed = {name: statistics.median(found) for name, found in rates.items()}
    result = {f"collecting / bare environment, {game}": speed["collecting"] / speed["bare environment"]}
    if "bare package" in speed:
        result[f"collecting / bare package, {game}"] = speed["collecting"] / speed["bare package"]
        most = speed["bare environment and compressing"]
        result[f"ceiling: with compressing alone / bare, {game}"] = most / speed["bare environment"]
        result[f"ceiling: with compressing alone / bare package, {game}"] = most / speed["bare package"]
        result |= {f"steps/s, {name}, {game}": rate for name, rate in speed.items()}
    return result


class PackageGame:
    """A game of the package `minatar`, for a vector of games stepped in Python."""

    def __init__(self, name: str) -> None:
        self.env = minatar.Environment(name)
        self.actions = self.env.minimal_action_set()

    def reset(self, seed: int | None) -> np.ndarray:
        """Start an episode."""
        self.env.seed(seed)
        self.env.reset()
        obs: np.ndarray = self.env.state()
        return obs

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        """Play a step."""
        reward, terminated = self.env.act(self.actions[action])
        return self.env.state(), float(reward), bool(terminated), False

    def close(self) -> None:
        """Nothing is held."""

    def save_state(self) -> Any | None:
        """Not needed here."""
        return None

    def load_state(self, state: Any) -> None:
        """Not needed here."""


def play(game: PackageGame, actions: np.ndarray) -> None:
    """Step a game of the package by itself: act, state, and reset at the end of an episode."""
    env, action_set = game.env, game.actions
    for action in actions.tolist():
        _, over = env.act(action_set[action])
        env.state()
        if over:
            env.reset()
            env.state()


def game_speeds(name: str, calls: int, rounds: int) -> dict[str, float]:
    """Steps per second of processor time of one MinAtar game, ours and the package's; taking turns, medians."""
    rng = np.random.default_rng(0)
    alone = PackageGame(name)
    alone.reset(0)

    def through(env: Any) -> Callable[[np.ndarray], None]:
        env.reset(seed=0)

        def run(actions: np.ndarray) -> None:
            for row in actions:
                env.step(row)

        return run

    ours = {count: make(f"minatar/{name}", count) for count in (1, 16)}
    frame, actions = alone.env.state().shape, len(alone.actions)
    theirs = {count: [PackageGame(name) for _ in range(count)] for count in (1, 16)}
    package = {
        count: PythonEnv("package", ours[1].options, some, frame, np.bool_, actions) for count, some in theirs.items()
    }
    players: dict[str, tuple[Callable[[np.ndarray], None], int, int]] = {
        "package, bare loop": (lambda actions: play(alone, actions[:, 0]), 1, 16 * calls),
        "package, 1 game": (through(package[1]), 1, 8 * calls),
        "package, 16 games": (through(package[16]), 16, calls // 2),
        "ours, 1 game": (through(ours[1]), 1, 16 * calls),
        "ours, 16 games": (through(ours[16]), 16, 8 * calls),
    }
    found: dict[str, list[float]] = {what: [] for what in players}
    for _ in range(rounds):
        for what, (run, count, times) in players.items():
            chosen = rng.integers(actions, size=(times, count))
            start = time.process_time()
            run(chosen)
            found[what].append(times * count / (time.process_time() - start))
    return {what: statistics.median(rates) for what, rates in found.items()}


def games(calls: int, rounds: int) -> dict[str, float]:
    """Compare all MinAtar games with the package's."""
    result: dict[str, float] = {}
    for name in GAMES:
        speed = game_speeds(name, calls, rounds)
        result[f"{name}, steps/s, 16 games"] = speed["ours, 16 games"]
        many, one = speed["ours, 16 games"], speed["ours, 1 game"]
        result[f"{name}, 16 games / package behind our interface"] = many / speed["package, 16 games"]
        result[f"{name}, 16 games / package, bare loop"] = many / speed["package, bare loop"]
        result[f"{name}, 1 game / package behind our interface"] = one / speed["package, 1 game"]
        result[f"{name}, 1 game / package, bare loop"] = one / speed["package, bare loop"]
    return result


def main(quick: bool) -> None:
    """Print the table and a line of JSON."""
    steps = 20_000 if quick else 200_000
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        for game in ("Pong", "Asterix"):
            size = steps if game == "Pong" else steps // 10
            config = CollectConfig(f"atari/{game}", folder / game, steps=size, num_envs=16, options=STICKY)
            data = collect(config)
            on_disk = sum(path.stat().st_size for path in (folder / game).iterdir())
            result[f"bytes per frame, {game}"] = on_disk / data.num_frames
        result["frames, Pong"] = open_dataset(folder / "Pong").num_frames
        result["MiB grown by opening and sampling it"] = memory_growth(folder / "Pong", 20 if quick else 100)
        cold, warm = gather_rates(folder / "Pong", 20 if quick else 100)
        result["transitions/s, one thread, cold open"] = cold
        result["transitions/s, one thread, warm"] = warm
        result["learner step, fed / alone"] = learner_slowdown(folder / "Pong", 10 if quick else 40)
        share, first = checking_cost(folder / "Pong", 10 if quick else 40)
        result["checks / learner step, %"] = 100 * share
        result["first check of all actions and rewards, ms"] = 1000 * first
        result |= collect_shares("atari/Pong", 4_000 if quick else 20_000, folder)
        for name in ("breakout", "space_invaders"):
            result |= collect_shares(f"minatar/{name}", 50_000, folder)
    result |= games(500 if quick else 2_000, 3 if quick else 7)
    for name, value in result.items():
        print(f"{name:<70}{value:>12,.2f}")
    print(json.dumps({"benchmark": "data", **result}))
