"""Ways to damage a file: blindly, by its bytes, and knowingly, by what it says with its checksum made right again."""

import copy
import gzip
import json
import random
import re
import struct
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import h5py
import numpy as np

from protovalue.data import format as fmt
from protovalue.files import json_line, size_and_crc, write_json
from tests.data.helpers import forge

Chance = random.Random
WRONG: list[Any] = [
    None, True, False, -1, 0, 1, 3, 10**30, -(10**30), 1 << 40, 1 << 62, 0.5, -0.5, 1e308, float("nan"), float("inf"),
    "", "text", "\0", "\ud800", "../..", "a" * 5000, [], [[]], [1, "a"], [0] * 3000, {}, {"a": {"b": None}},
]  # fmt: skip
DEEP = 3_000  # levels: far more than any parser takes
# XORed anywhere into what a CRC-32 sums up, the generator polynomial leaves the sum as it was.
_UNSEEN = 0x1DB710641


# Bytes


def flip(data: bytes, chance: Chance) -> bytes:
    """Flip one bit."""
    changed = bytearray(data)
    changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def truncate(data: bytes, chance: Chance) -> bytes:
    """Cut the file, at times to nothing."""
    return data[: chance.choice([0, 1, chance.randrange(len(data)), len(data) - 1])]


def _block(data: bytes, chance: Chance) -> tuple[int, int]:
    start = chance.randrange(len(data))
    return start, min(len(data), start + chance.choice([1, 4, 64, 4096]))


def zeros(data: bytes, chance: Chance) -> bytes:
    """Set a block to zero, as a power failure may."""
    start, end = _block(data, chance)
    return data[:start] + bytes(end - start) + data[end:]


def garbage(data: bytes, chance: Chance) -> bytes:
    """Put noise into a block, behind the end, or in the place of everything."""
    start, end = chance.choice([_block(data, chance), _block(data, chance), (len(data), len(data)), (0, len(data))])
    return data[:start] + chance.randbytes(max(end - start, 16)) + data[end:]


def twice(data: bytes, chance: Chance) -> bytes:
    """Repeat a block."""
    start, end = _block(data, chance)
    return data[:end] + data[start:end] + data[end:]


def unseen(data: bytes, chance: Chance) -> bytes:
    """Change up to 40 bits in a row so that no CRC-32 over them notices."""
    changed = bytearray(data)
    start = chance.randrange(max(len(data) - 4, 1))
    for place, byte in enumerate((_UNSEEN << chance.randrange(8)).to_bytes(5, "little")):
        if start + place < len(data):
            changed[start + place] ^= byte
    return bytes(changed)


def fewer_lines(data: bytes, chance: Chance) -> bytes:
    """Take a line away, wherever it is: what is left is whole."""
    lines = data.splitlines(keepends=True)
    del lines[chance.randrange(len(lines))]
    return b"".join(lines)


BYTES: dict[str, Callable[[bytes, Chance], bytes]] = {
    "flip": flip, "truncate": truncate, "zeros": zeros, "garbage": garbage, "twice": twice,
}  # fmt: skip


# JSON and TOML


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Walk over all places of a parsed value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def mutant(fields: Any, chance: Chance) -> Any:
    """Return fields of which one has another value, is not there, or is one too many."""
    changed = copy.deepcopy(fields)
    known = list(places(changed))
    if not known:
        return {"one": "too many"}
    *outer, last = chance.choice(known)
    place: Any = changed
    for key in outer:
        place = place[key]
    kind = chance.random()
    if kind < 0.12:
        del place[last]
    elif kind < 0.2 and isinstance(place, dict):
        place["extra"] = chance.choice(WRONG)
    elif kind < 0.3 and type(place[last]) in (int, float):
        place[last] = chance.choice([-place[last], place[last] + 1, place[last] * 1000, place[last] / 3])
    elif kind < 0.35:
        place[last] = [place[last]]
    else:
        place[last] = chance.choice(WRONG)
    return changed


def deep(text: str, chance: Chance) -> str:
    """Nest a value of JSON or TOML text far too deep, or write a number of far too many digits."""
    values = list(re.finditer(r"[:=]\s*([0-9.]+|true|false|\"[^\"\n]*\")", text))
    if not values:
        return "[" * DEEP + "]" * DEEP
    start, end = chance.choice(values).span(1)
    return (
        text[:start]
        + chance.choice(["[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "9" * 6000])
        + text[end:]
    )


def toml(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if value is None:
        return '""'
    return json.dumps(value, ensure_ascii=False).replace("NaN", "nan").replace("Infinity", "inf")


def mutated_json(path: Path, chance: Chance) -> None:
    """Change what a JSON file says; ours gets a right checksum."""
    fields = json.loads(path.read_bytes())
    ours = fields.pop("sha256", None) is not None
    if chance.random() < 0.08:
        text = deep(json.dumps(fields), chance)
        path.write_text(text)
        return
    texts = [name for name, value in fields.items() if isinstance(value, str) and value.startswith("{")]
    if texts and chance.random() < 0.7:  # JSON within JSON, as Minari has it
        name = chance.choice(texts)
        changed = {**fields, name: json.dumps(mutant(json.loads(fields[name]), chance))}
    else:
        changed = mutant(fields, chance)
    if ours:
        write_json(path, changed)
    else:
        path.write_text(json.dumps(changed))


def mutated_lines(path: Path, chance: Chance) -> None:
    """Change what a line of JSON says, with a right checksum."""
    lines = path.read_bytes().splitlines(keepends=True)
    number = chance.randrange(len(lines))
    fields = json.loads(lines[number])
    del fields["crc32"]
    lines[number] = chance.choice([json_line(mutant(fields, chance)), lines[number] * 2, b"[]\n", b"{}\n"])
    path.write_bytes(b"".join(lines))


def mutated_toml(path: Path, chance: Chance) -> None:
    """Change what a TOML file says."""
    if chance.random() < 0.15:
        path.write_text(deep(path.read_text(), chance))
        return
    fields = mutant(tomllib.loads(path.read_text()), chance)
    text = "".join(f"{json.dumps(name)} = {toml(value)}\n" for name, value in fields.items())
    path.write_text(text, errors="surrogatepass")


# Binary formats, with checksums that hold


def mutated_data_set(path: Path, chance: Chance) -> None:
    """Change a record of a data set's tables, or bytes of its frames, and make all checksums right."""
    folder, name = path.parent, path.stem
    dtype = {"episodes": fmt.EPISODE, "chunks": fmt.CHUNK, "actions": fmt.ACTION, "rewards": fmt.REWARD}.get(name)
    if dtype is None:
        forge(folder, frames=np.frombuffer(chance.choice([flip, garbage, unseen])(path.read_bytes(), chance), np.uint8))
        return
    table = np.fromfile(path, dtype)
    column = table if dtype.names is None else table[chance.choice(dtype.names)]
    kind = column.dtype
    if kind.kind == "f":
        column[chance.randrange(len(table))] = chance.choice([np.nan, np.inf, -1e30, 0.5])
    else:
        ends = np.iinfo(kind)
        old = int(column[place := chance.randrange(len(table))])
        column[place] = chance.choice([ends.min, ends.max, old ^ 1, min(old + 1000, int(ends.max))])
    forge(folder, **{name: table})


def mutated_tensors(path: Path, chance: Chance) -> None:
    """Change a safetensors file and the checksum beside it."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    head, body = data[8 : 8 + size], data[8 + size :]
    if chance.random() < 0.3:
        at = chance.randrange(max(len(body) - 8, 1))
        wild = struct.pack("<f", chance.choice([float("nan"), float("inf"), 1e38]))
        body = body[:at] + wild + body[at + 4 :]
    else:
        fields = json.loads(head)
        names = [name for name in fields if name != "__metadata__"]
        one, other = chance.choice(names), chance.choice(names)
        kind = chance.randrange(5)
        if kind == 0:
            fields["renamed"] = fields.pop(one)
        elif kind == 1:
            fields[one], fields[other] = fields[other], fields[one]
        elif kind == 2:
            fields[one]["shape"] = [1, *fields[one]["shape"]]
        elif kind == 3 and fields[one]["dtype"] == "F32":
            fields[one]["dtype"] = chance.choice(["I32", "U32"])
        else:
            fields = mutant(fields, chance)
        head = json.dumps(fields).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)
    reseal(path)


def reseal(path: Path) -> None:
    """Make right what a JSON file beside `path` says of its size and CRC-32."""
    size, crc = size_and_crc(path)
    for name in ("state.json", "config.json", "indicator.json"):
        beside = path.parent / name
        if beside.is_file():
            fields = json.loads(beside.read_bytes())
            del fields["sha256"]
            if name == "indicator.json":
                fields["files"][path.name] = {"bytes": size, "crc32": crc}
            else:
                fields |= {"crc32": crc, **({"bytes": size} if "bytes" in fields else {})}
            write_json(beside, fields)


def _masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32)


def mutated_records(path: Path, chance: Chance) -> None:
    """Change what a record of a TFRecord file holds, plain or in gzip, with right checksums."""
    whole = path.read_bytes()
    packed = whole[:2] == b"\x1f\x8b"
    data = gzip.decompress(whole) if packed else whole
    records, place = [], 0
    while place < len(data):
        (size,) = struct.unpack_from("<Q", data, place)
        records.append(data[place + 12 : place + 12 + size])
        place += size + 16
    number = chance.randrange(len(records))
    records[number] = chance.choice(list(BYTES.values()))(records[number], chance)
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, _masked(length), record, _masked(record)]
    changed = b"".join(parts)
    path.write_bytes(gzip.compress(changed, 1) if packed else changed)


def mutated_gzip(path: Path, chance: Chance) -> None:
    """Change what a gzip file holds: the head of a NumPy file half of the time."""
    data = gzip.decompress(path.read_bytes())
    change = chance.choice(list(BYTES.values()))
    head = min(128, len(data)) if chance.random() < 0.5 else 0
    changed = change(data[:head], chance) + data[head:] if head else change(data, chance)
    path.write_bytes(gzip.compress(changed, 1))


def mutated_hdf5(path: Path, chance: Chance) -> None:
    """Replace an array of an HDF5 file, or take it away."""
    with h5py.File(path, "a") as file:
        names: list[str] = []
        file.visit(names.append)
        name = chance.choice(names)
        old = file[name][()] if isinstance(file[name], h5py.Dataset) else None
        del file[name]
        new: list[Any] = [None, 3, np.zeros(0), np.zeros((2, 2)), np.array([b"text"]), np.full(4, np.nan)]
        if old is not None:
            new += [old[:-1], np.concatenate([old, old]), old.astype(np.float64) * -1, old[None], old.astype("S4")]
        value = chance.choice(new)
        if value is not None:
            file[name] = value


KNOWING: list[tuple[str, Callable[[Path, Chance], None]]] = [
    (r"(manifest|config|state|done|evaluation|random|study|indicator|rates|metadata)\.json", mutated_json),
    (r"(metrics|events)\.jsonl", mutated_lines),
    (r".*\.toml", mutated_toml),
    (r"(episodes|chunks|actions|rewards|frames)\.bin", mutated_data_set),
    (r".*\.safetensors", mutated_tensors),
    (r".*_ckpt\.\d+\.gz", mutated_gzip),
    (r"run_\d.*|.*\.tfrecord-.*", mutated_records),
    (r".*\.hdf5", mutated_hdf5),
]  # fmt: skip


def knowing(path: Path) -> Callable[[Path, Chance], None] | None:
    """Return what changes the contents of such a file and makes its checksum right, if there is something."""
    if path.parent.name == "replay":  # plain arrays; a checkpoint has their sums
        return None
    return next((change for name, change in KNOWING if re.fullmatch(name, path.name)), None)


def damage(path: Path, others: list[Path], chance: Chance) -> tuple[str, bool]:
    """Damage a file. Return how, and whether its checksums hold, so that nobody can see it but by what it says.

    Args:
        path: the file.
        others: files of other formats, of which one may take its place.
        chance: where the choices come from.
    """
    before = path.read_bytes()
    change = knowing(path)
    if change is not None and chance.random() < 0.5:
        change(path, chance)
        return change.__name__.replace("_", " "), True
    if chance.random() < 0.1:
        other = chance.choice(others)
        path.write_bytes(other.read_bytes())
        return f"swapped for {other.name}", False
    if not before:
        path.write_bytes(chance.randbytes(16))
        return "garbage", False
    if path.suffix in (".bin", ".safetensors") and chance.random() < 0.25:
        path.write_bytes(unseen(before, chance))
        return "unseen by a CRC-32", True
    if path.suffix == ".jsonl" and chance.random() < 0.3:
        path.write_bytes(fewer_lines(before, chance))
        return "a line less", False
    name = chance.choice(list(BYTES))
    path.write_bytes(BYTES[name](before, chance))
    return name, False
