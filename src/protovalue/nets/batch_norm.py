"""Batch normalisation over the whole batch, also where several processes have a part of it each."""

import torch
from torch import Tensor, nn

from protovalue.distributed.group import ranks, summed


class BatchNorm(nn.BatchNorm2d):
    """PyTorch's layer; in training, with equal parts of a batch in several processes, mean and variance are of all.

    PyTorch's own SyncBatchNorm does the same, on GPUs alone.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (N, C, H, W) per channel."""
        count = ranks().count
        if count == 1 or not self.training:
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        given = x.to(torch.float32)
        mean = summed(given.mean(dim=(0, 2, 3))) / count
        centred = given - mean[:, None, None]
        variance = summed(centred.square().mean(dim=(0, 2, 3))) / count
        with torch.no_grad():
            size = count * x.numel() // x.shape[1]
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (size / (size - 1)), self.momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(x.dtype)
