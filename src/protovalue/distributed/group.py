"""What processes that train together know of each other, and what they exchange; one process alone exchanges nothing.

Each has a part of the batch. DistributedDataParallel averages their gradients, so what every process minimises must
have the loss of the whole batch as its mean over the processes. `gathered` makes that simple: every process computes
the loss of the whole batch, of what all of them found.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]  # it exports what it has not named
from torch.nn.parallel import DistributedDataParallel

Json = dict[str, Any]


@dataclass(frozen=True)
class Ranks:
    """Which of the processes this one is."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    """Its number among those on the same machine."""
    local_count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    def rows(self, size: int) -> slice:
        """Return which of a batch's `size` rows, a multiple of `count`, are this process's."""
        part = size // self.count
        return slice(self.rank * part, (self.rank + 1) * part)


_ALONE = Ranks()
_ranks = _ALONE


def ranks() -> Ranks:
    """Return which of the processes this one is."""
    return _ranks


def begin(found: Ranks, store: Store, cuda: bool, timeout: Any) -> None:
    """Connect with the others, all of which are there: gloo for what is on CPUs, nccl for what is on GPUs."""
    global _ranks
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=found.rank, world_size=found.count, timeout=timeout)
    _ranks = found


def end() -> None:
    """Be alone again."""
    global _ranks
    _ranks = _ALONE
    if dist.is_initialized():
        dist.destroy_process_group()


def gathered(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors (b, ...) of this process's rows as (B, ...) of all processes' rows, in the order of the batch.

    Gradients flow, on one condition: **every process computes the same of the result**, such as the loss of the whole
    batch. Then nothing needs to be exchanged on the way back: the gradient of this process's rows is here already, and
    counts as often as there are processes that would send it, by which DistributedDataParallel divides.
    """
    if not _ranks.several:
        return tensors
    found: tuple[Tensor, ...] = _Gathered.apply(*tensors)  # type: ignore[no-untyped-call]
    return found


def summed(tensor: Tensor) -> Tensor:
    """Return the sum of the processes' tensors; gradients come from all processes, whatever each does with the sum."""
    if not _ranks.several:
        return tensor
    return cast("Tensor", _Summed.apply(tensor))  # type: ignore[no-untyped-call]


class _Gathered(torch.autograd.Function):
    """All tensors travel as one row of bytes: one exchange, whatever they are."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        parts = [tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in tensors]
        own = torch.cat(parts)
        rows = list(own.new_empty(_ranks.count, len(own)).unbind())
        dist.all_gather(rows, own)
        sizes = [len(part) for part in parts]
        by_rank = [row.split(sizes) for row in rows]
        ctx.rows = [len(tensor) for tensor in tensors]
        ctx.set_materialize_grads(False)
        found = []
        for place, tensor in enumerate(tensors):
            # Each is copied: bytes in the middle of a row are not where numbers of four bytes must begin.
            pieces = [split[place].clone().view(tensor.dtype).view(tensor.shape) for split in by_rank]
            found.append(torch.cat(pieces))
        ctx.mark_non_differentiable(*(one for one, needs in zip(found, ctx.needs_input_grad, strict=True) if not needs))
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        first, count = _ranks.rank, _ranks.count
        return tuple(
            None if gradient is None else gradient[first * rows : (first + 1) * rows] * count
            for gradient, rows in zip(gradients, ctx.rows, strict=True)
        )


class _Summed(torch.autograd.Function):
    """The sum of what all have; each one's gradient is the sum of the gradients of all sums."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class _Loss(nn.Module):
    """A method as DistributedDataParallel wants it: its forward pass is the loss."""

    def __init__(self, method: nn.Module, loss: Callable[[Any], Any]) -> None:
        super().__init__()
        self.method, self._loss = method, loss

    def forward(self, sample: Any) -> Any:
        return self._loss(sample)


def together(method: nn.Module, loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `loss` such that its gradients with respect to the method's parameters are averaged over the processes.

    They travel in parts while the backward pass goes on. Buffers are not sent: they change alike everywhere.
    """
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # its name until 2.12
    options: dict[str, Any] = {buffers: False}
    return DistributedDataParallel(_Loss(method, loss), **options)


def averages(values: Sequence[Tensor]) -> list[float]:
    """Return the means of scalars over the processes."""
    if not _ranks.several:
        return [float(value) for value in values]
    found = torch.tensor([float(value) for value in values], dtype=torch.float64)
    dist.all_reduce(found)
    return [value / _ranks.count for value in found.tolist()]


def highest(number: int) -> Callable[[], int]:
    """Begin to ask for the highest number that a process has; the answer is the same everywhere."""
    if not _ranks.several:
        return lambda: number
    found = torch.tensor([number])
    asked: Any = dist.all_reduce(found, dist.ReduceOp.MAX, async_op=True)

    def answer() -> int:
        asked.wait()
        return int(found)

    return answer


def unlike(number: int) -> list[int]:
    """Name the processes whose number is not the first one's."""
    if not _ranks.several:
        return []
    own = torch.tensor([number])
    found = [torch.empty_like(own) for _ in range(_ranks.count)]
    dist.all_gather(found, own)
    return [rank for rank, one in enumerate(found) if int(one) != int(found[0])]


def from_first(message: Json | None) -> Json:
    """Tell all what the first process says; the others give None."""
    if not _ranks.several:
        assert message is not None
        return message
    text = json.dumps(message).encode()
    size = torch.tensor([len(text)])
    dist.broadcast(size, 0)
    body = torch.frombuffer(bytearray(text), dtype=torch.uint8) if _ranks.first else torch.empty(int(size)).byte()
    dist.broadcast(body, 0)
    told: Json = json.loads(bytes(body.numpy()))
    return told


def arrays_from_first(arrays: dict[str, NDArray[Any]] | None) -> dict[str, NDArray[Any]]:
    """Give all the arrays of the first process; the others give None."""
    if not _ranks.several:
        assert arrays is not None
        return arrays
    about = {name: [array.dtype.str, list(array.shape)] for name, array in (arrays or {}).items()}
    found = {}
    for name, (dtype, shape) in from_first(about if _ranks.first else None).items():
        flat = (
            np.empty(int(np.prod(shape)), dtype) if arrays is None else np.ascontiguousarray(arrays[name]).reshape(-1)
        )
        if flat.nbytes:
            dist.broadcast(torch.from_numpy(flat.view(np.uint8)), 0)
        found[name] = flat.reshape(shape)
    return found


def to_first(rows: Tensor) -> list[Tensor] | None:
    """Bring tensors on the CPU, of the same shape everywhere, to the first process, in the order of ranks."""
    found = [torch.empty_like(rows) for _ in range(_ranks.count)] if _ranks.first else None
    dist.gather(rows.contiguous(), found)
    return found
