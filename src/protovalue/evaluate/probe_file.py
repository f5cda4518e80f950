"""The file that `pvn probe` writes, and how it is read back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protovalue.errors import UserError
from protovalue.files import read_json
from protovalue.schema import checked, require

RESULT = "probe.json"
FORMAT: Literal["protovalue probe"] = "protovalue probe"
VERSION: Literal[4] = 4
FeatureScale = Literal["whitened", "rms"]
Kind = Literal["F1", "area"]
KINDS: tuple[Kind, ...] = ("F1", "area")


@dataclass(frozen=True)
class Scores:
    """How well each variable is read."""

    f1: list[float]
    """Weighted F1 of the answers."""
    area: list[float]
    """Area under the curve, mean over classes: of the order in which states are put."""

    def of(self, kind: Kind) -> list[float]:
        """Return the scores of one kind."""
        return self.f1 if kind == "F1" else self.area


@dataclass(frozen=True)
class Probed:
    """The scores of one encoder, or of what encoders are compared with."""

    method: str
    encoder: str
    checksum: str | None
    """Of the encoder's parameters; None of what is not an encoder."""
    scores: Scores


@dataclass(frozen=True)
class Variable:
    """What is read: a column of labels."""

    name: str
    category: str


@dataclass(frozen=True)
class ProbeFile:
    """All scores in one environment."""

    format: Literal["protovalue probe"]
    version: Literal[4]
    env: str
    feature_scale: FeatureScale
    """How features were scaled before they were read."""
    states: dict[str, int]
    """How many trained, stopped and judged the readouts."""
    variables: list[Variable]
    probed: list[Probed]

    def __post_init__(self) -> None:
        require(len(self.variables) > 0, "variables", "none", "at least one")
        for place, one in enumerate(self.probed):
            for name, found in (("f1", one.scores.f1), ("area", one.scores.area)):
                field = f"probed[{place}].scores.{name}"
                require(len(found) == len(self.variables), field, len(found), "one for each variable")

    @property
    def categories(self) -> dict[str, list[int]]:
        """The numbers of the variables of each category."""
        found: dict[str, list[int]] = {}
        for place, variable in enumerate(self.variables):
            found.setdefault(variable.category, []).append(place)
        return found

    def by_category(self, probed: Probed, kind: Kind) -> NDArray[np.float64]:
        """Return mean scores over the variables of each category."""
        found = probed.scores.of(kind)
        return np.array([np.mean([found[place] for place in own]) for own in self.categories.values()])


def read_probe(folder: Path) -> ProbeFile:
    """Read what `pvn probe` wrote into a folder."""
    path = folder / RESULT if folder.is_dir() else folder
    if not path.is_file():
        raise UserError(f"{folder}: found no {RESULT}, expected a folder that pvn probe wrote")
    return checked(ProbeFile, read_json(path), path)
