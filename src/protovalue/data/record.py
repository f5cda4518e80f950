"""Recording an agent's training as a data set, transition by transition, as the DQN replay data sets were made."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue.data import format as fmt
from protovalue.data.collect import manifest_of
from protovalue.data.dataset import open_dataset
from protovalue.data.format import End
from protovalue.data.writer import DatasetWriter, EpisodeBuffer, check_empty
from protovalue.envs.base import Env
from protovalue.errors import UserError

Array = NDArray[Any]


class Recorder:
    """Writes the transitions of one environment to a data set, with the training stage that each episode began in.

    The data set goes with the run's checkpoints: a run that goes on from one cuts its data set back to what was there
    then, so that every transition of the training is in it once.
    """

    def __init__(self, folder: Path, env: Env, steps: int, iterations: int, seed: int) -> None:
        self._folder, self._env, self._steps, self._iterations = folder, env, steps, iterations
        self._source = {"by": "pvn dqn", "policy": "dqn", "seed": seed, "steps": steps, "stages": iterations}
        self._writer: DatasetWriter | None = None
        self._buffer: EpisodeBuffer | None = None

    def check(self, keep: int | None = None, finished: bool = False) -> None:
        """Refuse a folder with a data set of another run, or with less than the `keep` episodes of a checkpoint.

        To begin (None), a data set that is finished is refused too; of a `finished` run it must be there.
        """
        manifest = open_dataset(self._folder).folders[0].manifest if (self._folder / fmt.MANIFEST).exists() else None
        ours = manifest is None or manifest.provenance == [{**self._source, "first_episode": 0}]
        begun = keep is not None or finished
        if not ours or (not begun and manifest is not None and manifest.complete):
            raise UserError(f"{self._folder}: holds a data set that this run did not begin; choose another folder")
        if finished and manifest is None:
            raise UserError(f"{self._folder}: not the data set of this run, which is finished; choose another folder")
        if not begun:
            check_empty(self._folder)
        found = manifest.episodes if manifest else 0
        if keep and found < keep:
            raise UserError(f"{self._folder}: found {found} episodes, expected the {keep} that the run has recorded")

    def open(self) -> None:
        """Begin to write."""
        self.check()
        self._writer = DatasetWriter(self._folder, manifest_of(self._env), self._source, 0)

    def resume(self, keep: int, state: Mapping[str, Array]) -> None:
        """Go back to what `save` returned at a checkpoint: after `keep` episodes, and within the one under way."""
        self.check(keep)
        self._writer = DatasetWriter(self._folder, manifest_of(self._env), self._source, keep)
        self.begin(0, np.zeros(self._env.frame_shape, self._env.single_observation_space.dtype))
        assert self._buffer is not None
        self._buffer.load(state)

    def begin(self, step: int, frame: Array) -> None:
        """Start an episode at the training step `step`."""
        assert self._writer is not None
        self._buffer = self._writer.begin(frame, step * self._iterations // self._steps)

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
