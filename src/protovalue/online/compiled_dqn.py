"""An update of the MinAtar network from its frames to its head, compiled: forward, backward and Adam for all seeds.

What a seed computes depends on its own row alone. Importing this module brings numba.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protovalue.compiling import compiled
from protovalue.nets import minatar_frozen
from protovalue.nets.minatar_frozen import convolve
from protovalue.online import compiled as linear
from protovalue.online.compiled import best, descend, dot, fit, greedy

if TYPE_CHECKING:
    from protovalue.online.agent import Rule
    from protovalue.online.replay import ReplayBatch

Array = NDArray[Any]
_SOURCES = [Path(minatar_frozen.__file__), Path(linear.__file__)]


def _dense(x: Array, weight: Array, bias: Array, y: Array, factor: float) -> None:
    """Write y (N, k) = factor * ReLU(x (N, flat) @ weight (k, flat)^T + bias); four rows of x at a time."""
    scale = np.float32(factor)
    whole = len(x) - len(x) % 4
    for i in range(len(weight)):
        row = weight[i]
        for n in range(0, whole, 4):
            x0, x1, x2, x3 = x[n], x[n + 1], x[n + 2], x[n + 3]
            a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for j in range(len(row)):
                a += row[j] * x0[j]
                b += row[j] * x1[j]
                c += row[j] * x2[j]
                d += row[j] * x3[j]
            y[n, i], y[n + 1, i], y[n + 2, i], y[n + 3, i] = a, b, c, d
        for n in range(whole, len(x)):
            y[n, i] = dot(row, x[n])
        for n in range(len(x)):
            y[n, i] = max(y[n, i] + bias[i], np.float32(0)) * scale


# The order of these sums is the compiler's, as that of `dot`.
dense = compiled(_dense, _SOURCES, fastmath={"reassoc", "contract", "nsz"})


def _add_product(factors: Array, rows: Array, total: Array, index: Array) -> None:
    """Add sum_n factors[n] * rows[n] to total; rows (N, flat), four of those whose factor is not 0 at a time."""
    found = 0
    for n in range(len(factors)):
        if factors[n] != 0:
            index[found] = n
            found += 1
    whole = found - found % 4
    for n in range(0, whole, 4):
        a, b, c, d = index[n], index[n + 1], index[n + 2], index[n + 3]
        fa, fb, fc, fd = factors[a], factors[b], factors[c], factors[d]
        ra, rb, rc, rd = rows[a], rows[b], rows[c], rows[d]
        for j in range(len(total)):
            total[j] += fa * ra[j] + fb * rb[j] + fc * rc[j] + fd * rd[j]
    for n in range(whole, found):
        row, factor = rows[index[n]], factors[index[n]]
        for j in range(len(total)):
            total[j] += factor * row[j]


add_product = compiled(_add_product, _SOURCES, fastmath={"contract"})


def _see(
    obs: Array,  # (N, stack, H, W, C), bool
    own: Array,  # (P,): the head, then weight and bias of the convolution and of the dense layer, in PyTorch's order
    head: int,  # numbers of the head
    channels: int,
    factor: float,
    latents: Array,  # (N, flat), written
    features: Array,  # (N, k), written
) -> None:
    """Apply convolution, ReLU, dense layer and ReLU."""
    planes = obs.shape[1] * obs.shape[4]
    height, width, k, flat = obs.shape[2] - 2, obs.shape[3] - 2, features.shape[1], latents.shape[1]
    start = head + channels * planes * 9
    weight = own[head:start].reshape(channels, planes, 3, 3)
    kernel = np.empty((3, 3, planes, channels), np.float32)
    for c in range(channels):
        for p in range(planes):
            for y in range(3):
                for x in range(3):
                    kernel[y, x, p, c] = weight[c, p, y, x]
    for n in range(len(obs)):
        convolve(obs[n], kernel, own[start : start + channels], latents[n].reshape(height, width, channels))
        for j in range(flat):
            latents[n, j] = max(latents[n, j], np.float32(0))
    start += channels
    end = start + k * flat
    dense(latents, own[start:end].reshape(k, flat), own[end:], features, factor)


see = compiled(_see, _SOURCES)


def _learn(
    obs: Array,  # (S, B, stack, H, W, C), bool
    next_obs: Array,
    action: Array,  # (S, B)
    reward: Array,  # (S, B)
    discount: Array,  # (S, B)
    weight: Array,  # (S, B)
    theta: Array,  # (S, P) and those below: updated
    target: Array,
    gradient: Array,
    first_moment: Array,
    second_moment: Array,
    loss: Array,  # (S, B), written
    value: Array,  # (S, B), written
    norm: Array,  # (S,), written
    num_actions: int,
    k: int,
    channels: int,
    factor: float,
    double: bool,
    huber: bool,
    max_norm: float,
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    count: int,
    copy: bool,
) -> None:
    """Update every seed's network once, as `Agent.update` does."""
    size, stack, planes = obs.shape[1], obs.shape[2], obs.shape[5]
    height, width = obs.shape[3] - 2, obs.shape[4] - 2
    flat, head = height * width * channels, num_actions * (k + 1)
    conv = head + channels * stack * planes * 9
    last = conv + channels + k * flat
    latents, features = np.empty((size, flat), np.float32), np.empty((size, k), np.float32)
    unused = np.empty((size, flat), np.float32)
    next_x, choice = np.empty((size, k), np.float32), np.empty((size, k), np.float32)
    back, behind = np.empty((size, k), np.float32), np.empty((height, width, channels), np.float32)
    down = np.empty(flat, np.float32)
    column, index = np.empty(size, np.float32), np.empty(max(size, k), np.int64)
    kernel = np.empty((3, 3, stack * planes, channels), np.float32)  # its gradient
    scale = np.float32(factor)
    for s in range(len(theta)):
        own, slow, grad = theta[s], target[s], gradient[s]
        see(next_obs[s], slow, head, channels, factor, unused, next_x)
        if double:
            see(next_obs[s], own, head, channels, factor, unused, choice)
        see(obs[s], own, head, channels, factor, latents, features)
        grad[:] = 0
        for b in range(size):
            if double:
                a = best(own[:head], choice[b], num_actions)[0]
                following = dot(slow[a * k : (a + 1) * k], next_x[b]) + slow[num_actions * k + a]
            else:
                following = best(slow[:head], next_x[b], num_actions)[1]
            a = action[s, b]
            start = a * k
            found = dot(own[start : start + k], features[b]) + own[num_actions * k + a]
            value[s, b] = found
            loss[s, b], slope = fit(found - (reward[s, b] + discount[s, b] * following), huber)
            slope = slope / np.float32(size) * weight[s, b]
            grad[num_actions * k + a] += slope
            for i in range(k):
                grad[start + i] += slope * features[b, i]
                back[b, i] = slope * own[start + i] * scale if features[b, i] > 0 else np.float32(0)
        for i in range(k):  # the dense layer
            for b in range(size):
                column[b] = back[b, i]
                grad[last + i] += back[b, i]
            at = conv + channels + i * flat
            add_product(column, latents, grad[at : at + flat], index)
        rows = own[conv + channels : last].reshape(k, flat)
        kernel[:] = 0
        for b in range(size):  # the convolution
            down[:] = 0
            add_product(back[b], rows, down, index)
            for j in range(flat):
                if not latents[b, j] > 0:
                    down[j] = 0
            behind = down.reshape(height, width, channels)
            for y in range(height):
                for x in range(width):
                    for c in range(channels):
                        grad[conv + c] += behind[y, x, c]
            for f in range(stack):
                for y in range(height + 2):
                    for x in range(width + 2):
                        for p in range(planes):
                            if obs[s, b, f, y, x, p]:
                                for v in range(max(0, y - 2), min(height, y + 1)):
                                    for u in range(max(0, x - 2), min(width, x + 1)):
                                        for c in range(channels):
                                            kernel[y - v, x - u, f * planes + p, c] += behind[v, u, c]
        out = grad[head:conv].reshape(channels, stack * planes, 3, 3)
        for c in range(channels):
            for p in range(stack * planes):
                for y in range(3):
                    for x in range(3):
                        out[c, p, y, x] = kernel[y, x, p, c]
        norm[s] = descend(own, grad, first_moment[s], second_moment[s], max_norm, rate, beta1, beta2, epsilon, count)
        if copy:
            for i in range(len(own)):
                slow[i] = own[i]


learn = compiled(_learn, _SOURCES)


def _with_channels(obs: Array) -> Array:
    """Return observations (S, N, stack, H, W[, C]) with an axis of channels, in one piece."""
    return np.ascontiguousarray(obs if obs.ndim == 6 else obs[..., None])


class MinatarNetworks:
    """S MinAtar networks with linear heads that act and learn: `dqn.Dqn` on its own memory."""

    def __init__(
        self,
        rule: "Rule",
        betas: tuple[float, float],
        num_actions: int,
        channels: int,
        flat: int,
        k: int,
        factor: float,
        theta: Array,
        target: Array,
        gradient: Array,
        first_moment: Array,
        second_moment: Array,
        step: Array,
    ) -> None:
        """Take arrays (S, P) that others hold too; row s has the head's numbers and the encoder's."""
        self._rule, self._betas, self._theta, self._step = rule, betas, theta, step
        self._shape, self._flat = (num_actions, k, channels, factor), flat
        self._learned = theta, target, gradient, first_moment, second_moment

    def see(self, obs: Array) -> Array:
        """Map observations (S, E, stack, H, W[, C]) to features (S, E, k)."""
        obs = _with_channels(obs)
        num_actions, k, channels, factor = self._shape
        latents, features = np.empty((obs.shape[1], self._flat), np.float32), np.empty((*obs.shape[:2], k), np.float32)
        for s in range(len(obs)):
            see(obs[s], self._theta[s], num_actions * (k + 1), channels, factor, latents, features[s])
        return features

    def greedy(self, features: Array) -> Array:
        """Return each seed's best action (S,) for features (S, 1, k)."""
        actions = np.empty(len(features), np.int64)
        greedy(self._theta, features[:, 0], actions, self._shape[0])  # a row begins with its head
        return actions

    def learn(self, batch: "ReplayBatch", weight: Array | None, count: int) -> dict[str, Array]:
        """Take Adam's step number `count`; see `Agent.update`."""
        rule = self._rule
        weight = np.ones(batch.action.shape, np.float32) if weight is None else weight
        loss, value, norm = np.empty_like(weight), np.empty_like(weight), np.empty(len(weight), np.float32)
        learn(
            _with_channels(batch.obs), _with_channels(batch.next_obs), batch.action, batch.reward, batch.discount,
            weight, *self._learned, loss, value, norm, *self._shape, rule.double, rule.huber,
            rule.max_gradient_norm, rule.learning_rate, *self._betas, rule.adam_epsilon,
            count, count % rule.target_every == 0,
        )  # fmt: skip
        self._step[...] = count
        return {"loss": loss, "value": value, "gradient_norm": norm}
