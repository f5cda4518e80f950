"""The inner loops of linear agents, compiled: acting, storing, sampling, and a whole update of all seeds in one call.

What a seed computes depends on its own row alone, and every sum has an order that does not depend on how many seeds
there are. Halves (float16) come as their 16 bits. Importing this module brings numba.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable
from numpy.typing import NDArray

from protovalue.compiling import compiled
from protovalue.online import slots as kinds
from protovalue.online.slots import GOING_ON, LAST, TERMINATED, TRUNCATED

if TYPE_CHECKING:
    from protovalue.online.agent import Rule
    from protovalue.online.replay import Replay

Array = NDArray[Any]
_KINDS = [Path(kinds.__file__)]


def bits(array: Array) -> Array:
    """Return an array that compiled functions take: halves as their bits, mapped files as plain memory; no copy."""
    plain = array.view(np.ndarray)
    return plain.view(np.uint16) if plain.dtype == np.float16 else plain


def single(x: Any) -> Any:
    """Turn a stored number, float32 or the bits of a half, into float32 without rounding."""
    raise NotImplementedError("for compiled functions only")


@overload(single)
def _single(x: Any) -> Any:
    def keep(x: Any) -> Any:
        return x

    def widen(x: Any) -> Any:
        # The exponent's bias is 15 in a half and 127 here: 112 powers of two. Subnormal halves come out right as well.
        half = np.int32(x)
        wide = ((half & 0x8000) << 16) | ((half & 0x7FFF) << 13)
        if (half & 0x7C00) == 0x7C00:  # infinite, or not a number
            wide |= 0x7F800000
        return np.int32(wide).view(np.float32) * np.float32(2.0**112)

    return widen if x == types.uint16 else keep


def _dot(a: Array, b: Array) -> Any:
    total = np.float32(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


# The order of this sum is the compiler's, for the processor's vectors: the same in every call of the same length.
dot = compiled(_dot, fastmath={"reassoc", "contract", "nsz"})


@register_jitable
def best(weights: Array, x: Array, actions: int) -> Any:
    """Return the first action with the largest value of features x (k,), and that value; weights are (A * k + A,)."""
    k = len(x)
    action, value = 0, dot(weights[:k], x) + weights[actions * k]
    for a in range(1, actions):
        other = dot(weights[a * k : (a + 1) * k], x) + weights[actions * k + a]
        if other > value:
            action, value = a, other
    return action, value


def _greedy(theta: Array, features: Array, actions: Array, num_actions: int) -> None:
    for s in range(len(theta)):
        actions[s] = best(theta[s], features[s], num_actions)[0]


greedy = compiled(_greedy)


def _fit(error: Any, huber: bool) -> Any:
    """Return `q_loss` of a prediction minus its target, and its slope."""
    if huber:
        inside = min(abs(error), np.float32(1))
        slope = min(max(error, np.float32(-1)), np.float32(1))
        return np.float32(0.5) * inside * inside + (abs(error) - inside), slope
    return error * error, np.float32(2) * error


fit = compiled(_fit)


def _descend(
    own: Array,  # (P,) and those below
    gradient: Array,
    mean: Array,
    square: Array,
    max_norm: float,
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    count: int,  # of this step, from 1
) -> Any:
    """Scale a gradient down to the maximum norm, if there is one, and take Adam's step; return the norm before."""
    norm = np.sqrt(dot(gradient, gradient))
    if max_norm > 0:
        scale = min(np.float32(max_norm) / max(norm, np.float32(1e-12)), np.float32(1))
        for i in range(len(gradient)):
            gradient[i] *= scale
    step_size, root = np.float32(rate / (1 - beta1**count)), np.float32(np.sqrt(1 - beta2**count))
    keep, new, new_square = np.float32(beta2), np.float32(1 - beta1), np.float32(1 - beta2)
    small = np.float32(epsilon)
    for i in range(len(gradient)):
        mean[i] += new * (gradient[i] - mean[i])
        square[i] = keep * square[i] + new_square * gradient[i] * gradient[i]
        own[i] -= step_size * mean[i] / (np.sqrt(square[i]) / root + small)
    return norm


descend = compiled(_descend, error_model="numpy")


def _store(
    items: Array,  # (S, slots, bytes), uint8
    codes: Array,  # (S, slots)
    rewards: Array,  # (S, slots)
    ages: Array,  # (S, slots), or (S, 0) where there are none
    written: Array,  # (S,), counted on
    actions: Array,  # (S,) and all below
    learned: Array,
    terminated: Array,
    truncated: Array,
    next_items: Array,
    final_items: Array,
) -> None:
    """Close the open slots with a transition each and open the next ones, as `Replay.add` says."""
    slots = codes.shape[1]
    for s in range(len(codes)):
        at = written[s] % slots
        codes[s, at] = actions[s] * 4 + terminated[s] * TERMINATED + truncated[s] * TRUNCATED
        rewards[s, at] = learned[s]
        age = min(np.int64(ages[s, at]) + 1, 255) if ages.shape[1] else 0
        written[s] += 1
        at = written[s] % slots
        if truncated[s]:
            codes[s, at] = LAST
            for i in range(items.shape[2]):
                items[s, at, i] = final_items[s, i]
            if ages.shape[1]:
                ages[s, at] = age
            written[s] += 1
            at = written[s] % slots
        for i in range(items.shape[2]):
            items[s, at, i] = next_items[s, i]
        if ages.shape[1]:
            ages[s, at] = 0 if terminated[s] or truncated[s] else age


store = compiled(_store, _KINDS)


def _choose(codes: Array, first: Array, end: Array, uniform: Array, slot: Array) -> int:
    """Write slots (S, B) for numbers in [0, 1); return how many of them no transition starts in."""
    slots, wrong = codes.shape[1], 0
    for s in range(len(codes)):
        for b in range(uniform.shape[1]):
            slot[s, b] = first[s] + np.int64(uniform[s, b] * (end[s] - first[s]))
            wrong += codes[s, slot[s, b] % slots] % 4 == LAST
    return wrong


choose = compiled(_choose, _KINDS)


def _learn(
    items: Array,  # (S, slots, k), float32 or the bits of halves
    codes: Array,  # (S, slots)
    rewards: Array,  # (S, slots), float32 or the bits of halves
    slot: Array,  # (S, B), where the transitions start
    weight: Array,  # (S, B)
    powers: Array,  # (n + 1,) of gamma, float32
    theta: Array,  # (S, P) and those below: updated
    target: Array,
    gradient: Array,
    first_moment: Array,
    second_moment: Array,
    loss: Array,  # (S, B), written
    value: Array,  # (S, B), written
    norm: Array,  # (S,), written
    double: bool,
    huber: bool,
    max_norm: float,
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    count: int,  # of this update, from 1
    copy: bool,  # make the target equal afterwards
) -> None:
    """Update every seed's Q(x, a) = phi(x)^T w_a + b_a once, as `Agent.update` does on `Replay.batch`."""
    slots, k = items.shape[1], items.shape[2]
    num_actions = theta.shape[1] // (k + 1)
    size, n = slot.shape[1], len(powers) - 1
    x, next_x = np.empty(k, np.float32), np.empty(k, np.float32)
    for s in range(len(theta)):
        own, slow, grad = theta[s], target[s], gradient[s]
        grad[:] = 0
        for b in range(size):
            at = slot[s, b] % slots
            code = codes[s, at]
            action, kind = np.int64(code // 4), code % 4
            reward, steps = single(rewards[s, at]), 1
            while kind == GOING_ON and steps < n:
                later = (at + steps) % slots
                kind = codes[s, later] % 4
                reward += powers[steps] * single(rewards[s, later])
                steps += 1
            for i in range(k):
                x[i] = single(items[s, at, i])
            goal = reward
            if kind != TERMINATED:
                after = (at + steps) % slots
                for i in range(k):
                    next_x[i] = single(items[s, after, i])
                if double:
                    chosen = best(own, next_x, num_actions)[0]
                    following = dot(slow[chosen * k : (chosen + 1) * k], next_x) + slow[num_actions * k + chosen]
                else:
                    following = best(slow, next_x, num_actions)[1]
                goal += powers[steps] * following
            start = action * k
            found = dot(own[start : start + k], x) + own[num_actions * k + action]
            error = found - goal
            value[s, b] = found
            loss[s, b], slope = fit(error, huber)
            slope = slope / np.float32(size) * weight[s, b]
            for i in range(k):
                grad[start + i] += slope * x[i]
            grad[num_actions * k + action] += slope
        norm[s] = descend(own, grad, first_moment[s], second_moment[s], max_norm, rate, beta1, beta2, epsilon, count)
        if copy:
            for i in range(len(grad)):
                slow[i] = own[i]


learn = compiled(_learn, _KINDS, error_model="numpy")


class LinearHeads:
    """S linear heads that act and learn: `agent.Agent` of a rule without hidden layers and atoms, on its own memory."""

    def __init__(
        self,
        rule: "Rule",
        betas: tuple[float, float],
        num_actions: int,
        theta: Array,
        target: Array,
        gradient: Array,
        first_moment: Array,
        second_moment: Array,
        step: Array,
    ) -> None:
        """Take arrays (S, A * k + A) that others hold too: all weights, then all biases; `step` is Adam's count ()."""
        self._rule, self._betas, self._num_actions, self._theta, self._step = rule, betas, num_actions, theta, step
        self._learned = theta, target, gradient, first_moment, second_moment
        self._powers: dict[tuple[int, float], Array] = {}
        self._even = np.ones((len(theta), 0), np.float32)

    def greedy(self, features: Array) -> Array:
        """Return each seed's best action (S,) for features (S, 1, k)."""
        actions = np.empty(len(features), np.int64)
        greedy(self._theta, features[:, 0], actions, self._num_actions)
        return actions

    def learn(
        self, replay: "Replay", slot: Array, n_step: int, gamma: float, weight: Array | None, count: int
    ) -> dict[str, Array]:
        """Take Adam's step number `count` on the transitions that start in slots (S, B); see `Agent.update`."""
        rule = self._rule
        if self._even.shape != slot.shape:
            self._even = np.ones(slot.shape, np.float32)
        powers = self._powers.get((n_step, gamma))
        if powers is None:
            powers = np.power(gamma, np.arange(n_step + 1)).astype(np.float32)
            self._powers[n_step, gamma] = powers
        loss, value, norm = np.empty_like(self._even), np.empty_like(self._even), np.empty(len(slot), np.float32)
        learn(
            replay.plain["items"], replay.plain["codes"], replay.plain["rewards"], slot,
            self._even if weight is None else weight, powers, *self._learned, loss, value, norm,
            rule.double, rule.huber, rule.max_gradient_norm, rule.learning_rate, *self._betas, rule.adam_epsilon,
            count, count % rule.target_every == 0,
        )  # fmt: skip
        self._step[...] = count
        return {"loss": loss, "value": value, "gradient_norm": norm}
