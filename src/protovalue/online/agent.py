"""Q-learning agents of many seeds in one: S networks as the rows of one matrix, with one batched update."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adam import adam

from protovalue.device import put
from protovalue.losses import categorical_loss, categorical_target, q_loss, q_loss_slope, q_target
from protovalue.nets.layers import glorot_uniform
from protovalue.online.config import AgentConfig
from protovalue.online.replay import Index, Replay, ReplayBatch
from protovalue.randomness import Purpose, seeded

BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Rule:
    """How an agent learns; `config.AgentConfig` explains each field."""

    learning_rate: float
    adam_epsilon: float
    max_gradient_norm: float
    target_every: int
    double: bool = False
    huber: bool = False
    head: str = "dqn"
    atoms: int = 51
    value_range: float = 10.0
    hidden: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: AgentConfig) -> Self:
        """Take a resolved config's fields; those that do not apply are None there."""
        found = {field.name: getattr(config, field.name) for field in fields(cls)}
        return cls(**{name: value for name, value in found.items() if value is not None})


class Heads(nn.Module):
    """S networks of the same shape, k features to `outputs`: linear, or with hidden layers and ReLUs between.

    Each layer's weight is (S, out, in) and its bias (S, out); Glorot-uniform kernels, zero biases.
    """

    def __init__(self, seeds: Sequence[int], sizes: Sequence[int]) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        generators = [seeded(seed, Purpose.HEAD) for seed in seeds]
        for inputs, outputs in itertools.pairwise(sizes):
            drawn = [glorot_uniform((outputs, inputs), inputs, outputs, generator) for generator in generators]
            self.weights.append(nn.Parameter(torch.stack(drawn)))
            self.biases.append(nn.Parameter(torch.zeros(len(seeds), outputs)))

    def forward(self, features: Tensor) -> Tensor:
        """Map features (S, N, k) to (S, N, outputs)."""
        x = features
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias.unsqueeze(1), F.relu(x) if number else x, weight.transpose(1, 2))
        return x


class Agent(nn.Module):
    """S agents that see, act and learn together, and share nothing but arithmetic.

    A subclass says how observations become features: by one frozen encoder, or by one trained encoder per seed. All
    trained parameters of seed s are row s of `theta` (S, P); so are its target's, its gradient and its Adam moments.
    """

    support: Tensor

    def __init__(self, rule: Rule, seeds: Sequence[int], num_features: int, num_actions: int) -> None:
        super().__init__()
        self.rule, self.num_seeds, self.num_actions = rule, len(seeds), num_actions
        self._categorical = rule.head == "c51"
        outputs = num_actions * (rule.atoms if self._categorical else 1)
        self._sizes = (num_features, *rule.hidden, outputs)
        self.heads, self.target_heads = Heads(seeds, self._sizes), Heads(seeds, self._sizes)
        support = torch.linspace(-rule.value_range, rule.value_range, rule.atoms)
        self.register_buffer("support", support)
        self.updates = 0

    def pack(self, device: str) -> None:
        """Move all trained parameters into `theta`, their targets into `target`; called once, by the subclass."""
        self.to(device)
        online, target = self.parameters_of("online"), self.parameters_of("target")
        count = sum(math.prod(shape) for _, rows, shape in online if rows.stop == self.num_seeds)
        self.theta = torch.zeros(self.num_seeds, count, device=device)
        self.target, self.gradient = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self._trained: list[nn.Parameter] = []
        self._gradients: list[Tensor] = []  # views of `gradient`, one for each of them
        start = 0
        for (own, rows, shape), (theirs, _, _) in zip(online, target, strict=True):
            end = start + math.prod(shape)
            full = own.shape
            for parameter, matrix in ((own, self.theta), (theirs, self.target)):
                view = matrix[rows, start:end].view(full)
                view.copy_(own.detach())
                parameter.data = view
            self._trained.append(own)
            self._gradients.append(self.gradient[rows, start:end].view(full))
            theirs.requires_grad_(False)
            if rows.stop == self.num_seeds:  # the last seed's: go on to the next parameter
                start = end
        # Adam is elementwise: over S rows that step together it is S separate optimisers.
        self._moments = {name: torch.zeros_like(self.theta) for name in ("exp_avg", "exp_avg_sq")}
        self._moments["step"] = torch.zeros((), device=device)

    def parameters_of(self, which: str) -> list[tuple[nn.Parameter, slice, tuple[int, ...]]]:
        """List parameters with the rows of `theta` that they fill and their shape for one seed."""
        heads = self.heads if which == "online" else self.target_heads
        everyone = slice(0, self.num_seeds)
        return [(parameter, everyone, tuple(parameter.shape[1:])) for parameter in heads.parameters()]

    def flops(self, num_envs: int) -> float:
        """Return the work of the networks' largest call when observations of E environments a seed are seen."""
        raise NotImplementedError

    def see(self, obs: NDArray[Any]) -> Tensor:
        """Map observations (S * E, stack, *frame_shape), E of each seed in turn, to features (S, E, k)."""
        raise NotImplementedError

    def items(self, obs: NDArray[Any]) -> tuple[NDArray[Any], Tensor | None]:
        """Return what the replay stores of observations (S, ...), and their features (S, 1, k) if they do not change.

        Where they are None, whoever acts on the observations must `see` them with the parameters of that moment.
        """
        raise NotImplementedError

    def features_of(self, batch: ReplayBatch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the features (S, B, k) of a batch: of x, of x' for the target, and of x' for double Q-learning."""
        raise NotImplementedError

    @torch.inference_mode()
    def values(self, features: Tensor) -> Tensor:
        """Return Q(x, a) (S, N, A) of features (S, N, k)."""
        return self._values(self.heads(features))

    def greedy(self, features: Tensor) -> Index:
        """Return each seed's best action (S,) for features (S, 1, k)."""
        best: Index = self.values(features)[:, 0].argmax(dim=1).cpu().numpy()
        return best

    def learn(
        self, replay: Replay, slot: Index, n_step: int, gamma: float, weight: NDArray[np.float32] | None = None
    ) -> dict[str, Tensor]:
        """Update every seed on the transitions that start in its slots (S, B) of a replay; see `update`."""
        found = None if weight is None else put(weight, self.theta.device)
        return self.update(replay.batch(slot, n_step, gamma), found)

    def _values(self, outputs: Tensor) -> Tensor:
        if not self._categorical:
            return outputs
        return self._by_action(outputs).softmax(dim=-1).matmul(self.support)

    def _by_action(self, outputs: Tensor) -> Tensor:
        """Split outputs (S, N, A * atoms) into (S, N, A, atoms)."""
        return outputs.view(*outputs.shape[:-1], self.num_actions, -1)

    def update(self, batch: ReplayBatch, weight: Tensor | None = None) -> dict[str, Tensor]:
        """Take one step of Adam for every seed on its own batch; `weight` (S, B) multiplies the losses.

        Returns the losses and values Q(x, a) of the transitions (S, B), and the norms of the gradients (S,).
        """
        device = self.theta.device
        action, reward, discount = (put(part, device) for part in (batch.action, batch.reward, batch.discount))
        x, next_for_target, next_for_choice = self.features_of(batch)
        if self._categorical or self.rule.hidden:
            loss, value = self._loss(x, next_for_target, next_for_choice, action, reward, discount)
            total = (loss if weight is None else loss * weight).mean(dim=1).sum()
            torch._foreach_copy_(self._gradients, torch.autograd.grad(total, self._trained))
        else:
            loss, value = self._linear_gradient(x, next_for_target, next_for_choice, action, reward, discount, weight)
        norm = self._clip()
        self._adam()
        self.updates += 1
        if self.updates % self.rule.target_every == 0:
            self.target.copy_(self.theta)
        return {"loss": loss.detach(), "value": value.detach(), "gradient_norm": norm}

    @torch.no_grad()
    def _linear_gradient(
        self,
        x: Tensor,
        next_for_target: Tensor,
        next_for_choice: Tensor | None,
        action: Tensor,
        reward: Tensor,
        discount: Tensor,
        weight: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradient of the mean of `_loss` where Q is linear, in closed form: half the time of autograd.

        d/dw_a = 1/B sum over the transitions with action a of weight * slope * phi(x)
        d/dphi(x) = 1/B weight * slope * w_a, from where autograd goes on through encoders that are trained
        """
        index = action.unsqueeze(-1)
        outputs = self.heads(x)  # (S, B, A)
        value = outputs.gather(-1, index).squeeze(-1)
        choice = None if next_for_choice is None else self.heads(next_for_choice)
        target = q_target(reward, discount, self.target_heads(next_for_target), choice)
        slope = q_loss_slope(value, target, self.rule.huber).div_(value.shape[1])
        if weight is not None:
            slope.mul_(weight)
        by_action = torch.zeros_like(outputs).scatter_(-1, index, slope.unsqueeze(-1))  # (S, B, A)
        for_weight, for_bias = self._gradients[:2]
        torch.bmm(by_action.transpose(1, 2), x, out=for_weight)
        torch.sum(by_action, dim=1, out=for_bias)
        if x.requires_grad:
            inner = torch.autograd.grad(x, self._trained[2:], torch.bmm(by_action, self.heads.weights[0]))
            torch._foreach_copy_(self._gradients[2:], inner)
        return q_loss(value, target, self.rule.huber), value

    def _loss(
        self,
        x: Tensor,
        next_for_target: Tensor,
        next_for_choice: Tensor | None,
        action: Tensor,
        reward: Tensor,
        discount: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each transition (S, B) and its predicted value (S, B)."""
        outputs = self.heads(x)
        with torch.no_grad():
            target_outputs = self.target_heads(next_for_target)
            choice = self._values(self.heads(next_for_choice)) if next_for_choice is not None else None
        if not self._categorical:
            value = outputs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
            target = q_target(reward, discount, target_outputs, choice)
            return q_loss(value, target, self.rule.huber), value
        logits = self._by_action(outputs)
        next_probability = self._by_action(target_outputs).softmax(dim=-1)
        best = (next_probability.matmul(self.support) if choice is None else choice).argmax(dim=-1)
        taken, chosen = (_pick(tensor, index) for tensor, index in ((logits, action), (next_probability, best)))
        target = categorical_target(reward, discount, chosen, self.support)
        return categorical_loss(taken, target), taken.softmax(dim=-1).matmul(self.support)

    def _clip(self) -> Tensor:
        """Scale each seed's gradient down to the maximum norm; return the norms before that (S,)."""
        norm: Tensor = torch.linalg.vector_norm(self.gradient, dim=1)
        if self.rule.max_gradient_norm:
            self.gradient.mul_((self.rule.max_gradient_norm / norm.clamp_min(1e-12)).clamp_max(1.0).unsqueeze(1))
        return norm

    @torch.no_grad()
    def _adam(self) -> None:
        """Take Adam's step; as a function, which saves the optimiser object's bookkeeping in every update."""
        rule, own = self.rule, self._moments
        adam(
            [self.theta], [self.gradient], [own["exp_avg"]], [own["exp_avg_sq"]], [], [own["step"]],
            fused=True, amsgrad=False, maximize=False, weight_decay=0.0,
            beta1=BETAS[0], beta2=BETAS[1], lr=rule.learning_rate, eps=rule.adam_epsilon,
        )  # fmt: skip

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return all that is learned, for a checkpoint."""
        tensors = {"theta": self.theta, "target": self.target, **self._moments}
        return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}

    def load(self, tensors: dict[str, NDArray[Any]], updates: int) -> None:
        """Take back what `tensors` returned."""
        for name, tensor in {"theta": self.theta, "target": self.target, **self._moments}.items():
            tensor.copy_(torch.from_numpy(tensors[name]).view_as(tensor))  # a number is stored as one entry
        self.updates = updates


def _pick(tensor: Tensor, action: Tensor) -> Tensor:
    """Take the atoms of one action each: (S, B, A, atoms) and (S, B) to (S, B, atoms)."""
    index = action[..., None, None].expand(*action.shape, 1, tensor.shape[-1])
    return tensor.gather(-2, index).squeeze(-2)
