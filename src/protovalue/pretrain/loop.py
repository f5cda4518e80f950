"""The pretraining loop that all methods share: data in, optimiser steps, logs, checkpoints, an encoder out."""

import shlex
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protovalue.config import PretrainConfig, require
from protovalue.data.dataset import Dataset, open_dataset
from protovalue.data.sampler import Prefetcher, Sampler
from protovalue.encoder import save_encoder
from protovalue.envs.probe import random_observations
from protovalue.envs.registry import import_module_of, make
from protovalue.errors import UserError
from protovalue.interrupt import stop_on_interrupt
from protovalue.nets.layers import ObservationShapeError
from protovalue.nets.memory import keep_freed_memory
from protovalue.nets.statistics import feature_statistics
from protovalue.precision import Precision
from protovalue.pretrain.base import Method, Sample
from protovalue.pretrain.methods import method_class
from protovalue.progress import ProgressBar
from protovalue.runs import Checkpoint, Run, config_fields, read_run, restoring

PROBE_SIZE = 512  # observations, fixed for a data set or an environment, on which features are looked at
# What may differ when a run is resumed: where things lie and how it is computed, not what is computed.
MAY_CHANGE = (
    "out",
    "data",
    "holdout",
    "cache",
    "steps",
    "device",
    "threads",
    "memory",
    "log_every",
    "checkpoint_every",
)


def pretrain_command(config: PretrainConfig) -> None:
    """Train, and say what there is now."""
    run = pretrain(config)
    done = read_run(run)["done"]
    print(f"{run / 'encoder'}: {done['num_features']} features, effective rank {done['effective_rank']:.1f}")
    if "loss" in done:
        print(f"{done['steps']:,} steps, loss {done['loss']:.5f}; curves: tensorboard --logdir {run}")
    for name, value in done.items():
        if name.startswith("holdout_") and isinstance(value, float):
            print(f"{name.replace('_', ' ')}: {value:.3f}")


def pretrain(config: PretrainConfig, quiet: bool = False) -> Path:
    """Train an encoder as `config` says, or continue to; return the run folder."""
    keep_freed_memory()
    cls = method_class(config.method)
    _refuse_unused(config, cls)
    data, env_id, observation_shape = _experience(config, cls)
    config = cls.resolve(config, env_id)
    device = _device(config)
    if config.threads:
        torch.set_num_threads(config.threads)
    config = replace(config, threads=torch.get_num_threads(), precision=_precision(config, device))
    recorded = {**config_fields(config), "data_checksum": data.checksum if data else None}
    with Run.open(config.out, recorded, MAY_CHANGE) as run:
        try:
            method = cls(config, data, observation_shape, device).to(device)
        except ObservationShapeError as error:
            where = ", ".join(str(folder.path) for folder in data.folders) if data else env_id
            raise UserError(f"{where}: {error}") from error
        optimizer = _optimizer(method, config)
        step = 0
        if run.resumed_from:
            with restoring(run.resumed_from):
                step = _restore(method, optimizer, run.resumed_from)
        method.save_artifacts(run.path)  # also in a run that goes on: what is there may be damaged
        probe = _probe(data, env_id, device)
        summary: dict[str, Any] = {"steps": step, "num_features": method.encoder.num_features}
        if step < method.steps():
            summary |= _train(run, method, optimizer, step, probe, device, quiet)
        with torch.inference_mode():
            summary |= feature_statistics(method.encoder(probe))
        summary |= method.finish()
        options = data.env_options if data else make(env_id).options
        about = {"env_id": env_id, "env_options": options, "method": config.method, "config": recorded}
        about["summary"] = summary
        assert config.encoder is not None
        assert config.width is not None
        card = _card(config, data, env_id, summary)
        save_encoder(run.path / "encoder", method.encoder, config.encoder, config.width, about, card)
        run.finish(summary)
    return config.out


def _refuse_unused(config: PretrainConfig, cls: type[Method]) -> None:
    """Refuse what was given and would have no effect."""
    unused = cls.unused(config)
    for one in fields(config):
        value = getattr(config, one.name)
        good = one.name not in unused or value == one.default
        require(good, f"--{one.name.replace('_', '-')}", value, "it only where something is learned")


def _experience(config: PretrainConfig, cls: type[Method]) -> tuple[Dataset | None, str, tuple[int, ...]]:
    """Open the data set, or ask the environment for the shape of its observations."""
    if config.data:
        if config.env:
            raise UserError("--env: found together with --data, expected one of them")
        data = open_dataset(*config.data)
        return data, data.env_id, data.observation_shape
    if cls.needs_data:
        raise UserError(f"--data: missing; method {config.method} learns from a data set")
    if not config.env:
        raise UserError("--env or --data: missing; one of them says what an observation looks like")
    import_module_of(config.env)
    env = make(config.env)
    return None, env.env_id, env.single_observation_space.shape


def _device(config: PretrainConfig) -> str:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device: found cuda, expected cpu: PyTorch sees no CUDA device here")
    return "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"


def _precision(config: PretrainConfig, device: str) -> Precision:
    """Return the precision that is used: it decides the result, so it is recorded in place of "auto"."""
    if config.precision == "auto":
        return "bfloat16" if device == "cuda" else "float32"
    return config.precision


def _optimizer(method: Method, config: PretrainConfig) -> torch.optim.Adam | None:
    parameters = [parameter for parameter in method.parameters() if parameter.requires_grad]
    if method.steps() == 0:
        return None
    assert config.learning_rate is not None
    return torch.optim.Adam(parameters, config.learning_rate, (0.9, 0.999), config.adam_epsilon, fused=True)


def _probe(data: Dataset | None, env_id: str, device: str) -> Tensor:
    """Return observations that are the same for every method and seed on this data set, or in this environment."""
    if data is None:
        obs = random_observations(make(env_id))
    else:
        index = np.linspace(0, data.num_transitions - 1, PROBE_SIZE).astype(np.int64)
        obs = Sampler(data, PROBE_SIZE, 0).transitions(index).obs.copy()
    return torch.from_numpy(obs).to(device)


def _train(
    run: Run,
    method: Method,
    optimizer: torch.optim.Adam | None,
    step: int,
    probe: Tensor,
    device: str,
    quiet: bool,
) -> dict[str, Any]:
    """Take optimiser steps to the end; return the last metrics."""
    config, steps = method.config, method.steps()
    assert optimizer is not None
    precision = _precision(config, device)
    if config.compile:
        method.encoder.compile()
    budget = config.memory << 20
    method.data.load(budget // 2)
    finite = torch.ones((), dtype=torch.bool, device=device)  # whether all losses so far were
    good = torch.zeros((), dtype=torch.int64, device=device)  # steps with finite losses since `first`
    first, metrics, last_time, last_step = step, {}, time.perf_counter(), step
    prefetch = Prefetcher(method.sample, range(step, steps), method.sample_bytes(), budget // 2)
    bar = ProgressBar(f"pretrain {config.method}", steps, "steps", step, quiet)
    with prefetch as samples, bar, stop_on_interrupt() as stop:
        for sample in samples:
            on_device: Sample = {name: tensor.to(device, non_blocking=True) for name, tensor in sample.items()}
            with method.in_precision(precision):
                loss, logged = method.loss(on_device)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            finite &= torch.isfinite(loss.detach())
            good += finite
            step += 1
            log_now = step % config.log_every == 0 or step == steps
            gradient_norm = _gradient_norm(method) if log_now or method.max_gradient_norm else None
            if gradient_norm is not None and method.max_gradient_norm:
                torch.nn.utils.clip_grads_with_norm_(method.parameters(), method.max_gradient_norm, gradient_norm)
            optimizer.step()
            method.after_step()
            stopping = stop.requested  # read once: what comes from here on must not end a step that was not saved
            saving = step % config.checkpoint_every == 0 or step == steps or stopping
            if (log_now or saving or device == "cpu") and int(good) < step - first:
                _stop_at_non_finite(run, first + int(good) + 1, method.data)
            if log_now:
                now = time.perf_counter()
                rate = (step - last_step) * method.sampler.batch_size / (now - last_time)
                metrics = {
                    "loss": float(loss.detach()),
                    "gradient_norm": float(gradient_norm or 0),
                    "samples_per_second": rate,
                }
                metrics |= {name: float(value) for name, value in logged.items()}
                with torch.inference_mode():
                    metrics |= feature_statistics(method.encoder(probe))
                run.log(step, metrics)
                last_time, last_step = time.perf_counter(), step
            if saving:
                run.save(step, _tensors(method, optimizer), {})
            bar.advance(1, f"loss {metrics['loss']:.4f}" if metrics else "")
            if stopping and step < steps:
                raise stop.error()
    metrics.pop("samples_per_second", None)
    return {"steps": step, **metrics}


def _gradient_norm(method: Method) -> Tensor:
    gradients = [parameter.grad for parameter in method.parameters() if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def _stop_at_non_finite(run: Run, step: int, data: Dataset) -> None:
    steps = sorted(int(entry.name[5:]) for entry in (run.path / "checkpoints").glob("step-*"))
    kept = f"the checkpoint of step {steps[-1]} is good" if steps else "there is no checkpoint yet"
    where = ", ".join(str(folder.path) for folder in data.folders)
    raise UserError(
        f"{run.path}: the loss of step {step} is not finite; {kept}; try a smaller --learning-rate, "
        f"or look at the rewards of {where}"
    )


def _tensors(method: Method, optimizer: torch.optim.Adam) -> dict[str, np.ndarray[Any, Any]]:
    """Return everything that a run needs to go on, as arrays."""
    tensors = {f"method.{name}": tensor for name, tensor in method.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"adam.{number}.{name}": tensor for name, tensor in state.items()}
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def _restore(method: Method, optimizer: torch.optim.Adam | None, checkpoint: Checkpoint) -> int:
    """Put a checkpoint's tensors back; return its step. Raises ValueError where they are not those of such a run."""
    states: dict[int, dict[str, Tensor]] = {}
    own: dict[str, Tensor] = {}
    for key, array in checkpoint.tensors.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{key}: found numbers that are not finite")
        kind, _, name = key.partition(".")
        if kind == "method":
            own[name] = torch.from_numpy(array)
        else:
            number, _, slot = name.partition(".")
            states.setdefault(int(number), {})[slot] = torch.from_numpy(array)
    method.load_state_dict(own)
    if optimizer is not None:
        _check_moments(optimizer, states)
        optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    return checkpoint.step


def _check_moments(optimizer: torch.optim.Adam, states: dict[int, dict[str, Tensor]]) -> None:
    """Raise ValueError for moments that are not the parameters': Adam's fused step would read beyond their ends."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, state in states.items():
        shape, kind = list(parameters[number].shape), parameters[number].dtype
        expected: dict[str, Any] = {"exp_avg": (shape, kind), "exp_avg_sq": (shape, kind), "step": ([1], torch.float32)}
        found = {name: (list(tensor.shape), tensor.dtype) for name, tensor in state.items()}
        if found != expected:
            raise ValueError(f"adam.{number}: found {found}, expected {expected}")


def _card(config: PretrainConfig, data: Dataset | None, env_id: str, summary: dict[str, Any]) -> list[str]:
    """Write the model card."""
    defaults = {field.name: field.default for field in fields(config)} | {"method": PretrainConfig.method}
    unused = method_class(config.method).unused(config)  # filled in by the preset all the same
    given = [
        _flag(name.replace("_", "-"), getattr(config, name))
        for name, default in defaults.items()
        if getattr(config, name) not in (default, None) and name not in unused
    ]
    lines = [
        f"# Encoder for {env_id}: {config.method}",
        "",
        f"{summary['num_features']} features of a {config.encoder} encoder of width {config.width}, trained for",
        f"{summary['steps']:,} steps with the method `{config.method}` of protovalue.",
        "",
        "```python",
        "import protovalue",
        "",
        'encoder = protovalue.load_encoder("path/to/this/folder")',
        "features = encoder.features(observations)  # (N, stack, *frame_shape) uint8 or bool -> (N, k)",
        "```",
        "",
        "## Made by",
        "",
        "```",
        f"pvn pretrain {' '.join(given)}",
        "```",
    ]
    if data is not None:
        lines += [
            "",
            "## Data",
            "",
            f"{data.num_transitions:,} transitions in {data.num_episodes:,} episodes of {data.env_id}, checksum",
            f"`{data.checksum}`.",
        ]
    rows = [f"| {name} | {value:.6g} |" for name, value in summary.items() if isinstance(value, int | float)]
    return [*lines, "", "## Numbers", "", "| | |", "|---|---|", *rows]


def _flag(name: str, value: Any) -> str:
    """Write a setting as on the command line."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    parts = value if isinstance(value, tuple) else (value,)
    return " ".join([f"--{name}", *(shlex.quote(str(part)) for part in parts)])
