"""Settings of `pvn pretrain` that all methods share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from protovalue.config import MOST_THREADS, flag, require


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """What all methods share. A field left at None is set by the preset, to the value in brackets."""

    out: Path
    """Folder of the run; the encoder is written to OUT/encoder."""
    data: tuple[Path, ...] = ()
    """Data set; several folders are used as one."""
    env: str | None = None
    """Environment, in place of a data set (method random only)."""
    method: str = "pvn"
    """What to learn: pvn, cumulants, spr, bc, reward, laplacian, random (docs/methods.md) or a Python file of yours."""
    preset: Literal["paper", "small"] = "small"
    """Where unset values come from: the paper's, or values for a small machine (docs/results.md)."""
    encoder: Literal["impala", "nature", "minatar"] | None = None
    """Architecture of the encoder [impala; MinAtar: minatar]."""
    width: int | None = None
    """Multiplier of the encoder's channels and features [paper 8, small 1]."""
    steps: int | None = None
    """Gradient steps [paper 1,562,500; small 10,000, MinAtar 5,000]."""
    batch_size: int | None = None
    """Transitions in a batch [256]."""
    learning_rate: float | None = None
    """Adam's step size [1e-4; small MinAtar 1e-3]."""
    adam_epsilon: float = 1.5e-4
    """Adam's epsilon; its betas are 0.9 and 0.999."""
    seed: int = 0
    """Seed of the encoder, of what the method draws and of the order of the data."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes CUDA where there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the network; auto is bfloat16 on CUDA and float32 on a CPU."""
    compile: bool = False
    """Compile the network with torch.compile."""
    threads: int | None = None
    """CPU threads of the network [PyTorch's choice; small MinAtar 1]."""
    memory: int = 2048
    """Most memory for decoded frames and prefetched batches [MiB]."""
    log_every: int = 100
    """Steps between log lines."""
    checkpoint_every: int = 1000
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        for name in ("width", "steps", "batch_size", "threads", "log_every", "checkpoint_every", "memory"):
            value = getattr(self, name)
            low = 0 if name == "steps" else 1
            require(value is None or value >= low, flag(name), value, f"at least {low}")
        require(
            self.learning_rate is None or self.learning_rate > 0, "--learning-rate", self.learning_rate, "more than 0"
        )
        require(self.adam_epsilon >= 0, "--adam-epsilon", self.adam_epsilon, "0 or more")
        require((self.threads or 1) <= MOST_THREADS, "--threads", self.threads, f"at most {MOST_THREADS:,}")
        require(self.seed >= 0, "--seed", self.seed, "0 or more")


TRAINING = (
    "steps", "batch_size", "learning_rate", "adam_epsilon", "precision", "compile", "memory", "log_every",
    "checkpoint_every",
)  # fmt: skip
"""Fields of pretraining that say how gradient steps are taken."""
