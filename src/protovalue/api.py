"""What `import protovalue` gives to call: a function for each stage, with the settings of its command as keywords."""

import contextlib
import io
import numbers
import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, get_origin

from protovalue import collecting
from protovalue.config import Settings, flag
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import Dataset
from protovalue.envs.options import EnvOptions
from protovalue.errors import UserError, unknown
from protovalue.evaluate.config import EvaluateConfig
from protovalue.online.config import DqnConfig, OnlineConfig, seeds_text
from protovalue.pretrain.config import PretrainConfig
from protovalue.progress import silenced
from protovalue.report.config import ReportConfig
from protovalue.schema import checked, hints_of
from protovalue.study.config import StudyRunConfig
from protovalue.user_code import user_code

C = TypeVar("C", bound=Settings)


def collect(env: str | CollectConfig | None = None, /, *, quiet: bool = False, **settings: Any) -> Dataset:
    """Collect experience, as `pvn collect` does: `collect("minatar/breakout", out="data/breakout", steps=10_000)`.

    Args:
        env: the environment, or all settings as a CollectConfig.
        quiet: no progress.
        **settings: fields of CollectConfig, and options of the environment.

    Returns:
        The data set.
    """
    config = _config(CollectConfig, env, settings, "env")
    with _stage(quiet):
        return collecting.collect_as(config, quiet)


def pretrain(config: PretrainConfig | None = None, /, *, quiet: bool = False, **settings: Any) -> Path:
    """Train an encoder, as `pvn pretrain` does: `pretrain(data="data/breakout", out="runs/pvn", tasks=50)`.

    Args:
        config: all settings, of the method's own class.
        quiet: no progress.
        **settings: fields of the method's config, such as PvnConfig; `method` is pvn if it is not given.

    Returns:
        The run's folder, for `load_encoder` and `train_online`.
    """
    from protovalue.pretrain.loop import pretrain as run
    from protovalue.pretrain.methods import method_class

    with _stage(quiet):
        kind = PretrainConfig if config is not None else method_class(str(settings.get("method", "pvn"))).Config
        return run(_config(kind, config, settings), quiet)


def train_online(config: OnlineConfig | None = None, /, *, quiet: bool = False, **settings: Any) -> Path:
    """Train linear agents on an encoder, as `pvn online` does: `train_online(encoder="runs/pvn", out="runs/online")`.

    Args:
        config: all settings.
        quiet: no progress.
        **settings: fields of OnlineConfig, and options of the environment.

    Returns:
        The run's folder, for `evaluate`.
    """
    from protovalue.online.linear_dqn import train_online as run

    with _stage(quiet):
        return run(_config(OnlineConfig, config, settings), quiet)


def train_dqn(config: DqnConfig | None = None, /, *, quiet: bool = False, **settings: Any) -> Path:
    """Train DQN end to end, as `pvn dqn` does: `train_dqn(env="minatar/breakout", out="runs/dqn")`.

    Args:
        config: all settings.
        quiet: no progress.
        **settings: fields of DqnConfig, and options of the environment.

    Returns:
        The run's folder, for `evaluate`.
    """
    from protovalue.online.dqn import train_dqn as run

    with _stage(quiet):
        return run(_config(DqnConfig, config, settings), quiet)


def evaluate(
    run: Path | str | EvaluateConfig | None = None, /, *, quiet: bool = False, **settings: Any
) -> dict[str, Any]:
    """Play episodes with the agents of a run, as `pvn evaluate` does: `evaluate("runs/online", episodes=100)`.

    Args:
        run: the run's folder, or all settings as an EvaluateConfig.
        quiet: no progress.
        **settings: fields of EvaluateConfig.

    Returns:
        What evaluation.json has: `mean_return`, and `seeds` with every return and length.
    """
    from protovalue.evaluate.episodes import evaluate_run

    config = _config(EvaluateConfig, run, settings, "run")
    with _stage(quiet):
        return evaluate_run(config, quiet)


def run_study(file: Path | str | StudyRunConfig | None = None, /, *, quiet: bool = False, **settings: Any) -> Path:
    """Run what a study file names and is not there yet, as `pvn study run` does: `run_study("mine.toml", jobs=2)`.

    Args:
        file: the study file, or all settings as a StudyRunConfig.
        quiet: nothing is printed.
        **settings: fields of StudyRunConfig.

    Returns:
        The study's folder, for `report`.
    """
    from protovalue.study.command import open_study, study_run

    config = _config(StudyRunConfig, file, settings, "file")
    with _stage(quiet):
        study_run(config)
        return open_study(config.file, config.out)[1]


def report(
    runs: Path | str | list[Path | str] | ReportConfig | None = None, /, *, quiet: bool = False, **settings: Any
) -> Path:
    """Write tables, figures and a page, as `pvn report` does: `report("runs/mine", out="report")`.

    Args:
        runs: folder of a study, or folders of runs, or all settings as a ReportConfig.
        quiet: nothing is printed.
        **settings: fields of ReportConfig.

    Returns:
        The page, index.html.
    """
    from protovalue.report.command import PAGE, report_command

    config = _config(ReportConfig, runs, settings, "runs")
    if not config.runs:
        raise UserError("runs: missing, expected folders of runs; `pvn report --paper` prints the paper's table")
    with _stage(quiet):
        report_command(config)
        return config.out / PAGE


@contextlib.contextmanager
def _stage(quiet: bool) -> Iterator[None]:
    """Run a stage: what goes wrong in the user's own files is told as theirs, and `quiet` is quiet."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(user_code())
        if quiet:
            stack.enter_context(silenced())
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        yield


def _config(kind: type[C], given: Any, settings: Mapping[str, Any], positional: str | None = None) -> C:
    """Return the settings: `given` as they are, or made of keywords, with what the command takes without a flag."""
    if isinstance(given, kind):
        if settings:
            raise UserError(f"settings: found {', '.join(settings)} beside a config, expected one or the other")
        return given
    if given is not None and positional is None:
        raise UserError(f"settings: found {type(given).__name__}, expected {kind.__name__} or keywords")
    return _from_keywords(kind, {**({} if given is None else {str(positional): given}), **settings})


def _from_keywords(kind: type[C], settings: Mapping[str, Any]) -> C:
    """Make a config of keywords: paths may be text, one of several needs no list, options stand beside the rest."""
    hints = hints_of(kind)
    own = {one.name for one in fields(EnvOptions)} if hints.get("options") is EnvOptions else set()
    known = {one.name for one in fields(kind)} | own
    values: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in known:
            raise unknown("setting", name, known - ({"options"} if own else set()))
        if name in own:
            options[name] = _plain(value)
        elif name == "seeds":
            values[name] = seeds_text(value)
        elif get_origin(hints[name]) is tuple and isinstance(value, str | os.PathLike | Dataset):
            plain = _plain(value)
            values[name] = plain if isinstance(plain, list) else (plain,)
        else:
            values[name] = _plain(value)
    for one in fields(kind):
        if one.name not in values and one.default is MISSING and one.default_factory is MISSING:
            raise UserError(f"{one.name}: missing, expected a value, as of {flag(one.name)}")
    return checked(kind, {**values, **({"options": options} if options else {})}, kind.__name__)


def _plain(value: Any) -> Any:
    """Return a value as a file would have it: paths and data sets as text, numbers of NumPy as Python's own."""
    if isinstance(value, Dataset):
        return [os.fspath(folder.path) for folder in value.folders]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, EnvOptions):
        return value.flags()
    if isinstance(value, numbers.Real) and not isinstance(value, bool | int | float):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return value
