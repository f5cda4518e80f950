"""Target networks: a copy that follows the trained one by a moving average or by copying now and then."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class TargetNetwork(nn.Module):
    """Copies of some modules. `follow` is called after every optimiser step.

    Moving average: theta^- <- ema theta^- + (1 - ema) theta, of the parameters after the step.
    With `every` > 0: theta^- <- theta every so many steps.
    """

    steps: Tensor

    def __init__(self, sources: Mapping[str, nn.Module], ema: float, every: int = 0) -> None:
        super().__init__()
        self._ema, self._every = ema, every
        self.copies = nn.ModuleDict({name: copy.deepcopy(module) for name, module in sources.items()})
        self.copies.requires_grad_(False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._followed = [parameter for module in sources.values() for parameter in module.parameters()]

    def __getitem__(self, name: str) -> Any:
        return self.copies[name]

    @torch.no_grad()
    def follow(self) -> None:
        """Move towards the sources."""
        self.steps += 1
        own: list[Tensor] = list(self.copies.parameters())
        theirs: list[Tensor] = [parameter.detach() for parameter in self._followed]
        if self._every == 0:
            torch._foreach_lerp_(own, theirs, 1.0 - self._ema)
        elif int(self.steps) % self._every == 0:
            torch._foreach_copy_(own, theirs)
