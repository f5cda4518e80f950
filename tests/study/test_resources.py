"""What stages ask of a cluster: from the study file, or from what is known of the study."""

from pathlib import Path

import pytest

from protovalue.errors import UserError
from protovalue.study.plan import plan
from protovalue.study.resources import Ask, Node, ask_text, asks, asks_text, misfit
from tests.study.helpers import TINY, parse

GB = 1 << 30


def test_defaults_come_from_the_study_and_the_estimates(tmp_path: Path) -> None:
    study = parse("threads = 2\n" + TINY)
    stages = plan(study, tmp_path).stages
    found = asks(study, stages, {stages[0].id: 30.0})
    # 30 s twice, and ten minutes; nothing is estimated of the others
    assert found[stages[0].id] == Ask(2, 0, GB, 660.0)
    kinds = {stage.kind: found[stage.id] for stage in stages[1:]}
    assert {kind: (ask.cpus, ask.gpus, ask.memory // GB, ask.seconds) for kind, ask in kinds.items()} == {
        "pretrain": (2, 0, 2, None),  # 1 GB, 0.5 GB to learn, two times 300 frames of 10 x 10 x 4
        "online": (2, 0, 2, None),  # 1 GB and 2 seeds x 60 steps x 2 KB
        "dqn": (2, 0, 2, None),
        "evaluate": (2, 0, 1, None),
        "random-policy": (2, 0, 1, None),
    }


def test_replays_and_decoded_frames_are_counted(tmp_path: Path) -> None:
    text = TINY.replace("[online]\nsteps = 60", "[online]\nreplay_size = 1_000_000\nsteps = 2_000_000")
    text = text.replace("[data]\nsteps = 300", "[data]\nsteps = 100_000_000").replace(
        "[pretrain]", "[pretrain]\nmemory = 4096"
    )
    study = parse(text)
    stages = plan(study, tmp_path).stages
    kinds = {stage.kind: ask for stage in stages if (ask := asks(study, stages, {})[stage.id])}
    assert kinds["pretrain"].memory == 6 * GB  # 1 + 0.5 + 4 GB, in whole ones: the frames would take more than they may
    assert kinds["online"].memory == 5 * GB  # 1 GB + 2 seeds x 1,000,000 steps x 2 KB = 4.8 GB


def test_the_file_says_it_for_all_and_by_kind(tmp_path: Path) -> None:
    table = """
[resources]
cpus = 3
time = "90 min"
[resources.pretrain]
gpus = 1
memory = "1.5 GB"
time = "2 days"
"""
    study = parse(TINY + table)
    stages = plan(study, tmp_path).stages
    found = {
        stage.kind: ask
        for stage in stages
        if (ask := asks(study, stages, dict.fromkeys([stages[0].id], 9.0))[stage.id])
    }
    assert found["pretrain"] == Ask(3, 1, 3 * GB // 2, 172800.0, given=True)
    assert found["collect"] == Ask(3, 0, GB, 5400.0, given=True)  # no estimate in place of what the file says
    assert [stage.id for stage in stages] == [stage.id for stage in plan(parse(TINY), tmp_path).stages]
    assert asks_text(stages, asks(study, stages, {})).startswith(
        "1 x collect: 3 cpu, 1 GB, 90 min; 4 x pretrain: 3 cpu, 1 gpu, 1.5 GB, 48 h"
    )


def test_a_stage_on_cuda_asks_for_a_gpu(tmp_path: Path) -> None:
    study = parse(TINY.replace("[dqn]", '[dqn]\ndevice = "cuda"'))
    stages = plan(study, tmp_path).stages
    found = {stage.kind: ask.gpus for stage in stages if (ask := asks(study, stages, {})[stage.id])}
    assert found == {"collect": 0, "pretrain": 0, "online": 0, "dqn": 1, "evaluate": 0, "random-policy": 0}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("[resources]\ncpu = 2", "study.toml:35: unknown key 'cpu': did you mean 'cpus'?"),
        ("[resources]\ncpus = 0", "study.toml:35: cpus: found 0, expected a whole number from 1 on"),
        ("[resources]\ngpus = true", "study.toml:35: gpus: found True, expected a whole number from 0 on"),
        ("[resources]\nmemory = 16", 'memory: found 16, expected a number with its unit, such as "16 GB" (MB, GB, TB)'),
        ('[resources]\nmemory = "16 GiB"', "memory: found '16 GiB'"),
        ('[resources]\nmemory = "0 GB"', "memory: found '0 GB'"),
        ('[resources]\ntime = "soon"', "'soon', expected a number with its unit, such as \"12 h\" (s, min, h, days)"),
        ("[resources]\npretrain = 3", "study.toml:35: pretrain: found 3, expected a table of this name"),
        ("[resources.pretrain]\nnodes = 3", "study.toml:35: unknown key 'nodes'"),
        ("[resources.import]\ncpus = 3", "study.toml:34: import: found with no stage of that kind"),
        ("resources = 3", "study.toml:34: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(table: str, expected: str) -> None:
    text = TINY.removesuffix("\n")
    assert text.count("\n") == 32
    with pytest.raises(UserError) as refused:
        parse(f"{text}\n{table}\n")
    assert expected in str(refused.value)


def test_what_no_node_has_room_for_is_named() -> None:
    nodes = [Node("a", 8, 0, 4 * GB), Node("b", 2, 1, 64 * GB)]
    assert misfit(Ask(8, 0, GB), nodes) == ""
    assert misfit(Ask(2, 1, 64 * GB), nodes) == ""
    wanted = "no node has that much: the most that one has is 8 cpu, 1 gpu, 64 GB"
    assert misfit(Ask(8, 1, GB), nodes) == wanted  # one has the processors, another the GPU
    assert misfit(Ask(2, 0, 65 * GB), nodes) == wanted
    assert misfit(Ask(1, 0, GB), []) == "there is no node"
    assert (nodes[0].room(Ask(3, 0, GB)), nodes[1].room(Ask(1, 1, GB))) == (2, 1)
    assert ask_text(Ask(2, 1, GB // 2, 3600.0)) == "2 cpu, 1 gpu, 512 MB, 60 min"
