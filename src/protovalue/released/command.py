"""`pvn import encoder`: a released SavedModel to an encoder's folder, once both were seen to compute the same."""

import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue import __version__
from protovalue.encoder import CONFIG, LARGEST, MODEL, FrozenEncoder, load_encoder, save_encoder
from protovalue.envs.atari import game_names
from protovalue.envs.registry import import_module_of, make
from protovalue.errors import UserError
from protovalue.files import check_place
from protovalue.nets.encoders import Encoder, make_encoder
from protovalue.nets.layers import ObservationShapeError
from protovalue.randomness import numpy_generator, throwaway
from protovalue.registry import env_name
from protovalue.released.bundle import Bundle
from protovalue.released.config import ARCHITECTURE, METHOD, ImportEncoderConfig
from protovalue.released.evaluate import evaluate
from protovalue.released.files import GRAPH, INDEX, Folder, TransferError, shard_name
from protovalue.released.graph import Input, read_model
from protovalue.released.mapping import Network, parameters, read_network
from protovalue.released.operations import bare
from protovalue.released.tensors import TYPES, Array

OBSERVATIONS = 3  # that both are compared on
TOLERANCE = 1e-4  # of the largest feature
_ROWS = 512  # of the dense layer's weights, which are copied at once
_LARGEST_BATCH = 64


@dataclass(frozen=True)
class Released:
    """A released network, found in its graph and evaluated by it."""

    network: Network
    shape: tuple[int, ...]
    """Of an observation: (stack, H, W)."""
    observations: NDArray[np.uint8]
    """(N, stack, H, W)."""
    features: Array
    """What the graph makes of them."""
    factor: float
    """What the first kernel is to be multiplied by, as our network divides pixels by 255."""
    weights: str
    told: str
    """How the input was read, in words."""
    input_range: str


def import_encoder(config: ImportEncoderConfig, quiet: bool = False) -> FrozenEncoder:
    """Import an encoder, or find it imported, and return it."""
    env = _environment(config)
    asked = {"source": config.source, "env": env, "input_range": config.input_range, "width": config.width}
    if (config.out / CONFIG).exists():
        return _imported_before(config.out, asked)
    check_place(config.out)
    left = [path.name for path in config.out.iterdir()] if config.out.exists() else []
    if any(name != MODEL and not name.startswith(".new-") for name in left):  # these a kill leaves while it is written
        raise UserError(f"{config.out}: not empty and not an encoder; choose another folder")
    made = not config.out.exists()
    folder = Folder(config.source, config.out.with_name(f"{config.out.name}.download"), quiet)
    try:
        encoder = _import(config, folder, env, asked)
    except BaseException as error:
        if isinstance(error, UserError) and not isinstance(error, TransferError):
            folder.forget()  # else what has arrived stays: the same command goes on
        if made and not (config.out / CONFIG).exists():
            shutil.rmtree(config.out, ignore_errors=True)
        raise
    folder.forget()
    return encoder


def import_encoder_command(config: ImportEncoderConfig) -> None:
    """Import, and say what there is now."""
    encoder = import_encoder(config)
    about = encoder.about["released"]
    count = sum(parameter.numel() for parameter in encoder.parameters())
    print(f"{config.out}: an Impala-CNN of width {encoder.about['config']['width']} for {encoder.about['env_id']}")
    print(f"{encoder.observation_shape} -> {encoder.num_features:,} features, {count:,} parameters")
    print(f"weights: {about['weights']}")
    print(f"input: {about['input']}")
    print(f"checked: {about['checked']}")
    print(f"look what it is worth: pvn online --encoder {config.out} --out {config.out}-online")


def _imported_before(out: Path, asked: dict[str, Any]) -> FrozenEncoder:
    encoder = load_encoder(out)
    found = encoder.about.get("released")
    before = found.get("asked") if isinstance(found, dict) else None
    if before != asked:
        raise UserError(f"{out}: holds another encoder already; choose another folder")
    return encoder


def _environment(config: ImportEncoderConfig) -> str:
    """Return the environment: the given one, or the game that the source's path names."""
    if config.env is not None:
        import_module_of(config.env)
        make(config.env).close()
        return env_name(config.env)
    known = {name.lower(): name for name in game_names()}
    parts = [part.lower() for part in re.split(r"[/\\]", config.source)]
    games = [known[part] for part in parts if part in known]
    if not games:
        raise UserError(f"--env: found no game in {config.source!r}, expected one there, or --env such as atari/Pong")
    return f"atari/{games[-1]}"


def _import(config: ImportEncoderConfig, folder: Folder, env: str, asked: dict[str, Any]) -> FrozenEncoder:
    released = read_released(folder, config.input_range)
    url = f"{folder.source}/{GRAPH}"
    width = released.network.width
    if config.width is not None and config.width != width:
        raise UserError(f"--width: found an encoder of width {width} in {url}, expected {config.width}")
    encoder = _filled(released, url)
    checked = _compared(encoder, released, url)
    run = re.search(r"/(\d{1,9})/?$", folder.source)
    about = {
        "env_id": env,
        "env_options": {},
        "method": METHOD,
        "config": {"architecture": ARCHITECTURE, "width": width, "seed": int(run[1]) if run else None},
        "summary": {},
        "released": {
            "by": f"pvn import encoder, protovalue {__version__}",
            "asked": asked,
            "files": [file.facts(name) for name, file in folder.used.items()],
            "weights": released.weights,
            "input": released.told,
            "input_range": released.input_range,
            "checked": checked,
        },
    }
    save_encoder(config.out, encoder, ARCHITECTURE, width, about, _card(config, env, released, checked))
    return FrozenEncoder(encoder, about)


def read_released(folder: Folder, input_range: str = "auto") -> Released:
    """Read a SavedModel, find the network in it, and evaluate its graph on some observations."""
    file = folder.file(GRAPH)
    model = read_model(file)
    bundle = None
    if folder.has(INDEX):
        bundle = Bundle(folder.file(INDEX), lambda number, count: folder.file(shard_name(number, count)))
    with file.damaged():
        entry, result = model.entry(model.variables_of_objects(bundle.objects()) if bundle else {})
    shape = _observation_shape(entry, file.url)
    observations = _observations(shape, entry.shape[0] if entry.shape[0] > 0 else OBSERVATIONS)
    used: set[str] = set()

    def read(name: str) -> Array:
        if bundle is None:
            raise UserError(f"{folder.source}/{INDEX}: missing, expected the variables that {GRAPH} reads")
        used.add(name)
        return bundle.tensor(name)

    def feed(unit: bool) -> Array:
        pixels = observations.transpose(0, 2, 3, 1).astype(TYPES[entry.kind])  # (N, H, W, stack)
        return pixels / pixels.dtype.type(255) if unit else pixels

    unit = input_range != "pixels" and TYPES[entry.kind].kind == "f"
    value = evaluate(model, result, entry, feed(unit), read)
    network = read_network(value.flow, file.url)
    chosen, told = _range(network.scale, entry, input_range, file.url)
    if (chosen == "unit") != unit:
        value = evaluate(model, result, entry, feed(chosen == "unit"), read)
    factor = network.scale * (1.0 if chosen == "unit" else 255.0)
    factor = 1.0 if abs(factor - 1.0) < 1e-6 else factor  # 1/255 in float32
    count = len(network.convolutions) + 1 + len(network.biases)
    weights = f"{count} constants of the graph"
    if used:
        weights = f"{len(used)} variables of a bundle, with {len(bundle.entries) if bundle else 0} checksums"
        weights += f", and {count - len(used)} constants of the graph" if count > len(used) else ""
    features = np.asarray(value.array, np.float32).reshape(bare(value.array.shape))
    return Released(network, shape, observations, features, factor, weights, told, chosen)


def _observation_shape(entry: Input, url: str) -> tuple[int, ...]:
    """Return the shape of an observation, (stack, H, W), of a graph that takes (N, H, W, stack)."""
    shape = entry.shape
    good = len(shape) == 4 and all(size > 0 for size in shape[1:]) and math.prod(shape[1:]) <= LARGEST
    if not good or (shape[0] > 0 and not 1 < shape[0] <= _LARGEST_BATCH):
        raise UserError(f"{url}: found an input of shape {shape}, expected (any, height, width, stack)")
    if entry.kind not in TYPES or TYPES[entry.kind].kind == "b":
        raise UserError(f"{url}: found an input of type {entry.kind}, expected numbers such as float32 or uint8")
    return shape[3], shape[1], shape[2]


def _observations(shape: tuple[int, ...], count: int) -> NDArray[np.uint8]:
    """Make observations on which every weight matters: noise of different strength, no two frames alike."""
    rng = numpy_generator(0)
    noise = rng.integers(0, 256, (count, *shape))
    kept = rng.random((count, *shape)) < np.linspace(0.1, 1.0, count)[:, None, None, None]
    return (noise * kept).astype(np.uint8)


def _range(scale: float, entry: Input, given: str, url: str) -> tuple[str, str]:
    """Decide what the graph is to be fed, by what it does before its first convolution."""
    whole_numbers = TYPES[entry.kind].kind != "f"
    done = "does not scale its input" if scale == 1 else f"multiplies its input by {scale:.6g}"
    if given != "auto":
        if whole_numbers and given == "unit":
            raise UserError(f"--input-range: found unit with {url}, whose input is of whole numbers, expected pixels")
        return given, f"the graph {done}; it is fed as --input-range {given} says"
    if whole_numbers or abs(scale * 255 - 1) < 1e-5:
        return "pixels", f"the graph {done}; it takes pixels from 0 to 255"
    if scale == 1:
        taken = "taken as pixels / 255, as the authors' own code feeds it (--input-range pixels if it is not)"
        return "unit", f"the graph {done}; that is {taken}"
    raise UserError(f"{url}: the graph {done}, so that its range cannot be told; expected --input-range unit or pixels")


def _filled(released: Released, url: str) -> Encoder:
    """Return our network with the released weights; those of the dense layer are copied a part at a time."""
    network = released.network
    try:
        encoder = make_encoder(ARCHITECTURE, released.shape, network.width, throwaway())
    except ObservationShapeError as error:
        raise UserError(f"{url}: {error}") from error
    found = parameters(network, released.factor)
    for name, parameter in encoder.named_parameters():
        target, weights = parameter.detach().numpy(), found[name]
        if weights.shape != target.shape or weights.dtype != np.float32:
            here = f"{weights.shape} {weights.dtype}"
            raise UserError(f"{url}: found {name} {here} in our layout, expected {target.shape} float32")
        columns = target.shape[1] if target.ndim == 2 else 1
        for first in range(0, columns, _ROWS):
            part = (slice(None), slice(first, first + _ROWS)) if target.ndim == 2 else ...
            target[part] = weights[part]
            if not np.isfinite(target[part]).all():
                raise UserError(f"{url}: found numbers in {name} that are not finite, expected finite ones")
    return encoder


def _compared(encoder: Encoder, released: Released, url: str) -> str:
    """Refuse a network that does not compute what the graph does; say how near they are."""
    ours = FrozenEncoder(encoder, {}).features(released.observations).numpy()
    theirs = released.features
    if ours.shape != theirs.shape or not np.isfinite(theirs).all():
        raise UserError(f"{url}: found features {theirs.shape}, expected {ours.shape} finite ones")
    largest, difference = float(np.abs(theirs).max()), float(np.abs(ours - theirs).max())
    if largest == 0:
        raise UserError(f"{url}: found features that are all 0 on {len(ours)} observations, expected some that are not")
    if difference > TOLERANCE * largest:
        found = f"features that differ by {difference:.3g} of {largest:.3g} from those of the graph"
        raise UserError(f"{url}: found {found}, expected at most {TOLERANCE:g} of it: the graph is not an Impala-CNN")
    return (
        f"on {len(ours)} observations the graph's own operations and this network agree: features up to "
        f"{largest:.4g}, largest difference {difference:.1e}"
    )


def _card(config: ImportEncoderConfig, env: str, released: Released, checked: str) -> list[str]:
    """Write the model card."""
    stack, height, width = released.shape
    return [
        f"# A released encoder for {env}",
        "",
        f"Imported by protovalue {__version__} from `{config.source}`, a TensorFlow SavedModel that others trained.",
        "",
        f"- Impala-CNN of width {released.network.width}, {released.network.num_features:,} features",
        f"- observations: {stack} frames of {height} x {width}, uint8, the oldest first",
        f"- weights: {released.weights}",
        f"- input: {released.told}",
        f"- checked: {checked}",
        "",
        f"    pvn online --encoder {config.out} --env {env} --out runs/online",
    ]
