"""Settings of `pvn evaluate`."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from protovalue.config import require


@dataclass(frozen=True)
class EvaluateConfig:
    """Play complete episodes with the agents of a run and write every return and length.

    Example: pvn evaluate runs/online --episodes 100 --video episode.gif
    """

    run: Positional[Path]
    """Folder of a run of `pvn online` or `pvn dqn`."""
    episodes: int = 100
    """Episodes of each seed."""
    epsilon: float = 0.001
    """Probability of a random action."""
    num_envs: int | None = None
    """Environments of each seed that are stepped together, at most one per episode [10, if there are so many]."""
    seed: int = 0
    """Seed of the evaluation: other seeds play other episodes."""
    out: Path | None = None
    """File for the result; None is evaluation.json in the run folder."""
    video: Path | None = None
    """Also write an animated GIF of the first seed's first episode to this file."""
    env: str | None = None
    """The run's environment; needed for gym/MODULE:ID and FILE.py/NAME only, whose code is run if it is named here."""
    code: tuple[str, ...] = ()
    """Python files of yours that the run's encoder was made with (docs/adding-an-encoder.md)."""

    def __post_init__(self) -> None:
        require(self.episodes >= 1, "--episodes", self.episodes, "at least 1")
        found, most = self.num_envs, self.episodes
        require(found is None or 1 <= found <= most, "--num-envs", found, f"1 to {most}, as many as episodes")
        require(0 <= self.epsilon <= 1, "--epsilon", self.epsilon, "between 0 and 1")
        require(self.seed >= 0, "--seed", self.seed, "0 or more")
