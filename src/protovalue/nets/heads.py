"""Linear heads: the value psi_j(x, a) of every task j and action a from the features of x."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from protovalue.errors import UserError
from protovalue.losses import Backup, backed_up
from protovalue.nets.layers import glorot_uniform
from protovalue.precision import in_float32


class TaskHeads(nn.Module):
    """One linear head per task: psi_j(x, a) = phi(x)^T w_{j,a} + b_{j,a} for m tasks and A actions.

    `weight` is (A, m, k) and `bias` (A, m): what one action needs is contiguous. Kernels are Glorot-uniform with the
    fans of one task's layer, k and A, as if each head were a dense layer of its own. The product is computed in
    float32, whatever the features come in: its result enters targets and losses.
    """

    def __init__(self, num_features: int, num_tasks: int, num_actions: int, generator: torch.Generator) -> None:
        super().__init__()
        for name, value in (("features", num_features), ("tasks", num_tasks), ("actions", num_actions)):
            if value < 1:
                raise UserError(f"number of {name}: found {value}, expected at least 1")
        self.num_features, self.num_tasks, self.num_actions = num_features, num_tasks, num_actions
        shape = (num_actions, num_tasks, num_features)
        self.weight = nn.Parameter(glorot_uniform(shape, num_features, num_actions, generator))
        self.bias = nn.Parameter(torch.zeros(num_actions, num_tasks))

    @in_float32
    def all_actions(self, features: Tensor) -> Tensor:
        """Return psi(x, a) for all actions: features (N, k) to (N, m, A)."""
        values = F.linear(features, self.weight.flatten(0, 1), self.bias.flatten())  # (N, A * m)
        return values.view(-1, self.num_actions, self.num_tasks).transpose(1, 2)

    @in_float32
    def taken(self, features: Tensor, action: Tensor) -> Tensor:
        """Return psi(x, a) for the actions taken: features (N, k) and action (N,) int64 to (N, m).

        On the CPU the rows are grouped by action and each group meets only its action's weights: a share 1/A of the
        arithmetic of all actions. On a GPU, the sizes of the groups would have to be waited for: all are computed.
        """
        if features.device.type != "cpu":
            return self._taken_of_all(features, action)
        order = action.argsort()
        sizes = torch.bincount(action, minlength=self.num_actions).tolist()
        groups = torch.split_with_sizes(features.index_select(0, order), sizes)
        values = [F.linear(x, w, b) for x, w, b in zip(groups, self.weight, self.bias, strict=True)]
        return torch.cat(values).index_select(0, order.argsort())

    def _taken_of_all(self, features: Tensor, action: Tensor) -> Tensor:
        index = action[:, None, None].expand(-1, self.num_tasks, 1)
        return self.all_actions(features).gather(2, index).squeeze(2)

    @in_float32
    def mean(self, features: Tensor) -> Tensor:
        """Return the mean of psi(x, a) over actions, (N, k) to (N, m): linear, so the weights are averaged first."""
        return F.linear(features, self.weight.mean(0), self.bias.mean(0))

    def backed_up(self, features: Tensor, backup: Backup) -> Tensor:
        """Return `losses.backed_up` of all actions' values, (N, k) to (N, m); the mean at a share 1/A of the cost."""
        return self.mean(features) if backup == "mean" else backed_up(self.all_actions(features), backup)
