"""Estimates come from what was measured: finished stages, remembered rates, and width by multiply-adds."""

import time
from pathlib import Path
from typing import Any

import pytest

from protovalue.data.config import CollectConfig
from protovalue.study import measure
from protovalue.study.folder import histories
from protovalue.study.measure import LARGE, SIZES, select, small_study
from protovalue.study.plan import Stage, plan, regression_rate
from protovalue.study.rates import (
    FINISHED,
    MEASURED,
    Rate,
    StageTime,
    estimate,
    estimates,
    filled,
    from_history,
    multiply_adds,
    rates_file,
    remember,
    remembered,
)
from tests.study.helpers import TINY, parse

ROOT = Path("runs/x")


def event(stage: str, what: str, seconds: float | None = None) -> dict[str, Any]:
    return {"time": 0.0, "stage": stage, "event": what, "seconds": seconds}


def stage(name: str, rate: str, units: float, **more: Any) -> Stage:
    return Stage(name, "online", name, ("pvn",), rate=rate, units=units, **more)


def test_rates_of_finished_stages_are_time_over_work() -> None:
    stages = [stage("a", "r", 100), stage("b", "r", 300), stage("c", "r", 500), stage("d", "s", 0)]
    log = [event("a", "start"), event("a", "done", 10.0), event("b", "start"), event("b", "done", 50.0)]
    log += [event("c", "start"), event("c", "start"), event("c", "done", 1.0)]  # killed once: its time is not whole
    log += [event("d", "start"), event("d", "done", 3.0)]
    rates = from_history(stages, histories(log))
    assert rates == {"r": Rate((10 + 50) / (100 + 300), 0.0, FINISHED), "s": Rate(0.0, 3.0, FINISHED)}
    assert estimate(stages[2], rates, None).seconds == pytest.approx(500 * 60 / 400)


def test_a_measured_rate_adds_the_start_and_the_indicators() -> None:
    one = stage("a", "r", 100, before={"i": 2000, "q": 7})
    rates = {"r": Rate(0.5, 3.0, MEASURED), "i": Rate(0.01, 0.0, MEASURED), "q": Rate(2.0, 0.0, MEASURED)}
    assert estimate(one, rates, None).seconds == pytest.approx(3 + 50 + 20 + 14)
    assert estimate(one, {"r": rates["r"]}, None).seconds is None  # the pass is part of it, and not known
    assert estimate(one, {"r": Rate(0.5, 0.0, FINISHED)}, None).seconds == pytest.approx(50)  # it is in there


def test_nothing_known_is_not_guessed() -> None:
    assert estimate(stage("a", "r", 100), {}, "minatar/breakout").seconds is None


def test_multiply_adds_are_those_of_the_layers() -> None:
    # convolution 3x3 over 4 channels to 16 on 8x8 places, dense 1024 to 128
    assert multiply_adds("minatar/breakout", "minatar", 1) == 8 * 8 * 9 * 4 * 16 + 1024 * 128
    assert multiply_adds("minatar/breakout", "minatar", 2) == 8 * 8 * 9 * 4 * 32 + 2048 * 256


def test_another_width_is_scaled_and_said_so() -> None:
    rates = {"online minatar minatar x1 seeds 3 threads 1": Rate(0.5, 2.0, MEASURED)}
    wide = stage("a", "online minatar minatar x2 seeds 3 threads 1", 10)
    factor = (8 * 8 * 9 * 4 * 32 + 2048 * 256) / (8 * 8 * 9 * 4 * 16 + 1024 * 128)
    found = estimate(wide, rates, "minatar/breakout")
    assert found.scaled
    assert found.seconds == pytest.approx(2 + factor * 5)
    narrow = stage("a", "online minatar minatar x0.25 seeds 3 threads 1", 10)
    factor = (8 * 8 * 9 * 4 * 4 + 256 * 32) / (8 * 8 * 9 * 4 * 16 + 1024 * 128)
    assert estimate(narrow, rates, "minatar/breakout").seconds == pytest.approx(2 + factor * 5)
    other = stage("a", "online minatar minatar x2 seeds 9 threads 1", 10)
    assert estimate(other, rates, "minatar/breakout").seconds is None


def test_rates_are_remembered_and_a_damaged_file_is_as_none_and_named(caplog: pytest.LogCaptureFixture) -> None:
    assert remembered() == {}
    remember({"a": Rate(1.0, 2.0, MEASURED)})
    remember({"b": Rate(3.0, 4.0, MEASURED)})
    assert remembered() == {"a": Rate(1.0, 2.0, MEASURED), "b": Rate(3.0, 4.0, MEASURED)}
    assert not caplog.text
    rates_file().write_text("{")
    assert remembered() == {}
    assert f"{rates_file()}: damaged: not JSON" in caplog.text
    assert "no rates are taken from there" in caplog.text


def test_the_small_study_shows_every_rate_of_a_minatar_study() -> None:
    study = parse("widths = [1, 2]\n" + TINY.replace("pretraining = 2", "pretraining = 3"))
    stages = plan(study, ROOT).stages
    small = plan(small_study(study, "minatar/breakout", SIZES["minatar"]), ROOT)
    wanted = {stage.rate for stage in stages}
    chosen = select(small, wanted, episodes=True)
    assert {stage.rate for stage in chosen} == wanted
    assert len(chosen) < len(stages)
    known = {stage.rate: Rate(1.0, 0.0, FINISHED) for stage in chosen}
    assert all(one.seconds is not None for one in estimates(stages, known, study.environments).values())


def test_the_small_study_regresses_for_one_step_and_times_it_apart() -> None:
    study = parse(TINY.replace("tasks = 8", "tasks = 8\nthreshold = 'sgd'\nburn_in = 90"))
    small = plan(small_study(study, "minatar/breakout", SIZES["minatar"]), ROOT)
    (one,) = [stage for stage in small.stages if stage.kind == "pretrain" and "-pvn-" in stage.id]
    assert one.command[one.command.index("--burn-in") + 1] == "1"
    assert one.before[regression_rate(1)] == 1
    assert measure._regression(1).per_unit > 0
    assert measure._indicators("minatar/breakout", 1).per_unit > 0


def test_what_emulators_take_to_start_is_not_counted_by_the_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A collection that takes five seconds to start and two milliseconds a step, by a clock of its own."""
    clock, asked = [100.0], []

    def collect(config: CollectConfig, quiet: bool) -> None:
        asked.append((config.steps, config.out, quiet))
        clock[0] += 5.0 + 0.002 * config.steps

    monkeypatch.setattr(measure, "collect", collect)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    config = CollectConfig(env="atari/Pong", out=Path("elsewhere"), steps=50_000)
    assert measure._collecting(config, tmp_path, 600) == pytest.approx(0.002)
    assert [steps for steps, _, _ in asked] == [600, 1_800]
    assert all(out.parent == tmp_path and quiet for _, out, quiet in asked)
    assert len({out for _, out, _ in asked}) == 2


def test_collecting_is_measured_so_for_a_study() -> None:
    small = plan(small_study(parse(TINY), "minatar/breakout", SIZES["minatar"]), ROOT)
    (stage,) = [stage for stage in small.stages if stage.kind == "collect"]
    assert isinstance(stage.used, CollectConfig)
    assert stage.used.steps == SIZES["minatar"].collect


def test_the_small_study_of_a_large_one_has_width_1_and_no_episodes() -> None:
    text = "widths = [8]\n" + TINY.replace("minatar/breakout", "atari/Pong")
    small = plan(small_study(parse(text), "atari/Pong", LARGE), ROOT)
    chosen = select(small, None, episodes=False)
    assert {stage.kind for stage in chosen} == {"collect", "pretrain", "online", "dqn"}
    assert all(
        "--width" not in stage.command or stage.command[stage.command.index("--width") + 1] == "1" for stage in chosen
    )


def test_what_is_not_estimated_counts_as_the_mean_of_its_kind_or_of_all() -> None:
    kinds = ["online", "online", "online", "dqn", "import"]
    stages = [Stage(name, kind, name, ("pvn",)) for name, kind in zip("abcde", kinds, strict=True)]
    found = {
        "a": StageTime(10.0),
        "b": StageTime(20.0),
        "c": StageTime(None),
        "d": StageTime(60.0),
        "e": StageTime(None),
    }
    # c as a and b, e as a, b and d
    assert filled(stages, found) == {"a": 10.0, "b": 20.0, "c": 15.0, "d": 60.0, "e": 30.0}
    assert filled(stages, dict.fromkeys("abcde", StageTime(None))) == {}
