"""Settings of `pvn probe`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from protovalue.config import COUNT, INPUT, NOT_NEGATIVE, PLACE, RESULT, SUBJECT, Settings, require
from protovalue.evaluate.probe_file import FeatureScale


@dataclass(frozen=True)
class ProbeConfig(Settings):
    """Read what is true of a state linearly from frozen features, and print how well that goes.

    Example: pvn probe runs/pvn-0 runs/pvn-1 --out probe-pvn

    Atari: bytes of the console's RAM, by the protocol of the AtariARI benchmark. MinAtar: what is beside the player and
    where things are. --player DATA: the action that a player took, and the sign of what it got.
    """

    encoders: Annotated[Positional[tuple[str, ...]], INPUT] = ()
    """Folders of pretraining runs or encoders, or random:ARCHITECTURE:WIDTH[:SEED]."""
    out: Annotated[Path, PLACE] = Path("probe")
    """Folder for probe.json and the tables."""
    env: Annotated[str | None, SUBJECT] = None
    """The environment to play [that of the first encoder]."""
    player: Annotated[Path | None, INPUT] = None
    """Data set of a player whose actions and rewards are read, in place of states of a random policy."""
    states: Annotated[int, RESULT, COUNT] = 20_000
    """States; the benchmark has 50,000."""
    random: Annotated[int, RESULT, NOT_NEGATIVE] = 3
    """Random initialisations of each architecture that are probed beside the encoders."""
    supervised: Annotated[int, RESULT, NOT_NEGATIVE] = 0
    """Epochs of a network of the same shape that is trained end to end on the labels; 0 is none."""
    feature_scale: Annotated[FeatureScale, RESULT] = "whitened"
    """Give all directions of the features the same variance (whitened), or divide them by one number (rms)."""
    epochs: Annotated[int, RESULT, COUNT] = 100
    """Most epochs of a readout."""
    seed: Annotated[int, RESULT, NOT_NEGATIVE] = 0
    """Seed of the states, of the cut by episodes and of the readouts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.encoders) > 0, "ENCODERS", "none", "folders of pretraining runs, or random:ARCHITECTURE:WIDTH")
