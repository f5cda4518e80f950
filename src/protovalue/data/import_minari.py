"""Importing a Minari data set: its HDF5 file read directly, episode by episode.

Observations must be one uint8 or bool array and actions discrete. Minari stores images as JPEG unless told otherwise;
they are decoded as Minari does it, and the provenance says that the frames are lossy.
"""

import io
import logging
import math
import os
import re
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from protovalue.data.collect import manifest_of, shape_note
from protovalue.data.config import ImportMinariConfig
from protovalue.data.dataset import Dataset
from protovalue.data.export_minari import ITERATION
from protovalue.data.format import End, Manifest
from protovalue.data.hdf5 import check_storage, is_array, opened, own, reading
from protovalue.data.importing import (
    Encoded,
    ImportPlan,
    Pending,
    Tally,
    Workers,
    check_actions,
    clean_rewards,
    cpu_count,
    encode_chunks,
    report,
    run_import,
)
from protovalue.data.sources import DamagedError, SourceFile
from protovalue.envs.options import check_recorded
from protovalue.envs.registry import import_module_of, make
from protovalue.errors import UserError
from protovalue.registry import is_file, split_env
from protovalue.schema import checked, parse_json, shown

log = logging.getLogger(__name__)

_MAIN, _METADATA = "main_data.hdf5", "metadata.json"
_EPISODE = re.compile(r"^episode_(0|[1-9][0-9]{0,17})$")
_MINATAR = re.compile(r"^MinAtar/(\w+)-v([01])$")  # version 0 has all six actions, version 1 the minimal ones

# What the files may announce.
MOST_STEPS = 1 << 22  # of an episode: its actions, rewards and flags are read at once, at most 18 bytes a step
_METADATA_BYTES = 64 << 20  # of metadata.json, which spells out the bounds of every pixel
_IMAGE_BYTES = 64 << 10  # that a JPEG image may have beside four times its pixels

_KINDS = {"observations": "Ob?u", "actions": "iu", "rewards": "iuf", "terminations": "b?iu", "truncations": "b?iu"}
_WORDS = {"Ob?u": "bytes or flags", "iu": "whole numbers", "iuf": "numbers", "b?iu": "flags"}


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
    files = [SourceFile(path, path, Path(path).stat().st_size) for path in paths]
    source: dict[str, Any] = {
        "by": "pvn import minari",
        "source": " ".join(config.source),
        "dataset_id": ", ".join(fields.dataset_id or "unknown" for fields in metadata),
    }
    if any(_lossy(file, spaces[0]) for file in files):
        source["frames"] = "lossy (JPEG)"
        log.warning("%s: its images are JPEG: the frames are not just those that the agent saw", source["source"])
    read = partial(_read_file, manifest=manifest, spaces=spaces[0])
    workers = config.workers or cpu_count()
    return run_import(ImportPlan(config.out, manifest, source, files, read, workers, config.skip_damaged), quiet)


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


@dataclass(frozen=True)
class _Ours:
    """What `pvn export minari` adds: what Minari has no place for."""

    env_id: str
    env_options: dict[str, Any]
    rewards: Literal["raw", "clipped"]


@dataclass(frozen=True)
class _Metadata:
    """What is used of metadata.json; the spaces and the environment are JSON texts themselves."""

    observation_space: str
    action_space: str
    env_spec: str | None = None
    dataset_id: str | None = None
    data_format: str = "hdf5"
    protovalue: "_Ours | None" = None


@dataclass(frozen=True)
class _AnySpace:
    type: str


@dataclass(frozen=True)
class _Box:
    shape: tuple[int, ...]
    dtype: str
    low: Any
    high: Any


@dataclass(frozen=True)
class _Discrete:
    n: int
    start: int = 0


@dataclass(frozen=True)
class _EnvSpec:
    id: str
    entry_point: str | None = None
    kwargs: dict[str, Any] | None = None
    additional_wrappers: list[Any] | None = None


def _read_metadata(folder: Path) -> _Metadata:
    path = folder / _METADATA
    if path.stat().st_size > _METADATA_BYTES:
        raise UserError(f"{path}: found {path.stat().st_size} bytes, expected at most {_METADATA_BYTES}")
    metadata = checked(_Metadata, parse_json(path.read_bytes(), path), path, extra=True)
    if metadata.data_format != "hdf5":
        raise UserError(f"{path}: found data format {metadata.data_format}, expected hdf5")
    if not (folder / _MAIN).is_file():
        raise UserError(f"{folder / _MAIN}: missing")
    return metadata


def read_spaces(metadata: _Metadata, folder: Path) -> Spaces:
    """Return the spaces; other than one uint8 or bool array and discrete actions is a UserError."""
    path = folder / _METADATA
    where = {name: f"{path}: field {name}" for name in ("observation_space", "action_space")}
    action = parse_json(metadata.action_space.encode(), where["action_space"])
    observation = parse_json(metadata.observation_space.encode(), where["observation_space"])
    kind = checked(_AnySpace, action, where["action_space"], extra=True).type
    if kind != "Discrete":
        raise UserError(f"{path}: found {shown(kind)} actions, expected Discrete")
    kind = checked(_AnySpace, observation, where["observation_space"], extra=True).type
    if kind != "Box":
        raise UserError(f"{path}: found {shown(kind)} observations, expected one array (Box)")
    discrete = checked(_Discrete, action, where["action_space"], extra=True)
    box = checked(_Box, observation, where["observation_space"], extra=True)
    if box.dtype not in ("uint8", "bool"):
        raise UserError(f"{path}: found {shown(box.dtype)} observations {box.shape}, expected uint8 or bool")
    image = (
        box.dtype == "uint8"
        and len(box.shape) in (2, 3)
        and min(box.shape[:2]) >= 32
        and _all_are(box.low, 0)
        and _all_are(box.high, 255)
    )
    return Spaces(box.shape, box.dtype, discrete.n, discrete.start, image)


def _all_are(values: Any, wanted: int) -> bool:
    """Whether a number, or all numbers of nested lists, are `wanted`."""
    return all(_all_are(value, wanted) for value in values) if isinstance(values, list) else bool(values == wanted)


def _manifest(config: ImportMinariConfig, metadata: _Metadata, spaces: Spaces, folder: Path) -> Manifest:
    """Return the manifest of the environment, which must have the same observations and actions as the data."""
    options = config.options.given()
    env_id, where, hint = config.env, "", ""
    if env_id is None:
        env_id, options, hint = _environment(metadata, folder, options)
        where = f"{folder / _METADATA}: "
    try:
        env = make(env_id, 1, **options)
    except UserError as error:
        raise UserError(f"{where}{error}{hint}") from error
    manifest = manifest_of(env)
    env.close()
    found = (spaces.shape, spaces.dtype, spaces.actions)
    expected = (manifest.frame_shape, manifest.frame_dtype, manifest.num_actions)
    if found != expected:
        raise UserError(
            f"{folder}: found observations {found[0]} {found[1]} and {found[2]} actions, "
            f"expected {expected[0]} {expected[1]} and {expected[2]} as in {env_id}; --env and its options change that"
        )
    if metadata.protovalue is not None:
        manifest = replace(manifest, rewards=metadata.protovalue.rewards)
    if note := shape_note(manifest):
        print(note, file=sys.stderr)
    return manifest


def _environment(metadata: _Metadata, folder: Path, given: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Return our name of the environment that the metadata describes, its options, and a hint if it is not known.

    A file may name an environment but no module: making `module:ID` would import it, and run whatever it holds.
    """
    path = folder / _METADATA
    if (ours := metadata.protovalue) is not None:
        where = f"{path}: field protovalue"
        if ":" in ours.env_id or is_file(split_env(ours.env_id)[0]):
            raise UserError(f"{where}.env_id: found {shown(ours.env_id)}, expected a name; if you trust it: --env")
        check_recorded(ours.env_id, ours.env_options, f"{where}.env_options")
        return ours.env_id, {**ours.env_options, **given}, "; --env names it"
    if metadata.env_spec is None:
        raise UserError(f"--env: {path} names no environment, expected one such as gym/ID")
    where = f"{path}: field env_spec"
    spec = checked(_EnvSpec, parse_json(metadata.env_spec.encode(), where), where, extra=True)
    if match := _MINATAR.match(spec.id):
        game = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match.group(1)).lower()
        implied = {"actions": "minimal" if match.group(2) == "1" else "full"}
        return f"minatar/{game}", {**implied, **given}, ""
    if ":" in spec.id:
        raise UserError(
            f"{where}: found {shown(spec.id)}, expected an id without a module, which a file may not choose; "
            "if you trust the module: --env gym/MODULE:ID"
        )
    if spec.kwargs or spec.additional_wrappers:
        log.warning("%s: recorded with arguments or wrappers that gym/%s does not have", folder, spec.id)
    module = (spec.entry_point or "").split(".")[0].split(":")[0]
    hint = f"; if the module that registers it is {module} and you trust it: --env gym/{module}:{spec.id}"
    return f"gym/{spec.id}", given, hint if module.isidentifier() else "; --env gym/MODULE:ID imports its module"


def _read_file(
    file: SourceFile, tally: Tally, workers: Workers, manifest: Manifest, spaces: Spaces
) -> Generator[Pending, None, None]:
    """Yield the episodes of one file in the order of their numbers; each worker opens the file itself."""
    numbers = _episode_numbers(file)
    for done, number in enumerate(numbers):
        tally.read = file.size * done // len(numbers)
        yield workers.submit(encode_episode, file.path, number, manifest, spaces)


def _episode_numbers(file: SourceFile) -> list[int]:
    with opened(file.path) as content, reading(file.url):
        numbers = sorted(int(match.group(1)) for name in content if (match := _EPISODE.match(name)))
    if not numbers:
        raise UserError(f"{file.url}: found no group episode_0, expected one group per episode")
    return numbers


def _is_jpeg(observations: Any, spaces: Spaces) -> bool:
    """Whether the images were encoded: rows of bytes in place of arrays of the observation's shape."""
    return spaces.image and observations.shape[1:] != spaces.shape


def _lossy(file: SourceFile, spaces: Spaces) -> bool:
    number = _episode_numbers(file)[0]
    where = f"{file.url}: episode_{number}"
    with opened(file.path) as content, reading(where):
        group = own(content, f"episode_{number}", file.url)
        observations = own(group, "observations", where) if "observations" in group else None
        return is_array(observations) and _is_jpeg(observations, spaces)


def encode_episode(path: str, number: int, manifest: Manifest, spaces: Spaces) -> Encoded:
    """Turn one group into an episode of the data set; runs in a worker."""
    where = f"{path}: episode_{number}"
    with opened(path) as content, reading(where):
        group = own(content, f"episode_{number}", path)
        arrays: dict[str, Any] = {}
        for key, kinds in _KINDS.items():
            if key not in group:
                found = ", ".join(sorted(group)[:12])
                raise UserError(f"{where}: the key {key!r} is missing; found {found}")
            arrays[key] = own(group, key, where)
            if not is_array(arrays[key]):
                raise UserError(f"{where}: {key} is a group or a type, expected an array")
            if arrays[key].dtype.kind not in kinds:
                raise UserError(f"{where}: found {key} of type {arrays[key].dtype}, expected {_WORDS[kinds]}")
        observations = arrays.pop("observations")
        steps = math.prod(arrays["actions"].shape)
        if steps > MOST_STEPS:
            raise UserError(f"{where}: found {steps} actions, expected at most {MOST_STEPS}")
        for key, array in arrays.items():
            if array.shape != (steps,):
                raise UserError(f"{where}: found {key} {array.shape}, expected ({steps},), one per action")
            check_storage(array, f"{where}: {key}")
        if observations.shape[:1] != (steps + 1,):
            found = observations.shape[0] if observations.shape else "no"
            raise UserError(f"{where}: found {found} observations, expected {steps + 1} for {steps} actions")
        actions, rewards, terminations, truncations = (np.asarray(array[()]) for array in arrays.values())
        stored, counts = clean_rewards(rewards, clip=False)
        iteration = _iteration(group, where)
        end = End.CUT
        if steps and (terminations[-1] or truncations[-1]):
            end = End.TERMINATED if terminations[-1] else End.TRUNCATED
        chunks = encode_chunks(manifest, _frames(observations, manifest, spaces, where))
    shifted = check_actions(actions.astype(np.int64) - spaces.first_action, manifest.num_actions, where)
    return Encoded(chunks, shifted, stored, end, iteration, counts)


def _iteration(group: Any, where: str) -> int:
    """Return the training stage of the agent that acted, which `pvn export minari` notes; -1 if nobody did."""
    if ITERATION not in group.attrs:
        return -1
    attribute = group.attrs.get_id(ITERATION)
    whole = attribute.shape == () and attribute.dtype.kind == "i"
    value = int(group.attrs[ITERATION]) if whole else None
    if value is None or not -1 <= value < 1 << 31:
        raise UserError(f"{where}: attribute {ITERATION}: found {shown(value)}, expected a whole number from -1 on")
    return value


def _frames(observations: Any, manifest: Manifest, spaces: Spaces, where: str) -> Iterator[NDArray[Any]]:
    """Yield frames in groups of a chunk's size."""
    import h5py

    jpeg = _is_jpeg(observations, spaces)
    rows = observations.dtype.kind == "O"  # of bytes, each as long as its image
    expected = f"expected {manifest.frame_shape} {manifest.frame_dtype}"
    if (rows and h5py.check_vlen_dtype(observations.dtype) != np.uint8) or (
        jpeg and not rows and observations.ndim != 2
    ):
        raise UserError(f"{where}: found observations that are neither images nor arrays, {expected}")
    if not jpeg and (observations.shape[1:], observations.dtype) != (manifest.frame_shape, manifest.frame_dtype):
        raise UserError(f"{where}: found observations {observations.shape[1:]} {observations.dtype}, {expected}")
    most = _IMAGE_BYTES + 4 * math.prod(manifest.frame_shape)  # JPEG of noise is larger than the noise
    if jpeg and not rows and observations.shape[1] > most:
        raise UserError(f"{where}: found images of {observations.shape[1]} bytes, expected at most {most}")
    check_storage(observations, f"{where}: observations")
    for first in range(0, len(observations), manifest.chunk_frames):
        last = min(first + manifest.chunk_frames, len(observations))
        if jpeg:
            yield np.stack([_decode(observations[i], most, manifest, where) for i in range(first, last)])
        else:
            yield np.asarray(observations[first:last])


def _decode(image: Any, most: int, manifest: Manifest, where: str) -> NDArray[np.uint8]:
    data = np.asarray(image)
    if data.nbytes > most:
        raise DamagedError(f"{where}: found an image of {data.nbytes} bytes, expected at most {most}")
    height, width, *channels = manifest.frame_shape
    expected = ("RGB" if channels else "L", width, height)
    try:
        with Image.open(io.BytesIO(data.tobytes()), formats=["JPEG"]) as picture:  # reads the head only
            found = (picture.mode, *picture.size)
            pixels = np.asarray(picture) if found == expected else None
    except Exception as error:  # Pillow raises many kinds for a damaged image
        raise DamagedError(f"{where}: an observation is not a JPEG image: {' '.join(str(error).split())}") from error
    if pixels is None:
        shown_as = f"found an image of {found[2]}x{found[1]} {found[0]}"
        raise UserError(f"{where}: {shown_as}, expected {height}x{width} {expected[0]}")
    return pixels
