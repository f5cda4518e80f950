"""The artefact of pretraining: a frozen encoder in a folder of its own, to be loaded anywhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from protovalue.errors import UserError
from protovalue.files import read_json, size_and_crc, write_atomic, write_json
from protovalue.nets.encoders import Encoder, make_encoder

CONFIG, MODEL, CARD = "config.json", "model.safetensors", "README.md"
FORMAT, VERSION = "protovalue encoder", 1


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
    def features(self, obs: NDArray[Any] | Tensor) -> Tensor:
        """Return the features (N, k) of observations, computed on the encoder's own device."""
        device = next(self.parameters()).device
        tensor = torch.from_numpy(np.ascontiguousarray(obs)) if isinstance(obs, np.ndarray) else obs
        return cast("Tensor", self(tensor.to(device)))

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: frozen is frozen."""
        return super().train(False)


def save_encoder(
    folder: Path, encoder: Encoder, architecture: str, width: int, about: dict[str, Any], card: Sequence[str]
) -> None:
    """Write an encoder as a folder: config.json, model.safetensors and a model card."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f".{MODEL}.tmp"
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()}
    try:
        save_file(tensors, beside, metadata={"format": "pt"})
        _, crc = size_and_crc(beside, durable=True)
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        raise UserError(f"{folder / MODEL}: cannot write the encoder: {' '.join(str(error).split())}") from error
    beside.replace(folder / MODEL)
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "encoder": architecture,
        "width": width,
        "observation_shape": list(encoder.observation_shape),
        "num_features": encoder.num_features,
        "readout": encoder.readout,
        "crc32": crc,
        "about": about,
    }
    write_json(folder / CONFIG, fields)
    write_atomic(folder / CARD, ("\n".join(card) + "\n").encode())


def load_encoder(path: Path | str, device: str = "cpu") -> FrozenEncoder:
    """Load the encoder in a folder, or in the `encoder` folder of a pretraining run."""
    given = Path(path)
    folder = given / "encoder" if (given / "encoder" / CONFIG).is_file() else given
    if (folder / "checkpoints").is_dir():
        raise UserError(f"{given}: no encoder here: the run is not finished")
    if not (folder / CONFIG).is_file():
        raise UserError(f"{given}: no encoder here: {CONFIG} is missing")
    fields = read_json(folder / CONFIG)
    if fields.get("format") != FORMAT or fields.get("version") != VERSION:
        raise UserError(f"{folder / CONFIG}: not the config of an encoder of format version {VERSION}")
    encoder = make_encoder(
        fields["encoder"], tuple(fields["observation_shape"]), fields["width"], torch.Generator().manual_seed(0)
    )
    encoder.readout = fields.get("readout", "relu")
    try:
        if size_and_crc(folder / MODEL)[1] != fields["crc32"]:
            raise UserError(f"{folder / MODEL}: damaged: its checksum does not match")
        encoder.load_state_dict(load_file(folder / MODEL))
    except FileNotFoundError:
        raise UserError(f"{folder / MODEL}: missing") from None
    except (RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder / MODEL}: damaged: {' '.join(str(error).split())}") from error
    return FrozenEncoder(encoder, fields["about"]).to(device)
