"""Roles, ranges and presets of settings, as whoever reads settings without knowing them sees them."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import pytest

from protovalue.cli import COMMANDS, main
from protovalue.config import (
    COUNT,
    LENGTH,
    MACHINE,
    PLACE,
    PRESET,
    RESULT,
    Only,
    Range,
    Role,
    Settings,
    marked,
    names_where,
    not_given,
    ranges,
    roles,
)
from protovalue.errors import UserError
from protovalue.evaluate.config import EvaluateConfig
from protovalue.flags import parse
from protovalue.online.config import DqnConfig, OnlineConfig
from protovalue.presets import TABLES, Preset, Presets, SameAs, in_brackets, resolved
from protovalue.pretrain.method_configs import PvnConfig
from protovalue.pretrain.methods import method_class, method_names
from tests.documents import ROOT

ALL = [
    *(method_class(name).Config for name in method_names()),
    *(__import__(module, fromlist=[name]).__dict__[name] for command, where in COMMANDS.items() if command != "pretrain"
      for module, name in [where.config.split(":")]),
]  # fmt: skip


@pytest.mark.parametrize("config", ALL, ids=lambda config: config.__name__)
def test_every_field_says_its_role_once(config: type[Any]) -> None:
    hints = get_type_hints(config, include_extras=True)
    for one in fields(config):
        own = [mark for mark in getattr(hints[one.name], "__metadata__", ()) if isinstance(mark, Role)]
        assert len(own) == 1, one.name


def test_what_is_derived_from_roles() -> None:
    pvn = method_class("pvn").Config
    assert names_where(pvn, lambda role: role.may_change) == {
        "out", "data", "holdout", "cache", "steps", "device", "threads", "memory", "log_every", "checkpoint_every",
        "recompute_activations", "processes",
    }  # fmt: skip
    assert names_where(OnlineConfig, lambda role: role.may_change) == {
        "out", "encoder", "steps", "device", "threads", "log_every", "keep_replay", "code",
    }  # fmt: skip
    assert names_where(DqnConfig, lambda role: role.filled_in) == {
        "out", "env", "seeds", "threads", "replay_dir", "record", "iterations", "options",
    }  # fmt: skip
    unlike = names_where(DqnConfig, lambda role: role.identifies != role.compared)
    assert unlike == {"env", "seeds", "options", "iterations"}
    assert names_where(OnlineConfig, lambda role: not role.identifies) == {
        "out", "encoder", "code", "device", "threads", "log_every", "checkpoint_every", "keep_replay", "replay_dir",
    }  # fmt: skip
    assert names_where(OnlineConfig, lambda role: not role.compared) == {
        *names_where(OnlineConfig, lambda role: not role.identifies), "env", "seeds", "options", "other_game",
    }  # fmt: skip
    assert names_where(OnlineConfig, lambda role: role.filled_in) == {
        "out", "env", "seeds", "threads", "replay_dir", "encoder", "code", "options", "other_game",
    }  # fmt: skip
    assert names_where(EvaluateConfig, lambda role: role.identifies and not role.filled_in) == {
        "episodes", "epsilon", "seed",
    }  # fmt: skip
    assert names_where(pvn, lambda role: role.filled_in) == {
        "out", "data", "env", "method", "cache", "seed", "threads", "holdout",
    }  # fmt: skip
    assert names_where(pvn, lambda role: not role.compared) == {
        *names_where(pvn, lambda role: role.may_change), "env", "method", "seed",
    } - {"steps"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Own(Settings):
    """Settings of nothing.

    Example: none
    """

    presets: ClassVar[tuple[Presets, ...]] = (
        {
            ("*", "*"): Preset("all", size=4, speed=0.5),
            ("small", "*"): Preset("small", size=3, other=SameAs("size"), depth=7),
            ("small", "maze"): Preset("mazes", size=2),
            ("large", "*"): Preset("large", size=30, other=1, depth=None),
            ("large", "maze/one"): Preset("one maze", size=20),
        },
    )
    old_flags: ClassVar[dict[str, str]] = {"--big": "--size"}

    preset: Annotated[str, RESULT] = "small"
    size: Annotated[int, LENGTH, COUNT] = PRESET
    """How large."""
    other: Annotated[int, RESULT, Range(1, 5)] = PRESET
    speed: Annotated[float, MACHINE, Range(0, 1, above=True)] = PRESET
    depth: Annotated[int | None, RESULT] = PRESET
    deep: Annotated[bool, RESULT] = True
    out: Annotated[Path | None, PLACE, "a mark"] = None
    plain: int = 3

    def dependent(self) -> dict[str, Only]:
        return {"depth": Only(self.deep, "it with --deep")}


def values(config: Own) -> tuple[Any, ...]:
    return (config.size, config.other, config.speed, config.depth)


def test_values_that_are_not_given() -> None:
    assert values(resolved(Own(), "maze/one")) == (2, 2, 0.5, 7)
    assert values(resolved(Own(), "gym/one")) == (3, 3, 0.5, 7)
    assert values(resolved(Own(size=4), "maze/one")) == (4, 4, 0.5, 7)
    assert values(resolved(Own(deep=False), "maze/one")) == (2, 2, 0.5, None)
    assert values(resolved(Own(preset="large", other=5), "maze/one")) == (20, 5, 0.5, None)
    assert values(resolved(Own(preset="large"), "maze/two")) == (30, 1, 0.5, None)


def test_what_is_resolved_is_checked_again() -> None:
    with pytest.raises(UserError, match="^--other: found 30, expected 1 to 5"):
        resolved(Own(size=30), "gym/one")
    with pytest.raises(UserError, match="^--depth: found 1, expected it with --deep"):
        Own(depth=1, deep=False)


def test_a_value_is_not_used_before_it_is_known() -> None:
    with pytest.raises(TypeError, match="before it was resolved"):
        bool(Own().size)
    with pytest.raises(TypeError):
        range(Own().size)


def test_marks_of_fields() -> None:
    assert roles(Own)["plain"] == RESULT  # as in a user's own class
    assert roles(Own)["out"] == PLACE
    assert set(ranges(Own)) == {"size", "other", "speed"}
    assert marked(Own, "a mark") == {"out"}


@pytest.mark.parametrize(
    ("allowed", "good", "bad", "said"),
    [
        (Range(1), [1, 7], [0, -1, float("nan")], "at least 1"),
        (Range(0), [0, 0.5], [-1, float("nan")], "0 or more"),
        (Range(0, above=True), [1e-9], [0, -1], "more than 0"),
        (Range(0, 1), [0, 1, 0.5], [-0.1, 1.1], "between 0 and 1"),
        (Range(0, 1, below=True), [0, 0.9], [1, -0.1], "at least 0 and less than 1"),
        (Range(0, 1, above=True), [1, 0.1], [0, 1.1], "more than 0 and at most 1"),
        (Range(2, 10_000), [2, 10_000, (2, 3)], [1, 10_001, (2, 1)], "2 to 10,000"),
    ],
)
def test_ranges(allowed: Range, good: list[Any], bad: list[Any], said: str) -> None:
    assert all(value in allowed for value in good)
    assert not any(value in allowed for value in bad)
    assert str(allowed) == said


def test_help_shows_what_the_presets_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert in_brackets("size", Own.presets) == "[4; small 3, maze 2; large 30, maze/one 20]"
    assert in_brackets("speed", Own.presets) == "[0.5]"
    assert in_brackets("other", Own.presets) == "[small --size; large 1]"
    assert in_brackets("preset", Own.presets) == ""
    with pytest.raises(SystemExit):
        parse(Own, "pvn own", ["--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "How large. [4; small 3, maze 2; large 30, maze/one 20]" in said
    assert "None" not in said


def test_flags_that_had_another_name() -> None:
    for words in (["--big", "3"], ["--big=3"]):
        with pytest.raises(UserError, match="^--big: found a name that it had before, expected --size"):
            parse(Own, "pvn own", words)
    assert parse(Own, "pvn own", ["--size", "3"]) == Own(size=3)
    assert parse(Own, "pvn own", []) == Own()


def test_every_preset_field_has_a_value() -> None:
    """For every built-in command, in every preset and family: resolving leaves nothing unset."""
    games = ("atari/Pong", "minatar/asterix", "gym/Mine-v0")
    for config in ALL:
        if config.presets:
            needed = {"out": Path("x"), "env": "minatar/asterix", "encoder": "e"}
            given = {one.name: needed[one.name] for one in fields(config) if one.name in needed}
            if issubclass(config, method_class("random").Config.__mro__[1]):
                given.pop("env")
            for preset in ("paper", "small"):
                for game in games:
                    made = resolved(config(**given, preset=preset), game)
                    assert not [one.name for one in fields(made) if getattr(made, one.name) is PRESET]


@pytest.mark.parametrize("preset", ["paper", "small"])
def test_the_encoder_is_chosen_by_the_size_of_a_frame(preset: Any) -> None:
    def chosen(env: str, *frame: int, **given: Any) -> tuple[str, str]:
        pretrain = resolved(PvnConfig(out=Path(), preset=preset, **given), env, frame)
        dqn = resolved(DqnConfig(out=Path(), env=env, preset=preset, **given), env, frame)
        return pretrain.architecture, dqn.architecture

    small, large = ("minatar", "minatar"), ("impala", "nature")
    frame: tuple[int, ...]
    for frame in ((12, 12, 3), (3, 24), (24, 24), (5, 9, 1)):
        assert chosen("gym/Grid-v0", *frame) == small, frame
        assert chosen("rooms/small", *frame) == small, frame
    for frame in ((25, 24), (24, 25, 3), (84, 84), (210, 160, 3), (2, 24), (24, 2), (7,), ()):
        assert chosen("gym/Grid-v0", *frame) == large, frame
    assert chosen("gym/Grid-v0", 12, 12, architecture="impala") == ("impala", "impala")
    for frame in ((10, 10, 4), ()):  # as before
        assert chosen("minatar/breakout", *frame) == small
    assert chosen("atari/Pong", 84, 84) == (large if preset == "paper" else ("der", "der"))
    with_frame = resolved(PvnConfig(out=Path(), preset=preset), "minatar/breakout", (10, 10, 4))
    assert with_frame == resolved(PvnConfig(out=Path(), preset=preset), "minatar/breakout")


def test_what_came_later_is_recorded_where_it_is_another() -> None:
    """Layer norm is on in one preset; a run without it has the record of a run from before there was a choice."""
    config = PvnConfig(out=Path())
    for env, given, expected in (
        ("atari/Pong", {}, True),
        ("atari/Pong", {"layer_norm": False}, False),
        ("atari/Pong", {"preset": "paper"}, False),
        ("minatar/breakout", {}, False),
        ("minatar/breakout", {"layer_norm": True}, True),
    ):
        made = resolved(replace(config, **given), env)
        assert made.layer_norm is expected
        assert ("layer_norm" in not_given(made)) is not expected
        assert {"groups", "changes"} <= not_given(made)
    assert "groups" not in not_given(resolved(replace(config, groups=("gamma=0.9",)), "atari/Pong"))


def test_the_page_of_presets_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "presets"]) == 0
    printed = capsys.readouterr().out
    page = (ROOT / "docs/presets.md").read_text()
    assert f"```text\n{printed}```\n" in page
    for command, table in TABLES.items():
        assert f"\n{command}\n" in f"\n{printed}"
        assert all(entry.source in printed for entry in table.values())
