"""Collecting experience: a vector of environments, a policy, a data set."""

import math
import sys
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protovalue.data import format as fmt
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import Array, Dataset, Folder, open_dataset
from protovalue.data.format import End, Manifest
from protovalue.data.writer import DatasetWriter
from protovalue.envs.base import Env
from protovalue.envs.registry import import_module_of, make
from protovalue.errors import UserError
from protovalue.interrupt import stop_on_interrupt
from protovalue.progress import ProgressBar
from protovalue.randomness import collection_seeds
from protovalue.schema import FieldError


class Policy(Protocol):
    """Chooses actions (N,) for stacked observations (N, stack, *frame_shape)."""

    def __call__(self, obs: Array) -> NDArray[np.int64]:
        """Return one action per environment."""
        ...


class RandomPolicy:
    """Uniformly random actions: the policy whose successor measure the paper learns."""

    def __init__(self, num_actions: int, rng: np.random.Generator) -> None:
        self._num_actions, self._rng = num_actions, rng

    def __call__(self, obs: Array) -> NDArray[np.int64]:
        """Draw one action per environment."""
        return self._rng.integers(self._num_actions, size=len(obs))


def manifest_of(env: Env) -> Manifest:
    """Return the manifest of an empty data set of this environment."""
    dtype = env.single_observation_space.dtype
    try:
        return Manifest(
            env_id=env.env_id,
            env_options=env.options,
            frame_shape=env.frame_shape,
            frame_dtype="bool" if dtype == np.bool_ else "uint8",
            stack=env.stack,
            num_actions=env.num_actions,
            chunk_frames=fmt.default_chunk_frames(math.prod(env.frame_shape)),  # a byte per value, uint8 or bool
        )
    except FieldError as error:
        raise UserError(f"{env.env_id}: {error}") from error


def shape_note(manifest: Manifest) -> str:
    """Say that frames are no images, which no encoder of ours can take; nothing if they are."""
    shape = manifest.frame_shape
    if len(shape) in (2, 3):
        return ""
    return (
        f"{manifest.env_id}: a frame has the shape {shape}, not (H, W) or (H, W, C): only an encoder of your own can "
        "learn from it (docs/adding-an-encoder.md), none of the package's"
    )


def _standing(config: CollectConfig, done: int, parts: int) -> str:
    """Say where a collection goes on, or that it has all it needs; nothing for one that begins."""
    if not parts:
        return ""
    if done >= config.steps:
        return f"{config.out}: has {done:,} transitions already; it is left as it is"
    return f"{config.out}: continuing at step {done:,} of {config.steps:,}"


def collect(config: CollectConfig, quiet: bool = False) -> Dataset:
    """Collect `config.steps` transitions into `config.out`, or continue there; return the data set.

    Every continuation starts new episodes with new seeds, derived from (seed, number of continuations).
    Episodes under way at the end are kept and marked as cut.
    """
    if config.policy != "random":
        raise ValueError(f"collect runs the random policy only, found {config.policy}")
    num_envs = config.num_envs or 16
    import_module_of(config.env)
    env = make(config.env, num_envs, **config.options.given())
    manifest = manifest_of(env)
    done, parts = _already(config, manifest)
    if not quiet:
        for line in (shape_note(manifest), _standing(config, done, parts)):
            if line:
                print(line, file=sys.stderr)
    if done >= config.steps:
        return completed(config.out)
    seeds, generator = collection_seeds(config.seed, parts, num_envs)
    policy = RandomPolicy(env.num_actions, generator)
    source = {"by": "pvn collect", "policy": config.policy, "seed": config.seed, "part": parts, "steps": config.steps}
    obs, _ = env.reset(seed=seeds)
    with (
        DatasetWriter(config.out, manifest, source, discard_empty=True) as writer,
        ProgressBar(f"collect {config.env}", config.steps, "steps", done, quiet) as bar,
        stop_on_interrupt() as stop,
    ):
        buffers = [writer.begin(obs[i, -1]) for i in range(num_envs)]
        while done < config.steps and not stop.requested:
            actions = policy(obs)
            obs, rewards, terminated, truncated, info = env.step(actions)
            count = min(num_envs, config.steps - done)  # the last step may need only some of the environments
            frames, ended = obs[:, -1], (terminated | truncated).tolist()
            # Lists: numbers of Python's are taken from them quicker than from arrays.
            for i, action, reward in zip(range(count), actions.tolist(), rewards.tolist(), strict=False):
                if ended[i]:
                    buffers[i].add(action, reward, info["final_obs"][i, -1])
                    buffers[i].end(End.TERMINATED if terminated[i] else End.TRUNCATED)
                    buffers[i] = writer.begin(frames[i])
                else:
                    buffers[i].add(action, reward, frames[i])
            done += count
            bar.advance(count)
        for buffer in buffers:
            buffer.end(End.CUT)
        env.close()
    if stop.requested and done < config.steps:
        raise stop.error()
    return open_dataset(config.out)


def completed(path: Path) -> Dataset:
    """Open a data set to which nothing is to be added, and mark it complete if its writer could not do that."""
    manifest = Folder(path).manifest
    if not manifest.complete:
        with DatasetWriter(path, manifest, manifest.provenance[-1]):
            pass
    return open_dataset(path)


def _already(config: CollectConfig, wanted: Manifest) -> tuple[int, int]:
    """Return how many transitions the folder has and how many times it was written to."""
    if not (config.out / fmt.MANIFEST).exists():
        return 0, 0
    manifest = Folder(config.out).manifest
    manifest.check_same_kind(wanted, config.out)
    for source in manifest.provenance:
        for name in ("policy", "seed"):
            if source.get(name) != getattr(config, name):
                raise UserError(
                    f"--{name}: found {getattr(config, name)}, expected {source.get(name)}: "
                    f"{config.out} was collected with that; another {name} needs another folder"
                )
    return manifest.transitions, len(manifest.provenance)
