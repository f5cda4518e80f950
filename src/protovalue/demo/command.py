"""`pvn demo`: the whole story in one game, from an empty folder to a report."""

from pathlib import Path

from protovalue.demo.config import DemoConfig
from protovalue.evaluate.config import EvaluateConfig
from protovalue.evaluate.episodes import evaluate_run
from protovalue.report.command import report_command
from protovalue.report.config import ReportConfig
from protovalue.report.reading import read_results
from protovalue.study.command import study_run
from protovalue.study.config import StudyRunConfig
from protovalue.tabular.command import tabular
from protovalue.tabular.config import TabularConfig

STUDY = Path(__file__).with_name("demo.toml")
JOBS = 2


def demo(config: DemoConfig) -> None:
    """Show the theory, run a small study, report on it, and film its best agent. The same command continues it."""
    out = config.out
    print("\n== The theory, exactly: proto-value functions of the four rooms", flush=True)
    tabular(TabularConfig(out=out / "four-rooms", world="four-rooms"))
    print("\n== A study: experience, three kinds of encoders, linear agents on them, evaluation", flush=True)
    study_run(StudyRunConfig(file=STUDY, out=out / "study", jobs=JOBS))
    print("\n== What came out", flush=True)
    report_command(ReportConfig(runs=(out / "study",), out=out / "report"))
    best = max(read_results([out / "study"]).cells, key=lambda cell: cell.score)
    film, played = out / "episode.gif", out / "episode.json"
    evaluate_run(EvaluateConfig(best.run, episodes=1, out=played, video=film), quiet=True)
    print(f"\nopen {out / 'report' / 'index.html'} and {out / 'four-rooms' / 'index.html'} in a browser")
    print(f"an episode of an agent on {best.method}: {film}")
