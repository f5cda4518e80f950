"""Settings of `pvn push` and `pvn zoo make`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from protovalue.config import INPUT, NOT_NEGATIVE, PLACE, RESULT, SEED, Settings, require


@dataclass(frozen=True, kw_only=True)
class PushConfig(Settings):
    """Publish an encoder on the Hugging Face Hub: its two files, results, a picture and a model card, in one commit.

    Example: pvn push runs/pvn hf://me/breakout-pvn --license apache-2.0 --runs runs/online

    Needs the package huggingface_hub (extra `hub`) and a token that may write (`hf auth login`, or HF_TOKEN).
    """

    encoder: Annotated[Positional[str], INPUT]
    """Pretraining run, encoder folder or zoo:NAME."""
    to: Annotated[Positional[str], PLACE]
    """Repository, hf://ORG/NAME; it is made if it is not there."""
    license: Annotated[str, RESULT]
    """Licence of the encoder, as the Hub names it: apache-2.0, mit, cc-by-4.0 ..."""
    runs: Annotated[tuple[Path, ...], INPUT] = ()
    """Evaluated runs of `pvn online` on this encoder, whose returns the card shows."""
    picture: Annotated[Path | None, INPUT] = None
    """A PNG file for the card, in place of the one that is drawn of random play in the encoder's environment."""
    private: Annotated[bool, RESULT] = False
    """Make the repository visible to its owner only, if it is made now."""

    def __post_init__(self) -> None:
        super().__post_init__()
        good = re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", self.license) is not None
        require(good, "--license", repr(self.license), "a name such as apache-2.0")


@dataclass(frozen=True, kw_only=True)
class ZooMakeConfig(Settings):
    """Pack encoders of a finished study into a zoo: for every game, the methods that are named, of one seed.

    Example: pvn zoo make runs/minatar-claims --methods pvn pvn-max --out src/protovalue/zoo/encoders

    A zoo is a folder; PROTOVALUE_ZOO names another one than the package's own. One that is there already is replaced.
    """

    study: Annotated[Positional[Path], INPUT]
    """Folder of the study."""
    methods: Annotated[tuple[str, ...], RESULT]
    """Methods, as the study file calls them."""
    out: Annotated[Path, PLACE]
    """Folder of the zoo."""
    seed: Annotated[int, SEED, NOT_NEGATIVE] = 0
    """Pretraining seed of the encoders."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.methods) > 0, "--methods", "none", "names of the study's methods")
        twice = next((one for one in self.methods if self.methods.count(one) > 1), None)
        require(twice is None, "--methods", f"{twice} twice", "each method once")
