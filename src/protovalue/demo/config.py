"""Settings of `pvn demo`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from protovalue.config import PLACE, Settings


@dataclass(frozen=True)
class DemoConfig(Settings):
    """Show what there is in a few minutes: the tabular theory, collecting, pretraining, playing.

    Example: pvn demo --out demo
    """

    out: Annotated[Path, PLACE] = Path("demo")
    """Folder for what the demo makes: a new one, or an earlier demo's, which goes on."""
