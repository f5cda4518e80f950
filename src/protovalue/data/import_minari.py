"""Importing a Minari data set: its HDF5 file read directly, episode by episode.

Observations must be one uint8 or bool array and actions discrete. Minari stores images as JPEG unless told otherwise;
they are decoded as Minari does it, and the provenance says that the frames are lossy.
"""

import io
import json
import logging
import os
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from protovalue.config import ImportMinariConfig
from protovalue.data.collect import manifest_of
from protovalue.data.dataset import Dataset
from protovalue.data.format import End, Manifest
from protovalue.data.importing import (
    Encoded,
    Pending,
    Plan,
    Tally,
    Workers,
    check_actions,
    clean_rewards,
    cpu_count,
    encode_chunks,
    report,
    run_import,
)
from protovalue.data.sources import DamagedError, Source
from protovalue.envs.registry import import_module_of, make
from protovalue.errors import UserError

log = logging.getLogger(__name__)

_MAIN, _METADATA = "main_data.hdf5", "metadata.json"
_EPISODE = re.compile(r"^episode_(\d+)$")
_MINATAR = re.compile(r"^MinAtar/(\w+)-v([01])$")  # version 0 has all six actions, version 1 the minimal ones


@dataclass(frozen=True)
class Spaces:
    """What the metadata says of observations and actions."""

    shape: tuple[int, ...]
    dtype: str
    actions: int
    first_action: int
    image: bool
    """Whether Minari counts the observations as images, which it may have stored as JPEG."""


def import_minari(config: ImportMinariConfig, quiet: bool = False) -> Dataset:
    """Import a whole Minari data set, or continue; return the data set."""
    import_module_of(config.env or "")  # as given: one that the metadata name is not
    folders = [find_folder(text) for text in config.source]
    metadata = [_read_metadata(folder) for folder in folders]
    spaces = [read_spaces(fields, folder) for fields, folder in zip(metadata, folders, strict=True)]
    manifest = _manifest(config, metadata[0], spaces[0], folders[0])
    for folder, found in zip(folders[1:], spaces[1:], strict=True):
        if found != spaces[0]:
            raise UserError(f"{folder}: found {found}, expected {spaces[0]} as in {folders[0]}")
    paths = [str(folder / _MAIN) for folder in folders]
    files = [Source(path, path, Path(path).stat().st_size) for path in paths]
    source: dict[str, Any] = {
        "by": "pvn import minari",
        "source": " ".join(config.source),
        "dataset_id": ", ".join(str(fields.get("dataset_id", "unknown")) for fields in metadata),
    }
    if any(_lossy(file, spaces[0]) for file in files):
        source["frames"] = "lossy (JPEG)"
        log.warning("%s: its images are JPEG: the frames are not just those that the agent saw", source["source"])
    read = partial(_read_file, manifest=manifest, spaces=spaces[0])
    workers = config.workers or cpu_count()
    return run_import(Plan(config.out, manifest, source, files, read, workers, config.skip_damaged), quiet)


def import_minari_command(config: ImportMinariConfig) -> None:
    """Import, and say what there is now."""
    report(import_minari(config), config.out)


def find_folder(text: str) -> Path:
    """Return the folder with a data set's files: `text` is that folder, the one above, or an id in Minari's own."""
    root = Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")
    for folder in (Path(text), Path(text) / "data", root / text / "data"):
        if (folder / _METADATA).is_file():
            return folder
    raise UserError(f"{text}: not a Minari data set: no {_METADATA} there nor under {root / text}")


def _read_metadata(folder: Path) -> dict[str, Any]:
    path = folder / _METADATA
    try:
        fields = json.loads(path.read_bytes())
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: damaged: not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise UserError(f"{path}: found a JSON {type(fields).__name__}, expected an object")
    if fields.get("data_format", "hdf5") != "hdf5":
        raise UserError(f"{path}: found data format {fields['data_format']}, expected hdf5")
    if not (folder / _MAIN).is_file():
        raise UserError(f"{folder / _MAIN}: missing")
    return fields


def read_spaces(metadata: dict[str, Any], folder: Path) -> Spaces:
    """Return the spaces; other than one uint8 or bool array and discrete actions is a UserError."""
    path = folder / _METADATA
    try:
        observation = json.loads(metadata["observation_space"])
        action = json.loads(metadata["action_space"])
        if action["type"] != "Discrete":
            raise UserError(f"{path}: found {action['type']} actions, expected Discrete")
        if observation["type"] != "Box":
            raise UserError(f"{path}: found {observation['type']} observations, expected one array (Box)")
        shape, dtype = tuple(int(size) for size in observation["shape"]), str(observation["dtype"])
        if dtype not in ("uint8", "bool"):
            raise UserError(f"{path}: found {dtype} observations {shape}, expected uint8 or bool")
        image = (
            dtype == "uint8"
            and len(shape) in (2, 3)
            and min(shape[:2]) >= 32
            and bool(np.all(np.array(observation["low"]) == 0))
            and bool(np.all(np.array(observation["high"]) == 255))
        )
        return Spaces(shape, dtype, int(action["n"]), int(action.get("start", 0)), image)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: damaged: the spaces cannot be read: {error!r}") from error


def _manifest(config: ImportMinariConfig, metadata: dict[str, Any], spaces: Spaces, folder: Path) -> Manifest:
    """Return the manifest of the environment, which must have the same observations and actions as the data."""
    options = config.options.given()
    env_id = config.env
    if env_id is None:
        env_id, implied = _environment(metadata, folder)
        options = {**implied, **options}
    env = make(env_id, 1, **options)
    manifest = manifest_of(env)
    env.close()
    found = (spaces.shape, spaces.dtype, spaces.actions)
    expected = (manifest.frame_shape, manifest.frame_dtype, manifest.num_actions)
    if found != expected:
        raise UserError(
            f"{folder}: found observations {found[0]} {found[1]} and {found[2]} actions, "
            f"expected {expected[0]} {expected[1]} and {expected[2]} as in {env_id}; --env and its options change that"
        )
    return manifest


def _environment(metadata: dict[str, Any], folder: Path) -> tuple[str, dict[str, Any]]:
    """Return our name of the environment that the metadata describes, and the options that follow from it."""
    try:
        spec = json.loads(metadata["env_spec"])
        name = str(spec["id"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"--env: {folder / _METADATA} names no environment, expected one such as gym/ID") from error
    if match := _MINATAR.match(name):
        game = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match.group(1)).lower()
        return f"minatar/{game}", {"actions": "minimal" if match.group(2) == "1" else "full"}
    if spec.get("kwargs") or spec.get("additional_wrappers"):
        log.warning("%s: recorded with arguments or wrappers that gym/%s does not have", folder, name)
    point = str(spec.get("entry_point") or "")
    module = point.split(".")[0].split(":")[0]
    prefix = f"{module}:" if module and module != "gymnasium" and ":" not in name else ""
    return f"gym/{prefix}{name}", {}


def _read_file(
    file: Source, tally: Tally, workers: Workers, manifest: Manifest, spaces: Spaces
) -> Generator[Pending, None, None]:
    """Yield the episodes of one file in the order of their numbers; each worker opens the file itself."""
    numbers = _episode_numbers(file)
    for done, number in enumerate(numbers):
        tally.read = file.size * done // len(numbers)
        yield workers.submit(encode_episode, file.path, number, manifest, spaces)


def _open(path: str) -> Any:
    import h5py

    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise UserError(f"{path}: truncated or not an HDF5 file: {error}") from error


def _episode_numbers(file: Source) -> list[int]:
    with _open(file.path) as content:
        numbers = sorted(int(match.group(1)) for name in content if (match := _EPISODE.match(name)))
    if not numbers:
        raise UserError(f"{file.url}: found no group episode_0, expected one group per episode")
    return numbers


def _is_jpeg(observations: Any, spaces: Spaces) -> bool:
    """Whether the images were encoded: rows of bytes in place of arrays of the observation's shape."""
    return spaces.image and observations.shape[1:] != spaces.shape


def _lossy(file: Source, spaces: Spaces) -> bool:
    number = _episode_numbers(file)[0]
    with _open(file.path) as content:
        observations = content[f"episode_{number}"].get("observations")
        return hasattr(observations, "shape") and _is_jpeg(observations, spaces)


def encode_episode(path: str, number: int, manifest: Manifest, spaces: Spaces) -> Encoded:
    """Turn one group into an episode of the data set; runs in a worker."""
    where = f"{path}: episode_{number}"
    with _open(path) as content:
        group = content[f"episode_{number}"]
        for key in ("observations", "actions", "rewards", "terminations", "truncations"):
            if key not in group:
                raise UserError(f"{where}: the key {key!r} is missing; found {', '.join(sorted(group))}")
            if not hasattr(group[key], "dtype"):
                raise UserError(f"{where}: {key} is a group, expected an array")
        try:
            actions, rewards = np.asarray(group["actions"][()]), np.asarray(group["rewards"][()])
            ends = [np.asarray(group[key][()]) for key in ("terminations", "truncations")]
            observations = group["observations"]
            steps = len(actions)
            for name, values in (("rewards", rewards), ("terminations", ends[0]), ("truncations", ends[1])):
                if values.shape != (steps,):
                    raise UserError(f"{where}: found {name} {values.shape}, expected ({steps},), one per action")
            if len(observations) != steps + 1:
                raise UserError(
                    f"{where}: found {len(observations)} observations, expected {steps + 1} for {steps} actions"
                )
            stored, counts = clean_rewards(rewards, clip=False)
            end = End.CUT
            if steps and (ends[0][-1] or ends[1][-1]):
                end = End.TERMINATED if ends[0][-1] else End.TRUNCATED
            chunks = encode_chunks(manifest, _frames(observations, manifest, spaces, where))
        except OSError as error:  # a checksum of HDF5 does not hold, or the file ends too early
            raise DamagedError(f"{where}: damaged: {error}") from error
    shifted = check_actions(np.asarray(actions) - spaces.first_action, manifest.num_actions, where)
    return Encoded(chunks, shifted, stored, end, -1, counts)


def _frames(observations: Any, manifest: Manifest, spaces: Spaces, where: str) -> Iterator[NDArray[Any]]:
    """Yield frames in groups of a chunk's size."""
    jpeg = _is_jpeg(observations, spaces)
    for first in range(0, len(observations), manifest.chunk_frames):
        part = observations[first : first + manifest.chunk_frames]
        frames = np.stack([_decode(image, where) for image in part]) if jpeg else np.asarray(part)
        if frames.shape[1:] != manifest.frame_shape or frames.dtype != np.dtype(manifest.frame_dtype):
            raise UserError(
                f"{where}: found observations {frames.shape[1:]} {frames.dtype}, "
                f"expected {manifest.frame_shape} {manifest.frame_dtype}"
            )
        yield frames


def _decode(image: Any, where: str) -> NDArray[np.uint8]:
    data = np.asarray(image)
    try:
        with Image.open(io.BytesIO(data.tobytes()), formats=["JPEG"]) as opened:
            return np.asarray(opened)
    except Exception as error:  # Pillow raises many kinds for a damaged image
        raise DamagedError(f"{where}: an observation is not a JPEG image: {error}") from error
