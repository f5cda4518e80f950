"""Engines that are not there, do not answer or cannot take a stage: named at once, before anything starts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from protovalue.cli import main
from protovalue.study.config import StudyRunConfig
from protovalue.study.engines.slurm import Slurm, _gpus, read_more
from protovalue.study.resources import Ask
from tests.study.clusters import free_ports
from tests.study.helpers import TINY

COMMANDS = ("sbatch", "squeue", "sinfo", "scancel", "srun")
SINFO = """cat <<END
main*|n1|4|16000+|(null)|idle
main*|n2|8|8000|gpu:a100:2(S:0-1)|mix
big|n3|64|512000|gpu:4,shard:8|drain
END"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "study.toml"
    file.write_text(TINY)
    return file


def refusal(study: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a study that is refused, and return the last line; nothing is made."""
    out = study.with_name("out")
    assert main(["study", "run", str(study), "--out", str(out), *words]) == 2
    assert not out.exists()
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_engine_that_is_not_installed(
    engine: str, package: str, study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    expected = f"pvn: --engine {engine}: needs another package; in the checkout: pip install -e '.[{engine}]'"
    assert refusal(study, capsys, "--engine", engine) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:{port}", "found 127.0.0.1:{port}, which does not answer: Connection refused"),
        ("nowhere.invalid:6379", "found nowhere.invalid:6379, which does not answer: "),
        ("127.0.0.1:99999", "found 127.0.0.1:99999, which does not answer: "),
        ("ray://127.0.0.1:10001", "found ray://127.0.0.1:10001, expected auto or HOST:PORT"),
        ("localhost", "found localhost, expected auto or HOST:PORT"),
    ],
)
def test_an_address_that_does_not_answer(
    address: str, expected: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (port,) = free_ports(1)
    said = refusal(study, capsys, "--engine", "ray", "--ray-address", address.format(port=port))
    assert said.startswith(f"pvn: --ray-address: {expected.format(port=port)}")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--partition gpu", "--partition: found gpu, expected nothing without --engine slurm"),
        ("--engine ray --account me", "--account: found me, expected nothing without --engine slurm"),
        ("--engine ray --slurm qos=long", "--slurm: found qos=long, expected nothing without --engine slurm"),
        ("--engine slurm --ray-address a:1", "--ray-address: found a:1, expected nothing without --engine ray"),
        ("--retries 5", "--retries: found 5, expected nothing with --engine local, which loses no jobs"),
        ("--engine slurm --slurm time=3", "--slurm: found 'time=3', expected [resources] time for that"),
        ("--engine slurm --slurm =3", "--slurm: found '=3', expected an option of sbatch as KEY=VALUE"),
        ("--engine slurm --slurm qos=a qos=b", "--slurm: found qos twice, expected it once"),
    ],
)
def test_an_option_of_another_engine(
    words: str, expected: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in refusal(study, capsys, *words.split())


def test_other_options_of_sbatch_are_read() -> None:
    assert read_more(["qos=long", "--mail-user=me@x", "exclusive"]) == {
        "qos": "long", "mail_user": "me@x", "exclusive": "",
    }  # fmt: skip
    assert StudyRunConfig(Path("x"), engine="slurm", slurm=("a=b",)).slurm == ("a=b",)


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SLURM's commands as a user could have them: sinfo answers, sbatch notes what it is asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in COMMANDS:
        text = SINFO if name == "sinfo" else f'echo "$@" >> {folder}/asked' if name == "sbatch" else "true"
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_a_machine_without_slurm(
    study: Path, pretended: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(pretended))
    (pretended / "sbatch").unlink()
    wanted = "pvn: --engine slurm: found no sbatch here, expected a machine that jobs are submitted from"
    assert refusal(study, capsys, "--engine", "slurm") == wanted


def test_a_partition_that_is_not_there_and_stages_that_no_node_has_room_for(
    study: Path, pretended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(study, capsys, "--engine", "slurm", "--partition", "mian")
    assert said == "pvn: --partition: unknown partition 'mian': did you mean 'main'?"
    study.write_text(TINY + '[resources.pretrain]\nmemory = "16 GB"\ngpus = 1\n')
    said = refusal(study, capsys, "--engine", "slurm")
    assert re.search(
        r"pretrain/breakout-pvn\S+ asks for 1 cpu, 1 gpu, 16 GB(, \d+ min)?, and no node has that much", said
    )
    assert "the most that one has is 8 cpu, 2 gpu, 15.6 GB; [resources] of the study file" in said
    said = refusal(study, capsys, "--engine", "slurm", "--partition", "big")
    assert "and there is no node" in said  # it is drained
    (pretended / "sinfo").write_text("#!/bin/sh\necho 'slurm_load_partitions: Unable to contact' >&2\nexit 1\n")
    assert refusal(study, capsys, "--engine", "slurm") == "pvn: sinfo: slurm_load_partitions: Unable to contact"


def test_what_sbatch_would_refuse_is_asked_of_it_beforehand(
    study: Path, pretended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pretended / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: Invalid account' >&2\nexit 1\n")
    said = refusal(study, capsys, "--engine", "slurm", "--account", "me")
    assert re.fullmatch(r"pvn: --engine slurm: sbatch refuses data/\S+: error: Invalid account", said)


def test_what_a_stage_asks_for_becomes_options_of_sbatch(tmp_path: Path, pretended: Path) -> None:
    asks = {"a": Ask(2, 1, 3 << 30, 601.0), "b": Ask(2, 1, 3 << 30, 601.0), "c": Ask(1, 0, 1 << 20)}
    engine = Slurm(None, "me", {"qos": "long", "exclusive": ""}, tmp_path, 1, asks, None)
    assert (pretended / "asked").read_text().splitlines() == [  # two that ask alike are asked of once
        "--test-only --partition=main --account=me --cpus-per-task=2 --gpus-per-node=1 --mem=3072M --time=11 "
        "--qos=long --exclusive --wrap true",
        "--test-only --partition=main --account=me --cpus-per-task=1 --mem=1M --qos=long --exclusive --wrap true",
    ]
    # an estimate is doubled for each loss, a limit of the file's is not
    assert engine._parameters(asks["a"], 2)["time"] == 41
    assert engine._parameters(Ask(1, 0, 1, 601.0, given=True), 2)["time"] == 11
    assert engine.describe() == "on SLURM, partition main, 2 node(s), 12 cpus"


@pytest.mark.parametrize(
    ("gres", "count"),
    [("(null)", 0), ("gpu:4", 4), ("gpu:a100:2(S:0-1)", 2), ("gpu:a100:2,gpu:v100:1,shard:8", 3), ("bandwidth:9", 0)],
)
def test_gpus_of_a_node_are_counted(gres: str, count: int) -> None:
    assert _gpus(gres) == count


def test_busy_is_not_gone(tmp_path: Path, pretended: Path) -> None:
    engine = Slurm(None, None, {}, tmp_path, 1, {"a": Ask(1, 0, 1 << 20)}, None)
    queue = "1|RUNNING|None\\n2|TIMEOUT|x\\n3|OUT_OF_MEMORY|x\\n4|FAILED|NonZeroExitCode\\n5|PENDING|Priority\\n"
    (pretended / "squeue").write_text(f"#!/bin/sh\nprintf '{queue}'\n")
    states = engine.states(["1", "2", "3", "4", "5", "9"])
    assert states is not None
    assert (states["1"], states["5"]) == (None, None)
    found = {number: (gone.lost, gone.reason) for number, gone in states.items() if gone}
    assert found == {
        "2": (True, "its time limit was reached"),
        "3": (False, "out of memory; [resources] memory of the study file asks for more"),
        "4": (False, "failed (NonZeroExitCode)"),
    }
    (pretended / "squeue").write_text("#!/bin/sh\nexit 1\n")
    assert engine.states(["1"]) is None
    assert engine.find("pvn-x") is None


def test_importing_submitit_leaves_logging_as_it_is(tmp_path: Path) -> None:
    """By itself it would configure logging, which closes the handlers of whoever called us."""
    code = (
        "import contextlib, logging, sys\n"
        "from protovalue.errors import UserError\n"
        "from protovalue.study.engines.slurm import _submitit\n"
        "handler = logging.FileHandler(sys.argv[1], delay=False)\n"
        "stream = handler.stream\n"
        "with contextlib.suppress(UserError):  # where there is no sbatch\n"
        "    _submitit()\n"
        "assert 'submitit' in sys.modules\n"
        "assert not stream.closed\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], check=True)
