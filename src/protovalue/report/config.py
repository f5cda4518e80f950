"""Settings of `pvn report`."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from protovalue.config import require


@dataclass(frozen=True)
class ReportConfig:
    """Write tables, figures and a page about finished, evaluated runs, and print the headline numbers.

    Example: pvn report runs/minatar-main --out report

    RUNS is the folder of one study, or any folders of runs of `pvn online` and `pvn dqn`.
    `pvn report --paper` prints the aggregates of the paper's own table.
    """

    runs: Positional[tuple[Path, ...]] = ()
    """Folder of a study, or folders of runs, or folders that contain some."""
    out: Path = Path("report")
    """Folder for index.html, tables/ and figures/."""
    paper: bool = False
    """Print the aggregates of the paper's own table (no RUNS needed)."""
    features: Literal["all", "first", "none"] = "all"
    """Whose features are measured: all encoders', those of the first of each method and game, or none."""
    mds: Literal["classical", "metric"] = "classical"
    """How a trajectory is placed in the plane: by eigenvectors, or by lowering the stress from there."""
    draws: int = 2_000
    """Draws of the bootstrap."""
    env: tuple[str, ...] = ()
    """Environments gym/MODULE:ID or FILE.py/NAME of the runs, whose code is run so that their games can be played."""
    code: tuple[str, ...] = ()
    """Python files of yours that the runs' encoders were made with (docs/adding-an-encoder.md)."""

    def __post_init__(self) -> None:
        require(self.draws >= 100, "--draws", self.draws, "at least 100")
        require(self.paper or len(self.runs) > 0, "RUNS", "none", "the folder of a study, folders of runs, or --paper")
        for one in fields(self):  # the paper's table is printed as it is
            value = getattr(self, one.name)
            good = len(self.runs) > 0 or one.name == "paper" or value == one.default
            require(good, f"--{one.name}", value, "it only with RUNS")
        drawn = self.mds == "classical" or self.features != "none"
        require(drawn, "--mds", f"{self.mds} with --features none", "some features to place in the plane")
