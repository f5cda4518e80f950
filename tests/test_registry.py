"""One registry: names without imports, the user's files by the same loader and the same errors, for all four kinds."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import protovalue
from protovalue.cli import main
from protovalue.encoder import load_encoder, save_encoder
from protovalue.envs.registry import import_module_of, make
from protovalue.errors import UserError
from protovalue.nets.encoders import make_encoder
from protovalue.options import option_words, parse_options, resolve_options
from protovalue.registry import (
    ENCODERS,
    ENVIRONMENTS,
    INDICATORS,
    METHODS,
    REGISTRIES,
    checksum,
    env_name,
    load_code,
    name_of,
    split_env,
)

ALIAS = {
    "environment": "from protovalue.envs.gym import Gym as ENVIRONMENT, Gym as Again\n",
    "encoder": "from protovalue.nets.nature import NatureEncoder as ENCODER, NatureEncoder as Again\n",
    "method": "from protovalue.pretrain.bc import BehaviourCloning as METHOD, BehaviourCloning as Again\n",
    "indicator": "from protovalue.indicators.hash import HashIndicator as INDICATOR, HashIndicator as Again\n",
}
BASES = {"environment": "Family", "encoder": "Encoder", "method": "Method", "indicator": "Indicator"}
each = pytest.mark.parametrize("registry", REGISTRIES, ids=lambda one: one.kind)


@pytest.fixture(autouse=True)
def _what_was_loaded_is_put_back() -> Iterator[None]:
    before = [dict(one.loaded) for one in REGISTRIES]
    for one in REGISTRIES:
        one.loaded.clear()
    yield
    for one, was in zip(REGISTRIES, before, strict=True):
        one.loaded.clear()
        one.loaded.update(was)


def test_the_names_that_there_are() -> None:
    assert ENVIRONMENTS.names() == ["atari", "gym", "minatar"]
    assert ENCODERS.names() == ["der", "impala", "minatar", "nature"]
    assert METHODS.names() == [
        "bc", "contrastive", "cumulants", "laplacian", "pvn", "random", "reward", "rldp", "spr", "tdjepa",
    ]  # fmt: skip
    assert INDICATORS.names() == ["hash", "patches", "rni"]


def test_listing_imports_neither_torch_nor_numpy() -> None:
    code = "import sys\nfrom protovalue.cli import main\nassert main(['list']) == 0\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "numpy", "gymnasium", "numba"}.isdisjoint(done.stdout.splitlines()[-1].split())
    for one in REGISTRIES:
        assert f"`{one.constant} = `" in done.stdout
        for name, line in one.summaries().items():
            assert f"  {name} " in done.stdout
            assert line.endswith(".")
            assert f"  {line}\n" in done.stdout


@each
def test_one_is_found_by_its_name_and_only_its_file_is_imported(registry: Any) -> None:
    name = registry.names()[0]
    code = f"from protovalue import registry\ncls = registry.{registry.plural.upper()}.find({name!r})\nimport sys\n"
    code += f"print(cls.__module__, *(x for x in sys.modules if x.startswith('{registry.package}.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    where, *imported = done.stdout.split()
    assert where == f"{registry.package}.{name}"
    assert {f"{registry.package}.{other}" for other in registry.names()[1:]}.isdisjoint(imported)


@each
def test_a_file_of_the_users_is_run_once_for_its_contents(registry: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{ALIAS[registry.kind]}with open(__file__ + '.ran', 'a') as f:\n    f.write('x')\n")
    ran = tmp_path / "mine.py.ran"
    with pytest.raises(UserError, match=f"unknown {registry.kind} 'mine'"):
        registry.find("mine")
    with pytest.raises(UserError, match="is run only if it is named on the command line"):
        registry.find(str(path))
    assert not ran.exists()
    cls = registry.load(str(path))
    assert cls is registry.load(str(path)) is registry.find("mine") is registry.find(str(path))
    assert registry.find("elsewhere/mine.py") is cls  # what was recorded on another machine
    assert registry.load(f"{path}:Again") is registry.find("Again") is cls
    assert ran.read_text() == "x"
    path.write_text(path.read_text() + "# changed\n")
    registry.load(str(path))
    assert ran.read_text() == "xx"


@each
@pytest.mark.parametrize(
    ("text", "spec", "message"),
    [
        (None, "mine.py", "FLAG: found no file .*mine.py, expected a Python file$"),
        ("x = 1", "mine.py", r"FLAG: .*mine.py defines no CONSTANT, expected a class that extends BASE \(PAGE\)$"),
        ("CONSTANT = dict", "mine.py", "mine.py defines no CONSTANT, expected a class that extends BASE"),
        ("CONSTANT = 'x'", "mine.py", "mine.py defines no CONSTANT, expected a class that extends BASE"),
        ("ALIAS", "mine.py:Other", "mine.py defines no Other, expected a class that extends BASE"),
        ("ALIAS", "NAME.py", "FLAG: found .*NAME.py, but NAME is of this package, expected another name"),
        ("1 / 0", "mine.py", r"mine.py: this file of yours raised ZeroDivisionError: division by zero \(line 1: 1 / 0"),
    ],
)
def test_the_same_errors_for_all_kinds(
    registry: Any, tmp_path: Path, text: str | None, spec: str, message: str
) -> None:
    names = {
        "FLAG": registry.flag,
        "CONSTANT": registry.constant,
        "BASE": BASES[registry.kind],
        "PAGE": registry.page,
        "ALIAS": ALIAS[registry.kind],
        "NAME": registry.names()[0],
    }
    for name, value in names.items():
        text = text and text.replace(name, value)
        spec, message = spec.replace(name, value), message.replace(name, value)
    if text is not None:
        (tmp_path / spec.partition(":")[0]).write_text(text)
    with pytest.raises(UserError, match=message):
        registry.load(str(tmp_path / spec))
    assert registry.loaded == {}


@each
def test_unknown_names_are_named(registry: Any) -> None:
    name = registry.names()[0]
    with pytest.raises(UserError, match=f"^unknown {registry.kind} '{name}x': did you mean '{name}'\\?$"):
        registry.load(f"{name}x")
    for hostile in ("../spy", "os", "base", "registry", "", "."):
        with pytest.raises(UserError, match=f"unknown {registry.kind}"):
            registry.find(hostile)


SIZED = """
from protovalue.nets.encoders import Encoder
from protovalue.nets.layers import Dense, flatten

class Sized(Encoder):
    def __init__(self, observation_shape, width, generator, size={size}, name: str | None = None):
        super().__init__(observation_shape)
        self.num_features, self.latent_shape = size * width, (self.in_channels, *self.frame_size)
        self.dense = Dense(self.in_channels * self.frame_size[0] * self.frame_size[1], size * width, generator)

    def convolve(self, x):
        return flatten(x)

ENCODER = Sized
"""


def test_two_files_of_the_same_name_are_two_modules(tmp_path: Path) -> None:
    for folder, size in (("one", 3), ("two", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sized.py").write_text(SIZED.format(size=size))
        ENCODERS.load(str(tmp_path / folder / "sized.py"))
    made = {
        folder: make_encoder(f"{tmp_path}/{folder}/sized.py", (1, 4, 4), 1, torch.Generator()).num_features
        for folder in ("one", "two")
    }
    assert made == {"one": 3, "two": 5}
    with pytest.raises(
        UserError, match=r"encoder 'sized': found it in .*one/sized.py and .*two/sized.py, expected one"
    ):
        ENCODERS.find("sized")


def test_an_encoder_s_options_are_checked_saved_and_loaded(tmp_path: Path) -> None:
    (tmp_path / "sized.py").write_text(SIZED.format(size=3))
    ENCODERS.load(str(tmp_path / "sized.py"))
    spec, drawn = str(tmp_path / "sized.py"), torch.Generator().manual_seed(0)
    made = make_encoder(spec, (1, 4, 4), 2, drawn, {"size": 7})
    assert (made.num_features, made.options) == (14, {"size": 7, "name": None})
    for options, message in (
        ({"sise": 7}, "unknown option of encoder 'sized' 'sise': did you mean 'size'"),
        ({"size": "7"}, "encoder sized: field size: found '7', expected a whole number"),
        ({"generator": 7}, "unknown option of encoder 'sized' 'generator'"),
    ):
        with pytest.raises(UserError, match=message):
            make_encoder(spec, (1, 4, 4), 2, drawn, options)
    with pytest.raises(UserError, match="unknown option of encoder 'nature' 'size'"):
        make_encoder("nature", (1, 4, 4), 2, drawn, {"size": 7})
    save_encoder(tmp_path / "encoder", made, spec, 2, {}, [])
    ENCODERS.loaded.clear()
    with pytest.raises(
        UserError, match=r"config.json: unknown encoder 'sized': .*\(--code path/to/sized.py\).*load_code"
    ):
        load_encoder(tmp_path / "encoder")
    protovalue.load_code(tmp_path / "sized.py")
    obs = torch.ones(3, 1, 4, 4, dtype=torch.bool)
    assert torch.equal(load_encoder(tmp_path / "encoder").features(obs), made(obs))


def test_a_file_may_define_several_kinds(tmp_path: Path) -> None:
    path = tmp_path / "several.py"
    path.write_text("".join(ALIAS.values()))
    load_code(path)
    assert [[one.name for one in registry.loaded.values()] for registry in REGISTRIES] == [["several"]] * 4
    path.write_text("x = 1\n")
    with pytest.raises(
        UserError, match=r"--code: .*several.py defines none of ENVIRONMENT, ENCODER, METHOD, INDICATOR"
    ):
        load_code(path)
    with pytest.raises(UserError, match=r"--code: .*several.py defines none of Other, expected one"):
        load_code(f"{path}:Other")
    with pytest.raises(UserError, match=r"--code: found .*notes.txt, expected a Python file"):
        load_code(tmp_path / "notes.txt")


def test_names_and_games_of_files() -> None:
    assert [name_of(one) for one in ("a/b.py", "b.py:C", "c", "d.pyx")] == ["b", "C", "c", "d.pyx"]
    assert split_env("a/rooms.py:Two/small") == ("a/rooms.py:Two", "small")
    assert split_env("/a/rooms.py/small") == ("/a/rooms.py", "small")
    assert split_env("gym/ALE/Pong-v5") == ("gym", "ALE/Pong-v5")
    assert env_name("a/rooms.py/small") == "rooms/small"
    assert env_name("rooms.py:Two/small") == "Two/small"
    assert env_name("gym/module:ID-v0") == "gym/module:ID-v0"
    assert env_name("breakout") == "breakout"


def test_a_family_must_have_what_every_command_sets(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text(
        "from protovalue.envs.base import Family\n"
        "class Short(Family):\n"
        "    def __init__(self, stack: int = 1): pass\n"
        "    def make(self, env_id, game, num_envs): raise AssertionError\n"
        "ENVIRONMENT = Short\n"
    )
    import_module_of(f"{tmp_path}/short.py/x")
    with pytest.raises(UserError, match="its family has no option max_steps, expected stack and max_steps"):
        make("short/x")


def test_the_checksum_is_of_the_contents_of_files_alone(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    assert checksum(["pvn", None, "impala"]) == ""
    assert checksum([f"{tmp_path}/a.py"]) == checksum(["pvn", f"{tmp_path}/b.py:X"]) != ""
    both = checksum([f"{tmp_path}/a.py", f"{tmp_path}/b.py"])
    assert both not in ("", checksum([f"{tmp_path}/a.py"]))


def test_options_are_written_as_in_toml_and_text_needs_no_quotes() -> None:
    words = ["a=1", "b=0.5", "c=true", "d=fast and loose", 'e="7"', "f=[1, 2]", "g=", "h=x=y", "i=1979-05-27"]
    found = parse_options(words)
    assert found == {
        "a": 1, "b": 0.5, "c": True, "d": "fast and loose", "e": "7", "f": [1, 2], "g": "", "h": "x=y",
        "i": "1979-05-27",
    }  # fmt: skip
    assert parse_options(option_words(found)) == found
    assert parse_options(option_words({"a": '\u00e9 \U0001f600 "q" \\ \n'})) == {"a": '\u00e9 \U0001f600 "q" \\ \n'}
    for word, message in (
        ("a", "options: found 'a', expected key=value"),
        ("1a=2", "options: found '1a=2', expected key=value"),
        ("a=nan", "option a: found nan, expected text, true, false, a finite number"),
        ("a=[inf]", "option a: found inf, expected"),
    ):
        with pytest.raises(UserError, match=message):
            parse_options([word])
    with pytest.raises(UserError, match="options: found a twice"):
        parse_options(["a=1", "a=2"])


def test_options_are_the_parameters_with_a_default() -> None:
    class Some:
        def __init__(  # type: ignore[no-untyped-def]  # a default may be all that is known of an option
            self, first, *, size=3, share: float = 0.5, title: str | None = None, strange: complex = 1j
        ) -> None:
            pass

    with pytest.raises(UserError, match="some: .*complex.*not a kind that a schema may have"):
        resolve_options(Some, {}, "option", "some")

    class Good:
        def __init__(  # type: ignore[no-untyped-def]  # a default may be all that is known of an option
            self, first, *, size=3, share: float = 0.5, title: str | None = None
        ) -> None:
            pass

    assert resolve_options(Good, {"share": 1}, "option", "some") == {"size": 3, "share": 1.0, "title": None}
    with pytest.raises(UserError, match="some: field size: found true, expected a whole number"):
        resolve_options(Good, {"size": True}, "option", "some")


def test_one_is_described_with_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "environments", "minatar"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "  names: asterix, breakout, freeway, seaquest, space_invaders" in said
    assert "  sticky: float [0.1]" in said
    (tmp_path / "sized.py").write_text('"""Only a dense layer."""\n' + SIZED.format(size=3))
    assert main(["list", "encoders", str(tmp_path / "sized.py")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path / 'sized.py'}: Only a dense layer.",
        "  size: int [3]",
        "  name: str",
    ]
    assert main(["list", "methods", "laplacian"]) == 0
    assert "  dimensions: int [100; small minatar 50]" in capsys.readouterr().out.splitlines()
    assert main(["list", "methods", "pvn"]) == 0
    said = capsys.readouterr().out.splitlines()
    expected = ["threshold: exact or sgd [exact]", "cache: path", "holdout: path ...", "burn_in: int [62,500]"]
    assert {f"  {line}" for line in [*expected, "indicator_options: KEY=VALUE ..."]} <= set(said)
    assert main(["list", "encoders", "sised"]) == 2
    assert "unknown encoder 'sised'" in capsys.readouterr().err
    assert main(["list", "all", "pvn"]) == 2
    assert "NAME: found pvn" in capsys.readouterr().err


def test_what_is_loaded_is_not_named_by_a_relative_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file by two paths is one."""
    (tmp_path / "mine.py").write_text(ALIAS["method"])
    monkeypatch.chdir(tmp_path)
    assert METHODS.load("mine.py") is METHODS.load(str(Path("mine.py").absolute()))
    assert len(METHODS.loaded) == 1
