"""Settings of `pvn study`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from protovalue.config import COUNT, INPUT, MACHINE, NOT_NEGATIVE, PLACE, Only, Settings, require

RETRIES = 3


@dataclass(frozen=True)
class StudyRunConfig(Settings):
    """Run a study: everything that its file names and that is not there yet.

    Example: pvn study run studies/minatar-main.toml --jobs 2

    The same command continues an interrupted study. docs/studies.md explains study files.
    """

    file: Annotated[Positional[Path], INPUT]
    """The study file (TOML)."""
    out: Annotated[Path | None, PLACE] = None
    """Folder of the study [runs/NAME]."""
    jobs: Annotated[int | None, MACHINE, COUNT] = None
    """Most stages at the same time, each in a process of its own [1; on a cluster as many as it takes]."""
    engine: Annotated[Literal["local", "ray", "slurm"], MACHINE] = "local"
    """Where stages run: on this machine, on a Ray cluster, or as jobs of SLURM (docs/clusters.md)."""
    ray_address: Annotated[str | None, MACHINE] = None
    """Address of the Ray cluster, HOST:PORT (ray only) [RAY_ADDRESS, or the one that this machine is in]."""
    partition: Annotated[str | None, MACHINE] = None
    """Partition of SLURM (slurm only) [its default]."""
    account: Annotated[str | None, MACHINE] = None
    """Account that SLURM charges (slurm only) [its default]."""
    slurm: Annotated[tuple[str, ...], MACHINE] = ()
    """More options of sbatch, as KEY=VALUE (slurm only): --slurm qos=long constraint=a100."""
    retries: Annotated[int, MACHINE, NOT_NEGATIVE] = RETRIES
    """How often a job that is lost without a new checkpoint is tried again (ray and slurm)."""

    def dependent(self) -> dict[str, Only]:
        """Return what belongs to one engine alone."""
        slurm = Only(self.engine == "slurm", "nothing without --engine slurm")
        return {
            "ray_address": Only(self.engine == "ray", "nothing without --engine ray"),
            "partition": slurm,
            "account": slurm,
            "slurm": Only(slurm.applies, slurm.needs, ()),
            "retries": Only(self.engine != "local", "nothing with --engine local, which loses no jobs", RETRIES),
        }


@dataclass(frozen=True)
class StudyStopConfig(Settings):
    """Let all running stages of a study write a checkpoint and end, from any machine that sees its folder.

    Example: pvn study stop runs/minatar-main

    `pvn study run` goes on where they ended.
    """

    study: Annotated[Positional[Path], INPUT]
    """The study file (TOML), or the folder of the study."""
    out: Annotated[Path | None, PLACE] = None
    """Folder of the study, where a file is given [runs/NAME]."""


@dataclass(frozen=True)
class StudyStatusConfig(Settings):
    """Print how far a study is: what is done, running, failed and missing, and the time it took.

    Example: pvn study status studies/minatar-main.toml
    """

    file: Annotated[Positional[Path], INPUT]
    """The study file (TOML)."""
    out: Annotated[Path | None, PLACE] = None
    """Folder of the study [runs/NAME]."""


@dataclass(frozen=True)
class StudyPlanConfig(Settings):
    """Print every stage of a study with its estimated time on this machine, and what all of it costs.

    Example: pvn study plan studies/minatar-main.toml --jobs 2

    Times come from finished stages of the study or from short runs on this machine, which are remembered.
    With --on it says what the study takes on a device that is not here: docs/gpu.md.
    """

    file: Annotated[Positional[Path], INPUT]
    """The study file (TOML)."""
    out: Annotated[Path | None, PLACE] = None
    """Folder of the study [runs/NAME]."""
    jobs: Annotated[int, MACHINE, COUNT] = 1
    """Stages that will run at the same time."""
    measure: Annotated[Literal["auto", "again", "no"], MACHINE] = "auto"
    """Short runs for the rates that are not known yet (auto), for all of them (again), or none."""
    commands: Annotated[bool, MACHINE] = False
    """Also print the command of every stage."""
    on: Annotated[str | None, MACHINE] = None
    """Price it on other hardware, from shapes and not from times: a100, h100, cpu2, or a TOML file of yours."""
    devices: Annotated[int | None, MACHINE, COUNT] = None
    """How many such devices run stages at the same time (with --on) [1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on is None:
            require(self.devices is None, "--devices", self.devices, "it with --on only; here it is --jobs")
        else:
            require(self.jobs == 1, "--jobs", self.jobs, "--devices with --on")
            require(self.measure == "auto", "--measure", self.measure, "it without --on only: nothing is measured")
