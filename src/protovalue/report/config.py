"""Settings of `pvn report` and `pvn claims`."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from protovalue.config import INPUT, PLACE, RESULT, SUBJECT, Range, Settings, require


@dataclass(frozen=True)
class ReportConfig(Settings):
    """Write tables, figures and a page about finished, evaluated runs, and print the headline numbers.

    Example: pvn report runs/minatar-main --out report

    RUNS are folders of studies and results.jsonl of other reports, side by side, or any folders of runs of `pvn online`
    and `pvn dqn`.
    `pvn report --paper` prints the aggregates of the paper's own table.
    """

    runs: Annotated[Positional[tuple[Path, ...]], INPUT] = ()
    """Folders of studies or results.jsonl of reports; or folders of runs, or folders that contain some."""
    out: Annotated[Path, PLACE] = Path("report")
    """Folder for index.html, tables/ and figures/."""
    paper: Annotated[bool, RESULT] = False
    """Print the aggregates of the paper's own table (no RUNS needed)."""
    features: Annotated[Literal["all", "first", "none"], RESULT] = "all"
    """Whose features are measured: all encoders', those of the first of each method and game, or none."""
    mds: Annotated[Literal["classical", "metric"], RESULT] = "classical"
    """How a trajectory is placed in the plane: by eigenvectors, or by lowering the stress from there."""
    draws: Annotated[int, RESULT, Range(100)] = 2_000
    """Draws of the bootstrap."""
    probes: Annotated[tuple[Path, ...], INPUT] = ()
    """Folders that `pvn probe` wrote about encoders of the runs: shown beside the returns."""
    yardstick: Annotated[Path | None, INPUT] = None
    """Folder of a study or results.jsonl: scores from its random policy (0) to its DQN (1), for runs without them."""
    env: Annotated[tuple[str, ...], SUBJECT] = ()
    """Environments gym/FILE.py:ID, gym/MODULE:ID or FILE.py/NAME of the runs, whose code is run to play their games."""
    code: Annotated[tuple[str, ...], INPUT] = ()
    """Python files of yours that the runs' encoders were made with (docs/adding-an-encoder.md)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.paper or len(self.runs) > 0, "RUNS", "none", "the folder of a study, folders of runs, or --paper")
        for one in fields(self):  # the paper's table is printed as it is
            value = getattr(self, one.name)
            good = len(self.runs) > 0 or one.name == "paper" or value == one.default
            require(good, f"--{one.name}", value, "it only with RUNS")
        drawn = self.mds == "classical" or self.features != "none"
        require(drawn, "--mds", f"{self.mds} with --features none", "some features to place in the plane")


@dataclass(frozen=True)
class ClaimsConfig(Settings):
    """Write one page and one picture of what several studies say of the paper's claims.

    Example: pvn claims runs/minatar-claims/report runs/minatar-scaling/report --out verdicts.md

    REPORTS are folders that `pvn report` wrote about studies, or claims.json of such folders.
    """

    reports: Annotated[Positional[tuple[Path, ...]], INPUT] = ()
    """Folders of reports, or their claims.json."""
    out: Annotated[Path, PLACE] = Path("claims.md")
    """The page; its picture goes into the folder images beside it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.reports) > 0, "REPORTS", "none", "folders of reports, or their claims.json")
