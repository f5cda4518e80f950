"""The online phase: agent-steps per second by seeds, against PyTorch alone, re-encoding frames, memory, shares, SB3.

Seconds are the processor's: the loop has one thread, and what else runs on the machine does not count.
"""

import json
import statistics
import tempfile
import time
import unittest.mock
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from protovalue.encoder import FrozenEncoder
from protovalue.envs.base import Env
from protovalue.nets.encoders import make_encoder
from protovalue.online import dqn, linear_dqn
from protovalue.online.agent import Agent, Rule
from protovalue.online.config import AgentConfig, DqnConfig, OnlineConfig
from protovalue.online.dqn import Dqn
from protovalue.online.linear_dqn import LinearDqn
from protovalue.online.loop import Loop, Room, train
from protovalue.online.replay import Layout, Replay, ReplayBatch
from protovalue.presets import resolved
from protovalue.runs import Run, read_run


class Reencoding(Dqn):
    """What a plain DQN on a frozen encoder does: frames in the replay, encoded again in every update."""

    def features_of(self, batch: ReplayBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Encode x and x' by the frozen encoder."""
        with torch.no_grad():
            x, next_x = (self.encode(self.encoders, part) for part in (batch.obs, batch.next_obs))
        return x, next_x, None

    def parameters_of(self, which: str) -> list[tuple[torch.nn.Parameter, slice, tuple[int, ...]]]:
        """Leave out the encoder, which is not trained."""
        return Agent.parameters_of(self, which)


class ByPytorch(LinearDqn):
    """Linear agents as they were before anything was compiled, and as they are on CUDA."""

    greedy, learn = Agent.greedy, Agent.learn

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._encode = None


class EncodedByPytorch(LinearDqn):
    """Compiled agents whose encoder is PyTorch's, as on Atari before its forward pass was compiled."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._encode = None


class DqnByPytorch(Dqn):
    """End-to-end agents as they are where nothing is compiled."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._compiled = None


def prepared(config: OnlineConfig, kind: type[LinearDqn] = LinearDqn) -> tuple[Env, Agent, dict[str, Any]]:
    """Make environments and linear agents, of the compiled kind or of another."""
    with unittest.mock.patch.object(linear_dqn, "LinearDqn", kind):
        return linear_dqn.prepare(config)


def steps_per_second(
    config: AgentConfig, made: tuple[Env, Agent, dict[str, Any]], seconds: float, watch: dict[str, float] | None = None
) -> float:
    """Run the loop for some processor seconds after a warm-up; `watch` takes those spent in its parts."""
    env, agent, recorded = made
    with tempfile.TemporaryDirectory() as folder:
        config = replace(config, out=Path(folder) / "run")
        with Run.open(config.out, recorded) as run:
            loop = Loop(config, run, env, agent, Room.plan(config, agent, env, quiet=True), quiet=True)
            for _ in range(8):
                loop.act()
            loop.learn()
            if watch is not None:
                timed(env, "step", "environment", watch)
                timed(agent, "see", "encoder", watch)
                timed(loop, "learn", "update", watch)
            start, steps = time.process_time(), 0
            while (elapsed := time.process_time() - start) < seconds:
                for _ in range(10):  # to look at this clock can take longer than a step
                    loop.act()
                    if steps % (config.update_every or 1) == 0:
                        loop.learn()
                    steps += 1
        env.close()
    if watch is not None:
        watch["all"] = elapsed
    return steps * len(config.seed_list()) / elapsed


def timed(owner: Any, name: str, part: str, watch: dict[str, float]) -> None:
    """Add the time of a method's calls to `watch`."""
    method: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        start = time.process_time()
        result = method(*args, **options)
        watch[part] = watch.get(part, 0.0) + time.process_time() - start
        return result

    object.__setattr__(owner, name, call)


def online_config(env: str, encoder: str, seeds: int) -> OnlineConfig:
    """Return the settings of a run that is only measured."""
    config = OnlineConfig(env=env, out=Path("unused"), encoder=encoder, seeds=f"0-{seeds - 1}", replay_size=2_000)
    return resolved(config, config.env)


class Table(dict[str, float]):
    """Numbers by name, printed as they come."""

    def __setitem__(self, name: str, value: float) -> None:
        super().__setitem__(name, value)
        print(f"{name:<62}{value:>12,.3f}", flush=True)


def by_seeds(result: Table, seconds: float, repeats: int) -> None:
    """Measure 1, 3, 9 and 27 seeds, in turn, and the shares of a step's time at 9."""
    for name, env, encoder in (
        ("MinAtar", "minatar/breakout", "random:minatar:1"),
        ("Atari", "atari/Pong", "random:impala:1"),
    ):
        rates: dict[int, list[float]] = {1: [], 3: [], 9: [], 27: []}
        for _ in range(repeats):
            for seeds, found in rates.items():
                config = online_config(env, encoder, seeds)
                found.append(steps_per_second(config, prepared(config), seconds))
        for seeds, found in rates.items():
            result[f"{name}: agent-steps/s, {seeds} seeds"] = statistics.median(found)
        ratios = [nine / one for nine, one in zip(rates[9], rates[1], strict=True)]
        result[f"{name}: 9 seeds / 1 seed"] = statistics.median(ratios)
        watch: dict[str, float] = {}
        config = online_config(env, encoder, 9)
        steps_per_second(config, prepared(config), seconds, watch)
        for part in ("environment", "encoder", "update"):
            result[f"{name}: share of {part}, 9 seeds"] = watch[part] / watch["all"]


def against_pytorch(result: Table, seconds: float, repeats: int) -> None:
    """Compare linear agents on MinAtar, compiled, with PyTorch's of the same replay and games, alternating."""
    for seeds in (1, 3, 9, 27):
        config = online_config("minatar/breakout", "random:minatar:1", seeds)
        ratios = []
        for _ in range(repeats):
            ours, theirs = (
                steps_per_second(config, prepared(config, kind), seconds) for kind in (LinearDqn, ByPytorch)
            )
            ratios.append(ours / theirs)
        result[f"MinAtar: agent-steps/s, compiled / PyTorch alone, {seeds} seeds"] = statistics.median(ratios)


def frozen_encoder(result: Table, seconds: float, repeats: int) -> None:
    """Compare a frozen encoder's compiled pass with PyTorch's and with a large matrix product, alternating."""
    square = torch.randn(1024, 1024)
    for name, label in (("impala", "Impala 1x"), ("nature", "Nature 1x")):
        encoder = FrozenEncoder(make_encoder(name, (4, 84, 84), 1, torch.Generator().manual_seed(0)), {})
        quick = encoder.encoder.compiled()
        if quick is None:
            continue  # not on this processor
        for count in (1, 3, 9, 27):
            obs = np.random.default_rng(0).integers(0, 256, (count, 4, 84, 84), np.uint8)
            with torch.inference_mode():
                works: dict[str, tuple[Callable[[], Any], float]] = {
                    "product": (lambda: square @ square, 2 * len(square) ** 3),
                    "plain": (partial(encoder, torch.from_numpy(obs)), count * encoder.flops),
                    "compiled": (partial(quick, obs), count * encoder.flops),
                }
                rates: dict[str, list[float]] = {way: [] for way in works}
                for _ in range(7 * repeats):
                    for way, (work, flops) in works.items():
                        rates[way].append(flops / processor_seconds(work, seconds / 40))
            for way in ("plain", "compiled"):
                shares = [one / of for one, of in zip(rates[way], rates["product"], strict=True)]
                result[f"{label}: {way} pass / matrix product's rate, {count} obs."] = statistics.median(shares)
            ratios = [ours / theirs for ours, theirs in zip(rates["compiled"], rates["plain"], strict=True)]
            result[f"{label}: compiled pass / plain, {count} obs."] = statistics.median(ratios)
    for seeds in (1, 3, 9, 27):
        config = online_config("atari/Pong", "random:impala:1", seeds)
        found: dict[type[LinearDqn], list[float]] = {LinearDqn: [], EncodedByPytorch: [], ByPytorch: []}
        for _ in range(repeats):
            for kind, speeds in found.items():
                speeds.append(steps_per_second(config, prepared(config, kind), seconds))
        for kind, name in ((EncodedByPytorch, "plain encoder"), (ByPytorch, "PyTorch alone")):
            ratios = [ours / theirs for ours, theirs in zip(found[LinearDqn], found[kind], strict=True)]
            result[f"Atari: agent-steps/s, compiled / {name}, {seeds} seeds"] = statistics.median(ratios)


def processor_seconds(work: Callable[[], Any], seconds: float) -> float:
    """Return what one call takes, after a first one that does not count."""
    work()
    start, calls = time.process_time(), 0
    while (elapsed := time.process_time() - start) < seconds:
        work()
        calls += 1
    return elapsed / calls


def same_in_distribution(result: Table, encoders: int, steps: int) -> None:
    """Train nine agents on each of some encoders by both, and compare the returns of their last training episodes."""
    returns: dict[bool, list[float]] = {True: [], False: []}
    for encoder in range(encoders):
        for compiled, found in returns.items():
            config = replace(online_config("minatar/breakout", f"random:minatar:1:{encoder}", 9), replay_size=steps)
            with tempfile.TemporaryDirectory() as folder:
                config = replace(config, out=Path(folder) / "run", steps=steps)
                env, agent, recorded = prepared(config, LinearDqn if compiled else ByPytorch)
                train(config, recorded, env, agent, quiet=True)
                by_seed = read_run(config.out)["done"]["training_return_by_seed"]
            found.append(statistics.mean(by_seed.values()))
            name = "compiled" if compiled else "PyTorch"
            result[f"MinAtar: return after {steps:,} steps, encoder {encoder}, {name}"] = found[-1]
    differences = [ours - theirs for ours, theirs in zip(returns[True], returns[False], strict=True)]
    result[f"MinAtar: return, compiled - PyTorch, mean of {encoders}"] = statistics.mean(differences)
    if encoders > 1:
        result["MinAtar: its standard error"] = statistics.stdev(differences) / encoders**0.5


def same_end_to_end(result: Table, seeds: int, steps: int) -> None:
    """Train end-to-end agents by both, and compare the returns of their last training episodes."""
    returns: list[list[float]] = []
    for kind in (Dqn, DqnByPytorch):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(dqn, "Dqn", kind):
            given = DqnConfig(env="minatar/breakout", out=Path(folder) / "run", seeds=f"0-{seeds - 1}", steps=steps)
            config = resolved(replace(given, replay_min=500, epsilon_steps=steps // 2), given.env)
            env, agent, recorded = dqn.prepare(config)
            train(config, recorded, env, agent, quiet=True)
            returns.append([*read_run(config.out)["done"]["training_return_by_seed"].values()])
        result[f"end-to-end DQN: return after {steps:,} steps, {kind.__name__}"] = statistics.mean(returns[-1])
    differences = [ours - theirs for ours, theirs in zip(*returns, strict=True)]
    result["end-to-end DQN: return, compiled - PyTorch"] = statistics.mean(differences)
    result["end-to-end DQN: its standard error"] = statistics.stdev(differences) / seeds**0.5


def against_reencoding(result: Table, seconds: float, repeats: int) -> None:
    """Compare with the frame replay of a plain DQN on a frozen Impala 1x encoder, at 9 seeds, alternating."""
    ratios = []
    for _ in range(repeats):
        config = online_config("atari/Pong", "random:impala:1", 9)
        env, agent, recorded = prepared(config)
        assert isinstance(agent, LinearDqn)
        encoder = agent.encoder.encoder
        ours = steps_per_second(config, (env, agent, recorded), seconds)
        env = prepared(config)[0]
        plain = Reencoding(Rule.of(config), config.seed_list(), env.num_actions, encoder)
        ratios.append(ours / steps_per_second(config, (env, plain, recorded), seconds))
    result["features stored / frames encoded again, Impala 1x, 9 seeds"] = statistics.median(ratios)


def memory(result: Table) -> None:
    """Compute bytes per stored step against float32 observation and next observation, action, reward, discount."""
    for name, k in (("minatar", 128), ("Impala 1x", 512), ("Impala 8x", 4096)):
        ours = Layout((k,), np.float16, 18, reward_dtype=np.float16).step_bytes
        result[f"bytes per step, {name}"] = ours
        result[f"share of the reference's layout, {name}"] = ours / (4 * k + 4 * k + 4 + 4 + 4)


def checksums(result: Table, seconds: float) -> None:
    """Measure what checking the replay costs: processor time of its sums at a checkpoint over that of the steps."""
    config = replace(online_config("minatar/breakout", "random:minatar:1", 9), replay_size=100_000)
    every, count = config.checkpoint_every or 0, len(config.seed_list())
    replay = Replay(count, 100_000, Layout((128,), np.float16, 6, reward_dtype=np.float16), 2 * every + 8)
    items, no = np.random.default_rng(0).random((count, 128)).astype(np.float16), np.zeros(count, np.bool_)
    replay.begin(items)
    spent = []
    for _ in range(12):  # the ring is full after the tenth
        for _ in range(every):
            replay.add(np.zeros(count, np.int64), np.ones(count), no, no, items, items)
        start = time.process_time()
        replay.sums()
        spent.append(time.process_time() - start)
    config = replace(config, replay_size=2_000)
    steps = every * count / steps_per_second(config, prepared(config), seconds)
    result["MinAtar: milliseconds for the checksums of a checkpoint, 9 seeds"] = 1e3 * statistics.median(spent[-3:])
    result["MinAtar: their share of the time between two, 9 seeds"] = statistics.median(spent[-3:]) / steps


def against_sb3(result: Table, seconds: float, repeats: int) -> None:
    """Compare end-to-end DQN with Stable-Baselines3's: the same network, batch and update frequency, alternating."""
    import gymnasium
    from stable_baselines3 import DQN
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    from protovalue.envs.registry import make

    class Trunk(BaseFeaturesExtractor):
        """The MinAtar network as Stable-Baselines3's feature extractor, in PyTorch's own layers."""

        def __init__(self, space: gymnasium.spaces.Box) -> None:
            super().__init__(space, 128)
            layers = (nn.Conv2d(4, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU())
            self.net = nn.Sequential(*layers)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.net(obs)
            return found

    class Single(gymnasium.Env[Any, Any]):
        """One of our environments as a plain Gymnasium environment, channels first as PyTorch's layers want them."""

        def __init__(self) -> None:
            self.vector = make("minatar/breakout", 1)
            self.observation_space = gymnasium.spaces.Box(0, 1, (4, 10, 10), np.uint8)
            self.action_space = gymnasium.spaces.Discrete(3)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.plain(self.vector.reset(seed=seed)[0]), {}

        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = self.vector.step(np.array([action]))
            last = info["final_obs"] if info else obs
            return self.plain(last), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

        def plain(self, obs: Any) -> Any:
            return obs[0, 0].transpose(2, 0, 1).astype(np.uint8)

    settings = DqnConfig(env="minatar/breakout", out=Path("unused"), replay_size=10_000, replay_min=100)
    config = resolved(replace(settings, update_every=1, n_step=1), settings.env)
    rates: dict[str, list[float]] = {"ours": [], "sb3": []}
    for _ in range(repeats):
        rates["ours"].append(steps_per_second(config, dqn.prepare(config), seconds))
        agent = DQN(
            "MlpPolicy", Single(), learning_rate=config.learning_rate, buffer_size=10_000, learning_starts=64,
            batch_size=32, train_freq=1, gradient_steps=1, target_update_interval=config.target_every,
            policy_kwargs={"features_extractor_class": Trunk, "net_arch": [], "normalize_images": False}, device="cpu",
        )  # fmt: skip
        agent.learn(65)
        start, first = time.process_time(), agent.num_timesteps
        while time.process_time() - start < seconds:
            agent.learn(100, reset_num_timesteps=False)
        rates["sb3"].append((agent.num_timesteps - first) / (time.process_time() - start))
    for name, found in rates.items():
        result[f"end-to-end DQN, MinAtar, steps/s, {name}"] = statistics.median(found)
    ratios = [ours / theirs for ours, theirs in zip(rates["ours"], rates["sb3"], strict=True)]
    result["end-to-end DQN, ours / Stable-Baselines3"] = statistics.median(ratios)


def main(quick: bool) -> None:
    """Print the table and a line of JSON. One CPU thread: MinAtar's networks are too small for more."""
    torch.set_num_threads(1)
    seconds, repeats = (1.0, 1) if quick else (8.0, 3)
    result = Table()
    memory(result)
    checksums(result, seconds)
    against_sb3(result, seconds, repeats)
    against_pytorch(result, seconds, repeats)
    same_in_distribution(result, *((1, 1_500) if quick else (5, 15_000)))
    same_end_to_end(result, *((2, 1_000) if quick else (9, 5_000)))
    frozen_encoder(result, seconds, repeats)
    by_seeds(result, seconds, repeats)
    against_reencoding(result, seconds, repeats)
    print(json.dumps({"benchmark": "online", "cpu_threads": 1, **result}))
