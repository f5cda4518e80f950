"""Target networks: a copy that follows the trained one by a moving average or by copying now and then."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class TargetNetwork(nn.Module):
    """Copies of some modules. `follow` is called after every optimiser step.

    Moving average: theta^- <- ema theta^- + (1 - ema) theta, of the parameters after the step.
    With `every` in its place: theta^- <- theta every so many steps.
    """

    steps: Tensor

    def __init__(self, sources: Mapping[str, nn.Module], ema: float | None, every: int | None = None) -> None:
        super().__init__()
        if (ema is None) == (every is None):
            raise ValueError("a target network follows either by a moving average or by copying")
        self._ema, self._every = ema, every
        self.copies = nn.ModuleDict({name: copy.deepcopy(module) for name, module in sources.items()})
        self.copies.requires_grad_(False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._followed = [parameter for module in sources.values() for parameter in module.parameters()]
        self._count = 0  # the same as `steps`, here: to look there would be to wait for the device
        after_loading: Any = self.register_load_state_dict_post_hook
        after_loading(lambda module, _: module.recount())

    def __getitem__(self, name: str) -> Any:
        return self.copies[name]

    def recount(self) -> None:
        """Take over the steps of a checkpoint."""
        self._count = int(self.steps)

    @torch.no_grad()
    def follow(self) -> None:
        """Move towards the sources."""
        self.steps += 1
        self._count += 1
        own: list[Tensor] = list(self.copies.parameters())
        theirs: list[Tensor] = [parameter.detach() for parameter in self._followed]
        if self._ema is not None:
            torch._foreach_lerp_(own, theirs, 1.0 - self._ema)
        elif self._every is not None and self._count % self._every == 0:
            torch._foreach_copy_(own, theirs)
