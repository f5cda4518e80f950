"""DQN end to end: the encoder learns too, one per seed, from a replay of frames."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protovalue.config import PRESET
from protovalue.data.record import Recorder
from protovalue.device import choose_device, choose_threads, put
from protovalue.envs.base import Env
from protovalue.envs.registry import frame_shape, import_module_of, make
from protovalue.nets.cost import TRAINING, forward_flops
from protovalue.nets.encoders import Encoder, make_encoder
from protovalue.nets.minatar import MinatarEncoder
from protovalue.online.agent import BETAS, Agent, Rule
from protovalue.online.config import DqnConfig
from protovalue.online.loop import print_summary, recorded_fields, train
from protovalue.online.replay import Index, Replay, ReplayBatch
from protovalue.presets import resolved
from protovalue.randomness import Purpose, seeded
from protovalue.registry import ENCODERS


class Dqn(Agent):
    """S networks trained end to end: an encoder of its own and a head for each seed.

    On the CPU the MinAtar network with a linear head learns in compiled code, which is `update` to rounding.
    """

    def __init__(
        self,
        rule: Rule,
        seeds: Sequence[int],
        num_actions: int,
        encoder: Encoder | Sequence[Encoder],
        scale: float = 1.0,
        device: str = "cpu",
    ) -> None:
        """Make agents that start from one encoder, or from one each; features are divided by `scale`."""
        first = encoder if isinstance(encoder, Encoder) else encoder[0]
        super().__init__(rule, seeds, first.num_features, num_actions)
        start = [encoder] * len(seeds) if isinstance(encoder, Encoder) else encoder
        self.encoders = nn.ModuleList(copy.deepcopy(one) for one in start).requires_grad_(True)
        self.target_encoders = copy.deepcopy(self.encoders)
        self._factor = 1.0 / scale
        self.pack(device)
        self._compiled = None
        plain = type(first) is MinatarEncoder and first.readout == "relu"
        if device == "cpu" and plain and rule.head == "dqn" and not rule.hidden:
            from protovalue.online.compiled_dqn import MinatarNetworks  # here and not above, because it imports numba

            state = [tensor.numpy() for tensor in (self.theta, self.target, self.gradient)]
            moments = [self._moments[name].numpy() for name in ("exp_avg", "exp_avg_sq", "step")]
            sizes = first.latent_shape[0], math.prod(first.latent_shape), first.num_features
            self._compiled = MinatarNetworks(rule, BETAS, num_actions, *sizes, self._factor, *state, *moments)

    def parameters_of(self, which: str) -> list[tuple[nn.Parameter, slice, tuple[int, ...]]]:
        """Add those of the encoders, one for each seed."""
        listed = super().parameters_of(which)
        encoders = self.encoders if which == "online" else self.target_encoders
        for same in zip(*(encoder.parameters() for encoder in encoders), strict=True):
            listed += [(parameter, slice(s, s + 1), tuple(parameter.shape)) for s, parameter in enumerate(same)]
        return listed

    def flops(self, num_envs: int) -> float:
        """Return the work of one network's call."""
        return num_envs * forward_flops(cast("Encoder", self.encoders[0]))

    @torch.inference_mode()
    def see(self, obs: NDArray[Any]) -> Tensor:
        """Map observations (S * E, stack, *frame_shape), E of each seed in turn, to features (S, E, k)."""
        grouped = obs.reshape(self.num_seeds, -1, *obs.shape[1:])
        if self._compiled is not None and obs.dtype == np.bool_:
            return torch.from_numpy(self._compiled.see(np.ascontiguousarray(grouped)))
        return self.encode(self.encoders, grouped)

    def items(self, obs: NDArray[Any]) -> tuple[NDArray[Any], Tensor | None]:
        """Return the newest frames (S, *frame_shape); their features change with every update."""
        return obs[:, -1], None

    def greedy(self, features: Tensor) -> Index:
        """Return each seed's best action (S,) for features (S, 1, k)."""
        return super().greedy(features) if self._compiled is None else self._compiled.greedy(features.numpy())

    def learn(
        self, replay: Replay, slot: Index, n_step: int, gamma: float, weight: NDArray[np.float32] | None = None
    ) -> dict[str, Tensor]:
        """Update every seed on the transitions that start in its slots (S, B) of a replay; see `update`."""
        if self._compiled is None or replay.arrays["items"].dtype != np.bool_:
            return super().learn(replay, slot, n_step, gamma, weight)
        self.updates += 1
        found = self._compiled.learn(replay.batch(slot, n_step, gamma), weight, self.updates)
        return {name: torch.from_numpy(array) for name, array in found.items()}

    def features_of(self, batch: ReplayBatch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Encode the sampled frames: x with gradient, x' with the target's encoders."""
        with torch.no_grad():
            next_x = self.encode(self.target_encoders, batch.next_obs)
            choice = self.encode(self.encoders, batch.next_obs) if self.rule.double else None
        return self.encode(self.encoders, batch.obs), next_x, choice

    def encode(self, encoders: nn.ModuleList, obs: NDArray[Any]) -> Tensor:
        """Map observations (S, N, stack, *frame_shape) to features (S, N, k), with an encoder for each seed."""
        frames = put(np.ascontiguousarray(obs), self.theta.device)
        rows = [encoder(part) for encoder, part in zip(encoders, frames, strict=True)]
        features = torch.stack(rows) if len(rows) > 1 else rows[0].unsqueeze(0)  # no copy of a single one
        return features if self._factor == 1.0 else features * self._factor


def train_dqn(config: DqnConfig, quiet: bool = False) -> Path:
    """Train DQN end to end as `config` says, or continue to; return the run folder."""
    resolved(config, config.env).check_updates()
    return act_and_train(config, quiet)


def act_and_train(config: DqnConfig, quiet: bool = False) -> Path:
    """Do the same, also where there are so few steps that no update is made: what is wanted may be the experience."""
    import_module_of(config.env)
    frame = frame_shape(config.env, **config.options.given()) if config.architecture is PRESET else ()
    config = resolved(config, config.env, frame)
    ENCODERS.load(config.architecture)
    env, agent, recorded = prepare(config)
    if config.record is None or config.iterations is None:
        return train(config, recorded, env, agent, quiet=quiet)
    recorder = Recorder(config.record, env, config.steps, config.iterations, config.seed_list()[0])
    return train(config, recorded, env, agent, recorder, quiet)


def dqn_command(config: DqnConfig) -> None:
    """Train, and say what there is now."""
    print_summary(train_dqn(config), config.env)


def prepare(config: DqnConfig) -> tuple[Env, Agent, dict[str, Any]]:
    """Make the environments and the agents of a resolved config, and what identifies the run."""
    seeds = config.seed_list()
    env = make(config.env, len(seeds), **config.options.given())
    shape = env.single_observation_space.shape
    drawn = [seeded(seed, Purpose.ENCODER) for seed in seeds]
    own = config.architecture_options
    encoders = [make_encoder(config.architecture, shape, config.width, generator, own) for generator in drawn]
    threads = choose_threads(config.threads, lambda: TRAINING * config.batch_size * forward_flops(encoders[0]))
    config = replace(config, threads=threads)
    agent = Dqn(Rule.of(config), seeds, env.num_actions, encoders, device=choose_device(config.device))
    return env, agent, {**recorded_fields(config, env), "kind": "dqn"}
