"""Settings of `pvn pretrain` that all methods share."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from protovalue.config import (
    COUNT,
    INPUT,
    LENGTH,
    MACHINE,
    NOT_NEGATIVE,
    PLACE,
    POSITIVE,
    PRESET,
    RESULT,
    SEED,
    SUBJECT,
    THREAD_COUNT,
    THREADS,
    TRAINING,
    USUAL,
    WIDTH,
    Later,
    Settings,
    require,
)
from protovalue.own_options import OwnOptions
from protovalue.presets import PRETRAIN, Presets


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(Settings):
    """What all methods share."""

    presets: ClassVar[tuple[Presets, ...]] = (PRETRAIN,)
    old_flags: ClassVar[Mapping[str, str]] = {"--encoder": "--architecture"}
    chosen_by: ClassVar[str] = "--method"

    out: Annotated[Path, PLACE]
    """Folder of the run; the encoder is written to OUT/encoder."""
    data: Annotated[tuple[Path, ...], INPUT] = ()
    """Data set; several folders are used as one."""
    env: Annotated[str | None, SUBJECT] = None
    """Environment, in place of a data set (method random only)."""
    method: Annotated[str, SUBJECT] = "pvn"
    """What to learn: pvn, cumulants, spr, bc, reward, laplacian, contrastive, rldp, tdjepa, random, or a Python file of
    yours (docs/methods.md)."""
    preset: Annotated[Literal["paper", "small"], RESULT, USUAL] = "small"
    """Where unset values come from: the paper's, or values for a small machine (docs/results.md)."""
    architecture: Annotated[str, RESULT, USUAL] = PRESET
    """Architecture of the encoder: impala, nature, der, minatar or a Python file of yours."""
    architecture_options: Annotated[OwnOptions, RESULT] = None
    """Options of an architecture of your own, such as depth=3 (docs/adding-an-encoder.md)."""
    width: Annotated[int | float, RESULT, WIDTH] = PRESET
    """Multiplier of the encoder's channels and features, which are rounded: 0.25, 0.5, 1, 2 ..."""
    layer_norm: Annotated[bool, RESULT, Later(False)] = PRESET
    """Normalise the features of each observation before their last activation (layer norm without parameters)."""
    steps: Annotated[int, LENGTH, NOT_NEGATIVE, TRAINING] = PRESET
    """Gradient steps."""
    batch_size: Annotated[int, RESULT, COUNT, TRAINING] = PRESET
    """Transitions in a batch."""
    learning_rate: Annotated[float, RESULT, POSITIVE, TRAINING] = PRESET
    """Adam's step size."""
    adam_epsilon: Annotated[float, RESULT, NOT_NEGATIVE, TRAINING] = PRESET
    """Adam's epsilon; its betas are 0.9 and 0.999."""
    seed: Annotated[int, SEED, NOT_NEGATIVE] = 0
    """Seed of the encoder, of what the method draws and of the order of the data."""
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], MACHINE] = "auto"
    """Where to compute; auto takes CUDA where there is one."""
    precision: Annotated[Literal["auto", "float32", "tf32", "bfloat16"], RESULT, TRAINING] = "auto"
    """Arithmetic of the network; auto is bfloat16 on CUDA and float32 elsewhere. Only CUDA has tf32 (docs/gpu.md)."""
    compile: Annotated[bool, RESULT, TRAINING] = False
    """Compile the network with torch.compile."""
    recompute_activations: Annotated[bool, MACHINE, TRAINING] = False
    """Take less memory and more time: compute activations again for the gradient (activation checkpointing)."""
    threads: Annotated[int | None, THREADS, THREAD_COUNT] = None
    """CPU threads; by default as many as pay for the size of the network and its batch."""
    processes: Annotated[int, MACHINE, THREAD_COUNT, TRAINING] = 1
    """Processes that share out every batch, on a CPU or one for each GPU (docs/distributed.md)."""
    memory: Annotated[int, MACHINE, COUNT, TRAINING] = 2048
    """Most memory for decoded frames and prefetched batches [MiB]."""
    log_every: Annotated[int, MACHINE, COUNT, TRAINING] = 100
    """Steps between log lines."""
    checkpoint_every: Annotated[int, MACHINE, COUNT, TRAINING] = 1000
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        super().__post_init__()
        good = not (self.recompute_activations and self.compile)
        require(good, "--recompute-activations", "it with --compile", "one of them")

    @classmethod
    def others(cls) -> Mapping[str, type[Settings]]:
        """Return the settings of this package's methods."""
        from protovalue.pretrain.method_configs import CONFIGS

        return CONFIGS
