"""What is computed once per data set: its size is said before, and it can be listed and cleared."""

import os
import shutil
from pathlib import Path

import pytest

from protovalue.caches import default_cache
from protovalue.cli import main
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import Dataset
from protovalue.errors import UserError
from protovalue.files import FolderLock
from protovalue.indicators import precompute
from protovalue.indicators.cumulants import CumulantSpec, cumulants
from protovalue.indicators.precompute import IndicatorSpec, indicator_rewards

RNI = IndicatorSpec("rni", tasks=9, proportion=0.1, seed=0, tasks_per_module=3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return collect(CollectConfig("minatar/breakout", tmp_path_factory.mktemp("d") / "set", steps=60), quiet=True)


def pvn(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capsys.readouterr()
    assert main(["cache", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_sizes_are_said_before_and_are_those_on_the_disk(
    data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []

    def exact(size: int) -> str:
        said.append(size)
        return str(size)

    monkeypatch.setattr(precompute, "size_text", exact)
    found = indicator_rewards(data, RNI, tmp_path)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "pvn cache list" in line]
    scores, kept, networks = said  # in the order of their making
    assert line == (
        f"indicators: 9 tasks on 60 states: {kept}, and {scores} while they are computed, in {tmp_path} "
        f"(pvn cache list); {networks} of networks in the run, too"
    )
    assert scores == 60 * 9 * 4
    assert kept - networks == found.bits.nbytes == 60 * 2
    (folder,) = tmp_path.iterdir()
    stored = (folder / "indicator.safetensors").stat().st_size
    assert networks <= stored <= networks + 10_000  # its header
    indicator_rewards(data, RNI, tmp_path)  # nothing is computed
    indicator_rewards(data, RNI, tmp_path / "quiet", quiet=True)
    assert "pvn cache list" not in capsys.readouterr().err


def test_no_room_for_the_networks_is_no_room(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores alone, 2,160 bytes, would fit."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 3_000}))
    with pytest.raises(UserError, match=r"no room for scores.bin, .*, and .* beside it: found 0 MiB"):
        indicator_rewards(data, RNI, tmp_path, quiet=True)
    with pytest.raises(UserError, match=r"no room for values.bin, .*, and .* beside it: found 0 MiB"):
        cumulants(data, CumulantSpec(2, seed=0, normalize=False, tasks_per_module=2), tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_listing_and_clearing(
    data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOVALUE_CACHE", str(tmp_path))
    cache = default_cache()
    assert pvn(capsys, "list") == [f"{cache}: 0 entries, 0.0 MiB"]
    indicator_rewards(data, RNI, quiet=True)
    cumulants(data, CumulantSpec(2, seed=0, normalize=False, tasks_per_module=2), quiet=True)
    for name, size in (("0" * 32, 3 << 20), ("0" * 31 + "1.partial", 2 << 20), ("0" * 31 + "2.partial", 5 << 20)):
        (cache / name).mkdir()
        (cache / name / "scores.bin").write_bytes(bytes(size))
    os.utime(cache / ("0" * 32) / "scores.bin", (0, 0))
    (cache / "notes").mkdir()  # somebody's own
    (cache / ("f" * 32)).symlink_to(data.folders[0].path)
    with FolderLock(cache / ("0" * 31 + "2.partial")):
        *lines, total = pvn(capsys, "list")
        assert [line.split("days  ")[1] for line in lines[:2]] == ["being computed", "damaged"]
        assert "000000000000     3.0 MiB  " in lines[1]
        assert float(lines[1].split("MiB")[1].split("days")[0]) > 20_000  # since 1970
        assert {line.split("days  ")[1] for line in lines[2:]} == {
            "not finished",
            "indicators rni: 9 tasks, 60 states, observations 1x10x10x4",
            "cumulants: 2 tasks, observations 1x10x10x4",
        }
        assert total.startswith(f"{cache}: 5 entries, 1")
        one = precompute.cache_key(data, RNI)
        assert pvn(capsys, "clear", one[:12])[0].endswith(" MiB removed")
        assert not (cache / one).exists()
        assert main(["cache", "clear", "0000"]) == 2
        assert "NAMES: found '0000', which 3 entries of" in capsys.readouterr().err
        assert main(["cache", "clear", one]) == 2
        assert pvn(capsys, "clear")[0] == "000000000000: left alone, as it is being computed"
    left = {"0" * 31 + "2.partial", "notes", "f" * 32}
    assert {path.name for path in cache.iterdir()} == left
    assert data.folders[0].path.is_dir()
    assert list(data.folders[0].path.iterdir())
    pvn(capsys, "clear", "--cache", str(cache))
    assert {path.name for path in cache.iterdir()} == left - {"0" * 31 + "2.partial"}


@pytest.mark.parametrize("command", ["list", "clear"])
def test_a_file_is_no_cache(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.toml").write_text("")
    assert main(["cache", command, "--cache", str(tmp_path / "study.toml")]) == 2
    assert f"--cache: found a file {tmp_path}/study.toml, expected a folder" in capsys.readouterr().err
    assert main(["cache", command, "--cache", str(tmp_path / "nowhere")]) == 0
