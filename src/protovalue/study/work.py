"""The arithmetic of a stage, from the shapes of its networks: no constant of a machine is in here."""

from dataclasses import dataclass
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from protovalue.indicators.rni import RandomNetworks
from protovalue.nets.cost import NetworkCost
from protovalue.nets.layers import scaled
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.method_configs import CumulantsConfig, LaplacianConfig, PvnConfig, RewardConfig, SprConfig
from protovalue.randomness import throwaway

TRAINED = 3  # a layer in the middle of a network: forward, the gradient of its input, that of its weight


@dataclass(frozen=True)
class Step:
    """One optimiser step of a method."""

    flops: float
    frames: int
    """Frames of each transition's sample that go to the device."""
    head_parameters: int = 0
    copies: int = 0
    """Parameters of target networks."""
    passes: int = 1
    """Observations of each transition whose activations are kept for the gradient."""
    known: bool = True
    """False of a method that this package does not have: it is taken for one pass of the encoder with gradient, and one
    without."""


def step_work(config: PretrainConfig, cost: NetworkCost, actions: int, stack: int, grouped: bool) -> Step:
    """Count a step of a resolved config. `grouped`: heads compute only the actions that were taken, as on a CPU."""
    batch, k = config.batch_size, cost.features
    taken = 1 if grouped else actions  # whose values the heads compute of each transition
    if isinstance(config, PvnConfig | CumulantsConfig):
        tasks = config.tasks
        heads = TRAINED * taken + (1 if config.backup == "mean" else actions)
        own = tasks * actions * (k + 1)
        flops = batch * (cost.training + cost.forward + 2 * k * tasks * heads)
        return Step(flops, stack + 1, own, cost.parameters + own)
    if isinstance(config, RewardConfig):
        passes = 1 + config.double
        flops = batch * (cost.training + passes * cost.forward + 2 * k * (TRAINED * taken + passes * actions))
        own = actions * (k + 1)
        return Step(flops, stack + 1, own, cost.parameters + own)
    if isinstance(config, LaplacianConfig):
        d = config.dimensions
        products = TRAINED * 2 * batch * batch * d  # of all features with all
        flops = 2 * batch * (cost.training + TRAINED * 2 * k * d) + products
        return Step(flops, 2 * stack, d * (k + 1), 0, 2)
    if isinstance(config, SprConfig):
        return _spr(config, cost, actions, stack)
    if config.method == "bc":
        return Step(batch * (cost.training + TRAINED * 2 * k * actions), stack, actions * (k + 1))
    return Step(batch * (cost.training + cost.forward), stack + 1, 0, cost.parameters, 1, False)


def _spr(config: SprConfig, cost: NetworkCost, actions: int, stack: int) -> Step:
    channels, height, width = cost.latents
    size, hidden, k = channels * height * width, scaled(config.channels, config.width), cost.features
    transition = 2 * 9 * height * width * ((channels + actions) * hidden + hidden * channels)
    each = TRAINED * (transition + 2 * size * k + 2 * k * k)  # model, projection, prediction
    seen = cost.convolving + 2 * size * k  # by the target network
    flops = config.batch_size * (cost.convolving_training + config.horizon * (each + seen))
    own = 9 * hidden * (2 * channels + actions) + 3 * hidden + channels + k * (k + 1)
    return Step(flops, stack + config.horizon, own, cost.parameters)


@dataclass(frozen=True)
class Pass:
    """What the tasks of a method cost before its first step."""

    flops: float
    """Of one state."""
    kept: float
    """Bytes that stay of one state."""
    meanwhile: float
    """Bytes of one state while it is computed."""
    networks: int
    """Bytes of the random networks, which stay here and in the run."""


def task_pass(config: PretrainConfig, shape: tuple[int, ...]) -> Pass | None:
    """Count the pass over the data set that a method's tasks need; None where there is none."""
    tasks: int | None = getattr(config, "tasks", None)
    if not tasks:
        return None
    if isinstance(config, PvnConfig) and config.indicator == "hash":
        pixels = int(torch.Size(shape).numel())
        return Pass(2 * pixels * tasks, -(-tasks // 8), 0, 2 * pixels * tasks)
    hidden = getattr(config, "rni_network", "dqn") != "convolutions"
    flops, size = _random_networks(shape, tasks, getattr(config, "tasks_per_module", None) or 10, hidden)
    kept, meanwhile = (4 * tasks, 0) if isinstance(config, CumulantsConfig) else (-(-tasks // 8), 4 * tasks)
    return Pass(flops, kept, meanwhile, size)


@cache
def _random_networks(shape: tuple[int, ...], tasks: int, each: int, hidden: bool) -> tuple[int, int]:
    """Return the FLOPs of random networks on one state, and their bytes."""
    with torch.device("meta"):
        networks = RandomNetworks(shape, tasks, throwaway(), each, hidden)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            networks(torch.zeros((1, *shape), dtype=torch.uint8))
    return int(counter.get_total_flops()), sum(4 * parameter.numel() for parameter in networks.parameters())


def acting_flops(cost: NetworkCost, actions: int, seeds: int) -> float:
    """Count one step of all agents in their environments."""
    return seeds * (cost.forward + 2 * cost.features * actions)


def update_flops(cost: NetworkCost, actions: int, seeds: int, batch: int, double: bool, encoder: bool) -> float:
    """Count one update of all agents with a linear head; `encoder`: it is trained, too."""
    head = 2 * cost.features * actions
    passes = 2 + double  # of x, and of x' by the target and, for double Q-learning, by the agent itself
    flops = passes * head + head  # and the gradient of the weights
    if encoder:
        flops += cost.training + (passes - 1) * cost.forward + head  # and the gradient of the features
    return seeds * batch * flops
