"""Playing complete episodes with trained agents: exactly N per seed, whatever their lengths."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from protovalue.data.info import picture
from protovalue.device import choose_threads, with_threads
from protovalue.envs.base import Env
from protovalue.envs.registry import import_module_of, make, same
from protovalue.errors import UserError
from protovalue.evaluate.config import EvaluateConfig
from protovalue.files import beside, check_place, read_json, write_json
from protovalue.online import dqn, linear_dqn
from protovalue.online.agent import Agent
from protovalue.online.config import DqnConfig, OnlineConfig
from protovalue.online.draws import Draws
from protovalue.online.loop import own_tensors
from protovalue.presets import resolved
from protovalue.progress import ProgressBar
from protovalue.randomness import Purpose, environment_seed
from protovalue.registry import load_code
from protovalue.runs import config_from, read_checkpoint, read_run, restoring

VIDEO_FRAMES = 3_000  # most frames of a video
EVALUATION = "evaluation.json"  # in the run folder
FORMAT, VERSION = "protovalue evaluation", 1


@dataclass(frozen=True)
class Played:
    """The episodes of one seed, in a fixed order that does not depend on their lengths."""

    returns: list[float]
    """Sums of raw rewards."""
    lengths: list[int]
    """Agent steps."""


class Quotas:
    """Which episodes count: environment e plays `quota[e]` of them, fixed before the first step.

    Counting the first N episodes that end would prefer short ones: while a long one is played in one environment,
    many short ones end in the others. A quota makes every episode that is begun count, until the environment has
    played its share.
    """

    def __init__(self, episodes: int, num_envs: int) -> None:
        share, rest = divmod(episodes, num_envs)
        self.quota = np.full(num_envs, share)
        self.quota[:rest] += 1
        self.returns: list[list[float]] = [[] for _ in range(num_envs)]
        self.lengths: list[list[int]] = [[] for _ in range(num_envs)]
        self._return, self._length = np.zeros(num_envs), np.zeros(num_envs, np.int64)

    @property
    def open(self) -> NDArray[np.bool_]:
        """Which environments (E,) have episodes left to play."""
        return np.array([len(done) for done in self.returns]) < self.quota

    def add(self, rewards: NDArray[Any], ended: NDArray[np.bool_]) -> int:
        """Count a step of every environment; return how many episodes it completed."""
        self._return += rewards
        self._length += 1
        if not ended.any():
            return 0
        counted = np.flatnonzero(ended & self.open)
        for e in counted:
            self.returns[e].append(float(self._return[e]))
            self.lengths[e].append(int(self._length[e]))
        self._return[ended], self._length[ended] = 0.0, 0
        return len(counted)

    def played(self) -> Played:
        """Return the episodes, environment by environment."""
        return Played([r for done in self.returns for r in done], [n for done in self.lengths for n in done])


def play(
    env: Env,
    agent: Agent,
    seeds: Sequence[int],
    episodes: int,
    epsilon: float,
    seed: int = 0,
    film: list[NDArray[Any]] | None = None,
    quiet: bool = False,
) -> list[Played]:
    """Play `episodes` complete episodes with each of S agents.

    Args:
        env: S * E environments: E of each agent in turn.
        agent: S agents.
        seeds: the agents' seeds, from which those of their environments and of their exploration are derived.
        episodes: of each agent.
        epsilon: probability of a random action.
        seed: of the evaluation; another one plays other episodes.
        film: takes the frames of the first agent's first episode.
        quiet: no progress.
    """
    each = env.num_envs // len(seeds)
    derived = [[environment_seed(one, Purpose.EVALUATION, seed, e) for e in range(each + 1)] for one in seeds]
    explore = Draws([last for *_, last in derived], Purpose.PLAY, 2 * each)
    obs, _ = env.reset(seed=[one for *environments, _ in derived for one in environments])
    quotas = [Quotas(episodes, each) for _ in seeds]
    step, filming = 0, film is not None
    label = with_threads(f"evaluate {env.env_id}")
    with ProgressBar(label, episodes * len(seeds), "episodes", quiet=quiet) as bar:
        while any(quota.open.any() for quota in quotas):
            if film is not None and filming:
                film.append(obs[0, -1].copy())
            uniform = explore(step).reshape(len(seeds), 2, each)
            greedy = agent.values(agent.see(obs)).argmax(dim=-1).cpu().numpy()  # (S, E)
            anything = (uniform[:, 1] * agent.num_actions).astype(np.int64)
            actions = np.where(uniform[:, 0] < epsilon, anything, greedy).reshape(-1)
            obs, rewards, terminated, truncated, info = env.step(actions)
            ended = terminated | truncated
            if film is not None and filming and (ended[0] or len(film) == VIDEO_FRAMES - 1):
                film.append(info["final_obs"][0, -1].copy() if ended[0] else obs[0, -1].copy())
                filming = False
            split = (part.reshape(len(seeds), each) for part in (rewards, ended))
            bar.advance(sum(quota.add(r, e) for quota, r, e in zip(quotas, *split, strict=True)))
            step += 1
    return [quota.played() for quota in quotas]


def load_agent(run: Path, num_envs: int) -> tuple[Env, Agent, tuple[int, ...], int]:
    """Load the agents of a run: `num_envs` environments per seed, the agents, their seeds and the steps they took.

    The environment that the run names must be registered: a module that a file names is not imported.
    """
    most = torch.get_num_threads()  # before those of the training are set
    recorded = read_run(run)["config"]
    kind = recorded.get("kind")
    if kind == "online":
        online = config_from(OnlineConfig, recorded, out=run)
        online = resolved(online, online.env)
        env, agent, now = linear_dqn.prepare(online)
        seeds = online.seed_list()
        if now["encoder_checksum"] != recorded.get("encoder_checksum"):
            raise UserError(f"{run}: {online.encoder} is not the encoder that the run was trained on any more")
    elif kind == "dqn":
        config = config_from(DqnConfig, recorded, out=run)
        config = resolved(config, config.env)
        env, agent, _ = dqn.prepare(config)
        seeds = config.seed_list()
    else:
        raise UserError(f"{run}: not a run of pvn online or pvn dqn")
    env.close()
    checkpoint = read_checkpoint(run)
    with restoring(checkpoint):
        agent.load(own_tensors(checkpoint.tensors), checkpoint.state["updates"])
    choose_threads(None, lambda: agent.flops(num_envs), most)
    return make(env.env_id, num_envs * len(seeds), **env.options), agent, seeds, checkpoint.step


def evaluate_run(config: EvaluateConfig, quiet: bool = False) -> dict[str, Any]:
    """Play episodes with the agents of a run, write the result and return it."""
    if config.env is not None:
        _import_environment(config.env, config.run)
    for path in config.code:
        load_code(path)
    for named, place in (("--out", config.out), ("--video", config.video)):
        if place is not None:
            check_place(place.parent)
            if place.is_dir():
                raise UserError(f"{named}: found a folder {place}, expected the name of a file")
    each = config.num_envs or min(10, config.episodes)
    env, agent, seeds, steps = load_agent(config.run, each)
    if agent.updates == 0 and not quiet:
        print(f"{config.run}: its agents have made no update: they play as they were drawn", file=sys.stderr)
    film: list[NDArray[Any]] | None = [] if config.video else None
    played = play(env, agent, seeds, config.episodes, config.epsilon, config.seed, film, quiet)
    env.close()
    means = [float(np.mean(one.returns)) for one in played]
    result: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "env": env.env_id,
        "env_options": env.options,
        "steps": steps,
        "episodes": config.episodes,
        "epsilon": config.epsilon,
        "seed": config.seed,
        "mean_return": float(np.mean(means)),
        "seeds": [
            {"seed": seed, "mean_return": mean, "returns": one.returns, "lengths": one.lengths}
            for seed, mean, one in zip(seeds, means, played, strict=True)
        ],
    }
    if kept_instead(config, steps) is None:
        file = config.out or config.run / EVALUATION
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, result)
    if config.video and film:
        write_gif(config.video, film)
    return result


def kept_instead(config: EvaluateConfig, steps: int) -> int | None:
    """Return the episodes of the evaluation that is there already, if it is of the same agents and has more of them.

    It is worth more than the new one, which may have been for its video only. A file that was named is always written.
    """
    path = config.run / EVALUATION
    if config.out is not None or not path.is_file():
        return None
    try:
        before = read_json(path)
    except UserError:  # damaged: no loss
        return None
    episodes = before.get("episodes")
    better = before.get("steps") == steps and isinstance(episodes, int) and episodes > config.episodes
    return episodes if better else None


def _import_environment(given: str, run: Path) -> None:
    """Import the module of the environment that the user gave, which must be the run's own."""
    recorded = read_run(run)["config"].get("env")
    if not isinstance(recorded, str) or not same(given, recorded):
        raise UserError(f"--env: found {given}, expected {recorded} of {run}")
    import_module_of(given)


def evaluate_command(config: EvaluateConfig) -> None:
    """Evaluate, and print a line per seed."""
    result = evaluate_run(config)
    kept = kept_instead(config, result["steps"])
    episodes = f"{config.episodes:,} episode{'s' * (config.episodes != 1)} per seed"
    print(f"{result['env']}, {result['steps']:,} agent steps, {episodes}")
    print(f"{'seed':>6} {'mean return':>12} {'standard error':>15} {'mean length':>12}")
    for row in result["seeds"]:
        count = len(row["returns"])
        error = f"{np.std(row['returns'], ddof=1) / np.sqrt(count):.2f}" if count > 1 else "-"  # one says nothing of it
        print(f"{row['seed']:>6} {row['mean_return']:>12.2f} {error:>15} {np.mean(row['lengths']):>12.1f}")
    print(f"{'mean':>6} {result['mean_return']:>12.2f}")
    if kept is None:
        print(f"every return: {config.out or config.run / EVALUATION}")
    else:
        file = config.run / EVALUATION
        print(f"not written: {file} has {kept:,} episodes and is kept; --out FILE writes these to another file")
    if config.video:
        print(f"video: {config.video}")


def write_gif(path: Path, frames: Sequence[NDArray[Any]], size: int = 240, milliseconds: int = 60) -> None:
    """Write frames as an animated GIF, `size` pixels wide."""
    images = [picture(frame) for frame in frames]
    smooth = Image.Resampling.BILINEAR if images[0].width >= 64 else Image.Resampling.NEAREST
    height = max(1, round(size * images[0].height / images[0].width))
    images = [image.resize((size, height), smooth) for image in images]
    path.parent.mkdir(parents=True, exist_ok=True)
    durations = [milliseconds] * (len(images) - 1) + [1_000]
    with beside(path) as new:
        images[0].save(new, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)
