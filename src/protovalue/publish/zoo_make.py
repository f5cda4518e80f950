"""`pvn zoo make`: encoders of a finished study, with their cards and results, as a zoo."""

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from protovalue.card import CARD, PICTURE, card, write_results
from protovalue.encoder import CONFIG, MODEL, load_encoder, own_folder
from protovalue.envs.registry import make
from protovalue.errors import UserError, unknown
from protovalue.files import check_place, read_bytes, read_json, write_atomic, write_json
from protovalue.publish.config import ZooMakeConfig
from protovalue.publish.picture import draw
from protovalue.publish.results import of_cell, without_places, without_places_in
from protovalue.report.reading import read_results
from protovalue.report.results import Results
from protovalue.study.folder import Cell, read_study
from protovalue.study.settings import words
from protovalue.zoo.index import SCHEME, read_index, sums, write_index

LICENCE = "Apache-2.0"  # the package's own, with which the zoo comes
MOST = 8 << 20  # bytes of a zoo, which everybody downloads with the package


def zoo_make(config: ZooMakeConfig) -> Path:
    """Make a zoo in its folder, in place of one that is there; what is refused leaves everything as it was."""
    check_place(config.out)
    if config.out.exists() and any(config.out.iterdir()) and read_index(config.out) is None:
        raise UserError(f"{config.out}: found a folder that is no zoo, expected a zoo or a free name")
    results = read_results([config.study])
    chosen = list(_chosen(config, results))
    new = config.out.absolute().with_name(f"{config.out.name}.partial-{os.getpid()}")
    new.mkdir(parents=True)
    try:
        entries = {name: _pack(config, cell, new / name, name, results) for name, cell in chosen}
        write_index(
            new, f"pvn zoo make {shlex.join(words(config, positional=('study',), always=('methods',)))}", entries
        )
        size = sum(path.stat().st_size for path in new.rglob("*") if path.is_file())
        if size > MOST:
            raise UserError(f"--methods: the zoo would have {size:,} bytes, expected at most {MOST:,}: choose fewer")
        old = new.with_suffix(".old")
        if config.out.exists():
            config.out.rename(old)
        new.rename(config.out)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return config.out


def zoo_make_command(config: ZooMakeConfig) -> None:
    """Make a zoo, and say what is in it."""
    out = zoo_make(config)
    index = read_index(out)
    assert index is not None
    size = sum((out / name / file).stat().st_size for name, files in index.encoders.items() for file in files)
    print(f"{out}: {len(index.encoders)} encoders, {size / 2**20:.1f} MiB; PROTOVALUE_ZOO={out} pvn zoo list")


def _chosen(config: ZooMakeConfig, results: Results) -> Iterator[tuple[str, Cell]]:
    """Yield the cells to pack with their names in the zoo; one without a result is a UserError."""
    study = read_study(config.study)
    finished = {cell.run for cell in results.cells}
    for method in config.methods:
        if method not in study.methods:
            raise unknown("method of the study", method, study.methods)
        cells: dict[tuple[str, float, int | None], Cell] = {}
        for cell in study.cells:
            if cell.method == method and cell.pretraining_seed in (config.seed, None):
                cells.setdefault((cell.env, cell.width, cell.tasks), cell)  # of several data sets the first
        if not cells:
            raise UserError(f"--seed: found no encoder of {method} with pretraining seed {config.seed}")
        grid = len({key[1:] for key in cells}) > 1
        for cell in cells.values():
            where = f"{config.study}: {method} in {cell.env}, seed {config.seed}"
            if cell.encoder is None:
                raise UserError(
                    f"--methods: {method} trains agents end to end, expected a method that makes an encoder"
                )
            if config.study / cell.run not in finished:
                raise UserError(f"{where}: {_why(cell, study.methods[method].title, results)}, expected it finished")
            place = f"{method}-x{cell.width}-t{cell.tasks}" if grid else method
            yield f"{cell.env}/{place}".lower(), cell


def _why(cell: Cell, title: str, results: Results) -> str:
    """Say why a cell has no result."""
    key = (cell.env, cell.pretraining_seed)
    own = [one for one in results.missing if (one.env, one.pretraining_seed) == key and one.method.startswith(title)]
    return own[0].reason if own else "counted as another encoder of the study"


def _pack(config: ZooMakeConfig, cell: Cell, folder: Path, name: str, results: Results) -> dict[str, str]:
    """Write one encoder of the study into the zoo; return the checksums of its files."""
    assert cell.encoder is not None
    source = own_folder(config.study / cell.encoder)
    encoder = load_encoder(source)
    folder.mkdir(parents=True)
    fields = read_json(source / CONFIG)
    write_json(folder / CONFIG, {**fields, "about": without_places(fields["about"])})
    shutil.copyfile(source / MODEL, folder / MODEL)
    (found,) = [one for one in results.cells if one.run == config.study / cell.run]
    result = of_cell(found, results)
    write_results(folder, [result])
    env = make(cell.env, 1, **encoder.about.get("env_options", {}))
    write_atomic(folder / PICTURE, draw(encoder, env))
    env.close()
    own = without_places_in(read_bytes(source / CARD).decode(), fields["about"])
    text = card(own, f"{SCHEME}{name}", [result], LICENCE, picture=True)
    write_atomic(folder / CARD, text.encode())
    return sums(folder)
