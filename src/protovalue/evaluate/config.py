"""Settings of `pvn evaluate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from protovalue.config import COUNT, INPUT, NOT_NEGATIVE, PLACE, PROBABILITY, RESULT, SUBJECT, Settings, require


@dataclass(frozen=True)
class EvaluateConfig(Settings):
    """Play complete episodes with the agents of a run and write every return and length.

    Example: pvn evaluate runs/online --episodes 100 --video episode.gif
    """

    run: Annotated[Positional[Path], INPUT]
    """Folder of a run of `pvn online` or `pvn dqn`."""
    episodes: Annotated[int, RESULT, COUNT] = 100
    """Episodes of each seed."""
    epsilon: Annotated[float, RESULT, PROBABILITY] = 0.001
    """Probability of a random action."""
    num_envs: Annotated[int | None, SUBJECT] = None
    """Environments of each seed that are stepped together, at most one per episode [10, if there are so many]."""
    seed: Annotated[int, RESULT, NOT_NEGATIVE] = 0
    """Seed of the evaluation: other seeds play other episodes."""
    out: Annotated[Path | None, PLACE] = None
    """File for the result [evaluation.json in the run folder, unless that has more episodes]."""
    video: Annotated[Path | None, PLACE] = None
    """Also write an animated GIF of the first seed's first episode to this file, NAME.gif."""
    env: Annotated[str | None, SUBJECT] = None
    """The run's environment; for gym/FILE.py:ID, gym/MODULE:ID and FILE.py/NAME, whose code is run if named here."""
    code: Annotated[tuple[str, ...], INPUT] = ()
    """Python files of yours that the run's encoder was made with (docs/adding-an-encoder.md)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        found, most = self.num_envs, self.episodes
        require(found is None or 1 <= found <= most, "--num-envs", found, f"1 to {most}, as many as episodes")
        named = self.video is None or self.video.suffix.lower() == ".gif"
        require(named, "--video", self.video, "a name that ends in .gif: no other kind of video is written")
