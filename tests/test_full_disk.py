"""A disk that is full, by a limit on the size of files: one line that names a file, and the same command goes on."""

import os
import resource
import signal
import sys
import traceback
from pathlib import Path

import pytest

from protovalue.cli import main

SIZES = [0, 64, 700, 3_000, 9_000, 40_000]


def run_limited(words: str, size: int, log: Path) -> int:
    """Run a command in a forked process whose files cannot grow beyond a size; return its exit code."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            with log.open("w") as file:
                reader, writer = os.pipe()  # a pipe has no size: what is printed is not limited
                os.dup2(writer, 1)
                os.dup2(writer, 2)
                sys.stdout = sys.stderr = os.fdopen(writer, "w")
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                before = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
                try:
                    code = main(words.split())
                except BaseException:
                    traceback.print_exc()
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
                sys.stderr.flush()
                os.set_blocking(reader, False)
                file.write(os.read(reader, 1 << 20).decode())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:

    import protovalue.report.command  # noqa: F401, as what it imports makes files of its own

    folder = tmp_path_factory.mktemp("made")
    assert main(f"collect minatar/breakout --steps 400 --num-envs 2 --out {folder}/data".split()) == 0
    small = "--env minatar/breakout --steps 12 --replay-min 5"
    assert main(f"online --encoder random:minatar:1 {small} --out {folder}/online".split()) == 0
    assert main(f"evaluate {folder}/online --episodes 1".split()) == 0
    return folder


@pytest.mark.parametrize(
    "words",
    [
        "collect minatar/breakout --steps 3000 --num-envs 2 --out {out}",
        "pretrain --data {made}/data --tasks 8 --batch-size 4 --steps 3 --checkpoint-every 1 --log-every 1 --out {out}"
        " --cache {out}-cache",
        "online --encoder random:minatar:1 --env minatar/breakout --steps 60 --replay-min 5 --checkpoint-every 20"
        " --log-every 1 --out {out}",
        "dqn --env minatar/breakout --steps 60 --replay-min 5 --checkpoint-every 20 --out {out}"
        " --replay-dir {out}-replay",
        "evaluate {made}/online --episodes 3 --out {out} --video {out}.gif",
        "report {made}/online --features none --draws 100 --out {out}",
    ],
    ids=lambda words: words.split()[0],
)
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(made: Path, tmp_path: Path, words: str) -> None:
    words = words.format(made=made, out=tmp_path / "out")
    codes = []
    for size in SIZES:
        code = run_limited(words, size, tmp_path / "log")
        said = (tmp_path / "log").read_text()
        codes.append(code)
        assert code in (0, 2), f"{size}: {said}"
        if code == 2:
            last = said.strip().splitlines()[-1]
            assert last.startswith(f"pvn: {tmp_path}"), f"{size}: {said}"
            assert "File too large" in last or "too large" in last.lower(), f"{size}: {said}"
            assert "Traceback" not in said, f"{size}: {said}"
    assert codes[0] == 2
    assert main(words.split()) == 0
    assert not list(tmp_path.rglob(".*"))
