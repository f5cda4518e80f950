"""The plan is pure: addresses depend on what a result depends on, stages are shared, commands are what they say."""

import re
from pathlib import Path
from typing import Any

import pytest

from protovalue.cli import COMMANDS, _load
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.errors import UserError
from protovalue.flags import parse as parse_flags
from protovalue.online.config import AgentConfig
from protovalue.study.file import load_study
from protovalue.study.plan import address, plan, seed_text
from protovalue.study.schedule import makespan
from tests.study.helpers import TINY, parse

ROOT = Path("runs/x")
MINATAR = {"actions": "minimal", "sticky": 0.1, "stack": 1, "max_steps": 10_000}  # the family's defaults
KINDS = ("collect", "pretrain", "online", "dqn", "evaluate", "random-policy")
STUDIES = Path(__file__).parents[2] / "studies"
DEMO = STUDIES.parent / "src/protovalue/demo/demo.toml"


def ids(text: str, kind: str) -> set[str]:
    return {stage.id for stage in plan(parse(text), ROOT).stages if stage.kind == kind}


def changed(old: str, new: str) -> set[str]:
    """Return the kinds of stages that have other addresses after a change."""
    assert TINY.count(old) == 1
    other = TINY.replace(old, new)
    return {kind for kind in KINDS if ids(TINY, kind) != ids(other, kind)}


def test_a_method_may_have_the_first_encoders_alone() -> None:
    """Its first encoder is what it was; the second of the other method, and the agents of both, do not move."""
    fewer = TINY.replace("[methods.random]", "[methods.random]\nencoders = 1")
    kept = {(cell.method, cell.pretraining_seed): cell for cell in plan(parse(fewer), ROOT).cells}
    whole = {(cell.method, cell.pretraining_seed): cell for cell in plan(parse(TINY), ROOT).cells}
    assert set(whole) - set(kept) == {("random", 1)}
    assert all(whole[key] == cell for key, cell in kept.items())
    crossed = TINY.replace("[seeds]", "[seeds]\ndata = 2").replace("tasks = 8", "tasks = 8\nencoders = 3")
    cells = plan(parse(crossed.replace("[methods.dqn]", "[methods.bc]\n\n[methods.dqn]")), ROOT).cells
    seeds = [(cell.data_seed, cell.pretraining_seed) for cell in cells if cell.method == "pvn"]
    assert seeds == [(0, 0), (0, 1), (1, 0)]


def test_an_untrained_encoder_has_one_address_however_others_are_trained() -> None:
    def encoders(text: str) -> dict[str, str | None]:
        return {cell.method: cell.encoder for cell in plan(parse(text), ROOT).cells if cell.method != "dqn"}

    usual = encoders(TINY)
    for setting in ("learning_rate = 0.5", "adam_epsilon = 0.5", "precision = 'bfloat16'"):
        other = encoders(TINY.replace("batch_size = 16", f"batch_size = 17\n{setting}\nwidth = 1"))
        assert other["random"] == usual["random"], setting
        assert other["pvn"] != usual["pvn"], setting
    assert encoders(TINY.replace("batch_size = 16", "width = 0.5"))["random"] != usual["random"]


def test_the_grid_is_laid_out_once() -> None:
    laid_out = plan(parse(TINY), ROOT)
    # 1 data set; 2 methods x 2 seeds; as many runs of agents; 1 dqn; 4 + 1 evaluations; 1 random policy
    kinds = [stage.kind for stage in laid_out.stages]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "collect": 1, "pretrain": 4, "online": 4, "evaluate": 5, "dqn": 1, "random-policy": 1,
    }  # fmt: skip
    assert laid_out == plan(parse(TINY), ROOT)
    seen: set[str] = set()
    for stage in laid_out.stages:
        assert seen.issuperset(stage.needs)
        seen.add(stage.id)
    cell = laid_out.cells[1]
    assert (cell.env, cell.method, cell.width, cell.tasks) == ("minatar/breakout", "pvn", 1, 8)
    assert (cell.data_seed, cell.pretraining_seed, cell.seeds) == (0, 1, (2, 3))  # after the first encoder's 0 and 1
    assert [name.partition("/")[0] for name in cell.stages] == ["data", "pretrain", "online", "evaluate"]
    end_to_end = laid_out.cells[-1]
    assert (end_to_end.method, end_to_end.data, end_to_end.encoder, end_to_end.tasks) == ("dqn", None, None, None)
    assert laid_out.random_policy == {"minatar/breakout": f"{end_to_end.run}/random.json"}


def test_stages_are_named_by_what_they_are_and_counted_in_units_of_work() -> None:
    units = {}
    for stage in plan(parse(TINY), ROOT).stages:
        name, _, mark = stage.id.rpartition("-")
        assert re.fullmatch("[0-9a-f]{8}", mark)
        units[name] = (stage.rate, stage.units)
        assert stage.fresh == (stage.kind == "collect")  # the others go on where they were
        assert ("--cache" in stage.command) == ("pretrain/breakout-pvn" in stage.id)
    # transitions; steps x batch, none for what is not trained; agent steps; episodes x agents
    network = "minatar minatar x1"
    assert units == {
        "data/breakout-random-0": ("collect minatar", 300),
        **{f"pretrain/breakout-pvn-x1-t8-s{seed}": (f"pretrain pvn {network} threads 1", 5 * 16) for seed in (0, 1)},
        **{f"pretrain/breakout-random-x1-s{seed}": (f"pretrain random {network} threads 1", 0) for seed in (0, 1)},
        **{
            f"{kind}/breakout-{name}-s{seed}": (f"{rate} {network} seeds 2 threads 1", work)
            for kind, rate, work in (("online", "online", 60), ("evaluate", "evaluate online", 2 * 2))
            for name in ("pvn-x1-t8", "random-x1")
            for seed in (0, 1)
        },
        "dqn/breakout-x1-s0": (f"dqn {network} seeds 1 threads 1", 60),
        "evaluate/breakout-x1-s0": (f"evaluate dqn {network} seeds 1 threads 1", 2),
        "random-policy/breakout-x1-s0": (f"random-policy dqn {network} seeds 1 threads 1", 2),
    }


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("[online]\nsteps = 60", "[online]\nsteps = 70", {"online", "evaluate"}),
        ("[dqn]\nsteps = 60", "[dqn]\nsteps = 70", {"dqn", "evaluate", "random-policy"}),
        ("episodes = 2", "episodes = 3", {"evaluate", "random-policy"}),
        ("[pretrain]\nsteps = 5", "[pretrain]\nsteps = 6", {"pretrain", "online", "evaluate"}),
        ("[data]\nsteps = 300", "[data]\nsteps = 301", {"collect", "pretrain", "online", "evaluate"}),
        ("tasks = 8", "tasks = 9", {"pretrain", "online", "evaluate"}),
        ('name = "tiny"', 'name = "other"\ntitle = "Other"\nthreads = 2', set()),
        ("batch_size = 16", "batch_size = 16\nlog_every = 7\ncheckpoint_every = 9\nmemory = 99", set()),
        ("[methods.pvn]", '[methods.renamed]\nmethod = "pvn"\ntitle = "A title"', set()),
        ("tasks = 8", 'tasks = 8\nbackup = "mean"\nproportion = 0.05', set()),  # what the preset has anyway
        ("[evaluate]", "[env]\nsticky = 0.1\n\n[evaluate]", set()),  # MinAtar's default
        ("[evaluate]", "[env]\nsticky = 0.2\n\n[evaluate]", set(KINDS)),
        ("[methods.dqn]", "[methods.dqn.env]\nsticky = 0.1", set()),
        ("[methods.dqn]", "[methods.dqn.env]\nsticky = 0.2", {"dqn", "evaluate", "random-policy"}),
        ("[methods.random]", "[methods.random.env]\nsticky = 0.2", {"online", "evaluate"}),
        ("online = 2", "online = 3", {"online", "evaluate"}),
        ("tasks = 8", 'tasks = 8\nthreshold = "sgd"', {"pretrain", "online", "evaluate"}),
        ("tasks = 8", 'tasks = 8\ngroups = []\nscale_errors = "none"', set()),
        ("tasks = 8", 'tasks = 8\ngroups = ["proportion=0.1", "proportion=1"]', {"pretrain", "online", "evaluate"}),
    ],
)
def test_a_change_readdresses_what_depends_on_it_and_nothing_else(old: str, new: str, kinds: Any) -> None:
    assert changed(old, new) == kinds


def test_settings_that_came_later_do_not_touch_what_was_computed_before() -> None:
    """The addresses that encoders had before there were groups of tasks, layer norm and inverse dynamics.

    MinAtar's preset had the paper's epsilon then.
    """
    found = ids(TINY.replace("batch_size = 16", "batch_size = 16\nadam_epsilon = 1.5e-4"), "pretrain")
    assert {name.rpartition("-")[2] for name in found if "pvn" in name} == {"37254777", "329efa03"}


def test_pretraining_steps_do_not_touch_the_random_initialisation() -> None:
    before = {name for name in ids(TINY, "online") if "random" in name}
    after = {name for name in ids(TINY.replace("steps = 5", "steps = 6"), "online") if "random" in name}
    assert before == after
    assert len(before) == 2


def test_an_address_does_not_depend_on_the_order_of_what_it_is_made_of() -> None:
    assert address("x", {"a": 1, "b": 2}, ["p", "q"]) == address("x", {"b": 2, "a": 1}, ["q", "p"])
    different = [address("x", {"a": 1}), address("y", {"a": 1}), address("x", {"a": 2}), address("x", {"a": 1}, ["p"])]
    assert len(set(different)) == 4


def test_data_sets_that_are_there_are_used_together_and_known_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1, 2):
        collect(CollectConfig("minatar/breakout", Path(f"d{seed}"), steps=20, seed=seed), quiet=True)
    text = TINY.replace("steps = 300", "kind = 'folder'\nfolder = ['d0', 'd1']")
    laid_out = plan(parse(text), ROOT)
    cell, stage = laid_out.cells[0], laid_out.stages[0]
    assert (stage.kind, stage.needs, cell.data) == ("pretrain", (), str(tmp_path / "d0"))
    start = stage.command.index("--data")
    assert stage.command[start + 1 : start + 3] == ("d0", "d1")
    assert ids(text, "pretrain") != ids(text.replace("'d1'", "'d2'"), "pretrain")
    Path("d1").rename("renamed")
    assert ids(text.replace("'d1'", "'renamed'"), "pretrain") == {
        one.id for one in laid_out.stages if one.kind == "pretrain"
    }


def test_no_tasks_is_the_random_initialisation_and_shared() -> None:
    grid = "tasks = [0, 8]\n" + TINY.replace("tasks = 8\n", "")
    laid_out = plan(parse(grid), ROOT)
    untrained = {cell.run for cell in laid_out.cells if cell.method == "pvn" and cell.tasks == 0}
    assert untrained == {cell.run for cell in laid_out.cells if cell.method == "random"}
    assert len(untrained) == 2
    # 2 x (8 tasks, none) encoders, of which those without tasks serve two methods
    assert sum(stage.kind == "pretrain" for stage in laid_out.stages) == 4


def test_what_does_not_learn_from_data_is_not_repeated_for_every_data_set() -> None:
    grid = "tasks = [0, 8]\n" + TINY.replace("tasks = 8\n", "").replace("[seeds]", "[seeds]\ndata = 3")
    laid_out = plan(parse(grid), ROOT)
    drawn = [cell for cell in laid_out.cells if cell.method == "random"]
    assert [(cell.data_seed, cell.pretraining_seed) for cell in drawn] == [(None, 0), (None, 1)]
    assert len({cell.encoder for cell in drawn}) == 2
    assert {cell.data for cell in drawn} == {
        cell.data for cell in laid_out.cells if cell.data_seed == 0
    }  # for the scale
    pvn = [(cell.tasks, cell.data_seed, cell.pretraining_seed) for cell in laid_out.cells if cell.method == "pvn"]
    assert sorted(pvn, key=str) == sorted(
        [(0, None, 0), (0, None, 1), *((8, data, seed) for data in (0, 1, 2) for seed in (0, 1))], key=str
    )
    kinds = [stage.kind for stage in laid_out.stages]
    assert (kinds.count("collect"), kinds.count("pretrain")) == (3, 2 + 3 * 2)


def agents(text: str) -> dict[tuple[str, int | None], list[str]]:
    """Return the seeds of the agents that each encoder's command trains, by method and seed of the encoder."""
    laid_out = plan(parse(text), ROOT)
    commands = {stage.folder: stage.command for stage in laid_out.stages if stage.kind == "online"}
    found: dict[tuple[str, int | None], list[str]] = {}
    for cell in laid_out.cells:
        if cell.encoder:
            command = commands[cell.run]
            assert f"runs/x/{cell.encoder}" in command
            written = command[command.index("--seeds") + 1]
            assert AgentConfig(env="", out=ROOT, seeds=written).seed_list() == cell.seeds
            found.setdefault((cell.method, cell.pretraining_seed), []).append(written)
    return found


def test_encoders_of_a_method_share_no_agents_and_methods_do() -> None:
    # 2 data sets x 2 encoders x 2 agents; the random initialisation, which learns from neither, has 2 encoders
    assert agents(TINY.replace("[seeds]", "[seeds]\ndata = 2")) == {
        ("pvn", 0): ["0-1", "4-5"], ("pvn", 1): ["2-3", "6-7"], ("random", 0): ["0-1"], ("random", 1): ["2-3"],
    }  # fmt: skip
    assert agents(TINY.replace("online = 2", "online = [1, 4]")) == {
        ("pvn", 0): ["1,4"], ("pvn", 1): ["6,9"], ("random", 0): ["1,4"], ("random", 1): ["6,9"],
    }  # fmt: skip


def test_agents_on_one_encoder_are_told_apart_by_their_variant() -> None:
    text = TINY + "[methods.sticky]\nmethod = 'pvn'\ntasks = 8\n[methods.sticky.env]\nsticky = 0.3\n"
    laid_out = plan(parse(text), ROOT)
    own = {name: [cell for cell in laid_out.cells if cell.method == name] for name in ("pvn", "sticky")}
    assert [cell.encoder for cell in own["pvn"]] == [cell.encoder for cell in own["sticky"]]
    assert not {cell.run for cell in own["pvn"]} & {cell.run for cell in own["sticky"]}
    stages = {stage.folder: stage for stage in laid_out.stages if stage.kind == "online"}
    assert [("--sticky" in stages[cell.run].command) for cell in (*own["pvn"], *own["sticky"])] == [False] * 2 + [
        True
    ] * 2
    assert stages[own["sticky"][0].run].expect["env_options"] == {**MINATAR, "sticky": 0.3}


def test_paired_encoders_learn_from_the_data_set_at_their_place() -> None:
    text = TINY.replace("[seeds]", "[seeds]\ndata = [4, 5]\npair = true").replace(
        "pretraining = 2", "pretraining = [8, 9]"
    )
    laid_out = plan(parse(text), ROOT)
    found = [
        (cell.method, cell.data_seed, cell.pretraining_seed, cell.seeds, str(cell.data).rpartition("-")[0])
        for cell in laid_out.cells
        if cell.encoder
    ]
    assert found == [
        ("pvn", 4, 8, (0, 1), "data/breakout-random-4"),
        ("pvn", 5, 9, (2, 3), "data/breakout-random-5"),
        ("random", None, 8, (0, 1), "data/breakout-random-4"),  # which measures the scale of its features
        ("random", None, 9, (2, 3), "data/breakout-random-5"),
    ]
    for cell in laid_out.cells[:4]:
        data, pretrain = cell.stages[:2]
        command = next(stage.command for stage in laid_out.stages if stage.id == pretrain)
        assert command[command.index("--data") + 1] == f"runs/x/{cell.data}" == f"runs/x/{data}"
        assert command[command.index("--seed") + 1] == str(cell.pretraining_seed)
    kinds = [stage.kind for stage in laid_out.stages]
    assert (kinds.count("collect"), kinds.count("pretrain")) == (2, 4)


def test_a_yardstick_in_another_variant_is_not_the_data() -> None:
    text = TINY.replace("[data]\nsteps = 300", '[data]\npolicy = "dqn"\nsteps = 60\nreplay_min = 20')
    assert sum(stage.kind == "dqn" for stage in plan(parse(text), ROOT).stages) == 1
    laid_out = plan(parse(text + "[methods.dqn.env]\nsticky = 0.3\n"), ROOT)
    played = {
        "--sticky" in stage.command: "--record" in stage.command for stage in laid_out.stages if stage.kind == "dqn"
    }
    assert played == {False: True, True: False}


def test_what_comes_before_learning_is_counted_once() -> None:
    two = "[methods.max]\nmethod = 'pvn'\ntasks = 8\nbackup = 'max'\nthreshold = 'sgd'\n"
    stages = plan(parse(TINY.replace("tasks = 8", "tasks = 8\nthreshold = 'sgd'\nburn_in = 70") + two), ROOT).stages
    before = {stage.id.rpartition("-")[0]: stage.before for stage in stages if stage.kind == "pretrain"}
    # 300 transitions x 8 tasks; 70 steps of quantile regression, or the paper's number, which are other thresholds
    assert before == {
        "pretrain/breakout-pvn-sgd-x1-t8-s0": {"indicators minatar threads 1": 2400.0, REGRESSION: 70.0},
        "pretrain/breakout-pvn-sgd-x1-t8-s1": {"indicators minatar threads 1": 2400.0, REGRESSION: 70.0},
        "pretrain/breakout-pvn-max-sgd-x1-t8-s0": {"indicators minatar threads 1": 2400.0, REGRESSION: 62_500.0},
        "pretrain/breakout-pvn-max-sgd-x1-t8-s1": {"indicators minatar threads 1": 2400.0, REGRESSION: 62_500.0},
        "pretrain/breakout-random-x1-s0": {},
        "pretrain/breakout-random-x1-s1": {},
    }
    shared = TINY.replace("tasks = 8", "tasks = 8\nindicator_seed = 0") + "[methods.max]\nmethod = 'pvn'\ntasks = 8\n"
    stages = plan(parse(shared + "backup = 'max'\nindicator_seed = 0\n"), ROOT).stages
    assert [bool(stage.before) for stage in stages if "-pvn-" in stage.id and stage.kind == "pretrain"] == [
        True, False, False, False,
    ]  # fmt: skip


REGRESSION = "quantile regression threads 1"


def test_the_plan_says_what_a_result_must_hold() -> None:
    laid_out = plan(parse(TINY), ROOT)
    stages = {stage["id"]: stage for stage in laid_out.fields(parse(TINY))["stages"]}
    cell = laid_out.cells[0]
    # the steps of [online] and the episodes of [evaluate]; epsilon and seed are the command's defaults
    assert stages[cell.stages[-1]]["expect"] == {
        "episodes": 2, "epsilon": 0.001, "seed": 0, "steps": 60, "file": f"{cell.run}/evaluation.json",
        "env_options": MINATAR,
    }  # fmt: skip
    random = next(stage for stage in stages.values() if stage["kind"] == "random-policy")
    assert random["expect"] == {
        "episodes": 2, "epsilon": 1.0, "seed": 0, "steps": 60, "file": laid_out.random_policy["minatar/breakout"],
        "env_options": MINATAR,
    }  # fmt: skip
    assert stages[cell.stages[0]]["expect"] == {"transitions": 300}


def test_methods_without_tasks_are_not_multiplied() -> None:
    grid = "tasks = [4, 8]\nwidths = [1, 2]\n" + TINY.replace("tasks = 8\n", "") + "[methods.bc]\n"
    cells = plan(parse(grid), ROOT).cells
    assert sum(cell.method == "pvn" for cell in cells) == 2 * 2 * 2
    assert sum(cell.method == "bc" for cell in cells) == 2 * 2
    assert {cell.tasks for cell in cells if cell.method == "bc"} == {None}
    assert {cell.width for cell in cells if cell.method == "bc"} == {1, 2}


def test_a_fraction_of_a_width_has_encoders_of_its_own() -> None:
    cells = plan(parse("widths = [0.25, 1]\n" + TINY), ROOT).cells
    names = {cell.width: str(cell.encoder) for cell in cells if cell.method == "pvn"}
    assert set(names) == {0.25, 1}
    assert "x0.25" in names[0.25]
    assert "x1" in names[1]


def test_the_data_of_a_dqn_is_recorded_with_all_of_its_settings() -> None:
    text = TINY.replace("steps = 300", 'policy = "dqn"\nsteps = 300\nreplay_min = 20\nupdate_every = 3')
    laid_out = plan(parse(text), ROOT)
    stage = laid_out.stages[0]
    assert stage.kind == "dqn"
    data = f"runs/x/{laid_out.cells[0].data}"
    assert list(stage.command) == [
        "pvn", "dqn", "--env", "minatar/breakout", "--seeds", "0", "--out", f"runs/x/{stage.folder}",
        "--steps", "300", "--replay-min", "20", "--update-every", "3", "--threads", "1", "--record", data,
    ]  # fmt: skip
    assert laid_out.stages[1].needs == (stage.id,)
    assert f"--data {data}" in " ".join(laid_out.stages[1].command)
    assert laid_out.cells[-1].run != stage.folder  # the yardstick has other settings


def test_agents_that_would_make_no_update_are_refused_before_anything_runs() -> None:
    update = r"--steps: found \d\d, expected at least \d\d: the first update comes then"
    for table, where in (("online", r"\[online\]"), ("dqn", r"\[dqn, or data\]")):
        few = TINY.replace(f"[{table}]\nsteps = 60\nreplay_min = 20", f"[{table}]\nsteps = 60\nreplay_min = 61")
        assert few != TINY
        with pytest.raises(UserError, match=rf"study tiny: {where} in minatar/breakout: {update}"):
            plan(parse(few), ROOT)
    data = TINY.replace("[data]\nsteps = 300", '[data]\npolicy = "dqn"\nsteps = 19\nreplay_min = 20')
    with pytest.raises(UserError, match=rf"\[dqn, or data\] in minatar/breakout: {update}"):
        plan(parse(data), ROOT)


@pytest.mark.parametrize("first", [False, True])
def test_a_recorded_dqn_is_also_the_yardstick_of_its_seed(first: bool) -> None:
    """Where data and yardstick have the same settings, the training of seed 0 runs once, whichever is named first."""
    text = TINY.replace("[data]\nsteps = 300", '[data]\npolicy = "dqn"\nsteps = 60\nreplay_min = 20')
    text = text.replace("seeds = 1", "seeds = 3")
    if first:
        text = text.replace("[methods.dqn]\n", "").replace("[methods.pvn]", "[methods.dqn]\n\n[methods.pvn]", 1)
    laid_out = plan(parse(text), ROOT)
    trained = [stage for stage in laid_out.stages if stage.kind == "dqn"]
    assert len(trained) == 3
    assert ["--record" in stage.command for stage in sorted(trained, key=lambda stage: stage.folder)] == [
        True, False, False,
    ]  # fmt: skip
    cells = [cell for cell in laid_out.cells if cell.method == "dqn"]
    assert [cell.seeds for cell in cells] == [(0,), (1,), (2,)]
    assert {cell.run for cell in cells} == {stage.folder for stage in trained}
    assert str(laid_out.cells[0 if not first else 3].data).startswith("data/breakout-dqn-0-")


def test_imports_fill_in_their_templates() -> None:
    text = TINY.replace("minatar/breakout", "atari/Pong").replace(
        "steps = 300", 'kind = "rlu"\nsource = "gs://x/{game}/run_{seed}-*"\nsplit = "mixed"'
    )
    stage = plan(parse(text.replace("pretraining = 2", "data = [4]")), ROOT).stages[0]
    assert (stage.kind, stage.rate, stage.units) == ("import", "import rlu", 1)
    assert list(stage.command) == [
        "pvn", "import", "rlu", "gs://x/Pong/run_4-*", "--out", f"runs/x/{stage.folder}", "--split", "mixed",
    ]  # fmt: skip


OPTIONS = """
[env]
sticky = 0.25
episodic_life = true
"""


@pytest.mark.parametrize(
    "text",
    [
        TINY,
        TINY.replace("minatar/breakout", "atari/Pong") + OPTIONS + "[methods.reward]\ndouble = false\nhuber = true\n",
        TINY.replace("replay_min = 20\n\n[dqn]", "replay_min = 20\nhidden = [8, 4]\nclip_rewards = false\n\n[dqn]"),
    ],
)
def test_every_command_is_one_that_pvn_takes(text: Any) -> None:
    for stage in plan(parse(text), ROOT).stages:
        name, arguments = stage.command[1], list(stage.command[2:])
        kind = _load(COMMANDS[name].config)
        config = parse_flags(kind if isinstance(kind, type) else kind(arguments), "pvn", arguments)
        if name == "pretrain":
            assert config.threads == 1
        if name == "evaluate":
            assert config.episodes == 2
        if name == "online" and "hidden" in text:
            assert (config.hidden, config.clip_rewards) == ((8, 4), False)
        if name in ("online", "dqn", "collect") and "sticky" in text:
            assert (config.options.sticky, config.options.episodic_life) == (0.25, True)
        if name == "pretrain" and config.method == "reward":
            assert (config.double, config.huber) == (False, True)


def test_seeds_are_written_as_the_command_line_takes_them() -> None:
    assert [seed_text(seeds) for seeds in ((0,), (0, 1, 2), (0, 3, 5), (4, 5))] == ["0", "0-2", "0,3,5", "4-5"]


def test_the_shipped_studies_are_valid() -> None:
    sizes = {}
    for path in (*STUDIES.glob("*.toml"), DEMO):
        study = load_study(path)
        assert study.name == path.stem
        laid_out = plan(study, ROOT)
        sizes[study.name] = (len(study.environments), len(study.methods), len(laid_out.cells))
    # environments, methods, encoders and end-to-end runs: 46 x (6 x 3 + 3), 5 x 4 x 11 x 3, 46 x 4 x 3, ...
    assert sizes["paper-main"] == (46, 7, 46 * (6 * 3 + 3))
    assert sizes["paper-scaling"] == (5, 1, 5 * 4 * 11 * 3)
    assert sizes["paper-ablations"] == (46, 4, 46 * 4 * 3)
    twins = {f"{scale}-{what}" for scale in ("paper", "minatar") for what in ("main", "scaling", "ablations")}
    assert sizes["minatar-scaling-epsilon"] == (1, 2, 4 * 8 * 3 + 3)
    assert sizes["minatar-claims"] == (5, 9, 5 * (8 * 5 + 5))
    assert sizes["minatar-claims-random"] == (3, 9, 3 * (8 * 3 + 3))
    assert sizes["minatar-methods"] == (5, 14, 5 * (5 * 5 + 8 * 3 + 5))
    assert sizes["minatar-methods-random"] == (5, 13, 5 * (5 * 5 + 8 * 3))  # its yardstick is that of the other one
    assert sizes["minatar-scaling"] == (2, 2, 2 * (4 * 8 * 3 + 3))
    assert sizes["paper-released"] == (46, 1, 46 * 3)
    assert sizes["atari-small"] == (5, 8, 5 * (2 * 3 + 6 * 2))
    assert sizes["atari-small-dqn"] == (2, 4, 2 * (2 * 3 + 2 + 1))
    assert sizes["paper-five"] == (5, 8, 5 * 8 * 3)
    assert set(sizes) == {
        "demo",
        "atari-small",
        "atari-small-dqn",
        "paper-five",
        "paper-released",
        *twins,
        "minatar-claims",
        "minatar-claims-random",
        "minatar-methods",
        "minatar-methods-random",
        "minatar-scaling-epsilon",
    }


def test_the_papers_comparison_is_planned_as_the_paper_made_it() -> None:
    """DQN with Dopamine's sticky actions, agents without; encoder i from run i, with agents of its own."""
    study = load_study(STUDIES / "paper-main.toml")
    laid_out = plan(study, ROOT)
    commands = {stage.folder: " ".join(stage.command) for stage in laid_out.stages if stage.kind != "evaluate"}
    pong = [cell for cell in laid_out.cells if cell.env == "atari/Pong"]
    for cell in pong:
        assert ("--sticky 0.25" in commands[cell.run]) == (cell.method == "dqn")
    options = {
        stage.folder: stage.expect["env_options"]["sticky"] for stage in laid_out.stages if stage.kind == "evaluate"
    }
    assert {cell.method: options[cell.run] for cell in pong} == {
        "dqn": 0.25, "reward": 0.0, "random": 0.0, "bc": 0.0, "spr": 0.0, "cumulants": 0.0, "pvn": 0.0,
    }  # fmt: skip
    pvn = [cell for cell in pong if cell.method == "pvn"]
    assert [(cell.data_seed, cell.pretraining_seed, cell.seeds) for cell in pvn] == [
        (1, 1, (0, 1, 2)), (2, 2, (3, 4, 5)), (3, 3, (6, 7, 8)),
    ]  # fmt: skip
    for cell in pvn:
        assert f"atari_episodes_ordered/Pong/run_{cell.data_seed}-*" in commands[str(cell.data)]
        assert "--threshold sgd" in commands[str(cell.encoder)]
        assert "--preset paper" in commands[str(cell.encoder)]
    before = {stage.folder: stage.before for stage in laid_out.stages if stage.kind == "pretrain"}
    assert before[str(pvn[0].encoder)] == {REGRESSION: 62_500.0}  # how many states an import brings is not known


@pytest.mark.parametrize("name", ["paper-ablations", "paper-scaling", "paper-five"])
def test_the_papers_other_studies_share_its_seeds_and_thresholds(name: str) -> None:
    laid_out = plan(load_study(STUDIES / f"{name}.toml"), ROOT)
    trained = [cell for cell in laid_out.cells if cell.data_seed is not None]
    assert {(cell.data_seed, cell.pretraining_seed) for cell in trained} == {(1, 1), (2, 2), (3, 3)}
    commands = {stage.folder: stage.command for stage in laid_out.stages if stage.kind == "pretrain"}
    for cell in trained:
        learned = cell.method in ("pvn", "pvn-max")  # a hash's proportion needs no threshold
        assert ("sgd" in commands[str(cell.encoder)]) == learned


def test_five_games_at_the_paper_s_size_are_those_of_the_small_study() -> None:
    small, large = (load_study(STUDIES / f"{name}.toml") for name in ("atari-small", "paper-five"))
    assert large.environments == small.environments
    assert [method.name for method in large.methods] == [method.name for method in small.methods]


def test_the_clock_is_simulated() -> None:
    laid_out = plan(parse(TINY), ROOT)
    times = {"collect": 1.0, "pretrain": 2.0, "online": 3.0, "evaluate": 4.0, "dqn": 20.0, "random-policy": 5.0}
    seconds = {stage.id: times[stage.kind] for stage in laid_out.stages}
    # one after another: 1 + 4 x (2 + 3 + 4) + 20 + 4 + 5 = 66
    assert makespan(laid_out.stages, seconds, 1) == 66.0
    # two at a time: dqn (0-20) beside collect (0-1), all of two encoders (1-10, 10-19), pretrain of
    # the third (19-21) and fourth (20-22), their agents (21-24, 22-25), evaluations (24-28, 25-29), then dqn's (28-32)
    # and the random policy (29-34)
    assert makespan(laid_out.stages, seconds, 2) == 34.0
    # without limit the longest chain decides: dqn and the random policy
    assert makespan(laid_out.stages, seconds, 100) == 25.0


def test_the_stages_of_a_recorded_dqn_belong_to_its_data_set_alone() -> None:
    text = TINY.replace("[data]\nsteps = 300", '[data]\npolicy = "dqn"\nsteps = 60\nreplay_min = 20\niterations = 5')
    (trained,) = (stage for stage in plan(parse(text), ROOT).stages if stage.kind == "dqn")  # once, for both
    command = " ".join(trained.command)
    assert "--iterations 5" in command
    assert "--record runs/x/data/" in command
    assert ids(text, "dqn") != ids(text.replace("iterations = 5", "iterations = 6"), "dqn")
