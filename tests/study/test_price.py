"""`pvn study plan --on PROFILE`: what a study takes on a device that is not here, by hand."""

from pathlib import Path

import pytest

from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.study.command import open_study
from protovalue.study.price import Price, Pricer
from protovalue.study.profile import Profile, load_profile, shipped

PROFILE = """name = "abacus"
memory_gib = 1
price_per_hour = 2.5
achieved = 0.5
step_ms = 10
read_gb_per_second = 0.001
env_steps_per_second = 100
[peak_tflops]
bfloat16 = 0.004
float32 = 0.002
"""
STUDY = """name = "priced"
environments = ["minatar/breakout"]
widths = [1]
[data]
steps = 1000
[seeds]
online = 2
[pretrain]
steps = 50
batch_size = 8
[online]
steps = 100
replay_min = 20
batch_size = 4
[dqn]
steps = 60
replay_min = 20
batch_size = 4
[evaluate]
episodes = 20
[methods.pvn]
tasks = 10
[methods.random]
[methods.dqn]
"""
PARAMETERS = 16 * (9 * 4 + 1) + 128 * (1024 + 1)  # Breakout has 4 channels and 3 actions
FORWARD = 2 * (16 * 9 * 4 * 64 + 1024 * 128)
TRAINING = 3 * FORWARD - 2 * 16 * 9 * 4 * 64


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "abacus.toml"
    path.write_text(PROFILE)
    return path


def priced(file: Path, profile: Path) -> dict[str, Price]:
    study, _, laid_out = open_study(file, file.parent / "out")
    pricer = Pricer(study, laid_out.stages, load_profile(str(profile)))
    return {stage.id.partition("-s")[0]: pricer.price(stage) for stage in laid_out.stages}


def starting(prices: dict[str, Price], start: str) -> Price:
    (found,) = [price for name, price in prices.items() if name.startswith(start)]
    return found


def test_every_stage_by_hand(file: Path, profile: Path) -> None:
    prices = priced(file, profile)
    data = starting(prices, "data/")
    assert data == Price(disk=0.1 * 1000 * 400, seconds=10)

    # Heads of all three actions with their gradients, and their mean over the target's actions.
    heads, random = 2 * 128 * 10 * (3 * 3 + 1), 2 * (16 * 9 * 4 * 64 + 1024 * 128 + 128 * 10)
    pvn = starting(prices, "pretrain/breakout-pvn")
    step = 8 * (TRAINING + FORWARD + heads)
    assert pvn.flops == 50 * step + 1000 * random
    assert pvn.read == 50 * 8 * 2 * 400 + 1000 * 400
    own, head = PARAMETERS, 10 * 3 * 129
    saved = 8 * 2 * (64 * 9 * 4 + 1024 + 128)
    assert pvn.memory == 16 * (own + head) + 4 * (own + head) + saved
    networks = 4 * (own + 10 * 129)
    assert pvn.disk == 4 * own + 2 * (12 + 4) * (own + head) + 2 * 1000 + 2 * networks
    assert pvn.meanwhile == 4 * 10 * 1000
    # Steps of 10 ms are longer than their arithmetic and than the reading of their frames at 1 MB/s; the pass over the
    # data is done at half of 2 GFLOP/s.
    assert 50 * step / 2e9 < 0.5
    assert 50 * 8 * 2 * 400 / 1e6 < 0.5
    assert pvn.seconds == pytest.approx(0.5 + max(1000 * random / 1e9, 0.4))

    assert starting(prices, "pretrain/breakout-random") == Price(memory=4 * own, disk=4 * own)

    online = starting(prices, "online/breakout-pvn")
    value = 2 * 128 * 3
    assert online.flops == 100 * 2 * (FORWARD + value) + 81 * 2 * 4 * 3 * value
    assert online.meanwhile == 2 * 100 * 128 * 2
    assert online.seconds == pytest.approx(100 * (0.01 + 2 / 100) + 81 * 0.01)
    assert online.read == 100 * 2 * 400 + 81 * 2 * 4 * 2 * 256

    dqn = starting(prices, "dqn/")
    times = (60 - 20) // 2 + 1
    update = 4 * (4 * value + TRAINING + FORWARD)
    assert dqn.flops == 60 * (FORWARD + value) + times * update
    assert dqn.meanwhile == 60 * 400

    played = starting(prices, "evaluate/breakout-pvn")
    assert played.flops == 2 * 300 * 20 * (FORWARD + value)
    assert played.seconds == pytest.approx(600 * 0.01 + 600 * 20 / 100) or played.flops > 6e9


def test_slow_arithmetic_and_slow_reading_decide(file: Path, profile: Path) -> None:
    quick = PROFILE.replace("step_ms = 10", "step_ms = 0.0001")
    profile.write_text(quick)
    pvn = starting(priced(file, profile), "pretrain/breakout-random")
    assert pvn.seconds == 0
    one = starting(priced(file, profile), "pretrain/breakout-pvn").seconds
    profile.write_text(quick.replace("bfloat16 = 0.004", "bfloat16 = 0.0004"))
    slower = starting(priced(file, profile), "pretrain/breakout-pvn").seconds
    step = 8 * (TRAINING + FORWARD + 2 * 128 * 10 * 10)
    assert slower - one == pytest.approx(50 * step * (1 / 2e8) - max(50 * step / 2e9, 0.32))
    profile.write_text(quick.replace("second = 0.001", "second = 0.00001"))
    reading = starting(priced(file, profile), "pretrain/breakout-pvn").seconds
    assert reading == pytest.approx((50 * 8 * 2 * 400 + 1000 * 400) / 1e4)


def test_the_second_encoder_finds_the_tasks_of_the_first(file: Path, profile: Path) -> None:
    file.write_text(STUDY + '[methods.again]\nmethod = "pvn"\ntasks = 10\nbackup = "max"\n')
    prices = priced(file, profile)
    first, second = (starting(prices, f"pretrain/breakout-pvn{name}-x1") for name in ("", "-max"))
    assert first.meanwhile > 0
    assert second.meanwhile == 0
    assert first.disk > second.disk


def test_what_is_printed(file: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", "plan", str(file), "--on", str(profile), "--devices", "2", "--out", str(file.parent / "out")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "on abacus" in printed
    prices = priced(file, profile)
    hours = sum(one.seconds for one in prices.values()) / 3600
    assert f" stages, {hours:,.1f} device-hours, {hours * 2.5:,.0f} at 2.5 an hour" in printed
    assert "wall time on 2 devices: " in printed
    assert "0.004 TFLOP/s in bfloat16, 0.002 TFLOP/s in float32 at best, and 50% of that here" in printed
    assert "NOT ENOUGH" not in printed
    profile.write_text(PROFILE.replace("memory_gib = 1", "memory_gib = 0.001"))
    assert main(words[:-4] + words[-2:]) == 0
    printed = capsys.readouterr().out
    assert "NOT ENOUGH MEMORY: the largest stage takes 0.0 GiB of the device's 0.001" in printed
    assert "wall time on 1 device: " in printed


def test_the_paper_s_study_on_one_game(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "studies" / "paper-scaling.toml").read_text()
    file = tmp_path / "scaling.toml"
    games = text[text.index("environments") : text.index("widths")]
    file.write_text(text.replace(games, 'environments = ["atari/Pong"]\n').replace("[1, 2, 4, 8]", "[8]"))
    assert main(["study", "plan", str(file), "--on", "a100", "--devices", "8", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "imported Atari data have 1,000,000 transitions an iteration, 50 iterations a run" in printed
    assert "left: 102 stages, " in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("import ")]
    assert line.split()[5] == "105.8", "3 runs of 50 million frames of 7,056 bytes, a tenth of them"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("achieved = 0.5", "achieved = 1.5"), "field achieved: found 1.5, expected more than 0 and at most 1"),
        (("achieved = 0.5", 'achieved = "half"'), "field achieved: found 'half', expected a number"),
        (("achieved = 0.5\n", ""), "field achieved: missing"),
        (("float32 = 0.002", "float32 = -1"), "field peak_tflops.float32: found -1.0, expected more than 0"),
        (("bfloat16 = 0.004\n", ""), "field peak_tflops.bfloat16: found null, expected a number, or precision"),
        (("bfloat16 = 0.004", "bfloat16 = nan"), "expected"),
        (("memory_gib = 1", "memory_gib = inf"), "memory_gib"),
        (("price_per_hour = 2.5", "price_per_hour = -1"), "field price_per_hour: found -1.0, expected 0 or more"),
        (("step_ms", "steps = 3\nstep_ms"), "steps"),
        (("memory_gib = 1", "memory_gib = "), ":2: not TOML"),
    ],
)
def test_nonsense_is_one_line(
    change: tuple[str, str], message: str, file: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile.write_text(PROFILE.replace(*change))
    assert main(["study", "plan", str(file), "--on", str(profile)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"pvn: {profile}")
    assert message in error
    assert error.count("\n") == 1


def test_profiles_that_are_not_there(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--on: unknown profile 'a10'"):
        load_profile("a10")
    with pytest.raises(UserError, match=r"--on: found no file gone.toml, expected one of a100, cpu2, h100 or a TOML"):
        load_profile("gone.toml")
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"bad.toml: not TOML: it is not text in UTF-8"):
        load_profile(str(bad))


def test_those_of_the_package_are_good() -> None:
    assert shipped() == ["a100", "cpu2", "h100"]
    found: dict[str, Profile] = {name: load_profile(name) for name in shipped()}
    assert found["a100"].flops_per_second("bfloat16") == pytest.approx(0.3 * 312e12)
    assert found["cpu2"].flops_per_second("bfloat16") == found["cpu2"].flops_per_second("float32") == 0.75 * 0.15e12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--devices 2", "--devices: found 2, expected it with --on only; here it is --jobs"),
        ("--on a100 --jobs 2", "--jobs: found 2, expected --devices with --on"),
        ("--on a100 --measure no", "--measure: found no, expected it without --on only"),
    ],
)
def test_options_that_do_not_go_together(
    words: str, message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "plan", str(file), *words.split()]) == 2
    assert message in capsys.readouterr().err
