"""Settings of `pvn zoo list`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional

from protovalue.config import RESULT, Settings


@dataclass(frozen=True, kw_only=True)
class ZooListConfig(Settings):
    """List the encoders that come with the package, with what agents on them reach.

    Example: pvn zoo list minatar/breakout/pvn

    With a name, print that encoder's card: what it was trained on, its results, the commands that repeat them.
    """

    name: Annotated[Positional[str], RESULT] = ""
    """Name of one of them, whose card is printed."""
