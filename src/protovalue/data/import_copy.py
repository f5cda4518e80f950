"""Copying a data set of this program's own format from anywhere: a folder, a URL, the Hub; checked to the last byte."""

import os
import shutil
from pathlib import Path

from protovalue.data import format as fmt
from protovalue.data.config import ImportCopyConfig
from protovalue.data.dataset import Dataset, Folder, open_dataset
from protovalue.data.format import Manifest
from protovalue.data.sources import SourceFile, find_sources
from protovalue.errors import UserError
from protovalue.files import check_place, open_file, write_all
from protovalue.progress import ProgressBar

_SIZES = {fmt.EPISODES: fmt.EPISODE, fmt.CHUNKS: fmt.CHUNK, fmt.ACTIONS: fmt.ACTION, fmt.REWARDS: fmt.REWARD}
_BLOCK = 1 << 20
_MANIFEST_BYTES = 64 << 20


def import_copy(config: ImportCopyConfig, quiet: bool = False) -> Dataset:
    """Copy a data set, or continue; return it. Until all of it is there and good it lies beside its place."""
    check_place(config.out)
    if config.out.exists():
        raise UserError(f"--out: {config.out}: found something there, expected a new folder")
    files = {one.name: one for one in _files(config.source)}
    partial = config.out.with_name(f"{config.out.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    try:
        _check_sizes(files, _manifest(files, partial, config.source), config.source)
        with ProgressBar("copy", sum(one.size for one in files.values()), "bytes", quiet=quiet) as bar:
            for one in files.values():
                _copy(one, partial / one.name, bar)
        folder = Folder(partial)
        for index in range(len(folder.episodes)):
            folder.check_all(index)
    except UserError:
        shutil.rmtree(partial)
        raise
    partial.rename(config.out)
    return open_dataset(config.out)


def import_copy_command(config: ImportCopyConfig) -> None:
    """Copy, and say what there is now."""
    data = import_copy(config)
    print(f"{config.out}: {data.num_transitions:,} transitions in {data.num_episodes:,} episodes of {data.env_id}")


def _files(source: str) -> list[SourceFile]:
    """Return the files of a data set in a folder, whatever else is there."""
    names = (fmt.MANIFEST, fmt.FRAMES, *_SIZES)
    pattern = rf"^({'|'.join(name.replace('.', '[.]') for name in names)})$"
    found = find_sources([source], pattern, fmt.MANIFEST)
    missing = [name for name in names if [one.name for one in found].count(name) != 1]
    if missing:
        raise UserError(f"{source}: not a data set: found no {missing[0]}, or several, expected one of each file")
    return found


def _manifest(files: dict[str, SourceFile], folder: Path, source: str) -> Manifest:
    """Copy the manifest, which says how large the others are."""
    size = files[fmt.MANIFEST].size
    if size > _MANIFEST_BYTES:
        raise UserError(f"{source}: {fmt.MANIFEST}: found {size:,} bytes, expected at most {_MANIFEST_BYTES:,}")
    with ProgressBar("copy", size, "bytes", quiet=True) as bar:
        _copy(files[fmt.MANIFEST], folder / fmt.MANIFEST, bar)
    manifest = Manifest.read(folder)
    if not manifest.complete:
        raise UserError(f"{source}: found a data set that is not finished, expected a whole one")
    return manifest


def _check_sizes(files: dict[str, SourceFile], manifest: Manifest, source: str) -> None:
    """Refuse files of other sizes than the manifest says, before they are copied."""
    counts = {fmt.EPISODES: "episodes", fmt.CHUNKS: "chunks", fmt.ACTIONS: "transitions", fmt.REWARDS: "transitions"}
    expected = {name: getattr(manifest, counts[name]) * dtype.itemsize for name, dtype in _SIZES.items()}
    expected[fmt.FRAMES] = manifest.frames_bytes
    for name, size in expected.items():
        if files[name].size not in (size, 0):  # 0: the server does not say
            raise UserError(f"{source}: {name}: found {files[name].size:,} bytes, expected {size:,}")


def _copy(source: SourceFile, target: Path, bar: ProgressBar) -> None:
    """Copy a file; one that is there in its whole size is kept, as it is checked with all others in the end."""
    if target.is_file() and source.size and target.stat().st_size == source.size:
        bar.advance(source.size)
        return
    descriptor = open_file(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with source.open() as stream:
            while block := stream.read(_BLOCK):
                write_all(descriptor, block)
                bar.advance(len(block))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
