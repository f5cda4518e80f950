"""`pvn demo`: the whole story in one game, from an empty folder to a report."""

from pathlib import Path

from protovalue.demo.config import DemoConfig
from protovalue.errors import UserError
from protovalue.evaluate.config import EvaluateConfig
from protovalue.evaluate.episodes import evaluate_run
from protovalue.files import check_place
from protovalue.report.command import report_command
from protovalue.report.config import ReportConfig
from protovalue.report.reading import read_results
from protovalue.study.command import check_folder, study_run
from protovalue.study.config import StudyRunConfig
from protovalue.study.file import load_study
from protovalue.tabular.command import tabular
from protovalue.tabular.config import TabularConfig

STUDY = Path(__file__).with_name("demo.toml")
JOBS = 2
FOLDERS = ROOMS, RUNS, REPORT = "four-rooms", "study", "report"
FILES = FILM, PLAYED = "episode.gif", "episode.json"


def demo(config: DemoConfig) -> None:
    """Show the theory, run a small study, report on it, and film its best agent. The same command continues it."""
    out = config.out
    _check_folder(out, load_study(STUDY).name)
    print("\n== The theory, exactly: proto-value functions of the four rooms", flush=True)
    tabular(TabularConfig(out=out / ROOMS, world="four-rooms"))
    print("\n== A study: experience, three kinds of encoders, linear agents on them, evaluation", flush=True)
    study_run(StudyRunConfig(file=STUDY, out=out / RUNS, jobs=JOBS))
    print("\n== What came out", flush=True)
    report_command(ReportConfig(runs=(out / RUNS,), out=out / REPORT))
    best = max(read_results([out / RUNS]).cells, key=lambda cell: cell.score)
    film, played = out / FILM, out / PLAYED
    evaluate_run(EvaluateConfig(best.run, episodes=1, out=played, video=film), quiet=True)
    print(f"\nopen {out / REPORT / 'index.html'} and {out / ROOMS / 'index.html'} in a browser")
    print(f"an episode of an agent on {best.method}: {film}")


def _check_folder(out: Path, study: str) -> None:
    """Refuse a folder that holds anything but a demo, before the first stage writes there."""
    for place in (out, *(out / name for name in FOLDERS)):
        check_place(place)
    names = sorted(path.name for path in out.iterdir()) if out.exists() else []
    others = [name for name in names if name not in FOLDERS + FILES and not name.startswith(".")]
    if others:
        raise UserError(f"--out: {out}: not empty and not a demo, found {others[0]}; choose another folder")
    check_folder(out / RUNS, study)
