"""Imports: frames and bytes per second of each format on two processes, against `gzip -dc` of the same files; memory.

The files are made here in the published layouts, from frames of Asterix under a random policy: RL Unplugged shards, one
DQN replay checkpoint and a Minari file. The full run has 2 GB of shards, the same one under eight names, and a
checkpoint of the real million slots, 7 GB of pixels, in which 50,000 slots repeat: the work is the same for the import.
"""

import gzip
import io
import json
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import google_crc32c
import h5py
import numpy as np
from PIL import Image

from protovalue.data.dataset import open_dataset
from protovalue.envs.registry import make

WORKERS = 2
STEPS = 997  # steps of a synthetic episode: with DQN replay's three zeros, 1,000 slots

# Imports in a process of its own and prints seconds, CPU seconds and the largest memory [MiB] of it and of its workers.
IMPORT = """
import json, resource, sys, time
from pathlib import Path
from protovalue.data.config import {config}
from protovalue.data.{module} import {function}
if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    start = time.perf_counter()
    {function}({config}(source=(settings.pop("source"),), out=Path(settings.pop("out")), **settings), quiet=True)
    seconds = time.perf_counter() - start
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(used.ru_utime + used.ru_stime for used in usage)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps([seconds, cpu, int(peak.split()[1]) / 1024, usage[1].ru_maxrss / 1024]))
"""
FORMATS = {
    "rlu": ("ImportRluConfig", "import_rlu", "import_rlu"),
    "dqn-replay": ("ImportDqnReplayConfig", "import_dqn_replay", "import_dqn_replay"),
    "minari": ("ImportMinariConfig", "import_minari", "import_minari"),
}


def game_frames(count: int) -> np.ndarray:
    """Return consecutive frames of 16 games that are played at once, one game after the other."""
    env = make("atari/Asterix", 16, sticky=0.25)
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    frames = np.empty((16, -(-count // 16), 84, 84), np.uint8)
    for step in range(frames.shape[1]):
        frames[:, step] = obs[:, -1]
        obs, *_ = env.step(rng.integers(env.num_actions, size=16))
    env.close()
    return frames.reshape(-1, 84, 84)[:count]


def varint(value: int) -> bytes:
    """A protobuf number."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(number: int, data: bytes) -> bytes:
    """A protobuf field that contains another message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def masked_crc(data: bytes) -> bytes:
    """TFRecord's checksum."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32)


def write_rlu(folder: Path, frames: np.ndarray, size: int, shards: int) -> None:
    """Write raw shards of about `size` bytes in all, every one with the same contents."""
    pngs = []
    for frame in frames:
        buffer = io.BytesIO()
        Image.fromarray(frame).save(buffer, "PNG")
        pngs.append(buffer.getvalue())
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    paths = [folder / f"run_1-{shard:05d}-of-{shards:05d}" for shard in range(shards)]
    discounts = np.ones(STEPS, "<f4")
    discounts[-1] = 0
    with paths[0].open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as file:
        while raw.tell() < size / shards:
            first = int(rng.integers(len(pngs) - STEPS))
            features = {
                "checkpoint_idx": message(3, message(1, varint(0))),
                "observations": message(1, b"".join(message(1, png) for png in pngs[first : first + STEPS])),
                "actions": message(3, message(1, rng.integers(9, size=STEPS, dtype=np.uint8).tobytes())),
                "clipped_rewards": message(2, message(1, np.zeros(STEPS, "<f4").tobytes())),
                "discounts": message(2, message(1, discounts.tobytes())),
            }
            entries = (message(1, message(1, name.encode()) + message(2, value)) for name, value in features.items())
            record = message(1, b"".join(entries))
            length = struct.pack("<Q", len(record))
            file.write(length + masked_crc(length) + record + masked_crc(record))
    for path in paths[1:]:
        path.hardlink_to(paths[0])


def write_dqn_replay(folder: Path, frames: np.ndarray, slots: int) -> None:
    """Write one checkpoint of `slots` slots, which must be a multiple of 10,000."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    place = np.arange(slots) % (STEPS + 3)
    arrays = {
        "$store$_action": np.where(place < 3, 0, rng.integers(9, size=slots)).astype(np.int32),
        "$store$_reward": np.zeros(slots, np.float32),
        "$store$_terminal": (place == STEPS + 2).astype(np.uint8),
        "add_count": np.array(slots - 1),
        "invalid_range": np.array([slots - 2, slots - 1, 0, 1, 2]),
    }
    for name, array in arrays.items():
        with gzip.open(folder / f"{name}_ckpt.0.gz", "wb", compresslevel=1) as file:
            np.save(file, array)
    header = io.BytesIO()
    fields = {"descr": "|u1", "fortran_order": False, "shape": (slots, 84, 84)}
    np.lib.format.write_array_header_1_0(header, fields)
    block = min(slots, 50_000)
    pixels = io.BytesIO()
    with gzip.GzipFile(fileobj=pixels, mode="wb", compresslevel=6) as file:
        for _ in range(block // (STEPS + 3)):
            first = int(rng.integers(len(frames) - STEPS))
            file.write(bytes(3 * 84 * 84))
            file.write(frames[first : first + STEPS].tobytes())
    with (folder / "$store$_observation_ckpt.0.gz").open("wb") as raw:
        raw.write(gzip.compress(header.getvalue()))
        for _ in range(slots // block):
            raw.write(pixels.getvalue())


def write_minari(folder: Path, frames: np.ndarray, episodes: int) -> None:
    """Write a Minari data set without JPEG."""
    folder.mkdir(parents=True)
    box = {"type": "Box", "dtype": "uint8", "shape": [84, 84], "low": 0, "high": 255}
    fields = {
        "observation_space": json.dumps(box),
        "action_space": json.dumps({"type": "Discrete", "n": 9, "start": 0}),
        "data_format": "hdf5",
        "jpeg_encoding": False,
    }
    (folder / "metadata.json").write_text(json.dumps(fields))
    rng = np.random.default_rng(1)
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number in range(episodes):
            first = int(rng.integers(len(frames) - STEPS - 1))
            ends = np.zeros(STEPS, np.bool_)
            group = file.create_group(f"episode_{number}")
            group.create_dataset("observations", data=frames[first : first + STEPS + 1], chunks=True)
            group.create_dataset("actions", data=rng.integers(9, size=STEPS))
            group.create_dataset("rewards", data=np.zeros(STEPS))
            group.create_dataset("truncations", data=ends)
            ends[-1] = True
            group.create_dataset("terminations", data=ends)


def lower_bound(files: list[Path]) -> tuple[float, float]:
    """Seconds and CPU seconds of `gzip -dc`, or of `cat` where the files are not compressed by gzip."""
    with files[0].open("rb") as file:
        command = ["gzip", "-dc"] if file.read(2) == b"\x1f\x8b" else ["cat"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    for path in files:
        with path.open("rb") as file:
            subprocess.run(command, stdin=file, stdout=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(kind: str, source: Path, out: Path, **settings: object) -> list[float]:
    """Import in a process of its own; return seconds, CPU seconds, and its and a worker's largest memory [MiB]."""
    config, module, function = FORMATS[kind]
    script = out.with_suffix(".py")
    script.write_text(IMPORT.format(config=config, module=module, function=function))
    given = json.dumps({"source": str(source), "out": str(out), "workers": WORKERS, **settings})
    done = subprocess.run([sys.executable, str(script), given], stdout=subprocess.PIPE, text=True, check=True)
    numbers: list[float] = json.loads(done.stdout)
    return numbers


def folder_size(folder: Path) -> int:
    """Bytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(quick: bool) -> None:
    """Print the table and a line of JSON."""
    result: dict[str, float] = {}
    frames = game_frames(4_000 if quick else 20_000)
    sizes = {
        "rlu": [8_000_000, 32_000_000] if quick else [128_000_000, 2_048_000_000],
        "dqn-replay": [10_000, 40_000] if quick else [50_000, 1_000_000],
        "minari": [10, 40] if quick else [10, 160],
    }
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        for kind, (small, large) in sizes.items():
            peaks = []
            for size in (small, large):
                source, out = top / kind / "Asterix" / str(size), top / f"{kind}-{size}"
                settings: dict[str, object] = {}
                if kind == "rlu":
                    write_rlu(source, frames, size, 1 if size == small else 4 if quick else 8)
                elif kind == "dqn-replay":
                    write_dqn_replay(source / "replay_logs", frames, size)
                else:
                    write_minari(source, frames, size)
                    settings = {"env": "atari/Asterix"}
                seconds, cpu, parent, worker = measure(kind, source, out, **settings)
                peaks.append((parent, worker))
            files = sorted(path for path in source.rglob("*") if path.stat().st_size > 1_000_000 and path.is_file())
            bound, bound_cpu = lower_bound(files)
            data = open_dataset(out)
            before, after = folder_size(source), folder_size(out)
            plain = "cat" if kind == "minari" else "gzip -dc"
            result |= {
                f"{kind}: source [MB]": before / 1e6,
                f"{kind}: frames": data.num_frames,
                f"{kind}: frames/s": data.num_frames / seconds,
                f"{kind}: MB/s of the source": before / 1e6 / seconds,
                f"{kind}: seconds": seconds,
                f"{kind}: CPU seconds, all processes": cpu,
                f"{kind}: seconds of {plain}": bound,
                f"{kind}: CPU seconds of {plain}": bound_cpu,
                f"{kind}: bytes per frame before": before / data.num_frames,
                f"{kind}: bytes per frame after": after / data.num_frames,
                f"{kind}: memory, main process [MiB]": peaks[1][0],
                f"{kind}: memory, {large // small} times smaller source [MiB]": peaks[0][0],
            }
            if peaks[1][1]:
                result[f"{kind}: memory, largest worker [MiB]"] = peaks[1][1]
                result[f"{kind}: memory, largest worker, smaller source [MiB]"] = peaks[0][1]
            shutil.rmtree(top / kind)
            shutil.rmtree(out)
    for name, value in result.items():
        print(f"{name:<62}{value:>12,.1f}")
    print(json.dumps({"benchmark": "import", **result}))
