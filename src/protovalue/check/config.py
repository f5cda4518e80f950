"""Settings of `pvn check`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from protovalue.config import COUNT, MACHINE, RESULT, Settings


@dataclass(frozen=True)
class CheckConfig(Settings):
    """Compare a device with the CPU: some steps of every method, the indicators, agents. Takes about a minute.

    Example: pvn check --device cuda

    The yardstick is one thread of the CPU in float32. What is off by more than its tolerance is named, and the
    command fails. On a CPU it compares all threads, and bfloat16, with that. docs/gpu.md says what it cannot see.
    """

    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], MACHINE] = "auto"
    """What to check; auto takes CUDA where there is one."""
    steps: Annotated[int, RESULT, COUNT] = 3
    """Steps of every method, and updates of every agent."""
