"""The artefact of pretraining: a frozen encoder in a folder of its own, to be loaded anywhere."""

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from protovalue import hub
from protovalue.device import threads_for
from protovalue.envs.options import check_recorded
from protovalue.errors import UserError
from protovalue.files import beside, make_folder, read_bytes, read_json, size_and_crc, write_atomic, write_json
from protovalue.nets.cost import forward_flops
from protovalue.nets.encoders import Encoder, Readout, make_encoder
from protovalue.nets.layers import ObservationShapeError
from protovalue.randomness import throwaway
from protovalue.registry import name_of
from protovalue.schema import checked, parse_json, require, shown
from protovalue.user_code import user_code
from protovalue.zoo import index as zoo

CONFIG, MODEL, CARD = "config.json", "model.safetensors", "README.md"
FORMAT, VERSION = "protovalue encoder", 1
LARGEST = 1 << 22  # values of an observation: 150 times those of Atari
_MOST_BYTES = 1 << 34  # of a file on the Hub: 30 times the paper's largest encoder


@dataclass(frozen=True)
class _Summary:
    """What others read of `about.summary`."""

    feature_rms: float | None = None

    def __post_init__(self) -> None:
        good = self.feature_rms is None or math.isfinite(self.feature_rms)
        require(good, "feature_rms", self.feature_rms, "a finite number")


@dataclass(frozen=True)
class _About:
    """What others read of `about`."""

    env_id: str | None = None
    env_options: dict[str, Any] = field(default_factory=dict)
    method: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    summary: _Summary = field(default_factory=_Summary)


@dataclass(frozen=True)
class _Config:
    """config.json."""

    format: str
    version: int
    encoder: str
    width: int | float
    observation_shape: tuple[int, ...]
    num_features: int
    crc32: int
    about: _About
    readout: Readout = "relu"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.format == FORMAT, "format", self.format, repr(FORMAT))
        require(self.version == VERSION, "version", self.version, str(VERSION))
        require(0 < self.width < 1 << 16, "width", self.width, f"more than 0 and less than {1 << 16}")
        shape = self.observation_shape
        good = all(size > 0 for size in shape) and math.prod(shape) <= LARGEST
        require(good, "observation_shape", shape, f"sizes of 1 or more, at most {LARGEST:,} values in all")


class FrozenEncoder(nn.Module):
    """An encoder whose parameters do not change.

    A plain torch module: call it on uint8 or bool observations (N, stack, *frame_shape), or use `features` for arrays.
    `about` is what its folder says of it: method, data, environment, numbers.
    """

    def __init__(self, encoder: Encoder, about: dict[str, Any]) -> None:
        super().__init__()
        self.encoder, self.about = encoder, about
        self.num_features, self.observation_shape = encoder.num_features, encoder.observation_shape
        self.requires_grad_(False)
        self.eval()

    def forward(self, obs: Tensor) -> Tensor:
        """Map observations (N, stack, *frame_shape) to features (N, k)."""
        return cast("Tensor", self.encoder(obs))

    @torch.inference_mode()
    def features(self, obs: NDArray[Any] | Tensor | Sequence[Any]) -> Tensor:
        """Return the features (N, k) of N observations, computed on the encoder's own device.

        A list of observations is stacked. One observation alone is refused: `obs[None]` is a batch of one.
        """
        device = next(self.parameters()).device
        tensor = obs if isinstance(obs, Tensor) else torch.from_numpy(np.ascontiguousarray(_batch(obs)))
        if tuple(tensor.shape[1:]) != self.observation_shape:
            raise UserError(_wrong_shape(tuple(tensor.shape), self.observation_shape))
        with threads_for(lambda: len(tensor) * self.flops):
            return cast("Tensor", self(tensor.to(device)))

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of one observation's features."""
        return forward_flops(self.encoder)

    def __repr__(self) -> str:
        """Say what it is in one line."""
        method, env = self.about.get("method") or "unknown method", self.about.get("env_id") or "unknown environment"
        count = sum(parameter.numel() for parameter in self.parameters())
        return (
            f"FrozenEncoder({method} on {env}: observations {self.observation_shape} -> {self.num_features} features, "
            f"{count:,} parameters, {next(self.parameters()).device})"
        )

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: frozen is frozen."""
        return super().train(False)


def _batch(obs: NDArray[Any] | Sequence[Any]) -> NDArray[Any]:
    """Stack a list of observations; an array is one already."""
    if isinstance(obs, np.ndarray):
        return obs
    if not isinstance(obs, list | tuple) or not obs:
        raise UserError(f"observations: found {type(obs).__name__}, expected an array, a tensor or a list of arrays")
    parts = [np.asarray(one) for one in obs]
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        raise UserError(f"observations: found shapes {sorted(shapes)} in one list, expected all alike")
    return np.stack(parts)


def _wrong_shape(found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Say what a batch must look like, and how one is made of what was given."""
    text = f"observations: found shape {found}, expected (N, {', '.join(map(str, expected))})"
    if found == expected:
        return f"{text}: this is one observation; obs[None] is a batch of one"
    if found == expected[1:]:
        return (
            f"{text}: this is one frame; {'frame[None, None]' if expected[0] == 1 else 'a stack of them'} is expected"
        )
    if expected[0] == 1 and found[1:] == expected[1:]:
        return f"{text}: these are frames without a stack; frames[:, None] has one"
    return text


def save_encoder(
    folder: Path, encoder: Encoder, architecture: str, width: float, about: dict[str, Any], card: Sequence[str]
) -> None:
    """Write an encoder as a folder: config.json, model.safetensors and a model card."""
    make_folder(folder)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()}
    try:
        with beside(folder / MODEL) as new:
            save_file(tensors, new, metadata={"format": "pt"})
            _, crc = size_and_crc(new)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder / MODEL}: cannot write the encoder: {' '.join(str(error).split())}") from error
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "encoder": name_of(architecture),
        "width": width,
        "observation_shape": list(encoder.observation_shape),
        "num_features": encoder.num_features,
        "readout": encoder.readout,
        "crc32": crc,
        "about": about,
    }
    if encoder.options:
        fields["options"] = encoder.options
    write_json(folder / CONFIG, fields)
    write_atomic(folder / CARD, ("\n".join(card) + "\n").encode())


def _what_lies_there(run: Path) -> str:
    """Say why a run folder has no encoder."""
    recorded = None
    with contextlib.suppress(UserError):
        recorded = read_json(run / CONFIG).get("config")
    kind = recorded.get("kind") if isinstance(recorded, dict) else None
    if kind in ("online", "dqn"):
        return f"found the agents of pvn {kind}, expected a run of pvn pretrain"
    return "the run is not finished"


def encoder_folder(name: Path | str) -> Path:
    """Return where an encoder lies: zoo:NAME in the package, hf://ORG/NAME in the Hub's cache, else as it is.

    From the Hub come the two files that an encoder is made of, and no others.
    """
    text = os.fspath(name)
    if zoo.is_name(text):
        return zoo.folder_of(text)
    if not hub.is_address(text):
        return Path(name)

    def check(path: Path) -> None:
        fields = parse_json(read_bytes(path), f"{text}: {path.name}")
        said = fields.get("format") if isinstance(fields, dict) else fields
        if said != FORMAT:
            raise UserError(
                f"{text}: no encoder here: field format of {CONFIG}: found {shown(said)}, expected {FORMAT!r}"
            )

    return hub.fetch(hub.Repository.of(text), (CONFIG, MODEL), "no encoder here", _MOST_BYTES, check)


def own_folder(place: Path) -> Path:
    """Return the folder of the encoder itself: of a pretraining run it is inside."""
    return place / "encoder" if (place / "encoder" / CONFIG).is_file() else place


def lasting_name(name: str) -> str:
    """Return what an encoder is called from anywhere and later: with its commit, or with the whole of its path."""
    if hub.is_address(name):
        return str(hub.pinned(hub.Repository.of(name)))
    return name if zoo.is_name(name) else str(Path(name).absolute())


def load_encoder(path: Path | str, device: str = "cpu") -> FrozenEncoder:
    """Load an encoder: of a folder or a pretraining run, `zoo:NAME` of the package, or `hf://ORG/NAME` of the Hub.

    One of an architecture of the user's needs its Python file to be loaded before (`protovalue.load_code`): what a
    folder names is not run.
    """
    given = encoder_folder(path)
    folder = own_folder(given)
    if (folder / "checkpoints").is_dir():
        raise UserError(f"{given}: no encoder here: {_what_lies_there(folder)}")
    if not (folder / CONFIG).is_file():
        raise UserError(f"{given}: no encoder here: {CONFIG} is missing")
    fields = read_json(folder / CONFIG)
    config = checked(_Config, fields, folder / CONFIG, extra=True)
    check_recorded(config.about.env_id, config.about.env_options, f"{folder / CONFIG}: field about.env_options")
    try:
        if size_and_crc(folder / MODEL)[1] != config.crc32:
            raise UserError(f"{folder / MODEL}: damaged: its checksum does not match")
        _check_shapes(config, folder)
        encoder = _make(config)
        encoder.readout = config.readout
        tensors = load_file(folder / MODEL)
        wild = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
        if wild:
            raise UserError(f"{folder / MODEL}: damaged: tensor {min(wild)}: found numbers that are not finite")
        encoder.load_state_dict(tensors)
    except ObservationShapeError as error:
        raise UserError(f"{folder / CONFIG}: {error}") from error
    except FileNotFoundError:
        raise UserError(f"{folder / MODEL}: missing") from None
    except (RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder / MODEL}: damaged: {' '.join(str(error).split())}") from error
    return FrozenEncoder(encoder, fields["about"]).to(device)


def _make(config: _Config) -> Encoder:
    """Build the network that a folder names, if it is known; what a user's own raises is told as its own."""
    with user_code():
        return make_encoder(config.encoder, config.observation_shape, config.width, throwaway(), config.options)


def _check_shapes(config: _Config, folder: Path) -> None:
    """Refuse a file that has not just the parameters of the config's network, before memory is asked for them."""
    with torch.device("meta"):  # shapes without values
        try:
            empty = _make(config)
        except UserError as error:
            raise UserError(f"{folder / CONFIG}: {error}") from error
    if empty.num_features != config.num_features:
        raise UserError(
            f"{folder / CONFIG}: field num_features: found {config.num_features}, expected {empty.num_features}"
        )
    expected = {name: list(tensor.shape) for name, tensor in empty.state_dict().items()}
    with safe_open(folder / MODEL, "pt") as file:
        found: Mapping[str, list[int]] = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        kinds = {file.get_slice(name).get_dtype() for name in found}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            here, wanted = found.get(name, "no such tensor"), expected.get(name, "no such tensor")
            raise UserError(f"{folder / MODEL}: damaged: tensor {name[:60]}: found {here}, expected {wanted}")
    if kinds != {"F32"}:
        raise UserError(f"{folder / MODEL}: damaged: found tensors of {', '.join(sorted(kinds))}, expected F32")
