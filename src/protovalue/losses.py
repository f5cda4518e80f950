"""What is minimised: temporal-difference losses (successor measure, action values) and those of the other methods.

All of it is computed in float32, in whatever precision and under whatever autocast it is called.
"""

from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from protovalue.precision import in_float32

Backup = Literal["mean", "max"]


@in_float32
def backed_up(values: Tensor, backup: Backup) -> Tensor:
    """Return what is known of a state from the values of its actions, (..., A) to (...).

    Their mean makes psi the value of the uniform random policy, their maximum that of the optimal one.
    """
    if backup == "mean":
        return values.mean(dim=-1)
    if backup == "max":
        return values.amax(dim=-1)
    raise ValueError(f"backup: found {backup!r}, expected 'mean' or 'max'")


@in_float32
def td_loss(
    prediction: Tensor,
    next_value: Tensor,
    reward: Tensor,
    terminal: Tensor,
    gamma: float | Tensor,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Squared TD error of m predictions on B transitions, averaged over both; also the errors themselves (B, m).

        error_j = r_j(x) + gamma (1 - terminal) v_j(x')  -  psi_j(x, a)

    A terminal transition has no next value: without this, a value would flow across the end of an episode. The paper
    leaves it out of its formula. No gradient flows into the target.

    Args:
        prediction: psi_j(x, a) of the taken action (B, m).
        next_value: v_j(x'), `backed_up` from the target network's values of the next actions (B, m).
        reward: r_j(x) (B, m), boolean or float.
        terminal: Whether x' ends the episode (B,), boolean; a truncated episode is not terminal.
        gamma: Discount factor, or that of each task (m,).
        weight: What each task's squared errors are multiplied by (m,); None is 1.
    """
    going_on = (~terminal).to(prediction.dtype).unsqueeze(-1)  # (B, 1)
    target = (reward.to(prediction.dtype) + gamma * going_on * next_value).detach()
    error = target - prediction
    square = error.square()
    return (square if weight is None else square * weight).mean(), error


@in_float32
def successor_measure_loss(
    psi: Tensor,
    target_psi_next: Tensor,
    reward: Tensor,
    action: Tensor,
    terminal: Tensor,
    gamma: float,
    backup: Backup = "mean",
) -> Tensor:
    """Squared TD error of m tasks on B transitions (x, a, x'), averaged over both (Algorithm 1 of the paper).

        ( r_j(x) + gamma (1 - terminal) backup over a' of psi^-_j(x', a')  -  psi_j(x, a) )^2

    `td_loss` is the same for a caller that already has psi_j(x, a) and the backed-up value, as networks have.

    Args:
        psi: Predictions psi_j(x, a) (B, m, A).
        target_psi_next: Predictions of the target network psi^-_j(x', a') (B, m, A).
        reward: Indicators r_j(x) (B, m), boolean or float.
        action: The action a taken (B,), int64.
        terminal: Whether x' ends the episode (B,), boolean; a truncated episode is not terminal.
        gamma: Discount factor.
        backup: "mean" or "max" over the next actions.

    Returns:
        The loss, a scalar.
    """
    index = action.view(-1, 1, 1).expand(-1, psi.shape[1], 1)
    taken = psi.gather(-1, index).squeeze(-1)  # (B, m)
    return td_loss(taken, backed_up(target_psi_next, backup), reward, terminal, gamma)[0]


@in_float32
def q_target(reward: Tensor, discount: Tensor, target_next: Tensor, online_next: Tensor | None = None) -> Tensor:
    """Return r + discount * max over a' of Q^-(x', a'), without gradient.

    With `online_next`, double Q-learning (van Hasselt et al., 2016): r + discount * Q^-(x', argmax of Q(x', .)).

    Args:
        reward: Sum of the (clipped) rewards of n steps, discounted (...).
        discount: gamma^n, and 0 where the episode terminated on the way (...).
        target_next: The target network's Q^-(x', a') (..., A).
        online_next: The trained network's Q(x', a') (..., A), for double Q-learning.
    """
    if online_next is None:
        value = target_next.amax(dim=-1)
    else:
        value = target_next.gather(-1, online_next.argmax(dim=-1, keepdim=True)).squeeze(-1)
    return (reward + discount * value).detach()


@in_float32
def q_loss(prediction: Tensor, target: Tensor, huber: bool = False) -> Tensor:
    """Return the loss of each prediction (...): e^2 of the error e = target - prediction.

    With `huber`: e^2 / 2 where |e| <= 1 and |e| - 1/2 elsewhere.
    """
    error = target - prediction
    if not huber:
        return error.square()
    size = error.abs()
    inside = size.clamp(max=1.0)
    return 0.5 * inside.square() + (size - inside)


@in_float32
def q_loss_slope(prediction: Tensor, target: Tensor, huber: bool = False) -> Tensor:
    """Return the derivative of `q_loss` by the prediction: -2 e, or with `huber` -clip(e, -1, 1)."""
    error = prediction - target
    return error.clamp(-1.0, 1.0) if huber else error.mul_(2.0)


@in_float32
def categorical_target(reward: Tensor, discount: Tensor, next_probability: Tensor, support: Tensor) -> Tensor:
    """Project the distribution of r + discount * Z onto the support (Bellemare et al., 2017, equation 7), no gradient.

    Each atom z_j moves to t_j = clip(r + discount z_j, z_1, z_N), and its probability is shared between the two atoms
    next to t_j in proportion to their nearness:

        p_i = sum_j clip(1 - |t_j - z_i| / dz, 0, 1) q_j

    Args:
        reward: (...).
        discount: (...), 0 where the episode terminated.
        next_probability: q, the distribution of the best next action (..., N).
        support: z, evenly spaced (N,).
    """
    spacing = support[1] - support[0]
    moved = (reward.unsqueeze(-1) + discount.unsqueeze(-1) * support).clamp(support[0], support[-1])  # (..., N_j)
    nearness = (1 - (moved.unsqueeze(-2) - support.unsqueeze(-1)).abs() / spacing).clamp(0, 1)  # (..., N_i, N_j)
    return torch.matmul(nearness, next_probability.unsqueeze(-1)).squeeze(-1).detach()


@in_float32
def categorical_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy -sum_i p_i log softmax(logits)_i of each prediction (..., N) to (...)."""
    return -(target * F.log_softmax(logits, dim=-1)).sum(dim=-1)


@in_float32
def cloning_loss(scores: Tensor, action: Tensor) -> Tensor:
    """Return the cross-entropy -log softmax(scores)_a of each logged action: (B, A) and (B,), int64, to (B,)."""
    return F.cross_entropy(scores, action, reduction="none")


@in_float32
def graph_drawing_loss(features: Tensor, next_features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two terms of the graph-drawing objective (Wu et al., 2019, equations 4 and 6): attraction, repulsion.

        attraction = 1/2 E over u ~ rho, v ~ P(. | u) of sum_k (f_k(u) - f_k(v))^2
        repulsion = sum_jk (<f_j, f_k>_rho - [j = k])^2
                  = E over independent u, v ~ rho of (f(u)^T f(v))^2 - |f(u)|^2 - |f(v)|^2 + d

    Attraction + beta * repulsion is least when f spans the eigenvectors of the Laplacian with the d least eigenvalues.
    The expectation over independent u and v is taken over all pairs of different rows: an unbiased estimate, which
    the mean over pairs of a row with itself would not be.

    Args:
        features: f(u) of states drawn independently from rho (B, d), B at least 2.
        next_features: f(v) of a state that follows each (B, d).
    """
    attraction = 0.5 * (features - next_features).square().sum(dim=1).mean()
    products, norms = _gram(features)
    return attraction, products - 2 * norms + features.shape[1]


def _gram(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return of rows (B, d) the mean of (f_i^T f_j)^2 over all pairs of different ones, and the mean of |f_i|^2."""
    count = len(features)
    gram = features @ features.T  # (B, B)
    norms = gram.diagonal()
    return (gram.square().sum() - norms.square().sum()) / (count * (count - 1)), norms.mean()


@in_float32
def orthonormality_loss(features: Tensor) -> Tensor:
    """Return how far d functions are from orthonormal over the data, up to noise 0 where they are.

        1/2 sum_jk (E f_j f_k - [j = k])^2 = 1/2 E over independent u, v of (f(u)^T f(v))^2 - E |f(u)|^2 + d / 2

    Args:
        features: f(u) of independent states (B, d), B at least 2; pairs of different rows stand for u and v.
    """
    products, norms = _gram(features)
    return 0.5 * products - norms + 0.5 * features.shape[1]


@in_float32
def measure_loss(measure: Tensor, next_measure: Tensor, terminal: Tensor, gamma: float) -> Tensor:
    """Return the loss of the successor measure's density for all pairs of a batch (Touati and Ollivier, 2021).

        1/2 mean over i != j of (M(x_i, a_i, y_j) - gamma (1 - terminal_i) v(x'_i, y_j))^2  -  mean_i M(x_i, a_i, y_i)

    Up to a constant it is half the mean squared error to the density of y = y_i plus the discounted density of what
    follows. Pairs of a row with itself are left out: y_j must be independent of x_i. No gradient flows into v.

    Args:
        measure: M(x_i, a_i, y_j) (B, B), B at least 2; y_i is the state that counts for transition i.
        next_measure: v(x'_i, y_j), backed up from the target network (B, B).
        terminal: Whether x'_i ends the episode (B,), boolean.
        gamma: Discount factor.
    """
    count = len(measure)
    going_on = (~terminal).to(measure.dtype).unsqueeze(1)
    square = (measure - gamma * going_on * next_measure.detach()).square()
    others = (square.sum() - square.diagonal().sum()) / (count * (count - 1))
    return 0.5 * others - measure.diagonal().mean()


@in_float32
def prediction_loss(prediction: Tensor, target: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean over what is valid of |y - z|^2, no gradient into z: (B, ..., n), (B, ..., n) and (B, ...)."""
    distance = (prediction - target.detach()).square().sum(dim=-1)
    if valid is None:
        return distance.mean()
    weight = valid.to(distance.dtype)
    return (distance * weight).sum() / weight.sum().clamp_min(1)


@in_float32
def latent_loss(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Return the squared distance of unit vectors, averaged over the steps that exist (Schwarzer et al., 2021); or 0.

        | y / |y| - z / |z| |^2 = 2 - 2 cos(y, z)

    No gradient flows into the target. A vector shorter than 1e-3 is divided by 1e-3, as in the source.

    Args:
        prediction: y, what the model predicts of step k (B, K, n).
        target: z, what the target network sees there (B, K, n).
        valid: Whether step k exists: False after the episode's end (B, K).
    """
    y, z = (F.normalize(x, dim=-1, eps=1e-3) for x in (prediction, target.detach()))
    distance = (y - z).square().sum(dim=-1)  # (B, K)
    weight = valid.to(distance.dtype)
    return (distance * weight).sum() / weight.sum().clamp_min(1)
