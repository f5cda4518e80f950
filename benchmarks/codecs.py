"""Ways to store Atari frames: bytes per frame, writing speed, random gathers of the 5 frames of a transition.

Candidates that are not installed are left out: `pip install blosc2 zarr array_record` for all of them.
"""

import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from protovalue.envs.registry import make

Frames = NDArray[np.uint8]
Gather = Callable[[int], Frames]  # first frame -> 5 consecutive frames
WINDOW = 5


def real_frames(game: str, steps: int) -> Frames:
    """Frames of a random policy, one environment after the other, (8 * steps, 84, 84)."""
    env = make(f"atari/{game}", num_envs=8, sticky=0.25)
    rng = np.random.default_rng(0)
    frames = [env.reset(seed=0)[0][:, -1]]
    for _ in range(steps - 1):
        frames.append(env.step(rng.integers(env.single_action_space.n, size=8))[0][:, -1])
    return np.stack(frames, axis=1).reshape(-1, 84, 84)


def raw_memmap(frames: Frames, folder: Path) -> tuple[int, Gather]:
    """Uncompressed frames in a memory-mapped file."""
    frames.tofile(folder / "raw")
    mapped = np.memmap(folder / "raw", np.uint8, "r").reshape(frames.shape)
    return frames.nbytes, lambda first: np.array(mapped[first : first + WINDOW])


def zstd_chunks(size: int, level: int, delta: bool) -> Callable[[Frames, Path], tuple[int, Gather]]:
    """Chunks of `size` consecutive frames, each a zstd frame, optionally as differences (XOR) in time."""

    def build(frames: Frames, folder: Path) -> tuple[int, Gather]:
        compress = zstandard.ZstdCompressor(level=level).compress
        blobs = []
        for i in range(0, len(frames), size):
            chunk = frames[i : i + size].copy()
            if delta:
                chunk[1:] ^= frames[i : i + size][:-1]
            blobs.append(compress(chunk.tobytes()))
        (folder / "frames").write_bytes(b"".join(blobs))
        ends = np.cumsum([len(blob) for blob in blobs])
        file = (folder / "frames").open("rb", buffering=0)
        decompress = zstandard.ZstdDecompressor().decompress

        def chunk_at(index: int) -> Frames:
            start = int(ends[index - 1]) if index else 0
            file.seek(start)
            flat = np.frombuffer(decompress(file.read(int(ends[index]) - start)), np.uint8)
            chunk = flat.reshape(-1, 84, 84)
            return np.bitwise_xor.accumulate(chunk, axis=0) if delta else chunk

        def gather(first: int) -> Frames:
            a, b = first // size, (first + WINDOW - 1) // size
            chunks = np.concatenate([chunk_at(i) for i in range(a, b + 1)]) if b > a else chunk_at(a)
            return chunks[first - a * size : first - a * size + WINDOW].copy()

        return int(ends[-1]), gather

    return build


def blosc2_array(frames: Frames, folder: Path) -> tuple[int, Gather]:
    """A blosc2 array on disk, 16 frames a chunk, 1 a block, zstd with shuffling off (bytes)."""
    import blosc2

    blosc2.set_nthreads(1)
    codec = blosc2.CParams(codec=blosc2.Codec.ZSTD, clevel=5, filters=[blosc2.Filter.NOFILTER], nthreads=1)
    array = blosc2.asarray(
        frames, chunks=(16, 84, 84), blocks=(16, 84, 84), cparams=codec, urlpath=str(folder / "b2"), mode="w"
    )
    return (folder / "b2").stat().st_size, lambda first: array[first : first + WINDOW]


def zarr_array(frames: Frames, folder: Path) -> tuple[int, Gather]:
    """A zarr 3 array, shards of 4096 frames with inner chunks of 16, zstd."""
    import zarr

    array = zarr.create_array(
        str(folder / "z"),
        shape=frames.shape,
        dtype="uint8",
        chunks=(16, 84, 84),
        shards=(4096, 84, 84),
        compressors=zarr.codecs.ZstdCodec(level=3),
    )
    array[:] = frames
    size = sum(path.stat().st_size for path in (folder / "z").rglob("*") if path.is_file())
    return size, lambda first: np.asarray(array[first : first + WINDOW])


def array_record(frames: Frames, folder: Path) -> tuple[int, Gather]:
    """One array_record record per 16 frames, zstd inside the container."""
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    path = str(folder / "ar")
    writer = ArrayRecordWriter(path, "group_size:1,zstd:3")
    for i in range(0, len(frames), 16):
        writer.write(frames[i : i + 16].tobytes())
    writer.close()
    reader = ArrayRecordReader(path, "readahead_buffer_size:0")

    def gather(first: int) -> Frames:
        records = reader.read(list(range(first // 16, (first + WINDOW - 1) // 16 + 1)))
        chunks = np.frombuffer(b"".join(records), np.uint8).reshape(-1, 84, 84)
        return chunks[first % 16 : first % 16 + WINDOW].copy()

    return Path(path).stat().st_size, gather


def candidates() -> Iterator[tuple[str, Callable[[Frames, Path], tuple[int, Gather]]]]:
    """Name and builder of every candidate that can run here."""
    yield "raw memory-map", raw_memmap
    yield "zstd-3, one frame", zstd_chunks(1, 3, False)
    for level, size, delta in ((3, 8, False), (3, 16, False), (9, 16, False), (3, 32, False), (3, 16, True)):
        yield f"zstd-{level}, {size} frames{', delta' if delta else ''}", zstd_chunks(size, level, delta)
    optional = (
        ("blosc2", "blosc2 zstd-5, 16", blosc2_array),
        ("zarr", "zarr 3 sharded, 16", zarr_array),
        ("array_record", "array_record, 16", array_record),
    )
    for module, name, build in optional:
        if importlib.util.find_spec(module):
            yield name, build


def main(quick: bool) -> None:
    """Print the table and a line of JSON."""
    rows = []
    for game in ("Pong", "Asterix", "Breakout"):
        frames = real_frames(game, 250 if quick else 2000)
        firsts = np.random.default_rng(1).integers(len(frames) - WINDOW, size=200 if quick else 2000)
        for name, build in candidates():
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                size, gather = build(frames, Path(folder))
                writing = len(frames) / (time.perf_counter() - start)
                for first in firsts[:50]:
                    assert np.array_equal(gather(int(first)), frames[first : first + WINDOW]), name
                start = time.perf_counter()
                for first in firsts:
                    gather(int(first))
                rate = len(firsts) / (time.perf_counter() - start)
            rows.append({"game": game, "codec": name, "bytes": size / len(frames), "write": writing, "gather": rate})
            print(f"{game:9s} {name:26s} {size / len(frames):7.0f} B/frame  {writing:8.0f} frames/s  {rate:8.0f} win/s")
    print(json.dumps({"benchmark": "codecs", "rows": rows}))
