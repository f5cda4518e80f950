"""The options of `pvn pretrain`, method by method."""

from pathlib import Path

import torch

from protovalue.data.dataset import Dataset
from protovalue.distributed.group import Ranks
from protovalue.distributed.join import Together
from protovalue.errors import UserError
from protovalue.files import read_json
from protovalue.nets.encoders import Encoder
from protovalue.pretrain.methods import method_class, method_names
from tests.documents import blocks
from tests.options.world import (
    Check,
    World,
    both,
    checkpoints,
    differ,
    logged,
    made,
    places,
    recorded,
    refused,
    weights,
)

SMALL = {
    "pvn": "--tasks 4",
    "cumulants": "--tasks 4",
    "spr": "--channels 4",
    **dict.fromkeys(("laplacian", "contrastive", "rldp", "tdjepa"), "--dimensions 3"),
}
NOTHING_LEARNED = "expected it only where something is learned"


@made("wide")
def _wide(world: World) -> Path:
    """The encoder of the document about adding one."""
    file: Path = world["out"].with_name("wide.py")
    file.write_text(next(block.text for block in blocks("docs/adding-an-encoder.md") if block.language == "python"))
    return file


@made("pixels")
def _pixels(world: World) -> Path:
    """An indicator whose option chooses the pixels."""
    file: Path = world["out"].with_name("pixels.py")
    file.write_text(PIXELS)
    return file


PIXELS = """
from protovalue.indicators.base import Indicator

class Pixels(Indicator):
    tuned_on_data = False
    def __init__(self, observation_shape, num_tasks, proportion, generator, other: bool = False):
        super().__init__(observation_shape, num_tasks, proportion)
        self.first = 360 if other else 320
        self.thresholds.fill_(0.5)
    def scores(self, obs):
        return obs.flatten(1)[:, self.first : self.first + 4 * self.num_tasks : 4].float()

INDICATOR = Pixels
"""


def base(method: str, data: str = "--data {breakout}", steps: int = 3) -> str:
    """Return a command of a fraction of a second."""
    training = "" if method == "random" else f" --steps {steps} --batch-size 8"
    return f"pretrain --method {method} {data} --out {{out}}{training} {SMALL.get(method, '')}".strip()


def more(method: str, flags: str, with_: str = "", data: str = "--data {breakout}", steps: int = 3) -> Check:
    """The flags change the encoder; `with_` is there on both sides."""
    own = f"{base(method, data, steps)} {with_}".strip()
    return differ(own, f"{own} {flags}", weights)


def _device(method: str) -> Check:
    def check(world: World) -> None:
        world.patch.setattr(torch.cuda, "is_available", lambda: False)
        refused(f"{base(method)} --device cuda", "--device: found cuda, expected cpu")(world)
        assert recorded(world.good(f"{base(method)} --device cpu"))["device"] == "cpu"

    return check


def _threads(method: str) -> Check:
    def check(world: World) -> None:
        world.patch.setattr(torch, "get_num_threads", torch.get_num_threads)  # put back with the rest
        try:
            assert recorded(world.good(f"{base(method)} --threads 2"))["threads"] == 2
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(1)

    return check


def _processes(method: str) -> Check:
    if not method_class(method).several_processes:
        return refused(f"{base(method)} --processes 2", f"--processes: method {method} does not say")

    def check(world: World) -> None:
        refused(f"{base(method)} --processes 3", "--batch-size: found 8 for 3 processes, expected a multiple of 3")(
            world
        )
        refused(f"{base(method)} --processes 9", "--processes: found 9, expected at most 8, the --batch-size")(world)
        started: list[Together] = []

        def start(self: Together) -> None:
            started.append(self)
            raise UserError("no more is wanted")

        world.patch.setattr(Together, "start", start)  # tests/distributed/test_launch.py starts some
        refused(f"{base(method)} --processes 2", "no more is wanted")(world)
        assert [one.ranks for one in started] == [Ranks(0, 2, 0, 2)]

    return check


def _memory(method: str) -> Check:
    def check(world: World) -> None:
        budgets: list[int] = []
        world.patch.setattr(Dataset, "load", lambda self, budget: budgets.append(budget))
        world.good(f"{base(method)} --memory 6")
        assert budgets == [3 << 20]  # half for frames, half for batches made ahead

    return check


def _compile(method: str) -> Check:
    def check(world: World) -> None:
        compiled: list[Encoder] = []
        world.patch.setattr(Encoder, "compile", lambda self: compiled.append(self))
        world.good(base(method))
        assert not compiled
        world.good(f"{base(method)} --compile")
        assert len(compiled) == 1

    return check


def _recompute(method: str) -> Check:
    def check(world: World) -> None:
        again: list[Encoder] = []
        real = Encoder.recompute_activations

        def noted(self: Encoder) -> None:
            again.append(self)
            real(self)

        world.patch.setattr(Encoder, "recompute_activations", noted)
        plain = weights(world.good(base(method)))
        assert not again
        assert weights(world.good(f"{base(method)} --recompute-activations")) == plain
        assert len(again) == 1
        refused(f"{base(method)} --recompute-activations --compile", "--recompute-activations: found it with")(world)

    return check


def _cache(method: str) -> Check:
    def check(world: World) -> None:
        ran = world.good(f"{base(method)} --cache {{out}}-cache")
        cache = ran.out.with_name(f"{ran.out.name}-cache")
        assert any(name.endswith("indicator.json") for name in places(cache))

    return check


def _layer_norm(method: str) -> Check:
    def check(world: World) -> None:
        readouts = [
            read_json(world.good(f"{base(method)}{flag}").out / "encoder" / "config.json")["readout"]
            for flag in ("", " --layer-norm")
        ]
        assert readouts[1] == f"normalized {readouts[0]}"
        if method != "random":  # which only reads its weights in another way
            more(method, "--layer-norm")(world)

    return check


def _out(method: str) -> Check:
    def check(world: World) -> None:
        assert "encoder/model.safetensors" in places(world.once(base(method)).out)

    return check


def _holdout(world: World) -> None:
    other = world.once("collect minatar/breakout --steps 400 --seed 7 --out {out}").out
    ran = world.good(f"{base('pvn')} --holdout {other}")
    assert "holdout correlation mean" in ran.printed
    assert "holdout" not in world.once(base("pvn")).printed


def shared(method: str) -> dict[str, Check]:
    """The options that all methods have."""
    learns = method != "random"
    other = "bc" if method != "bc" else "reward"
    own = base(method)
    checks = {
        "out": _out(method),
        "data": differ(base(method), base(method, "--data {seaquest}"), weights),
        "env": refused(f"{own} --env minatar/breakout", "--env: found together with --data, expected one of them")
        if learns
        else differ(base(method, "--env minatar/breakout"), base(method, "--env minatar/seaquest"), weights),
        "method": both(
            differ(
                own, f"pretrain --method {other} --data {{breakout}} --out {{out}} --steps 3 --batch-size 8", weights
            ),
            refused(own.replace(method, "nothing", 1), "unknown method 'nothing'"),
        ),
        "preset": more(method, "--preset paper", "--width 1") if learns else more(method, "--preset paper"),
        "architecture": more(method, "--architecture nature"),
        "architecture_options": both(
            more(method, "--architecture-options depth=1", "--architecture {wide}"),
            refused(
                f"{own} --architecture-options depth=1", "unknown option of encoder 'minatar' 'depth': it has none"
            ),
        ),
        "width": more(method, "--width 2"),
        "layer_norm": _layer_norm(method),
        "seed": more(method, "--seed 1"),
        "device": _device(method),
        "threads": _threads(method),
    }
    training = {
        "steps": more(method, "--steps 2"),
        "batch_size": more(method, "--batch-size 6"),
        "learning_rate": more(method, "--learning-rate 0.02"),
        "adam_epsilon": more(method, "--adam-epsilon 0.1"),
        "precision": more(method, "--precision bfloat16"),
        "compile": _compile(method),
        "recompute_activations": _recompute(method),
        "processes": _processes(method),
        "memory": _memory(method),
        "log_every": differ(own, f"{own} --log-every 2", logged),
        "checkpoint_every": differ(own, f"{own} --checkpoint-every 2", checkpoints),
    }
    if method == "spr":
        training["compile"] = refused(f"{own} --compile", "--compile: found it with --method spr")
    if not learns:
        given = {
            "learning_rate": "1e-3",
            "adam_epsilon": "1e-3",
            "precision": "bfloat16",
            "compile": "",
            "recompute_activations": "",
        }
        training = {
            name: refused(f"{own} --{name.replace('_', '-')} {given.get(name, '3')}", NOTHING_LEARNED)
            for name in training
        }
    return checks | training


def _orthonormal(method: str) -> dict[str, Check]:
    """The options of methods that keep functions of the state orthonormal."""
    return {
        "dimensions": more(method, "--dimensions 4"),
        "orthonormality": more(method, "--orthonormality 0.1"),
        "target_ema": more(method, "--target-ema 0.5"),
        "inverse": more(method, "--inverse 0.5"),
    }


def _pvn() -> dict[str, Check]:
    hashed = "--indicator hash"
    only = "expected it only with --indicator rni"
    none = "pretrain --data {breakout} --out {out} --tasks 0"
    unused = "--proportion 0.2", "--indicator hash", "--holdout {breakout}", "--gamma 0.5", "--steps 5", "--cache {out}"
    return {
        "tasks": both(
            more("pvn", "--tasks 5"), *(refused(f"{none} {flags}", f"{flags.split()[0]}: found") for flags in unused)
        ),
        "indicator": more("pvn", hashed),
        "indicator_options": both(
            more("pvn", "--indicator-options other=true", "--indicator {pixels}"),
            more("pvn", "--indicator-options size=2 windows=2", "--indicator patches"),
            refused(f"{base('pvn')} --indicator-options hidden=false", "--indicator-options: found"),
        ),
        "proportion": both(more("pvn", "--proportion 0.3"), more("pvn", "--proportion 0.3", hashed)),
        "groups": both(
            more("pvn", "--groups proportion=0.3 proportion=1,weight=0.1"),
            more("pvn", "--groups weight=0.5 weight=2", "--groups weight=0.5 weight=0.5"),
            more("pvn", "--groups gamma=0.9 gamma=0.99"),
            more("pvn", "--groups backup=max arrival=yes"),
            more("pvn", "--groups backup=max changes=yes"),
            refused(f"{base('pvn')} --groups changes=yes,arrival=yes", "--changes: found yes with --arrival yes"),
            more("pvn", f"--groups {hashed[2:].replace(' ', '=')} share=3", "--groups share=1 share=3"),
            refused(f"{base('pvn')} --groups proportion=2", "--groups: found proportion=2, expected a number more"),
            refused(
                f"{base('pvn')} --groups gamma=0 --gamma 0.5", "--gamma: found 0.5, expected it only where a group"
            ),
        ),
        "scale_errors": both(
            more("pvn", "--scale-errors spread"),
            more("pvn", "--scale-errors proportion", "--groups proportion=0.3 proportion=0.6"),
        ),
        "arrival": more("pvn", "--arrival yes"),
        "changes": both(
            more("pvn", "--changes yes"),
            more("pvn", "--changes yes", "--indicator patches"),
            refused(f"{base('pvn')} --changes yes --arrival yes", "--changes: found yes with --arrival yes"),
            refused(f"{base('pvn')} --changes yes {hashed}", "--changes: found yes with hash, expected another"),
        ),
        "threshold": both(
            more("pvn", "--threshold sgd --burn-in 30"),
            refused(f"{base('pvn')} {hashed} --threshold sgd", "--threshold: found sgd with --indicator hash"),
        ),
        "burn_in": both(
            more("pvn", "--burn-in 2000", "--threshold sgd --burn-in 30"),
            refused(f"{base('pvn')} --burn-in 30", "--burn-in: found 30, expected it only with --threshold sgd"),
        ),
        "normalize": both(
            more("pvn", "--normalize no"),
            refused(f"{base('pvn')} {hashed} --normalize yes", f"--normalize: found yes, {only}"),
        ),
        "tasks_per_module": both(
            more("pvn", "--tasks-per-module 1"),
            refused(f"{base('pvn')} {hashed} --tasks-per-module 1", f"--tasks-per-module: found 1, {only}"),
        ),
        "rni_network": both(
            more("pvn", "--rni-network convolutions"),
            refused(f"{base('pvn')} {hashed} --rni-network dqn", f"--rni-network: found dqn, {only}"),
        ),
        "rni_output": both(  # a ReLU changes nothing above zero, so sets of most of the states
            more("pvn", "--rni-output relu", "--proportion 0.8"),
            refused(f"{base('pvn')} {hashed} --rni-output relu", f"--rni-output: found relu, {only}"),
        ),
        "backup": more("pvn", "--backup max"),
        "inverse": more("pvn", "--inverse 0.5"),
        "gamma": more("pvn", "--gamma 0.5"),
        "target_ema": more("pvn", "--target-ema 0.5"),
        "target_every": both(
            more("pvn", "--target-every 1"),
            refused(
                f"{base('pvn')} --target-every 2 --target-ema 0.5",
                "--target-ema: found 0.5, expected either it or --target-every",
            ),
        ),
        "head_start": more("pvn", "--head-start mean"),
        "terminal_mask": more("pvn", "--terminal-mask no", steps=40),
        "indicator_seed": more("pvn", "--indicator-seed 9"),
        "cache": _cache("pvn"),
        "holdout": _holdout,
    }


OWN: dict[str, dict[str, Check]] = {
    "pvn": _pvn(),
    "cumulants": {
        "tasks": more("cumulants", "--tasks 5"),
        "inverse": more("cumulants", "--inverse 0.5"),
        "groups": more("cumulants", "--groups gamma=0.9 backup=mean"),
        "scale_errors": more("cumulants", "--scale-errors spread"),
        "scale": more("cumulants", "--scale 3"),
        "unit": more("cumulants", "--unit none"),
        "normalize": more("cumulants", "--normalize no"),
        "tasks_per_module": more("cumulants", "--tasks-per-module 1"),
        "backup": more("cumulants", "--backup mean"),
        "gamma": more("cumulants", "--gamma 0.5"),
        "target_ema": more("cumulants", "--target-ema 0.5"),
        "head_start": more("cumulants", "--head-start mean"),
        "cumulant_seed": more("cumulants", "--cumulant-seed 9"),
        "cache": _cache("cumulants"),
    },
    "spr": {
        "horizon": more("spr", "--horizon 2"),
        "channels": more("spr", "--channels 5"),
        "shift": more("spr", "--shift 2"),
        "intensity": more("spr", "--intensity 0.2"),
        "dropout": more("spr", "--dropout 0.1"),
        "target_ema": more("spr", "--target-ema 0"),
        "center": more("spr", "--center no"),
        "inverse": more("spr", "--inverse 0.5"),
        "max_gradient_norm": more("spr", "--max-gradient-norm 0.001"),
    },
    "bc": {},
    "random": {},
    "contrastive": {
        **_orthonormal("contrastive"),
        "gamma": more("contrastive", "--gamma 0.5"),
        "arrival": more("contrastive", "--arrival yes"),
        "second_map": more("contrastive", "--second-map own"),
    },
    "rldp": {
        **_orthonormal("rldp"),
        "ahead": more("rldp", "--ahead 0.9"),
        "horizon": both(
            more("rldp", "--horizon 2"),
            refused(f"{base('rldp')} --horizon 2 --ahead 0.9", "--horizon: found 2, expected it only with --ahead 0"),
        ),
        "hidden": both(more("rldp", "--hidden 5"), more("rldp", "--hidden 0")),
    },
    "tdjepa": {
        **_orthonormal("tdjepa"),
        "gamma": more("tdjepa", "--gamma 0.5"),
        "second_map": more("tdjepa", "--second-map own"),
    },
    "reward": {
        "gamma": more("reward", "--gamma 0.5"),
        "clip_rewards": more("reward", "--no-clip-rewards", data="--data {loud} --architecture minatar"),
        "double": more("reward", "--no-double", "--learning-rate 0.02", "--data {loud} --architecture minatar", 12),
        "huber": more("reward", "--huber", data="--data {loud} --architecture minatar"),
        "target_ema": more("reward", "--target-ema 0.5"),
    },
    "laplacian": {
        "dimensions": more("laplacian", "--dimensions 4"),
        "beta": more("laplacian", "--beta 3"),
        "ahead": more("laplacian", "--ahead 0"),
    },
}

CHECKS: dict[tuple[str, str], Check] = {
    (f"pretrain --method {method}", name): check
    for method in method_names()
    for name, check in {**shared(method), **OWN[method]}.items()
}
