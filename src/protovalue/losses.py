"""The temporal-difference loss of the successor measure, shared by the tabular and the deep learner."""

from typing import Literal

from torch import Tensor

Backup = Literal["mean", "max"]


def td_loss(
    prediction: Tensor, next_value: Tensor, reward: Tensor, terminal: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Squared TD error of m predictions on B transitions, averaged over both; also the errors themselves (B, m).

        error_j = r_j(x) + gamma (1 - terminal) v_j(x')  -  psi_j(x, a)

    A terminal transition has no next value: without this, a value would flow across the end of an episode. The paper
    leaves it out of its formula. No gradient flows into the target.

    Args:
        prediction: psi_j(x, a) of the taken action (B, m).
        next_value: v_j(x'), what the target network backs up (B, m).
        reward: r_j(x) (B, m), boolean or float.
        terminal: Whether x' ends the episode (B,), boolean; a truncated episode is not terminal.
        gamma: Discount factor.
    """
    going_on = (~terminal).to(prediction.dtype).unsqueeze(-1)  # (B, 1)
    target = (reward.to(prediction.dtype) + gamma * going_on * next_value).detach()
    error = target - prediction
    return error.square().mean(), error


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
    `td_loss` is the same for a caller that already has psi_j(x, a) and the backed-up value.

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
    index = action.view(-1, 1, 1).expand(-1, psi.shape[1], 1)
    taken = psi.gather(-1, index).squeeze(-1)  # (B, m)
    return td_loss(taken, next_value, reward, terminal, gamma)[0]
