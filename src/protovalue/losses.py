"""The temporal-difference loss of the successor measure, shared by the tabular and the deep learner."""

from typing import Literal

import torch
from torch import Tensor

Backup = Literal["mean", "max"]


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

    The mean over a' makes psi_j the value of the uniform random policy, the maximum that of the optimal one.
    The paper leaves terminals out; without them a value would flow across the end of an episode.
    No gradient flows into the target.

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
    if backup == "mean":
        next_value = target_psi_next.mean(dim=-1)  # (B, m)
    elif backup == "max":
        next_value = target_psi_next.amax(dim=-1)
    else:
        raise ValueError(f"backup: found {backup!r}, expected 'mean' or 'max'")
    going_on = (~terminal).to(psi.dtype).unsqueeze(-1)  # (B, 1)
    target = (reward.to(psi.dtype) + gamma * going_on * next_value).detach()
    index = action.view(-1, 1, 1).expand(-1, psi.shape[1], 1)
    taken = psi.gather(-1, index).squeeze(-1)  # (B, m)
    return torch.mean((target - taken) ** 2)
