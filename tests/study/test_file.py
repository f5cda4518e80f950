"""Study files: what is wrong is said with its line and the nearest valid name, before anything runs."""

import pytest

from protovalue.errors import UserError
from protovalue.study.file import load_study
from protovalue.study.lines import Source
from tests.study.helpers import TINY, parse


def test_a_study_is_read():
    study = parse(TINY + "\n[methods.pvn-hash]\nmethod = 'pvn'\ntitle = 'PVN (hash)'\nindicator = 'hash'\n")
    assert study.name == "tiny"
    assert list(study.environments) == ["minatar/breakout"]
    assert study.environments["minatar/breakout"]["sticky"] == 0.1  # MinAtar's default
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
        (TINY + "name = 'again'\n", None, ""),
        ("widths = []\n" + TINY, 1, "widths: found [], expected a list of at least one number"),
        ("widths = [\n  1,\n  0,\n]\n" + TINY, 3, "widths: found 0, expected whole numbers from 1 on"),
        ("tasks = [0, 0]\n" + TINY, 1, "tasks: found with no method that takes it"),
        ("threads = 0\n" + TINY, 1, "threads: found 0"),
        ("environments = [\n", "end", "not TOML"),
        ("name = \n", 1, "not TOML"),
    ],
)
def test_a_mistake_is_named_with_its_line(text, line, expected):
    if line is None:
        line, expected = 34, "unknown key 'name'"  # after [methods.dqn], so in that table
        expected = "name: found in [methods.dqn], expected it in [dqn]"
    with pytest.raises(UserError) as error:
        parse(text)
    assert str(error.value).startswith(f"study.toml:{line}: "), error.value
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_templates_must_tell_games_and_seeds_apart(tmp_path, monkeypatch):
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


def test_a_folder_must_be_there_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^study.toml:7: data/breakout: not a data set"):
        parse(TINY.replace("steps = 300", "kind = 'folder'\nfolder = 'data/{game}'"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="nothing.toml: found no such file"):
        load_study(tmp_path / "nothing.toml")


def test_lines_of_keys_are_found_whatever_stands_around_them():
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
