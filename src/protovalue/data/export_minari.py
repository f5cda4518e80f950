"""Exporting a data set to Minari's format: its HDF5 file written directly, episode by episode, without loss.

Frames are raw arrays, never JPEG. What Minari has no place for stands under `protovalue` in metadata.json, and the
iteration of an episode among its attributes; `pvn import minari` reads both.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from protovalue.data.config import ExportMinariConfig
from protovalue.data.dataset import Dataset, open_dataset
from protovalue.data.format import End
from protovalue.errors import UserError
from protovalue.files import check_place
from protovalue.progress import ProgressBar

MAIN, METADATA, OURS, ITERATION = "main_data.hdf5", "metadata.json", "protovalue", "iteration"
MINARI = "0.5.4"  # whose format is written
BLOCK = 256  # frames that are in memory at once


def export_minari(config: ExportMinariConfig, quiet: bool = False) -> Path:
    """Write a data set for Minari into a folder that is not there yet; return the folder with its files."""
    check_place(config.out)
    if config.out.exists() and (not config.out.is_dir() or any(config.out.iterdir())):
        raise UserError(f"--out: {config.out}: found something there, expected a new folder")
    data = open_dataset(*config.data)
    if not data.num_episodes:
        raise UserError(f"{data.folders[0].path}: found no complete episode, expected one at least")
    new = config.out.absolute().with_name(f"{config.out.name}.partial-{os.getpid()}")
    try:
        (new / "data").mkdir(parents=True)
        _write_episodes(data, new / "data" / MAIN, quiet)
        size = (new / "data" / MAIN).stat().st_size
        fields = _metadata(data, config.name or default_name(data.env_id, config.out), size)
        (new / "data" / METADATA).write_text(json.dumps(fields, indent=1))
        new.replace(config.out)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return config.out / "data"


def export_minari_command(config: ExportMinariConfig) -> None:
    """Export, and say how Minari reads it."""
    folder = export_minari(config)
    fields = json.loads((folder / METADATA).read_text())
    print(f"{folder}: {fields['total_episodes']:,} episodes, {fields['total_steps']:,} transitions")
    print(f"in Python: minari.MinariDataset({str(folder)!r}); back: pvn import minari {config.out} --out NEW")


def default_name(env_id: str, out: Path) -> str:
    """Return an id that Minari takes: that of the environment, and the folder's name."""
    parts = [re.sub(r"[^\w-]+", "-", part).strip("-") for part in [*env_id.split("/"), out.name]]
    return f"{'/'.join(filter(None, parts))}-v0"


def _write_episodes(data: Dataset, path: Path, quiet: bool) -> None:
    import h5py

    bar = ProgressBar("export", data.num_transitions, "transitions", quiet=quiet)
    with bar, h5py.File(path, "w", track_order=True) as file:
        for index in range(data.num_episodes):
            steps, end = int(data.lengths[index]), End(data.ends[index])
            group = file.create_group(f"episode_{index}")
            group.attrs.update({"id": index, "total_steps": steps, ITERATION: int(data.iterations[index])})
            _write_frames(data, index, steps + 1, group)
            which, at = np.full(steps, index), np.arange(steps)
            last = at == steps - 1
            group.create_dataset("actions", data=data.actions(which, at))
            group.create_dataset("rewards", data=data.rewards(which, at))  # float32, as they are stored
            group.create_dataset("terminations", data=last & (end == End.TERMINATED))
            group.create_dataset("truncations", data=last & (end == End.TRUNCATED))
            group.create_group("infos")
            bar.advance(steps)


def _write_frames(data: Dataset, index: int, count: int, group: Any) -> None:
    rows = max(1, min(count, (1 << 18) // max(1, data.frame_bytes)))  # chunks of a quarter of a megabyte
    frames = group.create_dataset(
        "observations",
        shape=(count, *data.frame_shape),
        dtype=data.frame_dtype,
        chunks=(rows, *data.frame_shape),
        compression="gzip",
        compression_opts=4,
    )
    for first in range(0, count, BLOCK):
        length = min(BLOCK, count - first)
        frames[first : first + length] = data.windows(np.array([index]), np.array([first]), length)[0]


def _metadata(data: Dataset, name: str, size: int) -> dict[str, Any]:
    flags = data.frame_dtype == np.bool_
    low: Any = np.zeros(data.frame_shape, data.frame_dtype).tolist()
    high: Any = np.full(data.frame_shape, True if flags else 255, data.frame_dtype).tolist()
    box = {"type": "Box", "dtype": str(data.frame_dtype), "shape": list(data.frame_shape), "low": low, "high": high}
    fields = {
        "dataset_id": name,
        "minari_version": MINARI,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "total_episodes": data.num_episodes,
        "total_steps": data.num_transitions,
        "dataset_size": round(size / 1_000_000, 1),
        "observation_space": json.dumps(box),
        "action_space": json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": data.num_actions}),
        "description": f"A data set of protovalue, from {data.env_id}. Actions are numbered from 0; frames are single.",
        OURS: {"env_id": data.env_id, "env_options": data.env_options, "rewards": data.rewards_are},
    }
    spec = _spec(data)
    return fields if spec is None else {**fields, "env_spec": spec.to_json()}


def _spec(data: Dataset) -> EnvSpec | None:
    """Return how Gymnasium makes the environment, where it can make the very same; Atari's frames need our wrappers."""
    family, _, name = data.env_id.partition("/")
    if family == "minatar":
        game = "".join(part.title() for part in name.split("_"))
        minimal = data.env_options.get("actions") == "minimal"
        kwargs = {"game": name, "use_minimal_action_set": minimal}
        if "sticky" in data.env_options:
            kwargs["sticky_action_prob"] = data.env_options["sticky"]
        return EnvSpec(f"MinAtar/{game}-v{int(minimal)}", entry_point="minatar.gym:BaseEnv", kwargs=kwargs)
    spec = gymnasium.registry.get(name) if family == "gym" else None
    plain = spec is not None and isinstance(spec.entry_point, str) and not data.env_options.get("resize")
    return spec if plain else None
