"""`pvn pretrain`: a data set or an environment in, a trainer in between, an encoder out."""

import logging
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protovalue.config import flag, flag_words, names_where, not_given, require
from protovalue.data.dataset import Dataset, open_distinct
from protovalue.data.sampler import Sampler
from protovalue.device import choose_device, choose_threads
from protovalue.distributed.group import arrays_from_first, from_first
from protovalue.distributed.join import Together, check, expected, most_threads
from protovalue.encoder import load_encoder, save_encoder
from protovalue.envs.probe import random_observations
from protovalue.envs.registry import import_module_of, make
from protovalue.errors import UserError
from protovalue.nets.batch_norm import BatchNorm
from protovalue.nets.cost import TRAINING, forward_flops
from protovalue.nets.encoders import Encoder, make_encoder
from protovalue.nets.layers import ObservationShapeError
from protovalue.nets.memory import keep_freed_memory
from protovalue.precision import choose_precision
from protovalue.presets import resolved
from protovalue.pretrain.base import Method
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.methods import method_class
from protovalue.pretrain.trainer import Trainer
from protovalue.progress import silenced
from protovalue.randomness import throwaway
from protovalue.registry import ENCODERS, is_file, name_of
from protovalue.runs import Checkpoint, Run, config_fields, read_run, versions

log = logging.getLogger(__name__)

PROBE_SIZE = 512  # observations, fixed for a data set or an environment, on which features are looked at


def pretrain_command(config: PretrainConfig) -> None:
    """Train, and say what there is now."""
    run = pretrain(config)
    if not expected(config.processes).first:
        return
    done = read_run(run)["done"]
    print(f"{run / 'encoder'}: {done['num_features']} features, effective rank {done['effective_rank']:.1f}")
    if "loss" in done:
        print(f"{done['steps']:,} steps, loss {done['loss']:.5f}; curves: tensorboard --logdir {run}")
    for name, value in done.items():
        if name.startswith("holdout_") and isinstance(value, float):
            print(f"{name.replace('_', ' ')}: {value:.3f}")


def pretrain(config: PretrainConfig, quiet: bool = False) -> Path:
    """Train an encoder as `config` says, or continue to; return the run folder.

    Several processes do this together, with the same config; the first of them has the folder.
    """
    keep_freed_memory()
    device = choose_device(config.device)
    with Together(expected(config.processes), config, device) as group:
        return _pretrain(config, device, group, quiet or not group.ranks.first)


def _pretrain(config: PretrainConfig, device: str, group: Together, quiet: bool) -> Path:
    cls = method_class(config.method)
    _refuse_unused(config, cls)
    data, env_id, observation_shape = _experience(config, cls)
    config = resolved(config, env_id, observation_shape[1:])
    ENCODERS.load(config.architecture)
    good = config.precision != "tf32" or device == "cuda"
    require(good, "--precision", f"tf32 on {device}", "float32 or bfloat16: only CUDA has tf32")
    precision = choose_precision(config.precision, device)  # it decides the result: recorded in place of "auto"
    where = ", ".join(str(folder.path) for folder in data.folders) if data else env_id
    with _naming(where):
        encoder = _network(config, observation_shape)
    found = group.ranks
    if found.several:
        _refuse_unshared(config, cls, encoder)
        check(found, config.batch_size, device)
    rows = config.batch_size // found.count
    threads = choose_threads(config.threads, lambda: TRAINING * rows * forward_flops(encoder), most_threads(found))
    config = replace(config, threads=threads, precision=precision, processes=found.count)
    given = {name: value for name, value in config_fields(config).items() if name not in not_given(config)}
    recorded = {**given, "data_checksum": data.checksum if data else None}
    if not found.first:
        return _help(config, cls, data, observation_shape, device, group, recorded)
    with Run.open(config.out, recorded, names_where(cls.Config, lambda role: role.may_change)) as run:
        if run.standing and not quiet:
            print(run.standing, file=sys.stderr)
        if run.finished:
            _refuse_late_holdout(run.path, recorded.get("holdout"))
            if _is_whole(run.path):
                return config.out
        group.start()
        group.same(_shared(recorded))
        with _naming(where), silenced() if quiet else nullcontext():  # a method's constructor is not told
            method = cls(config, data, observation_shape, device).to(device)
        if found.several:
            _refuse_batch_statistics(method, f"method {config.method}")
        trainer = Trainer(method, run, probe_of(data, env_id, device), device, quiet)
        if (checkpoint := _sent(run.resumed_from)) is not None:
            trainer.restore(checkpoint)
        run.begin()  # all that could be wrong with what was given was looked at
        method.save_artifacts(run.path)  # also in a run that goes on: what is there may be damaged
        if trainer.taken < trainer.steps:
            trainer.run()
        summary = trainer.summary() | method.finish()
        options = data.env_options if data else make(env_id).options
        about = {"env_id": env_id, "env_options": options, "method": config.method, "config": recorded}
        about["summary"] = summary
        card = _card(config, data, env_id, summary)
        save_encoder(run.path / "encoder", method.encoder, config.architecture, config.width, about, card)
        run.finish(summary)
    return config.out


def _help(
    config: PretrainConfig,
    cls: type[Method],
    data: Dataset | None,
    observation_shape: tuple[int, ...],
    device: str,
    group: Together,
    recorded: dict[str, Any],
) -> Path:
    """Do the part of a process that is not the first: it takes the same steps and writes nothing."""
    group.same(_shared(recorded))
    with silenced():
        method = cls(config, data, observation_shape, device).to(device)
    trainer = Trainer(method, None, None, device, quiet=True)
    if (checkpoint := _sent(None)) is not None:
        trainer.restore(checkpoint)
    if trainer.taken < trainer.steps:
        trainer.run()
    return config.out


def _shared(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same in all processes: not where things lie, which may differ between machines."""
    places = {"out", "data", "cache", "holdout"}
    return {**{name: value for name, value in recorded.items() if name not in places}, "versions": versions()}


def _sent(checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Give all processes the checkpoint of the first; None where it has none."""
    about: dict[str, Any] = {"step": None}
    if checkpoint is not None:
        about = {"step": checkpoint.step, "state": checkpoint.state, "path": str(checkpoint.path)}
    about = from_first(about)
    if about["step"] is None:
        return None
    tensors = arrays_from_first(None if checkpoint is None else checkpoint.tensors)
    return Checkpoint(about["step"], tensors, about["state"], Path(about["path"]))


def _refuse_unshared(config: PretrainConfig, cls: type[Method], encoder: Encoder) -> None:
    """Refuse several processes where a part of the batch would not do: the loss would be another one."""
    if cls.unused(config):
        raise UserError(f"--processes: method {config.method} learns nothing here, expected one process")
    if not cls.several_processes:
        raise UserError(
            f"--processes: method {config.method} does not say that its loss can be shared out, expected one process "
            "or `several_processes = True` (docs/distributed.md)"
        )
    _refuse_batch_statistics(encoder, f"encoder {name_of(config.architecture)}")


def _refuse_batch_statistics(network: torch.nn.Module, what: str) -> None:
    """Refuse layers that normalise by one process's part of the batch."""
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and not isinstance(module, BatchNorm):
            raise UserError(
                f"--processes: {what} has {type(module).__name__} {name!r}, whose statistics are of one process's part "
                "of the batch, expected protovalue.nets.batch_norm.BatchNorm or none"
            )


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Say of observations that a network cannot take where they are from."""
    try:
        yield
    except ObservationShapeError as error:
        raise UserError(f"{where}: {error}") from error


def _network(config: PretrainConfig, observation_shape: tuple[int, ...]) -> Encoder:
    """Return a network such as will be trained, to look at."""
    options = config.architecture_options
    return make_encoder(config.architecture, observation_shape, config.width, throwaway(), options)


def _refuse_late_holdout(run: Path, holdout: list[str] | None) -> None:
    """Refuse rollouts to compare with that a finished run was not compared with: it is left as it is."""
    before = read_run(run)["config"].get("holdout")
    if holdout and holdout != before:
        found, expected = " ".join(holdout), " ".join(before or ["none"])
        raise UserError(f"--holdout: found {found}, expected {expected}, with which {run} was finished")


def _is_whole(run: Path) -> bool:
    """Whether the encoder of a finished run is good; one that is not is written again."""
    try:
        load_encoder(run)
    except UserError as error:
        log.warning("%s; it is written again", error)
        return False
    return True


def _refuse_unused(config: PretrainConfig, cls: type[Method]) -> None:
    """Refuse what was given and would have no effect."""
    unused = cls.unused(config)
    for one in fields(config):
        value = getattr(config, one.name)
        good = one.name not in unused or value == one.default
        require(good, flag(one.name), value, "it only where something is learned")


def _experience(config: PretrainConfig, cls: type[Method]) -> tuple[Dataset | None, str, tuple[int, ...]]:
    """Open the data set, or ask the environment for the shape of its observations."""
    if config.data:
        if config.env:
            raise UserError("--env: found together with --data, expected one of them")
        data = open_distinct(config.data, "--data")
        return data, data.env_id, data.observation_shape
    if cls.needs_data:
        raise UserError(f"--data: missing; method {config.method} learns from a data set")
    if not config.env:
        raise UserError("--env or --data: missing; one of them says what an observation looks like")
    import_module_of(config.env)
    env = make(config.env)
    return None, env.env_id, env.single_observation_space.shape


def probe_of(data: Dataset | None, env_id: str, device: str) -> Tensor:
    """Return observations that are the same for every method and seed on this data set, or in this environment."""
    if data is None:
        obs = random_observations(make(env_id))
    else:
        index = np.linspace(0, data.num_transitions - 1, PROBE_SIZE).astype(np.int64)
        obs = Sampler(data, PROBE_SIZE, 0).transitions(index).obs.copy()
    return torch.from_numpy(obs).to(device)


def _card(config: PretrainConfig, data: Dataset | None, env_id: str, summary: dict[str, Any]) -> list[str]:
    """Write the model card."""
    defaults = {field.name: field.default for field in fields(config)} | {"method": PretrainConfig.method}
    unused = method_class(config.method).unused(config)  # filled in by the preset all the same
    given = [
        shlex.join(flag_words(name, getattr(config, name)))
        for name, default in defaults.items()
        if getattr(config, name) not in (default, None) and name not in unused
    ]
    architecture = name_of(config.architecture)
    lines = [
        f"# Encoder for {env_id}: {config.method}",
        "",
        f"{summary['num_features']} features of a {architecture} encoder of width {config.width}, trained for",
        f"{summary['steps']:,} steps with the method `{config.method}` of protovalue.",
        "",
        "```python",
        "import protovalue",
        "",
        *([f"protovalue.load_code({config.architecture!r})"] if is_file(config.architecture) else []),
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
