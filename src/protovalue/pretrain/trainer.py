"""The trainer that all methods share: optimiser steps, logs, checkpoints."""

import time
import warnings
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.data.sampler import Prefetcher
from protovalue.device import pinning, with_threads
from protovalue.distributed.group import averages, highest, ranks, together, unlike
from protovalue.errors import UserError
from protovalue.interrupt import interruption, stop_on_interrupt
from protovalue.nets.statistics import feature_statistics
from protovalue.precision import choose_precision, rounded_convolutions
from protovalue.pretrain.base import Method, Sample
from protovalue.progress import ProgressBar
from protovalue.runs import Checkpoint, Run, restoring
from protovalue.user_code import user_code

RATE = "samples_per_second"  # of the metrics the one that is no result
_LOOKED_AT = 1 << 16  # numbers of a tensor, or up to twice as many, by which `damping` judges it


class Trainer:
    """State of pretraining between two steps.

    `run` does all there is to do. Whoever wants something else between two steps calls `step`, `log` and `save`.
    Several processes do all of it together, each on its rows of a batch; the first of them writes.
    """

    _loss: Tensor  # of the last step, as are its other two
    _noted: dict[str, Tensor]
    _norm: Tensor

    def __init__(self, method: Method, run: Run | None, probe: Tensor | None, device: str, quiet: bool = False) -> None:
        """Train `method`, which is on `device`, in the folder of `run`; features are looked at on `probe`.

        Of several processes only the first has a run and a probe.
        """
        self.method, self.steps, self.taken = method, method.steps(), 0
        self._run, self._probe, self._device, self._quiet = run, probe, device, quiet
        self._precision = choose_precision(method.config.precision, device)
        self._start()
        self._metrics: dict[str, float] = {}  # of the last log line

    def _start(self) -> None:
        """Count from here on."""
        self._first = self._logged = self.taken
        self._finite = torch.ones((), dtype=torch.bool, device=self._device)  # whether all losses so far were
        self._good = torch.zeros((), dtype=torch.int64, device=self._device)  # steps with finite losses since `first`
        self._since = time.perf_counter()

    @cached_property
    def optimizer(self) -> torch.optim.Adam:
        """Return Adam over all parameters that are trained."""
        config = self.method.config
        parameters = [parameter for parameter in self.method.parameters() if parameter.requires_grad]
        return torch.optim.Adam(parameters, config.learning_rate, (0.9, 0.999), config.adam_epsilon, fused=True)

    @cached_property
    def _loss_of(self) -> Callable[[Sample], Any]:
        """Return the method's loss, with gradients of the whole batch."""
        return together(self.method, self.method.loss) if ranks().several else self.method.loss

    def run(self) -> None:
        """Take the steps that are left, log and save, until the last one or an interrupt."""
        method, config = self.method, self.method.config
        if config.compile:
            method.encoder.compile()
        if config.recompute_activations:
            method.encoder.recompute_activations()
        budget = (config.memory << 20) // ranks().local_count
        method.data.load(budget // 2)
        make = pinning(method.sample, self._device)
        prefetch = Prefetcher(make, range(self.taken, self.steps), method.sample_bytes(), budget // 2)
        bar = ProgressBar(with_threads(f"pretrain {config.method}"), self.steps, "steps", self.taken, self._quiet)
        self._since = time.perf_counter()
        with prefetch as samples, bar, stop_on_interrupt() as stop:
            for sample in samples:
                asked = highest(stop.signal or 0) if ranks().several else None  # answered while the step is taken
                self.step(sample)
                # Read once: what comes from here on must not end a step that was not saved.
                signal = stop.signal if asked is None else asked() or None
                stopping = signal is not None
                last = self.taken == self.steps
                if last or self.taken % config.log_every == 0:
                    self.log()
                if last or stopping or self.taken % config.checkpoint_every == 0:
                    self.save()
                bar.advance(1, f"loss {self._metrics['loss']:.4f}" if self._metrics else "")
                if stopping and not last:
                    if not ranks().first:
                        return  # the first process says it
                    raise interruption(signal)

    def step(self, sample: Sample) -> None:
        """Take one optimiser step on what `Method.sample` returned."""
        if ranks().several and "_loss_of" not in self.__dict__:
            self._rehearse(sample)
        method, limit = self.method, self.method.max_gradient_norm
        self._loss, self._noted = self._forward(sample)
        self.optimizer.zero_grad(set_to_none=True)
        with rounded_convolutions() if self._precision == "tf32" else nullcontext():
            self._loss.backward()
        self._loss = self._loss.detach()
        self._finite &= torch.isfinite(self._loss)
        self._good += self._finite
        if limit:
            self._norm = self._gradient_norm()
            torch.nn.utils.clip_grads_with_norm_(method.parameters(), limit, self._norm)
        self.optimizer.step()
        method.after_step()
        self.taken += 1
        if self._device == "cpu":  # elsewhere to look would be to wait
            self._check_finite()

    def _forward(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and what to log."""
        method = self.method
        on_device: Sample = {name: tensor.to(self._device, non_blocking=True) for name, tensor in sample.items()}
        with method.in_precision(self._precision):
            found = self._loss_of(on_device)
        if not _is_loss(found):
            raise UserError(
                f"method {method.config.method}: its loss returned {_kind(found)}, expected a scalar tensor and a dict "
                "of scalars to log"
            )
        loss: tuple[Tensor, dict[str, Tensor]] = found
        return loss

    def _rehearse(self, sample: Sample) -> None:
        """Compute gradients once and forget them, so that DistributedDataParallel sums in one order from here on.

        It puts gradients together anew after its first backward pass. A run that goes on has its first one later.
        """
        buffers = {name: buffer.clone() for name, buffer in self.method.named_buffers()}
        with warnings.catch_warnings():  # said once: gradients of channels-last weights are copied into other places
            warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
            self._forward(sample)[0].backward()
        unused = [name for name, one in self.method.named_parameters() if one.requires_grad and one.grad is None]
        if unused:
            raise UserError(
                f"method {self.method.config.method}: found no gradient for {', '.join(unused[:3])}, expected one for "
                "every parameter with several processes; one that is not trained has requires_grad_(False)"
            )
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in self.method.named_buffers():
                buffer.copy_(buffers[name])

    def metrics(self) -> dict[str, float]:
        """Return what the last step was like, the speed since the last log line, and what the features are like."""
        self._check_finite()
        rate = (self.taken - self._logged) * self.method.sampler.batch_size / (time.perf_counter() - self._since)
        norm = self._norm if self.method.max_gradient_norm else self._gradient_norm()
        loss, *noted = averages([self._loss, *self._noted.values()])
        found = {"loss": loss, "gradient_norm": float(norm), "adam_damping": damping(self.optimizer), RATE: rate}
        return found | dict(zip(self._noted, noted, strict=True)) | self._statistics()

    def log(self) -> None:
        """Write the metrics of the last step into the run."""
        self._metrics = self.metrics()
        if self._run is not None:
            self._run.log(self.taken, self._metrics)
        self._logged, self._since = self.taken, time.perf_counter()

    def save(self) -> None:
        """Write a checkpoint."""
        self._check_finite()
        tensors = {f"method.{name}": tensor for name, tensor in self.method.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": tensor for name, tensor in state.items()}
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
        self._check_same(arrays)
        if self._run is not None:
            self._run.save(self.taken, arrays, {})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint."""
        own: dict[str, Tensor] = {}
        states: dict[int, dict[str, Tensor]] = {}
        with restoring(checkpoint), user_code():
            for key, array in checkpoint.tensors.items():
                if not np.isfinite(array).all():
                    raise ValueError(f"{key}: found numbers that are not finite")
                kind, _, name = key.partition(".")
                if kind == "method":
                    own[name] = torch.from_numpy(array)
                else:
                    number, _, slot = name.partition(".")
                    states.setdefault(int(number), {})[slot] = torch.from_numpy(array)
            self.method.load_state_dict(own)
            self._check_moments(states)
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": states, "param_groups": groups})
        self.taken = checkpoint.step
        self._start()

    def summary(self) -> dict[str, Any]:
        """Return the run's final numbers: those of the last step, and of the encoder as it is now."""
        last = {name: value for name, value in self._metrics.items() if name != RATE}
        return {"steps": self.taken, "num_features": self.method.encoder.num_features, **last, **self._statistics()}

    def _check_same(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Stop where processes that take the same steps have come apart: what is saved would be one of several."""
        crc = 0
        for array in arrays.values() if ranks().several else ():
            crc = zlib.crc32(array.tobytes(), crc)
        if apart := unlike(crc):
            named = ", ".join(map(str, apart))
            raise UserError(
                f"{self.method.config.out}: at step {self.taken} rank {named} has other parameters than rank 0, "
                "expected the same everywhere: what a method draws must come from its seed"
            )

    def _check_moments(self, states: dict[int, dict[str, Tensor]]) -> None:
        """Raise ValueError for moments that are not the parameters': Adam's fused step would read beyond their ends."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for number, state in states.items():
            moment = (list(parameters[number].shape), parameters[number].dtype)
            expected: dict[str, Any] = {"exp_avg": moment, "exp_avg_sq": moment, "step": ([1], torch.float32)}
            found = {name: (list(tensor.shape), tensor.dtype) for name, tensor in state.items()}
            if found != expected:
                raise ValueError(f"adam.{number}: found {found}, expected {expected}")

    @torch.inference_mode()
    def _statistics(self) -> dict[str, float]:
        return feature_statistics(self.method.encoder(self._probe)) if self._probe is not None else {}

    def _gradient_norm(self) -> Tensor:
        gradients = [parameter.grad for parameter in self.method.parameters() if parameter.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)

    def _check_finite(self) -> None:
        """Stop at a loss that was not finite, and name its step."""
        good = int(self._good)
        if good < self.taken - self._first:
            run = self.method.config.out
            steps = sorted(int(entry.name[5:]) for entry in (run / "checkpoints").glob("step-*"))
            kept = f"the checkpoint of step {steps[-1]} is good" if steps else "there is no checkpoint yet"
            where = ", ".join(str(folder.path) for folder in self.method.data.folders)
            raise UserError(
                f"{run}: the loss of step {self._first + good + 1} is not finite; {kept}; "
                f"try a smaller --learning-rate, or look at the rewards of {where}"
            )


def damping(optimizer: torch.optim.Adam) -> float:
    """Return how much of Adam's denominator is epsilon: the mean of epsilon / (sqrt(v) + epsilon), v without its bias.

    Near 0, steps do not depend on the size of gradients; near 1, they are that much shorter. It is over numbers that
    have had a gradient, of a large tensor over some that are evenly spaced; without any it is 0.
    """
    total = count = 0.0
    for group in optimizer.param_groups:
        epsilon, decay = group["eps"], group["betas"][1]
        for state in filter(None, map(optimizer.state.get, group["params"])):
            moments = state["exp_avg_sq"].reshape(-1)
            stride = max(1, len(moments) // _LOOKED_AT)
            some = moments[::stride]
            roots = (some[some > 0] / (1 - decay ** float(state["step"]))).sqrt()
            total += stride * float((epsilon / (roots + epsilon)).sum())
            count += stride * len(roots)
    return total / count if count else 0.0


def _is_loss(found: object) -> bool:
    """Whether it is a scalar tensor and a dict: a method may be the user's own."""
    if not isinstance(found, tuple) or len(found) != 2:
        return False
    loss, noted = found
    return isinstance(loss, Tensor) and loss.dim() == 0 and isinstance(noted, dict)


def _kind(found: object) -> str:
    """Say what a method returned, in a few words."""
    if isinstance(found, tuple):
        return f"({', '.join(_kind(one) for one in found)})"
    return f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
