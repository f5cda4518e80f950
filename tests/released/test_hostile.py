"""What is no SavedModel of such a network, or a bomb: one line, and nothing is written."""

import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from protovalue.cli import main
from tests.released import saved
from tests.released.saved import constant, count, impala, model, node, numbers, part, text

SIZES = (-1, 20, 20, 4)


def refusal(source: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Import, and return the one line that says why not; nothing may be there afterwards."""
    out = source.parent / "out"
    code = main(["import", "encoder", str(source), "--env", "atari/Pong", "--out", str(out)])
    said = capsys.readouterr()
    assert code == 2, said.out
    assert said.out == ""
    assert said.err.startswith("pvn: ")
    assert said.err.count("\n") == 1
    assert not out.exists()
    assert not list(source.parent.glob("out*"))
    return said.err


def graph(*changed: bytes, drop: Sequence[str] = ()) -> bytes:
    """Return the graph of a good network with some nodes in place of those of the same names."""
    nodes, _ = impala(0.125, size=20)
    kept = [one for one in nodes if not any(part(1, name.encode()) in one[:20] for name in drop)]
    return model([*kept, *changed], SIZES)


def call(name: str, function: str, *inputs: str) -> bytes:
    return node(name, "PartitionedCall", inputs, f=part(10, part(1, function.encode())))


def library(*functions: bytes) -> bytes:
    """Return the part of a graph with functions."""
    return part(2, b"".join(part(1, one) for one in functions))


def function(name: str, nodes: Sequence[bytes], result: str) -> bytes:
    """Return a function of one argument."""
    own = part(1, name.encode()) + part(2, part(1, b"x")) + part(3, part(1, b"y"))
    inner = b"".join(part(3, one[len(one) - _length(one) :]) for one in nodes)
    return part(1, own) + inner + part(4, part(1, b"y") + part(2, result.encode()))


def _length(field: bytes) -> int:
    """Return the length of what a field holds."""
    at, size, shift = 1, 0, 0
    while True:
        size |= (field[at] & 0x7F) << shift
        if field[at] < 0x80:
            return size
        at, shift = at + 1, shift + 7


def chain(length: int) -> list[bytes]:
    """Return functions each of which calls the next one twice: 2 ** length operations."""
    last = function("f0", [node("r", "Relu", ["x"])], "r:activations:0")
    more = [
        function(f"f{n + 1}", [call("a", f"f{n}", "x"), call("b", f"f{n}", "a:output:0")], "b:output:0")
        for n in range(length)
    ]
    return [last, *more]


CONV = {"strides": numbers(1, 1, 1, 1), "padding": text("SAME")}
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "not a SavedModel: found no graph"),
    "text": (lambda: b"this is not a SavedModel at all", "damaged: "),
    "noise": (lambda: np.random.default_rng(0).bytes(5_000), "damaged: |not a SavedModel"),
    "cut": (lambda: graph()[:-2_000], "damaged: a protobuf field is longer than its message"),
    "long": (lambda: part(2, b"")[:1] + b"\xff" * 9 + b"\x01", "damaged: a protobuf field is longer"),
    "endless number": (lambda: b"\xff" * 30, "damaged: a protobuf number does not end"),
    "deep": (lambda: reduce(lambda data, _: part(2, data), range(3_000), b""), "damaged: |no sig"),
    "operation": (
        lambda: graph(node("features", "Softplus", ["mb"]), drop=["features"]),
        r"found the operation Softplus \(features\), which is not known; expected Add, ",
    ),
    "python": (lambda: graph(node("features", "PyFunc", ["mb"]), drop=["features"]), "found the operation PyFunc"),
    "last layer": (
        lambda: graph(node("features", "Identity", ["mb"]), drop=["features"]),
        "found bias .* expected relu",
    ),
    "kernel": (lambda: model(impala(0.125, 20, kernel=5)[0], SIZES), r"kernel \(5, 5, 4, 4\) in the place of stacks"),
    "blocks": (lambda: model(impala(0.125, 20, blocks=1)[0], SIZES), "found pool .* expected a sum: an Impala-CNN"),
    "shortcut": (
        lambda: graph(node("sa5", "AddV2", ["a5", "pa1"]), drop=["sa5"]),
        "found pool .* as the shortcut of stacks.0.blocks.1, expected what goes into the block",
    ),
    "size": (lambda: model(impala(0.125, 20)[0], (-1, 28, 28, 4)), r"flat: Reshape: cannot reshape|flat: "),
    "stack": (lambda: model(impala(0.125, 20)[0], (-1, 20, 20, 3)), "expected as many channels in both"),
    "input": (lambda: model(impala(0.125, 20)[0], (20, 20)), r"found an input of shape \(20, 20\), expected"),
    "huge input": (lambda: model(impala(0.125, 20)[0], (-1, 1 << 20, 1 << 20, 4)), "found an input of shape"),
    "input type": (lambda: model(impala(0.125, 20)[0], SIZES, kind=7), "found an input of type 7"),
    "no result": (lambda: model(impala(0.125, 20)[0], SIZES, "nothing"), "found no node 'nothing'"),
    "cycle": (lambda: graph(node("features", "AddV2", ["mb", "features"]), drop=["features"]), "found a cycle through"),
    "not finite": (lambda: graph(constant("B", np.full(64, np.nan, np.float32)), drop=["B"]), "not finite|finite ones"),
    "all zero": (
        lambda: graph(
            constant("W", np.zeros((36, 64), np.float32)), constant("B", np.zeros(64, np.float32)), drop=["W", "B"]
        ),
        "features that are all 0",
    ),
    "wrong weights": (
        lambda: graph(constant("W", np.zeros((35, 64), np.float32)), drop=["W"]),
        "as many features in both",
    ),
    "bytes": (
        lambda: graph(
            node("W", "Const", value=part(8, count(1, 1) + part(2, saved.shape((36, 64))) + part(4, b"\0" * 99))),
            drop=["W"],
        ),
        "found 99 bytes, expected 9,216",
    ),
    "huge constant": (
        lambda: graph(constant("W", np.ones(1, np.float32), (1 << 40, 64)), drop=["W"]),
        "expected at most 268,435,456",
    ),
    "huge kernel": (
        lambda: graph(constant("k1", np.ones(1, np.float32), (3, 3, 4, 1 << 21)), drop=["k1"]),
        "found a result of shape",
    ),
    "huge broadcast": (
        lambda: graph(
            constant("big", np.array([1 << 20, 1 << 20])),
            node("wide", "BroadcastTo", ["mb", "big"]),
            node("features", "Relu", ["wide"]),
            drop=["features"],
        ),
        "found a result of shape",
    ),
    "huge range": (
        lambda: graph(
            constant("o", np.array(0)),
            constant("e", np.array(2_000_000_000)),
            constant("d", np.array(1)),
            node("wide", "Range", ["o", "e", "d"]),
            node("features", "Reshape", ["mb", "wide"]),
            drop=["features"],
        ),
        "found a result of shape",
    ),
    "work": (
        lambda: graph(
            constant("k1", np.ones(1, np.float32), (3, 3, 4, 200)),
            constant("b1", np.zeros(1, np.float32), (200,)),
            constant("k2", np.ones(1, np.float32), (3, 3, 200, 9_000)),
            drop=["k1", "b1", "k2"],
        ),
        "expected|found",
    ),
    "missing function": (lambda: graph(call("features", "gone", "mb"), drop=["features"]), "found no function 'gone'"),
    "variable": (
        lambda: graph(node("h", "VarHandleOp"), node("features", "ReadVariableOp", ["h"]), drop=["features"]),
        "h: found a variable that is not restored from a bundle",
    ),
    "explicit": (
        lambda: graph(node("c1", "Conv2D", ["x", "k1"], **{**CONV, "padding": text("NONE")}), drop=["c1"]),
        "found padding 'NONE'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    made, message = BAD[name]
    source = saved.write(tmp_path / "model", made())
    said = refusal(source, capsys)
    assert str(source) in said
    assert re.search(message, said), said


def test_functions_that_call_each_other_without_end_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    itself = function("f", [call("a", "f", "x")], "a:output:0")
    nodes = [node("x", "Placeholder"), call("features", "f", "x")]
    source = saved.write(tmp_path / "model", model([*nodes, library(itself)], SIZES))
    assert "found more than 64 functions that call each other" in refusal(source, capsys)
    nodes = [node("x", "Placeholder"), call("features", "f40", "x")]  # a million million operations, in a small file
    many = saved.write(tmp_path / "many", model([*nodes, library(*chain(40))], SIZES))
    assert "found more than 20,000 operations" in refusal(many, capsys)


def test_what_is_no_folder_of_a_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert "not a SavedModel: found no saved_model.pb" in refusal(tmp_path / "empty", capsys)
    assert "not a SavedModel" in refusal(tmp_path / "nothing", capsys)
    assert main(["import", "encoder", str(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 2
    assert "--env: found no game in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "truncated: found 19,923 bytes, expected 19,924 for variable"),
        (lambda data: data[:9_000] + bytes([data[9_000] ^ 1]) + data[9_001:], "its checksum does not match"),
        (lambda data: b"", "truncated: found 0 bytes"),
    ],
)
def test_a_damaged_shard_is_named(
    released: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[bytes], bytes], message: str
) -> None:
    shutil.copytree(released / "jax-variables", tmp_path / "model")
    shard = tmp_path / "model" / "variables" / "variables.data-00000-of-00001"
    shard.write_bytes(change(shard.read_bytes()))
    said = refusal(tmp_path / "model", capsys)
    assert message in said
    assert str(shard) in said


def test_missing_files_are_named(released: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(released / "jax-variables", tmp_path / "model")
    (tmp_path / "model" / "variables" / "variables.data-00000-of-00001").unlink()
    assert "variables.data-00000-of-00001: missing" in refusal(tmp_path / "model", capsys)
    (tmp_path / "model" / "variables" / "variables.index").unlink()
    assert "variables.index: missing, expected the variables" in refusal(tmp_path / "model", capsys)


def test_a_native_export_is_refused_by_name(released: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(released / "jax-native", tmp_path / "model")
    assert "found the operation XlaCallModule" in refusal(tmp_path / "model", capsys)


def test_bombs_take_little_memory(tmp_path: Path) -> None:
    """In a process that may not have more than 6 GB of addresses, and takes less than 200 MB for all of them."""
    for name in ("huge constant", "huge kernel", "huge broadcast", "huge range", "work"):
        saved.write(tmp_path / name.replace(" ", "-"), BAD[name][0]())
    code = (
        "import sys, resource; from pathlib import Path; from protovalue.errors import UserError\n"
        "from protovalue.released.command import read_released; from protovalue.released.files import Folder\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for name in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    try: read_released(Folder(str(name), Path('x'))); print('taken', name)\n"
        "    except UserError: pass\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))  # noqa: E731
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, preexec_fn=limit, check=True
    )
    assert int(ran.stdout) < 200, ran.stdout  # MiB
