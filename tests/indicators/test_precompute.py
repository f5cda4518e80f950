"""Indicator rewards of a data set: right for every transition, computed once, continued, checked."""

import os
import random
import resource
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.caches import default_cache
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import Dataset
from protovalue.data.sampler import Sampler
from protovalue.errors import UserError
from protovalue.files import FolderLock, read_json, size_and_crc, write_json
from protovalue.indicators import precompute
from protovalue.indicators.precompute import (
    IndicatorSpec,
    channel_statistics,
    indicator_rewards,
    load_indicator,
    save_indicator,
)
from protovalue.indicators.rni import RandomNetworkIndicator
from tests.data.helpers import made_up, manifest, write

RNI = IndicatorSpec("rni", tasks=13, proportion=0.1, seed=3, tasks_per_module=5)
HASH = IndicatorSpec("hash", tasks=13, proportion=0.1, seed=3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    config = CollectConfig("minatar/breakout", tmp_path_factory.mktemp("d") / "set", steps=1200)
    return collect(config, quiet=True)


@pytest.mark.parametrize("spec", [RNI, HASH], ids=["rni", "hash"])
def test_bits_are_the_indicators_rewards(data: Dataset, tmp_path: Path, spec: Any) -> None:
    found = indicator_rewards(data, spec, tmp_path, quiet=True)
    index = np.random.default_rng(0).integers(data.num_transitions, size=200)
    obs = Sampler(data, 1, 0).transitions(index).obs
    expected = found.indicator.rewards(torch.from_numpy(obs.copy())).numpy()
    assert np.array_equal(found.rewards(index), expected)
    everything = found.rewards(np.arange(data.num_transitions))
    assert np.allclose(found.proportions, everything.mean(axis=0))
    assert 0 < everything.mean() < 0.5


def test_exact_thresholds_give_the_wanted_proportion(data: Dataset, tmp_path: Path) -> None:
    """1200 states at p = 0.1: 120 each, but for states that occur more than once and tie."""
    found = indicator_rewards(data, RNI, tmp_path, quiet=True)
    scores = np.concatenate([
        found.indicator.scores(torch.from_numpy(Sampler(data, 1, 0).transitions(part).obs.copy())).numpy()
        for part in np.array_split(np.arange(1200), 3)
    ])  # fmt: skip
    for task in range(13):
        reachable = [(scores[:, task] >= value).mean() for value in np.unique(scores[:, task])]
        assert found.proportions[task] == pytest.approx(min(reachable, key=lambda share: abs(share - 0.1)))


def test_quantile_regression_comes_near_the_proportion(data: Dataset, tmp_path: Path) -> None:
    spec = IndicatorSpec("rni", 4, 0.2, seed=0, threshold="sgd", burn_in=8000)
    found = indicator_rewards(data, spec, tmp_path, quiet=True)
    assert np.abs(found.proportions - 0.2).max() < 0.06


def test_computed_once_and_shared(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = indicator_rewards(data, RNI, tmp_path, quiet=True)

    def refuse(self: Any, obs: Any) -> None:
        raise AssertionError("evaluated again")

    monkeypatch.setattr(RandomNetworkIndicator, "scores", refuse)
    again = indicator_rewards(data, RNI, tmp_path, quiet=True)
    assert np.array_equal(first.bits, again.bits)
    assert sorted(path.name for path in tmp_path.iterdir()) == [precompute.cache_key(data, RNI)]
    assert not (tmp_path / precompute.cache_key(data, RNI) / precompute.SCORES).exists()


def test_the_key_knows_data_and_specification(data: Dataset, tmp_path: Path) -> None:
    other = write(tmp_path / "other", [made_up(3, np.random.default_rng(0))])
    specs = [RNI, HASH, IndicatorSpec("rni", 13, 0.1, seed=4), IndicatorSpec("rni", 13, 0.2, seed=3)]
    keys = [precompute.cache_key(data, spec) for spec in specs] + [precompute.cache_key(other, RNI)]
    assert len(set(keys)) == 5


def test_the_key_knows_the_steps_of_regression_only_where_there_is_one(data: Any) -> None:
    def keys(threshold: Any) -> Any:
        specs = [replace(RNI, threshold=threshold, burn_in=steps) for steps in (5, 7)]
        return [precompute.cache_key(data, spec) for spec in specs]

    assert len(set(keys("exact"))) == 1
    assert len(set(keys("sgd"))) == 2


def test_the_key_knows_how_random_networks_of_large_frames_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their last bits change with it; those of MinAtar's frames, and what does not come from them, do not."""

    def keys(shape: tuple[int, ...]) -> list[str]:
        data: Any = SimpleNamespace(checksum="abc", stack=1, observation_shape=shape)
        return [precompute.cache_key(data, IndicatorSpec(indicator, 100, 0.05, 0)) for indicator in ("rni", "hash")]

    small, large = keys((1, 10, 10, 4)), keys((1, 84, 84))
    assert small[0] == "e7ad91ab0b48aac68c3e5e8038c11204"  # of before there was another way for large ones
    assert large[0] != small[0]
    assert large[1] == small[1]  # the shape itself is in the checksum of the data
    monkeypatch.setattr("protovalue.indicators.precompute.PATCHES", "2")
    assert keys((1, 10, 10, 4)) == small
    assert keys((1, 84, 84))[0] != large[0]
    assert keys((1, 84, 84))[1] == large[1]


def test_ten_tasks_share_a_network_unless_told_otherwise(data: Any) -> None:
    indicator = precompute.build_indicator(data, IndicatorSpec("rni", tasks=12, proportion=0.1, seed=0))
    outputs = [len(bias) for name, bias in indicator.state_dict().items() if name.endswith("omega.bias")]
    assert outputs == [10, 2]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("PROTOVALUE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache() == Path("/home/somebody/.cache/protovalue/indicators")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_cache() == Path("/caches/protovalue/indicators")
    monkeypatch.setenv("PROTOVALUE_CACHE", "~/mine")
    assert default_cache() == Path("/home/somebody/mine/indicators")


def test_progress_is_told_unless_quiet(data: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    indicator_rewards(data, HASH, tmp_path / "quiet", quiet=True)
    assert capsys.readouterr().err == ""
    indicator_rewards(data, HASH, tmp_path / "told")
    before, after = capsys.readouterr().err.splitlines()
    assert before.startswith("indicators: 13 tasks on 1,200 states: 0.0 MiB, in ")
    assert after.startswith("indicators: 1,200/1,200 states, ")


@pytest.mark.parametrize(("tasks", "width"), [(8, 1), (9, 2), (16, 2), (17, 3)])
def test_eight_tasks_are_a_byte(data: Any, tmp_path: Path, tasks: Any, width: Any) -> None:
    """And a cache in a folder whose own folder is not there yet."""
    found = indicator_rewards(data, replace(HASH, tasks=tasks), tmp_path / "deep" / "cache", quiet=True)
    assert found.bits.shape == (1200, width)
    assert found.rewards(np.arange(3)).shape == (3, tasks)


@pytest.mark.parametrize("when", [0, 1, 2])
def test_an_interrupted_pass_continues(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    """Killed in the given batch of 512: the batches before it are not evaluated again, and the result is the same."""
    whole = indicator_rewards(data, RNI, tmp_path / "whole", quiet=True)
    real, calls = RandomNetworkIndicator.scores, list[int]()

    class Killed(BaseException):
        pass

    def dies(self: Any, obs: Any) -> torch.Tensor:
        if len(calls) == when:
            raise Killed
        calls.append(len(obs))
        return real(self, obs)

    monkeypatch.setattr(RandomNetworkIndicator, "scores", dies)
    with pytest.raises(Killed):
        indicator_rewards(data, RNI, tmp_path / "cut", quiet=True)
    calls.clear()

    def counts(self: Any, obs: Any) -> torch.Tensor:
        calls.append(len(obs))
        return real(self, obs)

    monkeypatch.setattr(RandomNetworkIndicator, "scores", counts)
    found = indicator_rewards(data, RNI, tmp_path / "cut", quiet=True)
    assert calls == [512, 512, 176][when:]
    assert np.array_equal(found.bits, whole.bits)


def test_any_flipped_byte_of_the_cache_is_told_removed_and_computed_again(
    data: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A byte anywhere in any file, twenty times over: the same rewards, after one line that says so."""
    first = indicator_rewards(data, HASH, tmp_path, quiet=True)
    bits, thresholds = np.array(first.bits), first.indicator.thresholds.clone()
    folder = tmp_path / precompute.cache_key(data, HASH)
    chance = random.Random(0)
    for name in ("bits.bin", "indicator.safetensors", "indicator.json") * 7:
        raw = bytearray((folder / name).read_bytes())
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        (folder / name).write_bytes(raw)
        caplog.clear()
        found = indicator_rewards(data, HASH, tmp_path, quiet=True)
        said = [line for line in caplog.messages if "damaged" in line]
        assert len(said) == 1
        assert said[0].startswith(f"{folder / name}: damaged: ")
        assert said[0].endswith(f"; removed {folder}, to compute the indicator rewards again")
        assert np.array_equal(found.bits, bits)
        assert torch.equal(found.indicator.thresholds, thresholds)
        assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name]


def forged(folder: Path, change: dict[str, object], inner: str | None = None) -> None:
    about = read_json(folder / "indicator.json")
    fields = {**about, inner: {**about[inner], **change}} if inner else {**about, **change}
    write_json(folder / "indicator.json", {name: value for name, value in fields.items() if value is not ...})


@pytest.mark.parametrize(
    ("change", "inner", "message"),
    [
        (
            {"format": "protovalue indicator rewards, version 1"},
            None,
            "field format: found 'protovalue indicator rewards",
        ),
        ({"indicator": 3}, None, "field indicator: found 3, expected an object"),
        ({"counts": "many"}, None, "field counts: found 'many', expected a list"),
        ({"counts": [1] * 12}, None, "field counts: found 12 numbers, expected 13"),
        ({"files": ...}, None, "field files: missing, expected an object"),
        ({"files": {}}, None, "indicator.safetensors: damaged: its checksum does not match"),
        ({"name": "rnj"}, "indicator", "found rnj, expected hash"),
        ({"num_tasks": 1 << 40}, "indicator", "found observations and tasks ((1, 10, 10, 4), 1099511627776), expected"),
        ({"num_tasks": "13"}, "indicator", "field indicator.num_tasks: found '13', expected a whole number"),
        (
            {"observation_shape": [1, 10**6, 10**6]},
            "indicator",
            "found observations and tasks ((1, 1000000, 1000000), 13)",
        ),
        ({"proportion": 2}, "indicator", "proportion: found 2.0, expected more than 0"),
        ({"options": {"none": 1}}, "indicator", "unknown option of indicator 'hash' 'none'"),
        ({"bits.bin": {"bytes": 1, "crc32": 2}}, "files", "bits.bin: damaged: its checksum does not match"),
    ],
)
def test_a_description_of_wrong_types_is_told_and_computed_again(
    data: Dataset,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: dict[str, Any],
    inner: str | None,
    message: str,
) -> None:
    first = indicator_rewards(data, HASH, tmp_path, quiet=True)
    bits, folder = np.array(first.bits), tmp_path / precompute.cache_key(data, HASH)
    forged(folder, change, inner)
    caplog.clear()
    assert np.array_equal(indicator_rewards(data, HASH, tmp_path, quiet=True).bits, bits)
    said = [line for line in caplog.messages if "removed" in line]
    assert len(said) == 1
    assert message in said[0]


@pytest.mark.parametrize("name", ["bits.bin", "indicator.safetensors", "indicator.json"])
def test_a_missing_file_is_told_and_computed_again(
    data: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    bits = np.array(indicator_rewards(data, HASH, tmp_path, quiet=True).bits)
    folder = tmp_path / precompute.cache_key(data, HASH)
    (folder / name).unlink()
    assert np.array_equal(indicator_rewards(data, HASH, tmp_path, quiet=True).bits, bits)
    assert f"{folder / name}: missing; removed" in caplog.text


def test_rewards_of_another_number_of_states_are_not_taken(data: Dataset, tmp_path: Path) -> None:
    """Bits that are whole, and as long as those of 1,100 states; the data set has 1,200."""
    indicator_rewards(data, HASH, tmp_path, quiet=True)
    folder = tmp_path / precompute.cache_key(data, HASH)
    os.truncate(folder / "bits.bin", 2200)
    size, crc = size_and_crc(folder / "bits.bin")
    forged(folder, {"bits.bin": {"bytes": size, "crc32": crc}}, "files")
    with pytest.raises(UserError, match="bits.bin: found 2200 bytes, expected 2400"):
        precompute._load(folder, data, HASH)


def test_a_saved_indicator_is_checked_when_it_is_loaded(data: Dataset, tmp_path: Path) -> None:
    indicator = indicator_rewards(data, HASH, tmp_path / "cache", quiet=True).indicator
    save_indicator(indicator, tmp_path / "saved")
    again = load_indicator(tmp_path / "saved")
    assert torch.equal(again.thresholds, indicator.thresholds)
    for name, place in (("indicator.safetensors", 3), ("indicator.safetensors", -1), ("indicator.json", 40)):
        save_indicator(indicator, tmp_path / "saved")
        raw = bytearray((tmp_path / "saved" / name).read_bytes())
        raw[place] ^= 2
        (tmp_path / "saved" / name).write_bytes(raw)
        with pytest.raises(UserError, match=f"{name}: damaged"):
            load_indicator(tmp_path / "saved")
    save_indicator(indicator, tmp_path / "saved")
    (tmp_path / "saved" / "indicator.safetensors").write_bytes(b"no tensors")
    size, crc = size_and_crc(tmp_path / "saved" / "indicator.safetensors")
    forged(tmp_path / "saved", {"indicator.safetensors": {"bytes": size, "crc32": crc}}, "files")
    with pytest.raises(UserError, match="indicator.json: the indicator cannot be made from it"):
        load_indicator(tmp_path / "saved")


def test_a_saved_indicator_alone_says_nothing_of_a_data_set(data: Any, tmp_path: Path) -> None:
    save_indicator(precompute.build_indicator(data, HASH), tmp_path)
    about = precompute.load_checked(tmp_path)[1]
    assert (about.transitions, about.counts, about.deviation, about.spec) == (0, [], [], {})
    assert list(about.files) == ["indicator.safetensors"]


def test_links_are_not_followed(data: Any, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("not ours")
    (tmp_path / "saved").mkdir()
    partial = tmp_path / "cache" / f"{precompute.cache_key(data, HASH)}.partial"
    partial.mkdir(parents=True)
    for folder in (tmp_path / "saved", partial):
        (folder / "bits.bin").symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match=r"saved/bits.bin: found a symbolic link, expected a file"):
        save_indicator(precompute.build_indicator(data, HASH), tmp_path / "saved")
    with pytest.raises(UserError, match=r"\.partial/bits.bin: found a symbolic link, expected a file"):
        indicator_rewards(data, HASH, tmp_path / "cache", quiet=True)
    assert (tmp_path / "other").read_text() == "not ours"


@pytest.mark.parametrize("damaged", [0, 1])
def test_an_interrupted_pass_keeps_only_whole_batches(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: int
) -> None:
    """Two batches of 512 were written and one of them lost a bit, as a power failure may do: it is done again."""
    whole = indicator_rewards(data, RNI, tmp_path / "whole", quiet=True)
    real, calls = RandomNetworkIndicator.scores, list[int]()

    class Killed(BaseException):
        pass

    def dies(self: Any, obs: Any) -> torch.Tensor:
        if len(calls) == 2:
            raise Killed
        calls.append(len(obs))
        return real(self, obs)

    monkeypatch.setattr(RandomNetworkIndicator, "scores", dies)
    with pytest.raises(Killed):
        indicator_rewards(data, RNI, tmp_path / "cut", quiet=True)
    (folder,) = (tmp_path / "cut").iterdir()
    raw = bytearray((folder / "scores.bin").read_bytes())
    assert len(raw) == 2 * 512 * 13 * 4
    raw[damaged * 512 * 13 * 4 + 5] ^= 64
    (folder / "scores.bin").write_bytes(raw)
    calls.clear()

    def counted(self: Any, obs: Any) -> torch.Tensor:
        calls.append(len(obs))
        return real(self, obs)

    monkeypatch.setattr(RandomNetworkIndicator, "scores", counted)
    found = indicator_rewards(data, RNI, tmp_path / "cut", quiet=True)
    assert calls == [512, 512, 176][damaged:]
    assert np.array_equal(found.bits, whole.bits)
    final = tmp_path / "cut" / precompute.cache_key(data, RNI)
    names = ["bits.bin", "indicator.json", "indicator.safetensors", "lock"]
    assert sorted(path.name for path in final.iterdir()) == names


def test_without_its_checksums_a_pass_begins_again(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "scores.bin").write_bytes(bytes(512 * 4))
    assert precompute._whole_batches(tmp_path / "scores.bin", 512 * 4) == 0
    precompute.sums_of(tmp_path / "scores.bin").write_bytes(zlib.crc32(bytes(512 * 4)).to_bytes(4, "little"))
    assert precompute._whole_batches(tmp_path / "scores.bin", 512 * 4) == 1
    assert precompute._whole_batches(tmp_path / "nothing.bin", 512 * 4) == 0


def test_no_room_is_said_before_the_work(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: os.terminal_size((0, 0)) and type("U", (), {"free": 1000}))
    with pytest.raises(UserError, match="no room for scores.bin"):
        indicator_rewards(data, RNI, tmp_path, quiet=True)


def three_sums(obs: Any) -> Any:
    """Three values per observation that tell where its pixels are on."""
    return obs.flatten(1).float() @ torch.arange(1200.0).reshape(400, 3)


def free(monkeypatch: pytest.MonkeyPatch, size: Any) -> Any:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": size}))


def test_room_that_is_just_enough(data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,200 states with three values of four bytes are 14,400 bytes; without the first 1,024, 2,112."""
    states, path = precompute.States(data, final=False), tmp_path / "scores.bin"
    free(monkeypatch, 14_399)
    with pytest.raises(UserError, match="no room for scores.bin"):
        precompute.all_scores(states, three_sums, 3, path, "cpu", quiet=True)
    assert not path.exists()
    free(monkeypatch, 14_400)
    whole = np.array(precompute.all_scores(states, three_sums, 3, path, "cpu", quiet=True))
    os.truncate(path, 1024 * 12)
    free(monkeypatch, 2_111)
    with pytest.raises(UserError, match="no room for scores.bin"):
        precompute.all_scores(states, three_sums, 3, path, "cpu", quiet=True)
    free(monkeypatch, 2_112)
    assert np.array_equal(precompute.all_scores(states, three_sums, 3, path, "cpu", quiet=True), whole)


def test_a_pass_that_goes_on_keeps_a_checksum_of_each_batch(data: Any, tmp_path: Path) -> None:
    """The second of three batches lost a bit: what follows the first is written anew, and its checksums."""
    states, path = precompute.States(data, final=False), tmp_path / "scores.bin"
    precompute.all_scores(states, three_sums, 3, path, "cpu", quiet=True)
    good = path.read_bytes()
    sums = b"".join(zlib.crc32(good[at : at + 512 * 12]).to_bytes(4, "little") for at in (0, 512 * 12, 1024 * 12))
    assert len(good) == 1200 * 12
    assert precompute.sums_of(path).read_bytes() == sums
    path.write_bytes(good[:7000] + bytes([good[7000] ^ 64]) + good[7001:])
    precompute.all_scores(states, three_sums, 3, path, "cpu", quiet=True)
    assert path.read_bytes() == good
    assert precompute.sums_of(path).read_bytes() == sums


def full(*_args: Any, **_kwargs: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", ["save", "write_atomic", "write_json", "FolderLock"])
def test_a_full_disk_leaves_nothing_behind(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(precompute, where, full)
    with pytest.raises(UserError, match=f"{tmp_path}/.*: cannot write the indicator rewards: No space left on device"):
        indicator_rewards(data, HASH, tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may be larger than 20 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_in_the_middle_leaves_nothing_behind(data: Dataset, tmp_path: Path, small_files: None) -> None:
    """The scores of 1,200 states and 13 tasks have 62 kB."""
    with pytest.raises(UserError, match="cannot write the indicator rewards: File too large"):
        indicator_rewards(data, RNI, tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused_at_once_leaves_nothing_behind(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--normalize: only random network indicators"):
        indicator_rewards(data, IndicatorSpec("hash", 3, 0.1, seed=0, normalize=True), tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_waited_for_one_that_failed_computes_itself(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one holds the lock, fails and removes the folder; then this one gets the lock of nothing."""
    key = precompute.cache_key(data, HASH)
    calls: list[str] = []

    def lock(folder: Any, wait: Any) -> FolderLock:
        held = FolderLock(folder, wait)
        if not calls:
            shutil.rmtree(folder)
        calls.append(folder.name)
        return held

    monkeypatch.setattr(precompute, "FolderLock", lock)
    found = indicator_rewards(data, HASH, tmp_path, quiet=True)
    assert len(found.bits) == 1200
    assert calls == [f"{key}.partial"] * 2
    assert [path.name for path in tmp_path.iterdir()] == [key]


def test_a_process_that_waited_takes_what_the_other_computed(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = indicator_rewards(data, HASH, tmp_path / "whole", quiet=True)
    key = precompute.cache_key(data, HASH)

    def lock(folder: Any, wait: Any) -> FolderLock:
        shutil.copytree(tmp_path / "whole" / key, tmp_path / "cache" / key)
        return FolderLock(folder, wait)

    monkeypatch.setattr(precompute, "FolderLock", lock)
    monkeypatch.setattr(precompute, "_compute", lambda *_: pytest.fail("computed again"))
    assert np.array_equal(indicator_rewards(data, HASH, tmp_path / "cache", quiet=True).bits, whole.bits)


def test_a_constant_network_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path / "set", [made_up(50, np.random.default_rng(0), like=manifest(frame_shape=(4, 4)))],
                 frame_shape=(4, 4))  # fmt: skip
    monkeypatch.setattr(RandomNetworkIndicator, "scores", lambda self, obs: torch.zeros(len(obs), self.num_tasks))
    indicator_rewards(data, IndicatorSpec("rni", 2, 0.1, seed=0), tmp_path / "cache", quiet=True)
    assert "2 of 2 tasks never fire" in caplog.text
    assert "NOTHING CAN BE LEARNED FROM THEM: no task tells any two states of this data set apart" in caplog.text
    caplog.clear()
    score = torch.arange(50, dtype=torch.float32)  # of the second task alone: its set has the last 5 states
    monkeypatch.setattr(
        RandomNetworkIndicator, "scores", lambda self, obs: torch.stack([torch.zeros(50), score[: len(obs)]], dim=1)
    )
    found = indicator_rewards(data, IndicatorSpec("rni", 2, 0.1, seed=1), tmp_path / "cache", quiet=True)
    assert found.proportions.tolist() == [0, 0.1]
    assert "1 of 2 tasks never fire" in caplog.text
    assert "NOTHING" not in caplog.text


def test_channel_statistics_by_hand(tmp_path: Path) -> None:
    """Two states (the last frame of an episode is none): channel 0 is 0 and 255 in half, channel 1 is 51 throughout."""
    episode = made_up(2, np.random.default_rng(0), like=manifest(frame_shape=(1, 2, 2)))
    episode.frames = np.array([[[[0, 51], [255, 51]]], [[[255, 51], [0, 51]]], [[[9, 9], [9, 9]]]], np.uint8)
    data = write(tmp_path / "set", [episode], frame_shape=(1, 2, 2))
    mean, deviation = channel_statistics(data)
    assert mean == pytest.approx([0.5, 0.2])
    assert deviation == pytest.approx([0.5, 0.0], abs=1e-7)


def test_a_users_own_file(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from protovalue.indicators.base import Indicator\n"
        "class PaddleLeft(Indicator):\n"
        "    tuned_on_data = False\n"
        "    def __init__(self, observation_shape, num_tasks, proportion, generator):\n"
        "        super().__init__(observation_shape, num_tasks, proportion)\n"
        "        self.thresholds.fill_(0.5)\n"
        "    def scores(self, obs):\n"
        "        return obs[:, -1, 9, :5, 0].any(1).float()[:, None].repeat(1, self.num_tasks)\n"
        "INDICATOR = PaddleLeft\n"
    )
    spec = IndicatorSpec(str(tmp_path / "mine.py"), 2, 0.5, seed=0)
    found = indicator_rewards(data, spec, tmp_path / "cache", quiet=True)
    obs = Sampler(data, 1, 0).transitions(np.arange(300)).obs
    assert np.array_equal(found.rewards(np.arange(300))[:, 1], obs[:, -1, 9, :5, 0].any(axis=1))
