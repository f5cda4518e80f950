"""The arithmetic of a stage, from the shapes of its networks: no constant of a machine is in here."""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from protovalue.indicators.rni import RandomNetworks
from protovalue.nets.cost import NetworkCost
from protovalue.nets.layers import scaled
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.method_configs import (
    ContrastiveConfig,
    CumulantsConfig,
    LaplacianConfig,
    PvnConfig,
    RewardConfig,
    RldpConfig,
    SprConfig,
    TdJepaConfig,
)
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
    found = _method(config, cost, actions, stack, grouped)
    return _with_inverse(found, config, cost, actions) if getattr(config, "inverse", 0.0) else found


def _method(config: PretrainConfig, cost: NetworkCost, actions: int, stack: int, grouped: bool) -> Step:
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
        flops = 2 * batch * (cost.training + TRAINED * 2 * k * d) + _products(batch, d)
        return Step(flops, 2 * stack, d * (k + 1), 0, 2)
    if isinstance(config, SprConfig):
        return _spr(config, cost, actions, stack)
    if isinstance(config, ContrastiveConfig):
        return _contrastive(config, cost, actions, stack, taken)
    if isinstance(config, RldpConfig):
        return _rldp(config, cost, actions, stack, taken)
    if isinstance(config, TdJepaConfig):
        return _tdjepa(config, cost, actions, stack, taken)
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


def _products(batch: int, d: int) -> int:
    """Count the products of d functions of all states of a batch with those of all, and their gradient."""
    return TRAINED * 2 * batch * batch * d


def _contrastive(config: ContrastiveConfig, cost: NetworkCost, actions: int, stack: int, taken: int) -> Step:
    batch, k, d = config.batch_size, cost.features, config.dimensions
    own, behind = config.second_map == "own", config.arrival == "yes"
    trained = 2 if own or behind else 1  # passes with gradient: an encoder of B's own, or B(x')
    targets = 1 if behind and not own else 2
    heads = 2 * k * d * (TRAINED * (taken + 1) + 2)
    flops = batch * (trained * cost.training + targets * cost.forward + heads)
    flops += 2 * _products(batch, d) + 2 * batch * batch * d  # M and B's own, and M of the target network
    maps, biases, encoders = (actions + 1) * d * k, (actions + 1) * d, 1 + own
    return Step(flops, stack + 1, maps + own * cost.parameters, encoders * cost.parameters + maps + 2 * biases, trained)


def _rldp(config: RldpConfig, cost: NetworkCost, actions: int, stack: int, taken: int) -> Step:
    batch, k, d, hidden, horizon = config.batch_size, cost.features, config.dimensions, config.hidden, config.horizon
    model = 2 * ((d + actions) * hidden + hidden * d) if hidden else 2 * d * d * taken
    each = TRAINED * model + cost.forward + 2 * k * d  # the model, and what the target network sees
    flops = batch * (cost.training + TRAINED * 2 * k * d + (horizon or 1) * each) + _products(batch, d)
    of_model, biases = ((d + actions + 1) * hidden + (hidden + 1) * d, 0) if hidden else (actions * d * d, actions * d)
    frames = 2 * stack + 1 if horizon is None else stack + horizon
    return Step(flops, frames, d * k + of_model, cost.parameters + d * (k + 1) + d + biases)


def _tdjepa(config: TdJepaConfig, cost: NetworkCost, actions: int, stack: int, taken: int) -> Step:
    batch, k, d = config.batch_size, cost.features, config.dimensions
    encoders = 2 if config.second_map == "own" else 1
    maps = 2 * 2 * k * d * (TRAINED + 1)  # f and psi, and those of the target network
    heads = 2 * d * d * (TRAINED * taken + 1)
    flops = batch * (encoders * (cost.training + cost.forward) + maps + heads) + 2 * _products(batch, d)
    own, biases = 2 * d * k + actions * d * d, 2 * d + actions * d
    others = (encoders - 1) * cost.parameters
    return Step(flops, stack + 1, own + others, encoders * cost.parameters + own + 2 * biases, encoders)


def _with_inverse(found: Step, config: PretrainConfig, cost: NetworkCost, actions: int) -> Step:
    """Add inverse dynamics: the next state's features with gradient, and a layer on both."""
    k = cost.features
    each = cost.training + TRAINED * 2 * 2 * k * actions
    if isinstance(config, SprConfig):  # which needs the first state's latents alone otherwise
        each += TRAINED * 2 * int(torch.Size(cost.latents).numel()) * k
    return replace(
        found,
        flops=found.flops + config.batch_size * each,
        head_parameters=found.head_parameters + (2 * k + 1) * actions,
        passes=found.passes + 1,
    )


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
