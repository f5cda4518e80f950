"""Every command and every snippet of all pages of the site is run: in its order, in an empty folder per document.

A reader's machine has hours, clouds and files of its own; a test has seconds. What is different here stands in the
tables below and nowhere else, and a command that none of them makes possible fails:

- SMALLER is appended to every command of its kind; the last of two equal flags counts. Examples are run with --quick.
- FILLED stands for the names in capitals that a reader fills in.
- INSTEAD is replaced in a block before it is run: clouds by files of the same format, and numbers in Python.
- GIVEN is made before a document is run, because it takes it for granted.
- Studies are the shipped files with fewer games, methods and steps, and run in this process.
- A command that takes long and stands in several documents is run in the first of them.
- ELSEWHERE are blocks and commands that another test runs, and EXEMPT those that no test can.
"""

import ast
import contextlib
import io
import json
import re
import runpy
import shlex
import shutil
import sys
import tarfile
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from huggingface_hub import HfFileSystem

from protovalue import __version__, cli
from protovalue.bench import benchmarks
from protovalue.cli import COMMANDS, main
from protovalue.data.dataset import open_dataset
from protovalue.errors import UserError
from protovalue.flags import parse
from protovalue.pretrain.method_configs import CONFIGS
from protovalue.pretrain.methods import method_class, method_names
from protovalue.registry import REGISTRIES
from protovalue.study import command as study_command
from protovalue.study.file import load_study
from protovalue.study.profile import load_profile
from tests.data.published import Ring, atari_episode, write_atari, write_rlu
from tests.data.test_import_minari import name_environment, write_minari
from tests.documents import DOCUMENTS, ROOT, Block, blocks, commands, inline, sentences, text_of
from tests.hub_server import connected
from tests.options.world import InTurn

TRAINED = "--steps 2 --batch-size 8"
LEARNED = [name for name in method_names() if name != "random"]
SMALLER = {
    "collect": "--steps 200",
    "data info": "",
    "data verify": "",
    "import rlu": "--workers 1",
    "import dqn-replay": "",
    "import minari": "--workers 1",
    "import encoder": "",
    "import copy": "",
    "export minari": "",
    "push": "",
    "zoo list": "",
    "pretrain": f"{TRAINED} --tasks 3",
    "pretrain --preset paper": f"{TRAINED} --tasks 3 --width 1",
    "pretrain --method cumulants": f"{TRAINED} --tasks 3",
    "pretrain --method random": "",
    **{f"pretrain --method {name}": TRAINED for name in LEARNED if name not in ("pvn", "cumulants")},
    "online": "--steps 40 --replay-min 20",
    "dqn": "--steps 40 --replay-min 20",
    "evaluate": "--episodes 2",
    "probe": "--states 900 --epochs 1 --random 1",
    "sets": "",
    "study plan": "--measure no",
    "study run": "--jobs 1",
    "study status": "",
    "study stop": "",
    "report": "--draws 100 --features first",
    "report --paper": "",
    "list": "",
    "cache list": "",
    "cache clear": "",
}
FILLED = {
    "GAME": ["breakout"],
    "ROM": ["RoadRunner"],
    "S": ["1"],
    "STEPS": ["40"],
    "BACKUP": ["mean", "max"],
    "NAME": LEARNED,
}
INSTEAD = {
    "gs://rl_unplugged/": "cloud/rl_unplugged/",
    "gs://atari-replay-datasets/": "cloud/atari-replay-datasets/",
    "gs://download-dopamine-rl/": "cloud/download-dopamine-rl/",
    "steps=20_000, sticky": "steps=200, sticky",
    "tasks=50, steps=1_000": "tasks=3, steps=2",
    'seeds="0-2", steps=10_000': 'seeds="0-2", steps=40, replay_min=20',
    "(agents, episodes=20)": "(agents, episodes=2)",
    'out="data/grid-python", steps=2_000': 'out="data/grid-python", steps=100',
    "policy_kwargs=": "n_steps=8, policy_kwargs=",  # of PPO, whose default is 2,048 steps of each environment
    ".learn(100_000)": ".learn(64)",
    "n_steps=1_000, n_steps_per_epoch=1_000,": "n_steps=2, n_steps_per_epoch=2,",
    "studies/paper-main.toml": "studies/minatar-main.toml",
}
ONCE = ("study", "report", "tabular")  # run in the first document that has them
ELSEWHERE = {
    "pvn check --device cuda": "tests/test_check.py::test_a_device_that_is_wrong_is_named",
    "pvn study plan studies/paper-main.toml --on a100 --devices 64": (
        "tests/study/test_price.py::test_the_paper_s_study_on_one_game"
    ),
    "pvn tabular four-rooms --out four-rooms": "tests/tabular/test_command.py::test_numbers_on_the_page",
    "pvn tabular --map maze.txt --out maze": "tests/tabular/test_command.py::test_page",
    "pvn report report/results.jsonl --out again": (
        "tests/report/test_results_file.py::test_a_report_of_the_file_has_the_numbers_of_the_runs"
    ),
    "pvn report part-1/results.jsonl part-2/results.jsonl --out whole": (
        "tests/report/test_results_file.py::test_parts_of_a_study_that_ran_in_two_places_are_one"
    ),
    "pvn report published/results.jsonl runs/mine --out beside": (
        "tests/report/test_results_file.py::test_a_method_of_ones_own_stands_beside_published_results"
    ),
    "pvn report runs/own --yardstick published/results.jsonl --out scaled": (
        "tests/report/test_yardstick.py::test_methods_of_the_same_names_are_measured_by_it_and_not_joined_with_its_own"
    ),
    (
        "pvn report runs/minatar-methods-random --yardstick studies/results/minatar-methods.jsonl "
        "--out runs/minatar-methods-random/report"
    ): "tests/report/test_yardstick.py::test_methods_of_the_same_names_are_measured_by_it_and_not_joined_with_its_own",
    "pvn claims report --out claims.md": "tests/report/test_claims_page.py::test_one_page_of_several_studies",
    (
        "pvn probe 'runs/minatar-claims/pretrain/GAME-*' --random 0 --states 10000 --epochs 30 "
        "--feature-scale rms --out probes/GAME"
    ): "tests/report/test_probes.py::test_real_encoders_are_found_again",
    "pvn report runs/minatar-claims --probes probes/space_invaders probes/breakout probes/asterix --out probed": (
        "tests/report/test_probes.py::test_real_encoders_are_found_again"
    ),
    (
        "pvn probe 'runs/minatar-methods/pretrain/GAME-*' --random 0 --states 10000 --epochs 30 "
        "--feature-scale rms --out probes/GAME-all"
    ): "tests/report/test_probes.py::test_real_encoders_are_found_again",
    "pvn report runs/minatar-methods --probes probes/asterix-all probes/breakout-all probes/freeway-all "
    "probes/seaquest-all probes/space_invaders-all --out probed-all": (
        "tests/report/test_probes.py::test_real_encoders_are_found_again"
    ),
    (
        "pvn probe 'runs/atari-small/pretrain/ROM-*' --random 0 --epochs 30 --supervised 60 --out probes/ROM"
    ): "tests/report/test_probes.py::test_real_encoders_are_found_again",
    (
        "pvn probe 'runs/atari-small/pretrain/ROM-*' --random 0 --epochs 30 --feature-scale rms --out probes/ROM-rms"
    ): "tests/report/test_probes.py::test_real_encoders_are_found_again",
    "pvn report runs/atari-small --probes 'probes/*' --out probed-atari-small": (
        "tests/report/test_probes.py::test_real_encoders_are_found_again"
    ),
    "pvn zoo make runs/minatar-claims --methods pvn pvn-max --out src/protovalue/zoo/encoders": (
        "tests/test_zoo.py::test_its_results_are_those_of_the_study"
    ),
    "torchrun --standalone --nproc-per-node 2 -m protovalue pretrain --data data/several --out runs/torchrun": (
        "tests/distributed/test_launch.py::test_interrupted_killed_resumed_by_torchrun_to_the_same_bits"
    ),
    "docs/adding-a-method.md": "tests/pretrain/test_adding_a_method.py::test_the_example_learns_and_resumes",
    "docs/adding-an-indicator.md": "tests/indicators/test_registry.py::test_the_document_s_indicator_works",
    "docs/adding-an-environment.md": "tests/envs/test_adding_an_environment.py::test_walks_by_hand",
    "docs/adding-a-report-column.md": (
        "tests/report/test_adding_a_column.py::test_the_documents_column_is_in_every_format"
    ),
    "pvn study run studies/minatar-main.toml --engine ray --ray-address 10.0.0.1:6379": (
        "tests/study/test_clusters.py::test_a_study_on_ray_survives_its_own_process_and_a_node"
    ),
    "pvn study run studies/minatar-main.toml --engine slurm --partition gpu --account lab --slurm qos=long": (
        "tests/study/test_choice.py::test_what_a_stage_asks_for_becomes_options_of_sbatch"
    ),
    "pvn study stop runs/minatar-main": "tests/study/test_cluster.py::test_stop_without_a_process_of_the_study",
    "docs/tabular.md": "tests/tabular/test_docs.py::test_code_prints_what_the_page_says",
}
EXEMPT = {
    "make demo": "installs the package from the network, then runs for minutes; its stages are tested one by one",
    "make test": "is what runs this test",
    "pip install torch==2.13.0": "installs from the network",
    "pip install -c constraints.txt -e .": "installs from the network",
    "make install": "is what installed all that runs this test",
    "source .venv/bin/activate": "is of the shell",
    "make docs": "is what tests/test_site.py runs",
    "pytest -n 0 tests/test_losses.py": "is one of these tests",
    "pip install pre-commit": "installs from the network",
    "pre-commit install": "installs from the network",
    "python -m build": "asks the network for the builder",
    "python -m venv clean": "is of no use without the next",
    f"clean/bin/pip install -c constraints.txt dist/protovalue-{__version__}-py3-none-any.whl": "from there, too",
    "clean/bin/pvn demo --out wheel-demo": "runs for minutes",
}


@pytest.fixture(autouse=True)
def _no_code_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document's own files are the only ones of their names."""
    for registry in REGISTRIES:
        monkeypatch.setitem(registry.__dict__, "loaded", {})


def _clouds() -> None:
    """Files of Pong in the published formats, under the names that they have there."""
    rng = np.random.default_rng(0)
    data = write_atari(Path("made"), [atari_episode(length, rng) for length in (9, 8, 7, 6, 5, 4)])
    for number, checkpoint in enumerate((0, 9, 19, 29, 39, 49)):
        name = f"cloud/rl_unplugged/atari_episodes_ordered/Pong/run_1-{checkpoint:05}-of-00050"
        write_rlu(Path(name), data, number, number + 1)
    for folder in ("cloud/atari-replay-datasets/dqn/Pong/1/replay_logs", "path/to/Pong/1/replay_logs"):
        for checkpoint in (0, 24, 49):
            ring = Ring(40)
            ring.add_episode(data.episode(checkpoint // 24))
            ring.save(Path(folder), checkpoint)
    with tarfile.open(ROOT / "tests" / "released" / "files" / "jax-constants.tar.xz") as archive:
        archive.extractall("cloud/download-dopamine-rl/pvn/Pong/1", filter="data")


def _minari() -> None:
    """A data set of MinAtar's Breakout, written by Minari itself: by its id, and as a folder somewhere."""
    _pvn("collect minatar/breakout --steps 60 --out made-for-minari")
    data = open_dataset(Path("made-for-minari"))
    space = gymnasium.spaces.Box(0, 1, data.frame_shape, np.bool_)  # type: ignore[arg-type]  # it takes any type of numpy
    episodes = [data.episode(index) for index in range(data.num_episodes)]
    folder = write_minari("minatar/breakout/expert-v0", episodes, space, gymnasium.spaces.Discrete(data.num_actions))
    name_environment(folder, "MinAtar/Breakout-v1")
    shutil.copytree(folder.parent, "path/to/dataset")


def _studies() -> None:
    """The shipped studies, in small: the first game, three methods, one seed of everything, few steps."""
    Path("studies").mkdir()
    for path in [*(ROOT / "studies").glob("minatar-*.toml"), ROOT / "studies" / "atari-small.toml"]:
        (Path("studies") / path.name).write_text(smaller_study(path.read_text(encoding="utf-8")))


def smaller_study(text: str) -> str:
    """Shrink a study file: by its text, so that it stays the file that it is."""
    head, *methods = re.split(r"(?=^\[methods\.)", text, flags=re.MULTILINE)
    kept = [one for one in methods if re.match(r"\[methods\.(pvn|random|dqn)\]", one)]
    head = re.sub(r"environments = \[\s*(\"[^\"]+\").*?\]", r"environments = [\1]", head, flags=re.DOTALL)
    head = re.sub(r"^(widths|tasks) = .*$", "", head, flags=re.MULTILINE)
    head = re.sub(r"^(data|pretraining|online|seeds) = \d+$", r"\1 = 1", head, flags=re.MULTILINE)
    head = re.sub(r"^episodes = \d+$", "episodes = 1", head, flags=re.MULTILINE)
    learning = ("online", "dqn", "data") if 'policy = "dqn"' in head else ("online", "dqn")
    for table, steps in (("pretrain", 3), ("online", 40), ("dqn", 40), ("data", 40)):
        extra = f"\nsteps = {steps}" + ("\nreplay_min = 20" if table in learning else "")
        head = re.sub(rf"(^\[{table}\][^\n]*(?:\n(?!\[)[^\n]*)*?)\nsteps = [\d_]+$", rf"\1{extra}", head, flags=re.M)
    return head + "".join(kept)


def _encoder() -> None:
    _pvn("collect minatar/breakout --steps 200 --out data/breakout")
    _pvn("pretrain --data data/breakout --out runs/pvn --tasks 3 --steps 2 --batch-size 8")


def _own_file(document: str, name: str) -> Callable[[], None]:
    """The file that a document is about: its first snippet."""

    def write() -> None:
        Path(name).write_text(next(block.text for block in blocks(document) if block.language == "python"))

    return write


def _own_method() -> None:
    """The method of the document about adding one."""
    (block,) = blocks("docs/adding-a-method.md")
    Path("my_method.py").write_text(block.text)


GIVEN: dict[str, list[Callable[[], None]]] = {
    "README.md": [_clouds, _minari, _studies],
    "docs/data.md": [_clouds, _minari],
    "docs/released-encoders.md": [_clouds],
    "docs/online.md": [_encoder],
    "docs/agents.md": [_encoder],
    "docs/sharing.md": [_encoder],
    "docs/claims.md": [_studies],
    "docs/results.md": [_studies],
    "docs/studies.md": [_studies, _encoder, _own_method],
    **{
        f"docs/{page}.md": [_own_file(f"docs/{page}.md", name)]
        for page, name in (
            ("adding-an-environment", "rooms.py"),
            ("adding-an-encoder", "wide.py"),
            ("adding-an-indicator", "pixel.py"),
            ("your-environment", "myenvs.py"),
        )
    },
}


def _pvn(words: str) -> str:
    """Run a command in this process; return what it printed."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = main(shlex.split(words))
    assert code == 0, f"pvn {words}: {errors.getvalue()}"
    return printed.getvalue()


def kind_of(words: list[str]) -> str:
    """Return the entry of SMALLER that a command belongs to."""
    name = cli._command_name(words)
    assert name is not None, words
    if "--paper" in words:
        return f"{name} --paper"
    if "--preset" in words:
        return f"{name} --preset {words[words.index('--preset') + 1]}"
    if name == "pretrain" and "--method" in words and words[words.index("--method") + 1] != "pvn":
        return f"{name} --method {words[words.index('--method') + 1]}"
    return name


def filled(line: str) -> list[str]:
    """Return a command with every value of the names in capitals in it."""
    found = [line]
    for name, values in FILLED.items():
        word = rf"(?<![A-Za-z_]){name}(?![A-Za-z_])"
        found = [re.sub(word, value, one) for one in found for value in (values if re.search(word, one) else [""])]
    return found


def _example(script: str) -> None:
    """Run a script of examples/ in this process."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [script, "--quick"])
        runpy.run_path(str(ROOT / script), run_name="__main__")
    last = json.loads(printed.getvalue().splitlines()[-1])
    assert last["example"] == Path(script).stem
    assert last["rows"]


def _run(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "python":
        (script,) = words[1:]
        _example(script)
        return
    assert words[0] == "pvn", f"{line!r} is no command that a test can run: give it an entry in a table above"
    for one in filled(shlex.join(words[1:])):
        _pvn(f"{one} {SMALLER[kind_of(shlex.split(one))]}")


FIRST = {
    line: block.document
    for document in reversed(DOCUMENTS)
    for block in blocks(document)
    if not block.language
    for line in commands(block)
    if line.split()[:1] == ["pvn"] and line.split()[1] in ONCE
}


def run_commands(block: Block) -> None:
    """Run a block of commands."""
    for line in commands(block):
        if line in EXEMPT or line in ELSEWHERE or FIRST.get(line, block.document) != block.document:
            continue
        for old, new in INSTEAD.items():
            line = line.replace(old, new)
        _run(line)


def run_python(block: Block, names: dict[str, Any]) -> None:
    """Run a snippet with the names of those before it; one that is a file was run by the commands."""
    if block.document in ELSEWHERE or any(path.read_text() == block.text for path in Path().glob("*.py")):
        return
    text = block.text
    for old, new in INSTEAD.items():
        text = text.replace(old, new)
    exec(compile(text, f"{block.document}:{block.line}", "exec"), names)


def check_toml(block: Block) -> None:
    """Read a study file, or the profile of a device; a part of a study file is put into a small one."""
    text = block.text
    if "peak_tflops" in text:
        Path("profile.toml").write_text(text)
        assert load_profile("profile.toml").name
        return
    if "environments" not in text:
        game = "atari/Pong" if "gs://" in text else "minatar/breakout"
        data = "" if "[data]" in text or "[methods." in text else "[data]\nsteps = 40\n"
        method = "" if "[methods." in text else "[methods.random]\n"
        text = f'environments = ["{game}"]\n{text}\n{data}{method}'
    path = Path(f"from-line-{block.line}.toml")
    path.write_text(text)
    assert load_study(path).environments


@pytest.mark.parametrize("document", DOCUMENTS)
def test_its_commands_and_snippets_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setattr(study_command, "LocalProcesses", InTurn)
    threads = torch.get_num_threads()
    for make in GIVEN.get(document, []):
        make()
    with _hub(document, tmp_path, monkeypatch):
        _run_all(document)
    torch.set_num_threads(threads)


@contextlib.contextmanager
def _hub(document: str, place: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Hub for the document about it, with a data set on it."""
    if document != "docs/sharing.md":
        yield
        return
    with connected(patch, place) as hub, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Use 'content=", DeprecationWarning)  # huggingface_hub's own, in uploads
        HfFileSystem.clear_instance_cache()
        data = {path.name: path.read_bytes() for path in Path("data/breakout").iterdir()}
        hub.repo("me/breakout", "datasets").commit(data)
        yield
        HfFileSystem.clear_instance_cache()


def _run_all(document: str) -> None:
    """Run the blocks of a document, one after the other."""
    names: dict[str, Any] = {"MyCluster": InTurn, "Path": Path}
    for block in blocks(document):
        match block.language:
            case "":
                run_commands(block)
            case "python":
                run_python(block, names)
            case "toml":
                check_toml(block)
            case "pycon":
                assert block.document in ELSEWHERE
            case "text" | "mermaid":
                pass
            case other:
                raise AssertionError(f"{document}:{block.line}: nobody runs {other!r}")
    if document == "README.md":
        assert names["encoder"].features(names["batch"].obs).shape == (256, 128), "as it says"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_block_is_overlooked(document: str) -> None:
    """A fence that is indented, or made of other characters, would be code that nobody runs."""
    fences = re.findall(r"^\s*(?:[-*>]\s+)?(?:`{3,}|~{3,}).*$", text_of(document), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(document))


def test_no_two_commands_write_to_one_folder() -> None:
    """Whoever follows several documents in one place finds nothing in the way; --holdout only looks."""
    writers: dict[str, set[str]] = {}
    for document in DOCUMENTS:
        for block in blocks(document):
            for line in commands(block) if not block.language else []:
                if " --out " in line:
                    own = re.sub(r" --holdout \S+", "", line)
                    writers.setdefault(line.split(" --out ")[1].split()[0], set()).add(own)
    loaded = [cli._load(command.config) for command in COMMANDS.values()]
    for config in [*(one for one in loaded if isinstance(one, type)), *CONFIGS.values()]:
        for line in re.findall("Example: (pvn .*)", config.__doc__ or ""):
            if " --out " in line:
                writers.setdefault(line.split(" --out ")[1].split()[0], set()).add(line)
    assert [sorted(lines) for lines in writers.values() if len(lines) > 1] == []


def test_what_is_said_about_installing_is_there() -> None:
    """Extras that advice names, the version of PyTorch, and what a checkout has that a wheel has not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    named = {name for text in [*map(text_of, DOCUMENTS), *sources] for name in re.findall(r"'\.\[([\w-]+)\]'", text)}
    extras = {"array-record", "d3rlpy", "dev", "docs", "gcs", "hub", "ray", "sb3", "slurm"}
    assert named == extras == set(project["optional-dependencies"])
    (pinned,) = re.findall("^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert f"pip install {pinned} " in text_of("README.md")
    assert benchmarks()


def all_commands() -> set[str]:
    """Return the commands of all documents."""
    return {
        line for document in DOCUMENTS for block in blocks(document) if not block.language for line in commands(block)
    }


def test_every_example_is_run() -> None:
    scripts = {f"python examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    assert scripts
    assert scripts <= all_commands()


def test_what_a_study_file_with_a_mistake_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that docs/studies.md shows is the one that is printed."""
    (shown,) = [line for block in blocks("docs/studies.md") for line in block.text.splitlines() if "pvn: " in line]
    monkeypatch.chdir(tmp_path)
    Path("studies").mkdir()
    Path("studies/mine.toml").write_text('name = "mine"\n\nenvironments = ["minatar/breakuot"]\n[methods.random]\n')
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        assert main(["study", "plan", "studies/mine.toml"]) == 2
    assert errors.getvalue() == f"{shown}\n"


def test_no_entry_of_a_table_is_left_over() -> None:
    """A command that was changed or taken out leaves nothing behind here."""
    assert {name for name in (*ELSEWHERE, *EXEMPT) if not name.startswith("docs/")} - all_commands() <= {
        "pvn tabular --map maze.txt --out maze"  # also in a sentence
    } | set()
    everything = "\n".join(text_of(document) for document in DOCUMENTS)
    assert [old for old in INSTEAD if old not in everything] == []


@pytest.mark.parametrize(
    "flags",
    [
        *(
            f"--method {name} {SMALLER[f'pretrain --method {name}' if name != 'pvn' else 'pretrain']}"
            for name in LEARNED
        ),
        f"--indicator hash {TRAINED} --tasks 3",
        f"--threshold sgd --burn-in 9 --rni-network convolutions --target-every 2 {TRAINED} --tasks 3",
        f"--method reward --no-double --huber {TRAINED}",
        "--tasks 0",
        "--method random --width 2",
    ],
)
def test_the_command_on_an_encoder_s_card_makes_it_again(
    flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _pvn("collect minatar/breakout --steps 100 --out data")
    _pvn(f"pretrain --data data --out one {flags}")
    (command,) = re.findall(r"^pvn (pretrain .*)$", Path("one/encoder/README.md").read_text(), re.MULTILINE)
    _pvn(f"{command} --out two")
    assert Path("two/encoder/model.safetensors").read_bytes() == Path("one/encoder/model.safetensors").read_bytes()


# Commands and flags in sentences

COMPLETE = {
    "collect": "minatar/breakout --out x",
    "data info": "x",
    "data verify": "x",
    "import rlu": "x --out x",
    "import dqn-replay": "x --out x",
    "import minari": "x --out x",
    "import encoder": "x --out x",
    "import copy": "x --out x",
    "export minari": "x --out x",
    "push": "x hf://me/x --license mit",
    "zoo list": "",
    "zoo make": "x --methods x --out x",
    "tabular": "--out x",
    "pretrain": "--out x",
    "online": "--encoder x --out x",
    "dqn": "--env minatar/breakout --out x",
    "evaluate": "x",
    "probe": "x",
    "sets": "x",
    "study run": "x",
    "study status": "x",
    "study plan": "x",
    "study stop": "x",
    "report": "x",
    "claims": "x",
    "bench": "x",
    "check": "",
    "demo": "",
    "cache list": "",
    "cache clear": "",
    "list": "",
}
STANDS_FOR = {
    "GAME": "breakout",
    "ENV": "minatar/breakout",
    "RUN": "x",
    "FILE": "x",
    "DIR": "x",
    "NAME": "x",
    "MODULE": "x",
    "ID": "x",
    "D": "4",
    "G": "0.9",
    "N": "2",
}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_sentences_parse(document: str) -> None:
    for shown in inline(document):
        text = re.sub(r"\b[A-Z]+\b", lambda match: STANDS_FOR[match[0]], shown)
        words = shlex.split(text)[1:]
        if words[0] in ("--help", "--version") or words[-1] == "--help":
            continue
        if words[0].startswith("--"):  # the method of that name, with other settings
            words = ["pretrain", *words]
        name = cli._command_name(words)
        assert name is not None, shown
        given = words[len(name.split()) :]
        kind = cli._load(COMMANDS[name].config)
        config = kind if isinstance(kind, type) else kind(given)
        needed = shlex.split(COMPLETE[name])
        options = needed[next((i for i, word in enumerate(needed) if word.startswith("--")), len(needed)) :]
        for more in ([], options, needed):  # as it stands, or with what must be there
            try:
                parse(config, f"pvn {name}", [*given, *more])
                break
            except UserError as error:
                problem = error
        else:
            raise AssertionError(f"{document}: `{shown}`: {problem}")


KNOWN_ELSEWHERE = {"help", "version", "debug", "logdir", "repo-type"}  # of pvn itself, tensorboard and hf
KNOWN_ELSEWHERE |= {"nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint"}  # of torchrun


def flags() -> set[str]:
    """Every flag of every command."""
    found = set(KNOWN_ELSEWHERE)
    for command in COMMANDS.values():
        kind = cli._load(command.config)
        configs = [kind] if isinstance(kind, type) else [method_class(name).Config for name in method_names()]
        for config in configs:
            names = [field.name for field in fields(config)]
            names += [field.name for field in fields(cli._load("protovalue.envs.options:EnvOptions"))]
            found |= {prefix + name.replace("_", "-") for name in names for prefix in ("", "no-")}
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_flags_in_sentences_exist(document: str) -> None:
    code = " ".join(re.findall(r"`([^`]+)`", sentences(document)))
    assert set(re.findall(r"(?<![\w-])--([a-z][a-z-]*)", code)) - flags() == set()


# Promises name the test that shows them


@pytest.mark.parametrize("document", DOCUMENTS)
def test_tests_that_it_names_exist(document: str) -> None:
    for path, name in re.findall(r"(tests/[\w/.-]+\.py)(?:::(\w+))?", text_of(document)):
        assert (ROOT / path).is_file(), path
        assert not name or exists(f"{path}::{name}"), f"{path}::{name}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_tests_that_it_names_without_their_file_exist(document: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", text_of(document)))
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    assert {name for name in named if not any(f"def {name}(" in text for text in files)} == set()


PROMISES = ("bit for bit", "byte for byte", "run code", "loses no", "number for number", "the same bytes")
IN_WORDS = {  # where the words are there without the promise
    "docs/results.md", "docs/decisions.md",
}  # fmt: skip


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name not in IN_WORDS])
def test_a_promise_names_its_test(document: str) -> None:
    """In the same paragraph or point of a list, or in the next one."""
    parts = re.split(r"\n\s*\n|\n(?=- )", sentences(document))
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        if any(words in " ".join(part.split()) for words in PROMISES):
            assert re.search(r"tests/\w|test_\w", part + following), f"{document}: {part}"


@pytest.mark.parametrize("node", ELSEWHERE.values())
def test_tests_that_are_relied_on_exist(node: str) -> None:
    assert exists(node)


def exists(node: str) -> bool:
    """Whether a file of tests has a test of this name."""
    path, _, name = node.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return any(isinstance(one, ast.FunctionDef) and one.name == name for one in tree.body)
