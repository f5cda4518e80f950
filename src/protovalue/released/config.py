"""Settings of `pvn import encoder`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from protovalue.config import INPUT, PLACE, RESULT, SUBJECT, WIDTH, Settings, require

METHOD, ARCHITECTURE = "released", "impala"
"""What an encoder that was imported calls itself, and what it is."""


@dataclass(frozen=True, kw_only=True)
class ImportEncoderConfig(Settings):
    """Import an encoder that was released as a TensorFlow SavedModel, such as the paper's. TensorFlow is not needed.

    Example: pvn import encoder gs://download-dopamine-rl/pvn/Pong/1 --out encoders/pong-1

    The same command continues an interrupted download. What is written was compared with the graph's own operations
    (docs/released-encoders.md).
    """

    source: Annotated[Positional[str], INPUT]
    """Folder or URL (https://, gs://, ...) of the SavedModel: where its saved_model.pb lies."""
    out: Annotated[Path, PLACE]
    """Folder of the encoder."""
    env: Annotated[str | None, SUBJECT] = None
    """Environment that it was trained in [the Atari game that the path of the source names]."""
    input_range: Annotated[Literal["auto", "unit", "pixels"], RESULT] = "auto"
    """What the graph is to be fed: pixels divided by 255 (unit), or from 0 to 255 (pixels) [what the graph tells]."""
    width: Annotated[float | None, RESULT, WIDTH] = None
    """Width that it must have, or else it is refused [any]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.source != "", "SOURCE", "nothing", "a folder or a URL")
