"""A pretended device: the rules of `cuda` (or `mps`) without one, values from the CPU, and every wait counted.

Memory "on the device" is ordinary memory with a mark on it. Each operation that touches it is first tried on
FakeTensors under PyTorch's FakeTensorMode, which checks shapes, dtypes and devices, refuses a mixture of devices and
says where the result lies; then it is computed on the CPU. So whole commands run, and their numbers can be compared.
Under autocast it is the CPU's own bfloat16 that rounds.

What would make the host wait for a real device is noted in `waits` by the line that asked for it: reading a number,
copying to the CPU, copying from memory that is not pinned or without `non_blocking`, a shape that depends on values.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import protovalue

aten = torch.ops.aten
_INDEXING = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default)
_KNOWN: dict[tuple[Any, str, str], list[Any] | None] = {}  # operations that were tried
_SOURCE = str(Path(protovalue.__file__).parent)
_WRAP = threading.Thread.run


class Device:
    """A device of a kind that is not here."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.place = torch.device(kind, 0)
        self.waits: list[str] = []
        """The lines of this package that made the host wait, in order."""
        self._fake = FakeTensorMode(allow_non_fake_inputs=False)
        self._marked: dict[int, Any] = {}  # storages on the device, kept so that no other has their address
        self._pinned: dict[int, Any] = {}

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let this thread see the device."""
        with ExitStack() as stack:
            stack.enter_context(_Operations(self))
            stack.enter_context(_Functions(self))
            yield

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device."""
        with torch._C.DisableTorchFunction():
            return tensor.untyped_storage()._cdata in self._marked

    def take(self, tensor: Tensor) -> Tensor:
        """Put a new tensor's memory on the device."""
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
        self._marked[storage._cdata] = storage
        return tensor

    def pin(self, tensor: Tensor) -> Tensor:
        """Copy a tensor into memory that the device can read by itself."""
        with torch._C.DisableTorchFunction():
            copy = tensor.clone()
            storage = copy.untyped_storage()
        self._pinned[storage._cdata] = storage
        return copy

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether it is there."""
        with torch._C.DisableTorchFunction():
            return tensor.untyped_storage()._cdata in self._pinned

    def wait(self, what: str) -> None:
        """Note that the host waits."""
        lines = [frame for frame in traceback.extract_stack() if frame.filename.startswith(_SOURCE)]
        self.waits.append(f"{Path(lines[-1].filename).name}: {lines[-1].line} [{what}]" if lines else what)

    def move(self, tensor: Tensor, there: bool, asynchronous: bool) -> Tensor:
        """Copy between the CPU and the device."""
        if not there or not (asynchronous and self.is_pinned(tensor)):
            self.wait("to the device" if there else "to the CPU")
        copy = tensor.clone()
        if there:
            return self.take(copy)
        with torch._C.DisableTorchFunction():
            self._marked.pop(copy.untyped_storage()._cdata, None)
        return copy

    def check(self, func: Any, args: Any, kwargs: Any) -> list[Any] | None:
        """Try an operation on tensors without values and say what it gives; raise what PyTorch raises.

        A tensor is said by shape, dtype and the kind of its device; None is a shape that depends on values.
        """
        about = [self._about(one) for one in tree_leaves((args, kwargs))]
        key = func, self.kind, repr(about)
        if key not in _KNOWN:
            try:
                _KNOWN[key] = self._tried(func, args, kwargs)
            except (DynamicOutputShapeException, DataDependentOutputException):
                _KNOWN[key] = None
            except RuntimeError as error:
                if "not linked with support" not in str(error):
                    raise
                # FakeTensors ask for a real device here (batch normalisation); the rule is simple.
                if any(isinstance(one, Tensor) and one.dim() and not self.has(one) for one in tree_leaves(args)):
                    raise TypeError(f"{func}: a mixture of devices") from None
                _KNOWN[key] = []
        return _KNOWN[key]

    def _about(self, one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        return tuple(one.shape), one.stride(), one.dtype, self.has(one)

    def _tried(self, func: Any, args: Any, kwargs: Any) -> list[Any]:
        def faked(one: Any) -> Any:
            if isinstance(one, torch.device):
                return self.place  # the CPU's here is where the given tensors are: what was asked for came by `to`
            if not isinstance(one, Tensor):
                return one
            place = self.place if self.has(one) else torch.device("cpu")
            return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=place)

        with torch._C.DisableTorchFunction(), self._fake:
            found = tree_leaves(func(*tree_map(faked, args), **tree_map(faked, kwargs)))
        return [(one.shape, one.dtype, one.device.type) if isinstance(one, Tensor) else None for one in found]


class _Operations(TorchDispatchMode):
    """Each operation, below autograd and autocast."""

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, device = kwargs or {}, self.device
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if not any(device.has(one) for one in tensors):
            return func(*args, **kwargs)
        if func in (aten._local_scalar_dense.default, aten.equal.default):
            device.wait("a number")
            return func(*args, **kwargs)
        if func is aten.copy_.default and device.has(args[0]) != device.has(args[1]):
            if not (device.has(args[0]) and len(args) > 2 and args[2] and device.is_pinned(args[1])):
                device.wait("copy")
            return func(*args, **kwargs)
        indices = [one for one in args[1] if one is not None] if func in _INDEXING else []
        expected = None
        if not any(one.dtype in (torch.bool, torch.uint8) for one in indices):
            if not all(device.has(one) for one in indices):
                device.wait("an index")
            expected = device.check(func, args, kwargs)
        if expected is None:
            device.wait("a shape")
        found = func(*args, **kwargs)
        leaves = tree_leaves(found)
        known = expected if expected is not None and len(expected) == len(leaves) else [None] * len(leaves)
        for one, about in zip(leaves, known, strict=True):
            if isinstance(one, Tensor):
                assert about is None or about[:2] == (one.shape, one.dtype), func
                if device.kind == "mps" and one.dtype == torch.float64:
                    raise TypeError("MPS has no float64")
                if about is None or about[2] == device.kind:
                    device.take(one)
        return found


class _Functions(TorchFunctionMode):
    """What comes to no operation on a CPU: where tensors are, and where they are wanted."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, device = dict(kwargs or {}), self.device
        own = bool(args) and isinstance(args[0], Tensor)
        if own and func in _QUESTIONS:
            return _QUESTIONS[func](device, args[0])
        if own and func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self._to(func, args, kwargs)
        if own and func in (Tensor.numpy, Tensor.__array__) and device.has(args[0]):
            raise TypeError(f"can't convert {device.place} device type tensor to numpy")
        if own and func is Tensor.tolist and device.has(args[0]):
            device.wait("a list")
        # The first looks at values on a CPU only, the second copies memory without an operation.
        if func in (torch.nn.functional.one_hot, Tensor.__deepcopy__) and device.has(args[0]):
            with torch.utils._mode_utils.no_dispatch():
                return device.take(func(*args, **kwargs))
        wanted = kwargs.get("device")
        if wanted is not None and torch.device(wanted).type == device.kind:
            found = func(*args, **{**kwargs, "device": torch.device("cpu")})
            if func is torch.tensor:
                device.wait("to the device")
            return device.take(found)
        return func(*args, **kwargs)

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, device = args[0], self.device
        place, asynchronous = torch.device("cpu" if func is Tensor.cpu else device.kind), False
        dtype, layout = None, None
        if func is Tensor.to:
            rest = [one for one in args[1:] if not isinstance(one, Tensor)]
            if len(rest) < len(args[1:]):
                raise NotImplementedError("to(another tensor)")
            place, dtype, asynchronous, layout = torch._C._nn._parse_to(*rest, **kwargs)
        if place is not None and (place.type == device.kind) != device.has(tensor):
            tensor = device.move(tensor, place.type == device.kind, asynchronous)
        if dtype is None and layout is None:
            return tensor
        given = {} if layout is None else {"memory_format": layout}
        return tensor.to(tensor.dtype if dtype is None else dtype, **given)


_QUESTIONS: dict[Any, Callable[[Device, Tensor], Any]] = {
    Tensor.device.__get__: lambda device, one: device.place if device.has(one) else torch.device("cpu"),
    Tensor.is_cuda.__get__: lambda device, one: device.kind == "cuda" and device.has(one),  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: lambda device, one: not device.has(one),  # type: ignore[attr-defined]
    Tensor.pin_memory: lambda device, one: device.pin(one),
    Tensor.is_pinned: lambda device, one: device.is_pinned(one),
}


@contextmanager
def pretended(kind: str, patch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Pretend that a device of a kind is here, for this thread and for those that it starts."""
    device = Device(kind)
    patch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
    patch.setattr(torch.backends.mps, "is_available", lambda: kind == "mps")
    group, autocast, enabled = (
        _foreach_utils._group_tensors_by_device_and_dtype, torch.autocast, torch.is_autocast_enabled
    )  # fmt: skip

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        found = group(lists, with_indices)
        return {(_first(own).device, dtype): (own, index) for (_, dtype), (own, index) in found.items()}

    for module in (torch.nn.utils.clip_grad, sys.modules["torch.optim.optimizer"], _foreach_utils):
        patch.setattr(module, "_group_tensors_by_device_and_dtype", grouped)
    patch.setattr(torch, "autocast", lambda where, *args, **kwargs: autocast(_cpu(where, kind), *args, **kwargs))
    patch.setattr(torch, "is_autocast_enabled", lambda where: enabled(_cpu(where, kind)))

    def run(thread: threading.Thread) -> None:
        with device.entered():
            _WRAP(thread)

    patch.setattr(threading.Thread, "run", run)
    with device.entered():
        yield device


def _first(lists: Any) -> Any:
    return lists[0][0]


def _cpu(where: str, kind: str) -> str:
    return "cpu" if where == kind else where
