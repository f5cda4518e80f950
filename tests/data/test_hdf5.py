"""Minari's HDF5 files that announce too much, lead elsewhere or are not what they should be: one line, nothing read."""

import io
import json
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from PIL import Image

from protovalue.data.collect import manifest_of
from protovalue.data.config import ImportMinariConfig
from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.data.import_minari import Spaces, encode_episode, import_minari
from protovalue.envs.registry import make
from protovalue.errors import UserError
from tests.data.published import write_counting, write_inflating, write_metadata


def run_minari(folder: Any, out: Any, **settings: Any) -> Dataset:
    config = ImportMinariConfig(source=(str(folder),), out=out, **{"workers": 1, "env": "gym/Counting-v0", **settings})
    return import_minari(config, quiet=True)


def test_the_small_data_set_is_good(tmp_path: Path) -> None:
    gzipped = {"compression": "gzip", "shuffle": True, "fletcher32": True, "chunks": True}
    for number, settings in enumerate(({}, {"chunks": True}, {"chunks": (2,)}, gzipped)):
        folder = write_counting(tmp_path / str(number), rewards=settings, actions=settings)
        found = run_minari(folder, tmp_path / f"out-{number}", env=None).episode(0)
        assert found.rewards.tolist() == [0, 1, 2, 3]
        assert found.actions.tolist() == [0, 1, 2, 0]
        assert found.end == End.TERMINATED


ANNOUNCED = {"shape": (10**12,), "dtype": "i8", "data": ..., "chunks": (1024,)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"actions": ANNOUNCED}, "found 1000000000000 actions, expected at most 4194304"),
        ({"actions": {**ANNOUNCED, "shape": (4194305,)}}, "found 4194305 actions, expected at most 4194304"),
        ({"rewards": {**ANNOUNCED, "dtype": "f8"}}, r"found rewards \(1000000000000,\), expected \(4,\), one per"),
        ({"rewards": {**ANNOUNCED, "shape": (4,), "dtype": "f8", "chunks": (2,)}},
         "rewards: damaged: found 0 chunks of it, expected 2"),
        ({"rewards": {"shape": (4,), "dtype": "f8", "data": ...}}, "rewards: damaged: found 0 bytes of it, expected 3"),
        ({"rewards": {"chunks": (1 << 23,), "maxshape": (None,)}}, None),
        ({"rewards": {"chunks": ((1 << 23) + 1,), "maxshape": (None,)}}, "found chunks of 67108872 bytes, expected at"),
        ({"rewards": {"compression": "lzf"}}, r"rewards: found HDF5's filters \[32000\], expected none, or gzip"),
        ({"rewards": {"data": np.zeros(4, "V100000000")}}, "found rewards of type .*, expected numbers"),
        ({"rewards": {"data": np.array([b"text"] * 4)}}, "found rewards of type .S4, expected numbers"),
        ({"actions": {"data": np.zeros(4)}}, "found actions of type float64, expected whole numbers"),
        ({"actions": {"data": np.zeros((4, 1), np.int64)}}, r"found actions \(4, 1\), expected \(4,\)"),
        ({"terminations": {"data": np.zeros(4)}}, "found terminations of type float64, expected flags"),
        ({"observations": {"data": np.zeros((5, 3))}}, "found observations of type float64, expected bytes or flags"),
        ({"observations": {"data": np.zeros((5, 3), np.bool_)}}, r"found observations \(3,\) bool, expected \(3,\) ui"),
        ({"observations": {"data": np.uint8(3)}}, "found no observations, expected 5 for 4 actions"),
        ({"observations": {"data": np.zeros((6, 3), np.uint8)}}, "found 6 observations, expected 5 for 4 actions"),
        ({"observations": {**ANNOUNCED, "shape": (5, 10**9), "dtype": "u1", "chunks": (1, 4096)}},
         r"found observations \(1000000000,\) uint8, expected \(3,\) uint8"),
        ({"observations": {**ANNOUNCED, "shape": (5, 3), "dtype": "u1", "chunks": (1, 3)}},
         "observations: damaged: found 0 chunks of it, expected 5"),
    ],
)  # fmt: skip
def test_what_an_hdf5_file_announces_is_bounded(tmp_path: Path, settings: dict[str, Any], expected: str | None) -> None:
    folder = write_counting(tmp_path / "data", **settings)
    if expected is None:
        assert run_minari(folder, tmp_path / "set").num_transitions == 4
        return
    with pytest.raises(UserError, match=expected) as raised:
        run_minari(folder, tmp_path / "set")
    assert f"{folder / 'main_data.hdf5'}: episode_0" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_chunk_of_hdf5_that_expands_without_end(tmp_path: Path) -> None:
    """HDF5 itself would inflate all of it."""
    assert run_minari(write_inflating(tmp_path / "good", 32), tmp_path / "one").episode(0).rewards.tolist() == [0] * 4
    with pytest.raises(UserError, match="rewards: chunk 0: damaged: found more than its 32 bytes"):
        run_minari(write_inflating(tmp_path / "bad", 37), tmp_path / "two")
    with pytest.raises(UserError, match="rewards: damaged: found chunk 0 of .* bytes, expected 32 or fewer"):
        run_minari(write_inflating(tmp_path / "long", 2 << 20), tmp_path / "three")
    folder = write_counting(tmp_path / "text", rewards={"compression": "gzip", "chunks": (4,)})
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file["episode_0/rewards"].id.write_direct_chunk((0,), b"no zlib at all")
    with pytest.raises(UserError, match="rewards: chunk 0: damaged: Error -3"):
        run_minari(folder, tmp_path / "four")
    with pytest.raises(UserError, match="--skip-damaged leaves it out"):
        run_minari(folder, tmp_path / "four")


def write_filtered(folder: Any, filters: Any) -> Any:
    """Write the small data set with rewards through the given filters; returns their numbers as HDF5 has them."""
    write_counting(folder)
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((4,))
    for name in filters:
        getattr(settings, f"set_{name}")()
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        space = h5py.h5s.create_simple((4,))
        h5py.h5d.create(file["episode_0"].id, b"rewards", h5py.h5t.IEEE_F64LE, space, settings)
        file["episode_0/rewards"][:] = np.arange(4)
        stored = file["episode_0/rewards"].id.get_create_plist()
        return [stored.get_filter(number)[0] for number in range(stored.get_nfilters())]


def write_chunk(folder: Any, length: Any, data: Any, mask: Any = 0) -> Any:
    """Write the small data set with rewards in one chunk of `length` numbers, which lies in the file as `data`."""
    write_counting(folder, rewards={"compression": "gzip", "chunks": (length,), "maxshape": (None,)})
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file["episode_0/rewards"].id.write_direct_chunk((0,), data, mask)
    return folder


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (("shuffle",), [2]),
        (("fletcher32",), [3]),
        (("fletcher32", "deflate"), [3, 1]),  # gzip packs the four bytes of the checksum, too
        (("shuffle", "deflate", "fletcher32"), [2, 1, 3]),
    ],
)
def test_hdf5_filters_in_any_order(tmp_path: Path, filters: Any, found: Any) -> None:
    assert write_filtered(tmp_path / "data", filters) == found
    assert run_minari(tmp_path / "data", tmp_path / "set").episode(0).rewards.tolist() == [0, 1, 2, 3]


def test_hdf5_that_is_packed_twice(tmp_path: Path) -> None:
    """What gzip unpacks of a small chunk could then itself expand without end."""
    assert write_filtered(tmp_path / "data", ("deflate", "deflate")) == [1, 1]
    with pytest.raises(UserError, match=r"rewards: found HDF5's filters \[1, 1\], expected none, or gzip"):
        run_minari(tmp_path / "data", tmp_path / "set")


def test_a_chunk_of_hdf5_that_was_not_worth_packing(tmp_path: Path) -> None:
    """Its mask says that the first filter was left out."""
    folder = write_chunk(tmp_path / "data", 4, np.array([3.0, 1, 4, 1]).tobytes(), mask=1)
    assert run_minari(folder, tmp_path / "set").episode(0).rewards.tolist() == [3, 1, 4, 1]


@pytest.mark.parametrize(("length", "most"), [(4, 1056), (100, 1832)])
def test_a_chunk_of_hdf5_may_be_a_little_longer_than_its_contents(tmp_path: Path, length: Any, most: Any) -> None:
    """32 and 1,024 bytes; 800, a hundredth of them, and 1,024."""
    values = np.zeros(length)
    values[:4] = [3, 1, 4, 1]
    packed = zlib.compress(values.tobytes())
    folder = write_chunk(tmp_path / "good", length, packed.ljust(most, b"x"))
    assert run_minari(folder, tmp_path / "one").episode(0).rewards.tolist() == [3, 1, 4, 1]
    folder = write_chunk(tmp_path / "bad", length, packed.ljust(most + 1, b"x"))
    message = f"rewards: damaged: found chunk 0 of {most + 1} bytes, expected {8 * length} or fewer"
    with pytest.raises(UserError, match=message):
        run_minari(folder, tmp_path / "two")


def test_hdf5_reads_no_other_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    folder = write_counting(tmp_path / "external")
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        file.create_dataset("episode_0/rewards", (4,), "f8", external=[(str(secret), 0, 32)])
    with pytest.raises(UserError, match="episode_0: rewards: its values are in other files"):
        run_minari(folder, tmp_path / "one")
    other = write_counting(tmp_path / "other")
    for number, link in enumerate((h5py.ExternalLink(str(other / "main_data.hdf5"), "episode_0/rewards"),
                                   h5py.SoftLink("/episode_0/actions"))):  # fmt: skip
        folder = write_counting(tmp_path / f"link-{number}")
        with h5py.File(folder / "main_data.hdf5", "a") as file:
            del file["episode_0/rewards"]
            file["episode_0/rewards"] = link
        with pytest.raises(UserError, match="rewards is a link to another place, expected it here"):
            run_minari(folder, tmp_path / f"two-{number}")
    folder = write_counting(tmp_path / "virtual")
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(str(other / "main_data.hdf5"), "episode_0/rewards", (4,))
        file.create_virtual_dataset("episode_0/rewards", layout)
    with pytest.raises(UserError, match="rewards: its values are in other files"):
        run_minari(folder, tmp_path / "three")
    folder = write_metadata(tmp_path / "whole")
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        file["episode_0"] = h5py.ExternalLink(str(other / "main_data.hdf5"), "episode_0")
    with pytest.raises(UserError, match="episode_0 is a link to another place"):
        run_minari(folder, tmp_path / "four")


def test_names_of_episodes_that_are_no_numbers(tmp_path: Path) -> None:
    folder = write_counting(tmp_path / "data")
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        for name in ("episode_" + "9" * 5000, "episode_007", "episode_\u0663", "episode_-1", "notes"):
            file.create_group(name)
    assert run_minari(folder, tmp_path / "set").num_episodes == 1


def test_damage_inside_hdf5_is_named(tmp_path: Path) -> None:
    """Bytes flipped all over the file: a line that names it, or an episode."""
    folder = write_counting(tmp_path / "data", rewards={"chunks": True}, observations={"chunks": (2, 3)})
    path = folder / "main_data.hdf5"
    good = path.read_bytes()
    like = manifest_of(make("gym/Counting-v0", 1))
    spaces = Spaces((3,), "uint8", 3, 5, False)
    said = []
    for place in range(8, len(good), 37):
        raw = bytearray(good)
        raw[place] ^= 0xFF
        path.write_bytes(raw)
        try:
            assert len(encode_episode(str(path), 0, like, spaces).actions) == 4
        except UserError as error:
            said.append(str(error))
    assert len(said) > 10
    assert all(line.startswith(f"{path}: ") and "\n" not in line for line in said)


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment with images of 40 x 48, as Minari stores them."""

    class Pictures(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 255, (40, 48, 3), np.uint8)
        action_space = gymnasium.spaces.Discrete(3, start=5)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            raise NotImplementedError("it is only looked at")

        def step(self, action: Any) -> Any:
            raise NotImplementedError("it is only looked at")

    gymnasium.register("Jpegs-v0", Pictures)  # type: ignore[arg-type]  # a class that takes no options
    yield
    del gymnasium.registry["Jpegs-v0"]


def jpeg(height: Any, width: Any, mode: str = "RGB") -> np.ndarray:

    buffer = io.BytesIO()
    Image.new(mode, (width, height)).save(buffer, "JPEG")
    return np.frombuffer(buffer.getvalue(), np.uint8)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (jpeg(40, 48), None),
        (jpeg(2000, 2000), "found an image of 2000x2000 RGB, expected 40x48 RGB"),
        (jpeg(40, 48, "L"), "found an image of 40x48 L, expected 40x48 RGB"),
        (jpeg(48, 40), "found an image of 48x40 RGB, expected 40x48 RGB"),
        (np.zeros(100, np.uint8), "an observation is not a JPEG image"),
        (np.zeros(4 * 40 * 48 * 3 + (64 << 10) + 1, np.uint8), "found an image of 88577 bytes, expected at most 88576"),
    ],
)
@pytest.mark.parametrize("rows", [True, False])
def test_images_of_another_size_are_not_decoded(
    tmp_path: Path, pictures: None, image: Any, expected: str | None, rows: bool
) -> None:
    folder = write_counting(tmp_path / "data")
    low, high = np.zeros((40, 48, 3), int).tolist(), np.full((40, 48, 3), 255).tolist()
    box = {"type": "Box", "dtype": "uint8", "shape": [40, 48, 3], "low": low, "high": high}
    write_metadata(folder, observation_space=json.dumps(box))
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        if rows:
            array = file.create_dataset("episode_0/observations", (5,), h5py.vlen_dtype(np.uint8), chunks=True)
            for number in range(5):
                array[number] = image
        else:
            file.create_dataset("episode_0/observations", data=np.stack([image] * 5), chunks=True)
    if expected is None:
        assert run_minari(folder, tmp_path / "set", env="gym/Jpegs-v0").frame_shape == (40, 48, 3)
        return
    if not rows:
        expected = expected.replace("an image of 88577", "images of 88577")
    with pytest.raises(UserError, match=expected):
        run_minari(folder, tmp_path / "set", env="gym/Jpegs-v0")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"observation_space": None}, "field observation_space: found null, expected text"),
        ({"observation_space": "{"}, "field observation_space: damaged: not JSON"),
        ({"observation_space": "[" * 100_000}, "field observation_space: damaged: found lists or objects nested more"),
        ({"observation_space": "[]"}, "field observation_space: found [], expected an object"),
        ({"observation_space": "{}"}, "field observation_space: field type: missing, expected text"),
        ({"observation_space": '{"type": "Box"}'}, "field observation_space: field shape: missing, expected a list"),
        (
            {"action_space": '{"type": "Discrete", "n": "3"}'},
            "field action_space: field n: found '3', expected a whole",
        ),
        ({"action_space": '{"type": "Discrete", "n": 3, "start": 0.5}'}, "field start: found 0.5, expected a whole"),
        ({"env_spec": 3}, "field env_spec: found 3, expected text or null"),
        ({"env_spec": "nothing"}, "field env_spec: damaged: not JSON"),
        ({"env_spec": "{}"}, "field env_spec: field id: missing, expected text"),
        ({"env_spec": '{"id": ["Counting-v0"]}'}, "field env_spec: field id: found a list of 1, expected text"),
        ({"data_format": 3}, "field data_format: found 3, expected text"),
        ({"dataset_id": {}}, "field dataset_id: found an object with 0 fields, expected text or null"),
    ],
)
def test_a_description_of_wrong_types_is_one_line(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    folder = write_counting(tmp_path / "data")
    write_metadata(folder, **changes)
    with pytest.raises(UserError) as raised:
        run_minari(folder, tmp_path / "set", env=None)
    assert str(raised.value).startswith(f"{folder / 'metadata.json'}: ")
    assert expected.removesuffix(" or null") in str(raised.value)


def test_a_description_that_is_too_long(tmp_path: Path) -> None:
    folder = write_counting(tmp_path / "data")
    os.truncate(folder / "metadata.json", (64 << 20) + 1)
    with pytest.raises(UserError, match=r"metadata.json: found 67108865 bytes, expected at most 67108864"):
        run_minari(folder, tmp_path / "set")


@pytest.mark.parametrize(
    "spec",
    [
        {"id": "booby_trap:Counting-v0"},
        {"id": "Counting-v9", "entry_point": "booby_trap:Env"},
        {"id": "Trapped-v0", "entry_point": "booby_trap.envs:Env"},
        {"id": "Trapped-v0", "entry_point": "booby trap"},
    ],
)
def test_a_file_names_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]) -> None:
    """The module would leave a mark if it were imported."""
    (tmp_path / "booby_trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = write_counting(tmp_path / "data")
    write_metadata(folder, env_spec=json.dumps(spec))
    with pytest.raises(UserError, match=r"--env gym/(MODULE:ID|booby_trap:(Trapped-v0|Counting-v9))"):
        run_minari(folder, tmp_path / "set", env=None)
    assert not (tmp_path / "sprung").exists()
    assert "booby_trap" not in sys.modules
    assert not (tmp_path / "set").exists()
