"""Study files: what is wrong is said with its line and the nearest valid name, before anything runs."""

from pathlib import Path
from typing import Any

import pytest

from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.study.data_table import fill
from protovalue.study.file import load_study
from protovalue.study.lines import Source
from protovalue.study.model import Seeds
from protovalue.study.plan import plan
from tests.study.helpers import TINY, parse

DOCS = Path(__file__).parents[2] / "docs"


def test_a_study_is_read() -> None:
    study = parse(TINY + "\n[methods.pvn-hash]\nmethod = 'pvn'\ntitle = 'PVN (hash)'\nindicator = 'hash'\n")
    assert study.name == "tiny"
    assert list(study.environments) == ["minatar/breakout"]
    assert study.environments["minatar/breakout"].resolved["sticky"] == 0.1  # MinAtar's default
    assert [(entry.name, entry.method) for entry in study.methods] == [
        ("pvn", "pvn"), ("random", "random"), ("dqn", "dqn"), ("pvn-hash", "pvn"),
    ]  # fmt: skip
    assert study.methods[3].settings == {"indicator": "hash"}
    assert (study.seeds.data, study.seeds.pretraining, study.seeds.online, study.seeds.dqn) == (
        (0,),
        (0, 1),
        (0, 1),
        (0,),
    )
    assert study.threads == 1
    assert study.pretrain == {"steps": 5, "batch_size": 16}


def replaced(old: str, new: str) -> str:
    assert TINY.count(old) == 1
    return TINY.replace(old, new)


# The line is counted in TINY by hand; text that replaces a line keeps its number.
@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (replaced('normalise = "dqn"', 'normalize = "dqn"'), 3, "unknown key 'normalize': did you mean 'normalise'?"),
        (replaced('normalise = "dqn"', 'normalise = "dqm"'), 3, "unknown normalise 'dqm': did you mean 'dqn'?"),
        (replaced('normalise = "dqn"', 'normalise = "human"'), 3, "found human with minatar/breakout"),
        (replaced('"minatar/breakout"', '"minatar/breakuot"'), 2, "did you mean 'minatar/breakout'?"),
        (replaced('["minatar/breakout"]', "[]"), 2, "environments: found [], expected a list of at least one"),
        (replaced('"minatar/breakout"', '"minatar/breakout", "minatar/breakout"'), 2, "minatar/breakout twice"),
        (replaced("[data]\nsteps = 300", "[data]\nstep = 300"), 6, "unknown key 'step': did you mean 'steps'?"),
        (replaced("[data]\nsteps = 300", "[data]\nsteps = 0"), 6, "--steps: found 0, expected at least 1"),
        (
            replaced("[data]\nsteps = 300", "[data]\nkind = 'colect'"),
            6,
            "unknown kind 'colect': did you mean 'collect'?",
        ),
        (replaced("[data]\nsteps = 300\n", "#\n#\n"), 1, "data: missing"),
        (replaced("pretraining = 2", "pretraining = 0"), 9, "pretraining: found 0, expected how many seeds"),
        (replaced("pretraining = 2", "pretraining = [1, 1]"), 9, "expected each seed once"),
        (replaced("pretraining = 2", "pretrain = 2"), 9, "unknown key 'pretrain': did you mean 'pretraining'?"),
        (replaced("batch_size = 16", "batch_size = 'x'"), 14, "batch_size: found 'x', expected a whole number"),
        (replaced("batch_size = 16", "width = 'x'"), 14, "width: found 'x', expected a number"),
        (replaced("batch_size = 16", "batch_size = true"), 14, "batch_size: found True, expected a whole number"),
        (replaced("batch_size = 16", "batchsize = 16"), 14, "unknown key 'batchsize': did you mean 'batch_size'?"),
        (replaced("batch_size = 16", "learning_rate = -1"), 14, "--learning-rate: found -1.0, expected more than 0"),
        (replaced("batch_size = 16", "out = 'x'"), 14, "unknown key 'out'"),
        (replaced("[dqn]\nsteps = 60", "[dqn]\nsteps = 60.5"), 21, "steps: found 60.5, expected a whole number"),
        (replaced("episodes = 2", "episode = 2"), 26, "unknown key 'episode': did you mean 'episodes'?"),
        (replaced("tasks = 8", "task = 8"), 29, "unknown key 'task': did you mean 'tasks'?"),
        (replaced("tasks = 8", "proportion = 2.0"), 29, "--proportion: found 2.0"),
        (replaced("tasks = 8", "backup = 'median'"), 29, "backup: found 'median', expected mean or max"),
        (replaced("tasks = 8", "method = 'pnv'"), 29, "unknown method 'pnv': did you mean 'pvn'?"),
        (replaced("[methods.random]", "[methods.randon]"), 31, "unknown method 'randon': did you mean 'random'?"),
        (replaced("[methods.random]", "[methods.random]\nsteps = 3"), 32, "unknown key 'steps'"),
        (replaced("[methods.dqn]", "[methods.dqn]\nsteps = 3"), 34, "expected it in [dqn]"),
        (replaced("[methods.dqn]\n", ""), 20, "dqn: found with no method dqn"),
        (TINY + "[methods.two]\nmethod = 'pvn'\ntasks = 8\n", 34, "two has the same settings as pvn"),
        (TINY + "[methods.two]\nmethod = 'bc'\ntitle = 'pvn'\n", 34, "two has the same title as pvn"),
        (TINY + "[env]\nnoop_max = 3\n", 35, "unknown option for minatar/breakout 'noop_max'"),
        (TINY + "[env]\nstiky = 0.1\n", 35, "unknown key 'stiky': did you mean 'sticky'?"),
        (TINY + "[methods.dqn.env]\nstiky = 0.1\n", 35, "unknown key 'stiky': did you mean 'sticky'?"),
        (TINY + "[methods.dqn.env]\nnoop_max = 3\n", 35, "unknown option for minatar/breakout 'noop_max'"),
        (TINY + "[methods.dqn.env]\nsticky = 'x'\n", 35, "sticky: found 'x', expected a number"),
        (TINY + "[methods.dqn.env]\nsticky = 7.0\n", 35, "option sticky: found 7.0, expected a probability below 1"),
        (TINY + "[methods.dqn.env.'minatar/breakout']\nsticky = 7.0\n", 35, "option sticky: found 7.0"),
        (TINY + "[env.'minatar/breakuot']\nsticky = 0.1\n", 34, "'minatar/breakuot': did you mean 'minatar/breakout'"),
        (TINY + "[methods.bc]\nenv = 'x'\n", 35, "env: found 'x', expected a table: [methods.bc.env]"),
        (TINY + "[methods.dqn.env]\nstack = 2\n", 35, "stack: found in [methods.dqn.env], expected it in [env]"),
        (replaced('name = "tiny"', "title = 3"), 1, "title: found 3, expected text"),
        (replaced('name = "tiny"', "title = ''"), 1, "title: found '', expected text"),
        (replaced("[online]\nsteps = 60", "[online]\ngamma = 2.0"), 17, "--gamma: found 2.0, expected between 0 and 1"),
        (replaced("[dqn]\nsteps = 60", "[dqn]\ngamma = 2.0"), 21, "--gamma: found 2.0, expected between 0 and 1"),
        (replaced("episodes = 2", "epsilon = 2.0"), 26, "--epsilon: found 2.0, expected between 0 and 1"),
        (replaced("steps = 300", "policy = 'dqn'\ngamma = 2.0"), 7, "--gamma: found 2.0, expected between 0 and 1"),
        (replaced("steps = 300", "policy = 'dqn'\nout = 'x'"), 7, "unknown key 'out'"),
        (replaced("steps = 300", "policy = 'dgn'"), 6, "unknown policy 'dgn': did you mean 'dqn'?"),
        (replaced("steps = 300", "kind = 'rlu'\nsource = 3"), 7, "source: found 3, expected text such as"),
        (replaced("pretraining = 2", "pretraining = ['a']"), 9, "expected how many seeds, or a list such as [0, 1, 2]"),
        (replaced("pretraining = 2", "pretraining = [true]"), 9, "expected how many seeds, or a list"),
        (replaced("pretraining = 2", "pretraining = [-1]"), 9, "expected how many seeds, or a list"),
        (replaced("pretraining = 2", "pretraining = true"), 9, "expected how many seeds, or a list"),
        (replaced("pretraining = 2", "pretraining = 'x'"), 9, "expected how many seeds, or a list"),
        (replaced("tasks = 8", "method = 'missing.py'"), 29, "found no file missing.py, expected a Python file"),
        (
            replaced("[dqn]\nsteps = 60\nreplay_min = 20\nseeds = 1\n\n", "").replace("\n[methods.dqn]\n", ""),
            3,
            "normalise: found dqn with no method dqn",
        ),
        (replaced("tasks = 8", "tasks = 8\nencoders = 0"), 30, "encoders: found 0, expected a whole number from 1 on"),
        (replaced("tasks = 8", "tasks = 8\nencoders = true"), 30, "encoders: found True, expected a whole number"),
        (replaced("tasks = 8", "tasks = 8\nencoders = 3"), 30, "encoders: found 3, expected at most 2, as many as"),
        (TINY + "encoders = 1\n", 34, "encoders: found in [methods.dqn], expected seeds in [dqn]"),
        (
            replaced("tasks = 8\n\n[methods.random]", "tasks = 8\nencoders = 1\n\n[methods.random]\nencoders = 1"),
            8,
            "seeds: found 2 encoders, expected 1, the most that a method has",
        ),
        (replaced("pretraining = 2", "pair = 2"), 9, "pair: found 2, expected true or false"),
        (replaced("pretraining = 2", "pretraining = 2\npair = true"), 10, "1 for data and 2 for pretraining"),
        (TINY + "name = 'again'\n", None, ""),
        ("widths = [1, 1.0]\n" + TINY, 1, "widths: found 1 twice, expected each once"),
        ("widths = [true]\n" + TINY, 1, "widths: found True, expected numbers more than 0 and less than 65536"),
        ("widths = []\n" + TINY, 1, "widths: found [], expected a list of at least one number"),
        ("widths = [\n  1,\n  0,\n]\n" + TINY, 3, "widths: found 0, expected numbers more than 0 and less than 65536"),
        ("tasks = [4]\n" + TINY, 1, "tasks: found with no method that takes it"),
        ("tasks = [4, 8, 4]\n" + replaced("tasks = 8", ""), 1, "tasks: found 4 twice, expected each once"),
        ("tasks = []\n" + replaced("tasks = 8", ""), 1, "tasks: found [], expected a list of at least one number"),
        (replaced('name = "tiny"', 'name = ".."'), 1, "name: found '..', expected letters, digits and -._"),
        (replaced('name = "tiny"', 'name = "."'), 1, "name: found '.', expected"),
        (replaced('name = "tiny"', 'name = "a/b"'), 1, "name: found 'a/b', expected"),
        (TINY + "[env]\nsticky = 7.0\n", 35, "option sticky: found 7.0, expected a probability below 1"),
        (replaced("tasks = 8", "indicator = 'hsah'"), 29, "unknown indicator 'hsah': did you mean 'hash'?"),
        (
            replaced("tasks = 8", "indicator = 'missing.py'"),
            29,
            "--indicator: found no file missing.py, expected a Python file",
        ),
        (replaced("batch_size = 16", "learning_rate = inf"), 14, "learning_rate: found inf, expected a finite number"),
        (replaced("batch_size = 16", "learning_rate = nan"), 14, "learning_rate: found nan, expected a finite number"),
        ("threads = 0\n" + TINY, 1, "threads: found 0"),
        ("environments = [\n", "end", "not TOML"),
        ("name = \n", 1, "not TOML"),
    ],
)
def test_a_mistake_is_named_with_its_line(text: Any, line: int | str | None, expected: str) -> None:
    if line is None:
        line, expected = 34, "unknown key 'name'"  # after [methods.dqn], so in that table
        expected = "name: found in [methods.dqn], expected it in [dqn]"
    with pytest.raises(UserError) as error:
        parse(text)
    assert str(error.value).startswith(f"study.toml:{line}: "), error.value
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


ONLY_DQN = """environments = ["minatar/breakout"]
[dqn]
seeds = 2
[methods.dqn]
"""
ALL_OWN = (
    ONLY_DQN
    + """[methods.dqn.env.'minatar/breakout']
sticky = 0.2
"""
)
ONLY_RANDOM = """environments = ["minatar/breakout"]
[data]
[methods.random]
"""


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("widths = [1, 2]\n" + replaced("batch_size = 16", "width = 4"), 15, "width: found together with widths"),
        ("widths = [1]\n" + ONLY_RANDOM + "width = 2\n", 1, "widths: found with methods that all have their own width"),
        (ONLY_RANDOM + "width = 2\n[pretrain]\nwidth = 1\n", 6, "width: found with no method that takes it"),
        (ONLY_RANDOM + "[pretrain]\nsteps = 5\n", 5, "steps: found with no method that takes it from [pretrain]"),
        ("tasks = [0]\n" + replaced("tasks = 8", ""), 14, "steps: found with no method that takes it from [pretrain]"),
        (ONLY_RANDOM + "[seeds]\ndata = 2\n", 5, "data: found 2 with no method that learns from data"),
        (ONLY_DQN + "[seeds]\ndata = 1\n", 6, "data: found with no method that pretrains"),
        (ONLY_DQN + "[seeds]\npretraining = 1\n", 6, "pretraining: found with no method that pretrains"),
        (ONLY_DQN + "[seeds]\npair = true\n", 6, "pair: found with no method that pretrains"),
        (ONLY_DQN + "[methods.dqn.env]\nsticky = 0.2\n[env]\nsticky = 0.3\n", 8, "sticky: found where all that play"),
        (ALL_OWN + "[env.'minatar/breakout']\nsticky = 0.3\n", 8, "sticky: found where all that play have their own"),
        (ONLY_RANDOM + "[env]\nsticky = 0.2\n[env.'minatar/breakout']\nsticky = 0.3\n", 5, "sticky: found where all"),
        (ONLY_DQN + "[seeds]\nonline = 1\n", 6, "online: found with no method but dqn, whose seeds are in [dqn]"),
    ],
)
def test_a_setting_that_nothing_uses_is_refused(text: Any, line: int, expected: str) -> None:
    with pytest.raises(UserError) as error:
        parse(text)
    assert str(error.value).startswith(f"study.toml:{line}: {expected}")


@pytest.mark.parametrize(
    "text",
    [
        ONLY_DQN,
        ONLY_RANDOM + "[seeds]\ndata = [3]\n[pretrain]\nwidth = 2\n",
        "widths = [1, 2]\n" + ONLY_RANDOM,
        ONLY_RANDOM + "[methods.random.env]\nsticky = 0.2\n[env]\nsticky = 0.3\n",  # collecting does
        ONLY_DQN + "[env]\nsticky = 0.2\n[methods.dqn.env]\nmax_steps = 9\n",
        "tasks = [0, 4]\n" + ONLY_RANDOM + "[methods.cumulants]\n",  # whose own number must be at least 1
        ONLY_DQN.replace("seeds = 2", "") + "[seeds]\nonline = 2\n",  # which are the seeds of the end-to-end agents
    ],
)
def test_a_setting_that_something_uses_is_not(text: Any) -> None:
    parse(text)


def test_widths_may_be_fractions_and_a_whole_one_is_a_whole_one() -> None:
    study = parse("widths = [0.25, 1.0, 2]\n" + TINY)
    assert [(width, type(width)) for width in study.widths] == [(0.25, float), (1, int), (2, int)]


def test_what_a_file_does_not_say() -> None:
    study = parse(ONLY_RANDOM)
    seeds = study.seeds
    assert (seeds.data, seeds.pretraining, seeds.online, seeds.dqn, seeds.pair) == ((0,), (0,), (0,), (0,), False)
    assert (study.name, study.title, study.threads, study.normalise) == ("study", "study", 1, "none")
    assert (study.widths, study.tasks) == ((None,), (None,))
    assert study.data is not None
    assert (study.data.kind, study.data.policy) == ("collect", "random")
    assert parse("threads = 3\n" + ONLY_RANDOM).threads == 3
    data = parse(replaced("steps = 300", "policy = 'dqn'\niterations = 5")).data
    assert data is not None
    assert data.settings == {"iterations": 5}


def test_one_game_and_one_seed_need_no_placeholder() -> None:
    study = parse(TINY.replace("steps = 300", "kind = 'minari'\nsource = ['a', 'b/{game}']"))
    assert study.data is not None
    assert study.data.source == ("a", "b/{game}")
    assert [fill(template, "minatar/breakout", 3) for template in ("{game}/{seed}", "x")] == ["breakout/3", "x"]


TWO = TINY.replace('["minatar/breakout"]', '["minatar/breakout", "minatar/asterix"]')
LAYERS = """
[env]
sticky = 0.2
max_steps = 500

[env."minatar/asterix"]
sticky = 0.3

[methods.random.env]
sticky = 0.4

[methods.dqn.env]
max_steps = 600

[methods.dqn.env."minatar/breakout"]
sticky = 0.0
"""


def test_the_options_of_a_method_go_before_those_of_a_game_and_these_before_those_of_all() -> None:
    study = parse(TWO + LAYERS)
    found = {
        (entry.name, env): (
            study.variant(env, entry).resolved["sticky"],
            study.variant(env, entry).resolved["max_steps"],
        )
        for entry in study.methods
        for env in study.environments
    }
    assert found == {
        ("pvn", "minatar/breakout"): (0.2, 500), ("pvn", "minatar/asterix"): (0.3, 500),
        ("random", "minatar/breakout"): (0.4, 500), ("random", "minatar/asterix"): (0.4, 500),
        ("dqn", "minatar/breakout"): (0.0, 600), ("dqn", "minatar/asterix"): (0.3, 600),
    }  # fmt: skip
    pvn, _, dqn = study.methods
    assert study.variant("minatar/asterix", pvn).options.given() == {"sticky": 0.3, "max_steps": 500}
    assert study.variant("minatar/breakout", dqn).options.given() == {"sticky": 0.0, "max_steps": 600}
    assert study.variant("minatar/breakout", pvn).resolved["actions"] == "minimal"  # the family's default


@pytest.mark.parametrize("env", ["minatar/breakout", "atari/Pong"])
def test_options_are_those_that_the_environment_would_have(env: str) -> None:
    study = parse(TINY.replace("minatar/breakout", env) + "[methods.dqn.env]\nsticky = 0.3\nactions = 'full'\n")
    for entry in study.methods:
        variant = study.variant(env, entry)
        made = make(env, **variant.options.given())
        assert variant.resolved == made.options
        made.close()


def test_the_study_file_of_the_documents_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "studies.md").read_text().split("```toml\n")[1].partition("```")[0]
    (tmp_path / "my_method.py").write_text(
        "from protovalue.pretrain.bc import BehaviourCloning\nMETHOD = BehaviourCloning\n"
    )
    monkeypatch.chdir(tmp_path)
    study = parse(text)
    pvn, dqn = study.methods[0], study.methods[-1]
    played = {entry.name: study.variant("minatar/breakout", entry).options.given() for entry in (pvn, dqn)}
    assert played == {"pvn": {"sticky": 0.1, "max_steps": 5_000}, "dqn": {"sticky": 0.25, "max_steps": 5_000}}
    assert study.seeds.encoders(learns=True) == [(0, 0), (1, 1), (2, 2)]


def test_a_method_in_another_variant_is_another_method() -> None:
    again = TINY + "[methods.sticky]\nmethod = 'pvn'\ntasks = 8\n"
    parse(again + "[methods.sticky.env]\nsticky = 0.3\n")
    with pytest.raises(UserError, match="sticky has the same settings as pvn"):
        parse(again)


def test_seeds_of_encoders_and_agents() -> None:
    crossed = Seeds(data=(1, 2), pretraining=(5, 6, 7), online=(0, 1))
    assert crossed.encoders(learns=True) == [(1, 5), (1, 6), (1, 7), (2, 5), (2, 6), (2, 7)]
    assert crossed.encoders(learns=False) == [(1, 5), (1, 6), (1, 7)]
    assert [crossed.agents(number) for number in range(3)] == [(0, 1), (2, 3), (4, 5)]
    paired = Seeds(data=(1, 2), pretraining=(5, 6), online=(0, 3), pair=True)
    assert paired.encoders(learns=True) == paired.encoders(learns=False) == [(1, 5), (2, 6)]
    assert [paired.agents(number) for number in range(3)] == [(0, 3), (4, 7), (8, 11)]  # none twice
    read = parse(TINY.replace("[seeds]", "[seeds]\ndata = [4, 5]\npair = true")).seeds
    assert (read.data, read.pretraining, read.online, read.pair) == ((4, 5), (0, 1), (0, 1), True)
    assert parse(TINY).seeds.pair is False


def test_an_indicator_of_the_users_is_looked_up(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n")
    with pytest.raises(UserError, match=r"^study.toml:29: .*mine.py defines no INDICATOR"):
        parse(replaced("tasks = 8", f"indicator = '{path}'"))
    path.write_text(
        "from protovalue.indicators.hash import HashIndicator\nclass Mine(HashIndicator):\n    pass\nINDICATOR = Mine\n"
    )
    assert parse(replaced("tasks = 8", f"indicator = '{path}'")).methods[0].settings == {"indicator": str(path)}


def test_templates_must_tell_games_and_seeds_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    two = TINY.replace('["minatar/breakout"]', '["minatar/breakout", "minatar/asterix"]')
    data = "kind = 'rlu'\nsource = 'gs://x/{}'"
    for template, text, expected in (
        ("Pong", two, "found no {game}"),
        ("{game}", TINY.replace("pretraining = 2", "data = 2"), "found no {seed}"),
        ("{gane}", TINY, "unknown placeholder 'gane': did you mean 'game'?"),
    ):
        with pytest.raises(UserError, match="^study.toml:7: ") as error:
            parse(text.replace("steps = 300", data.replace("{}", template)))
        assert expected in str(error.value)


def test_a_folder_must_be_there_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^study.toml:7: data/breakout: not a data set"):
        parse(TINY.replace("steps = 300", "kind = 'folder'\nfolder = 'data/{game}'"))


def test_a_folder_must_hold_the_environment_that_it_is_named_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = collect(CollectConfig("minatar/asterix", Path("data/asterix-2"), steps=20))
    text = TINY.replace("steps = 300", "kind = 'folder'\nfolder = 'data/asterix-{seed}'").replace(
        "[seeds]", "[seeds]\ndata = [2]"
    )
    with pytest.raises(
        UserError, match=r"^study.toml:7: data/asterix-2: a data set of minatar/asterix, expected minatar/b"
    ):
        parse(text)
    data = parse(text.replace("minatar/breakout", "minatar/asterix")).data
    assert data is not None
    assert data.checksums == {"data/asterix-2": made.checksum}


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_text("\ufeff" + TINY, encoding="utf-8")
    assert load_study(path).text == TINY


def test_a_folder_is_not_a_study_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found a folder, expected a study file"):
        load_study(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing.toml: found no such file"):
        load_study(tmp_path / "nothing.toml")


def test_lines_of_keys_are_found_whatever_stands_around_them() -> None:
    text = '''# steps = 0
title = """
[online]
steps = 1
"""
list = [
  "a",  # steps = 2
  "b",
]
dotted.key = 3
inline = {steps = 4}

[online] # a comment
steps = 5
[ methods . "pvn-x" ]
tasks = 6
[methods.pvn-x.deeper]
tasks = 7
'''
    source = Source("x", text)
    assert source.line(["online", "steps"]) == 14
    assert source.line(["methods", "pvn-x", "tasks"]) == 16
    assert source.line(["methods", "pvn-x", "deeper", "tasks"]) == 18
    assert source.line(["methods", "pvn-x"]) == 15
    assert source.line(["methods"]) == 15
    assert source.line(["dotted", "key"]) == 10
    assert source.line(["inline", "steps"]) == 11
    assert source.line(["list"]) == 6
    assert source.line(["list"], "b") == 8
    assert source.line(["online", "missing"]) == 13
    assert source.line(["missing"]) == 1


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\u0085"])
def test_only_newlines_end_a_line(inside: str) -> None:
    assert Source("x", f"a = 'one{inside}line' # and{inside}more\nb = 2\n").line(["b"]) == 2


def test_lines_of_a_file_from_windows() -> None:
    assert Source("x", "a = 1\r\n[t]\r\nb = [\r\n 2,\r\n]\r\nc = 3\r\n").line(["t", "c"]) == 6


def test_a_width_may_be_a_fraction_in_a_table() -> None:
    """A setting that is a whole number or another: the first of its types does not decide alone."""
    laid_out = plan(parse(replaced("batch_size = 16", "width = 0.5")), Path("runs"))
    commands = [stage.command for stage in laid_out.stages if stage.kind == "pretrain"]
    assert commands
    assert all(command[command.index("--width") + 1] == "0.5" for command in commands)
