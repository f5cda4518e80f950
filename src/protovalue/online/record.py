"""Recording an agent's training as a data set, transition by transition, as the DQN replay data sets were made."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from protovalue.config import CollectConfig, DqnConfig
from protovalue.data import format as fmt
from protovalue.data.collect import collect_command as collect_random
from protovalue.data.collect import manifest_of
from protovalue.data.dataset import open_dataset
from protovalue.data.format import End
from protovalue.data.writer import DatasetWriter, EpisodeBuffer
from protovalue.envs.base import Env
from protovalue.errors import UserError

Array = NDArray[Any]


class Recorder:
    """Writes the transitions of one environment to a data set, with the training stage that each episode began in.

    The data set goes with the run's checkpoints: a run that goes on from one cuts its data set back to what was there
    then, so that every transition of the training is in it once.
    """

    def __init__(self, folder: Path, env: Env, steps: int, stages: int, seed: int) -> None:
        self._folder, self._env, self._steps, self._stages = folder, env, steps, stages
        self._source = {"by": "pvn dqn", "policy": "dqn", "seed": seed, "steps": steps, "stages": stages}
        self._writer: DatasetWriter | None = None
        self._buffer: EpisodeBuffer | None = None

    def check(self) -> None:
        """Refuse a folder with a data set that is finished or of another run."""
        if (self._folder / fmt.MANIFEST).exists():
            manifest = open_dataset(self._folder).folders[0].manifest
            ours = all({**source, "first_episode": 0} == {**self._source, "first_episode": 0}
                       for source in manifest.provenance)  # fmt: skip
            if manifest.complete or not ours:
                raise UserError(f"{self._folder}: holds a data set that this run did not begin; choose another folder")

    def open(self, keep: int) -> None:
        """Begin to write, after the first `keep` episodes that are already there."""
        if keep == 0:
            self.check()
        self._writer = DatasetWriter(self._folder, manifest_of(self._env), self._source, keep)

    def begin(self, step: int, frame: Array) -> None:
        """Start an episode at the training step `step`."""
        assert self._writer is not None
        self._buffer = self._writer.begin(frame, min(step * self._stages // self._steps, self._stages - 1))

    def add(self, action: int, reward: float, frame: Array) -> None:
        """Record a transition and the frame that it led to."""
        assert self._buffer is not None
        self._buffer.add(action, reward, frame)

    def end(self, how: End) -> None:
        """End the episode; `begin` must follow, or `close`."""
        assert self._buffer is not None
        self._buffer.end(how)

    def save(self) -> tuple[int, dict[str, Array]]:
        """Make the data set durable; return its number of episodes and the one under way, for a checkpoint."""
        assert self._writer is not None
        assert self._buffer is not None
        self._writer.commit()
        return self._writer.manifest.episodes, self._buffer.state()

    def load(self, frame: Array, state: Mapping[str, Array]) -> None:
        """Go on with the episode that was under way at a checkpoint; `frame` is any frame."""
        self.begin(0, frame)
        assert self._buffer is not None
        self._buffer.load(state)

    def close(self, complete: bool) -> None:
        """Stop writing; `complete` keeps the episode under way, marked as cut, and marks the data set as whole."""
        if self._writer is None:
            return
        if complete:
            self.end(End.CUT)
            self._writer.__exit__(None, None, None)
        else:
            self._writer.__exit__(KeyboardInterrupt, None, None)
        self._writer = None


def collect_command(config: CollectConfig) -> None:
    """Collect with a random policy, or record the training of a DQN."""
    if config.policy == "random":
        collect_random(config)
        return
    from protovalue.online.dqn import train_dqn  # it imports the Recorder

    agent = config.out.with_name(f"{config.out.name}-agent")
    dqn = DqnConfig(
        env=config.env, out=agent, data=config.out, steps=config.steps, seeds=str(config.seed), options=config.options
    )
    train_dqn(dqn)
    data = open_dataset(config.out)
    print(f"{config.out}: {data.num_transitions:,} transitions of {data.env_id} in {data.num_episodes:,} episodes")
    print(f"the agent: pvn evaluate {agent}; its stages: pvn data info {config.out}")
