"""Linear DQN on frozen features: Q(x, a) = phi(x)^T w_a + b_a, the paper's measure of a representation."""

import hashlib
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.config import flag_words, whole
from protovalue.device import choose_device, choose_threads, put
from protovalue.encoder import FrozenEncoder, encoder_folder, lasting_name, load_encoder
from protovalue.envs.base import Env
from protovalue.envs.options import EnvOptions
from protovalue.envs.registry import import_module_of, make, same
from protovalue.errors import UserError, given_as
from protovalue.feature_env import feature_scale
from protovalue.hub import is_address
from protovalue.nets.cost import TRAINING
from protovalue.nets.encoders import make_encoder
from protovalue.online.agent import BETAS, Agent, Rule
from protovalue.online.config import OnlineConfig
from protovalue.online.dqn import Dqn
from protovalue.online.loop import print_summary, recorded_fields, train
from protovalue.online.replay import Index, Replay, ReplayBatch
from protovalue.presets import resolved
from protovalue.randomness import Purpose, seeded
from protovalue.registry import ENCODERS, is_file, load_code

RANDOM = "random:"


class LinearDqn(Agent):
    """S linear agents (or with hidden layers) on the features of one frozen encoder.

    On the CPU linear ones act and learn in compiled code, which is `update` to rounding; PyTorch has the others.
    """

    def __init__(
        self,
        rule: Rule,
        seeds: Sequence[int],
        num_actions: int,
        encoder: FrozenEncoder,
        scale: float,
        device: str = "cpu",
        dtype: Any = np.float16,
    ) -> None:
        """Make agents that divide the encoder's features by `scale` and store them as `dtype`."""
        super().__init__(rule, seeds, encoder.num_features, num_actions)
        self.encoder, self._factor, self._dtype = encoder, 1.0 / scale, dtype
        self.pack(device)
        self._encode = encoder.encoder.compiled() if device == "cpu" else None
        self._linear = None
        if device == "cpu" and rule.head == "dqn" and not rule.hidden:
            from protovalue.online.compiled import LinearHeads  # here and not above, because it imports numba

            state = [tensor.numpy() for tensor in (self.theta, self.target, self.gradient)]
            moments = [self._moments[name].numpy() for name in ("exp_avg", "exp_avg_sq", "step")]
            self._linear = LinearHeads(rule, BETAS, num_actions, *state, *moments)

    def flops(self, num_envs: int) -> float:
        """Return the work of the encoder's call, which is one for all seeds."""
        return self.num_seeds * num_envs * self.encoder.flops

    @torch.inference_mode()
    def see(self, obs: NDArray[Any]) -> Tensor:
        """Map observations (S * E, stack, *frame_shape) to features (S, E, k): one pass for all seeds."""
        if self._encode is not None and obs.dtype in self._encode.dtypes:
            found = self._encode(obs)
            found *= self._factor  # float32, as mul_ below
            return torch.from_numpy(found).view(self.num_seeds, -1, found.shape[1])
        features: Tensor = self.encoder(put(obs, self.theta.device)).mul_(self._factor)
        return features.view(self.num_seeds, -1, features.shape[1])

    def items(self, obs: NDArray[Any]) -> tuple[NDArray[Any], Tensor | None]:
        """Return the features to store (S, k) and those to act on: one pass for both."""
        features = self.see(obs)
        return features[:, 0].cpu().numpy().astype(self._dtype), features

    def greedy(self, features: Tensor) -> Index:
        """Return each seed's best action (S,) for features (S, 1, k)."""
        return super().greedy(features) if self._linear is None else self._linear.greedy(features.numpy())

    def learn(
        self, replay: Replay, slot: Index, n_step: int, gamma: float, weight: NDArray[np.float32] | None = None
    ) -> dict[str, Tensor]:
        """Update every seed on the transitions that start in its slots (S, B) of a replay; see `update`."""
        if self._linear is None:
            return super().learn(replay, slot, n_step, gamma, weight)
        self.updates += 1
        found = self._linear.learn(replay, slot, n_step, gamma, weight, self.updates)
        return {name: torch.from_numpy(array) for name, array in found.items()}

    def features_of(self, batch: ReplayBatch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the stored features; frozen, so the same for the target network."""
        x, next_x = (put(part, self.theta.device).float() for part in (batch.obs, batch.next_obs))
        return x, next_x, next_x if self.rule.double else None


def train_online(config: OnlineConfig, quiet: bool = False) -> Path:
    """Train agents on a frozen encoder as `config` says, or continue to; return the run folder."""
    import_module_of(config.env)  # as given: one that the encoder's file names is not
    for path in config.code:
        load_code(path)
    if config.encoder.startswith(RANDOM):
        ENCODERS.load(parse_random(config.encoder)[0])
    elif is_address(config.encoder):
        config = replace(config, encoder=lasting_name(config.encoder))  # one commit for all that follows
    config = with_environment(config)
    config = resolved(config, config.env)
    config.check_updates()
    env, agent, recorded = prepare(config)
    if not quiet and (other := other_options(config.encoder, env)):
        print(other, file=sys.stderr)
    return train(config, recorded, env, agent, quiet=quiet)


def with_environment(config: OnlineConfig) -> OnlineConfig:
    """Fill in what the encoder decides where nothing is given: the environment's id, and what an observation is.

    No other option comes from the encoder's data: agents on all encoders, random ones too, play the same game.
    """
    if config.encoder.startswith(RANDOM):
        if not config.env:
            raise UserError(f"--env: missing; {config.encoder} is an encoder for any environment")
        return config
    encoder = _loaded(config.encoder)
    if not config.env and encoder.about.get("env_id") is None:
        raise UserError(f"--env: missing; {config.encoder} does not say which environment it is for")
    seen = {name: value for name, value in encoder.about.get("env_options", {}).items() if name in ("resize", "grey")}
    seen["stack"] = encoder.observation_shape[0]
    missing = {name: value for name, value in seen.items() if getattr(config.options, name) is None}
    return replace(config, env=config.env or encoder.about["env_id"], options=replace(config.options, **missing))


def other_options(encoder: str, env: Env) -> str | None:
    """Return a line that says in which options the data of an encoder and the agents' environment differ, if any."""
    about = {} if encoder.startswith(RANDOM) else _loaded(encoder).about
    if not about.get("config", {}).get("data"):  # made without data
        return None
    data = about.get("env_options", {})
    differ = [name for name in data if name in env.options and data[name] != env.options[name]]
    if not differ:
        return None
    collected, played = (", ".join(f"{n} {options[n]}" for n in differ) for options in (data, env.options))
    given = EnvOptions.of({name: data[name] for name in differ if data[name] is not None}).flags()
    words = [word for name in [*differ, "env_options"] if name in given for word in flag_words(name, given[name])]
    change = f" ({shlex.join(words)} to change)" if words else ""
    return f"{encoder}: the data was collected with {collected}; agents play with {played}{change}"


def online_command(config: OnlineConfig) -> None:
    """Train, and say what there is now."""
    print_summary(train_online(config), config.env)


def prepare(config: OnlineConfig) -> tuple[Env, Agent, dict[str, Any]]:
    """Make the environments and the agents of a resolved config, and what identifies the run."""
    seeds = config.seed_list()
    env = make(config.env, len(seeds), **config.options.given())
    device = choose_device(config.device)
    encoder = find_encoder(config.encoder, env, config.other_game).to(device)
    batch = TRAINING * config.batch_size if config.finetune else len(seeds)  # observations' worth of a call
    config = replace(config, threads=choose_threads(config.threads, lambda: batch * encoder.flops))
    scale = feature_scale(encoder, env) if config.feature_scale == "rms" else 1.0
    recorded = {**recorded_fields(config, env), "kind": "online", "feature_divisor": scale}
    recorded["encoder_checksum"] = encoder_checksum(encoder)
    if not config.encoder.startswith(RANDOM):
        recorded["encoder"] = lasting_name(config.encoder)  # so that the agent can be loaded from anywhere
    if config.finetune:
        return env, Dqn(Rule.of(config), seeds, env.num_actions, encoder.encoder, scale, device), recorded
    dtype = np.float16 if config.replay_dtype == "float16" else np.float32
    return env, LinearDqn(Rule.of(config), seeds, env.num_actions, encoder, scale, device, dtype), recorded


def find_encoder(name: str, env: Env, other_game: bool = False) -> FrozenEncoder:
    """Load the encoder of a folder, or make that of random:ARCHITECTURE:WIDTH[:SEED], and check that it fits `env`."""
    shape = env.single_observation_space.shape
    if name.startswith(RANDOM):
        architecture, width, seed = parse_random(name)
        random = make_encoder(architecture, shape, width, seeded(seed, Purpose.ENCODER))
        return FrozenEncoder(random, {"env_id": env.env_id, "method": "random"})
    encoder = _loaded(name)
    if encoder.observation_shape != shape:
        raise UserError(
            f"--encoder: {name} is for observations {encoder.observation_shape}, expected {shape} of {env.env_id}"
        )
    trained_on = encoder.about.get("env_id")
    if not same(str(trained_on), env.env_id) and not other_game:
        raise UserError(
            f"--encoder: {name} was trained on {trained_on}, expected {env.env_id}; --other-game allows it all the same"
        )
    return encoder


def _loaded(name: str) -> FrozenEncoder:
    """Load the encoder of a folder that --encoder names."""
    with given_as("--encoder"):
        if not encoder_folder(name).exists():
            other = f"{RANDOM}{'|'.join(ENCODERS.names())}:WIDTH, an encoder without training"
            raise UserError(f"{name}: no encoder here: found no such folder, expected one of pvn pretrain or {other}")
        return load_encoder(name)


def parse_random(name: str) -> tuple[str, float, int]:
    """Return architecture, width and seed of random:ARCHITECTURE:WIDTH[:SEED]."""
    found = re.fullmatch(rf"{RANDOM}(.+?):([0-9]{{1,4}}(?:\.[0-9]{{1,4}})?)(?::([0-9]{{1,18}}))?", name, re.DOTALL)
    known = ENCODERS.names()
    if not found or not (found[1] in known or is_file(found[1])):
        expected = f"random:{'|'.join(known)}:WIDTH or ...:WIDTH:SEED"
        raise UserError(
            f"--encoder: found {name!r}, expected {expected}, or a Python file of yours for the architecture"
        )
    return found[1], whole(float(found[2])), int(found[3] or 0)


def encoder_checksum(encoder: FrozenEncoder) -> str:
    """Return a checksum of an encoder's parameters: a run does not go on with another encoder in the same place."""
    digest = hashlib.sha256()
    for name, tensor in sorted(encoder.encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
