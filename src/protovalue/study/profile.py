"""A device that is not here, as a small file says it: peak and achieved rate, memory, price."""

import math
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Literal

from protovalue.errors import UserError, unknown
from protovalue.schema import checked, require
from protovalue.study.lines import Source

_SUFFIX = ".toml"


@dataclass(frozen=True)
class Peak:
    """Floating-point operations that the device can do at best, in TFLOP/s: dense, as its data sheet says."""

    float32: float
    bfloat16: float | None = None
    """None where it is no quicker than float32."""

    def __post_init__(self) -> None:
        _positive("float32", self.float32)
        if self.bfloat16 is not None:
            _positive("bfloat16", self.bfloat16)


@dataclass(frozen=True)
class Profile:
    """One device with its share of a host."""

    name: str
    memory_gib: float
    """Of the device [GiB]."""
    price_per_hour: float
    """In whatever currency; 0 is free."""
    peak_tflops: Peak
    achieved: float
    """Share of the peak that a whole step of training achieves."""
    step_ms: float
    """Least time of one step of training or of acting, however small its networks [ms]."""
    read_gb_per_second: float
    """Frames that the host decodes and copies to the device [GB/s]."""
    env_steps_per_second: float
    """Agent steps of an environment on one core of the host."""
    precision: Literal["bfloat16", "float32"] = field(default="bfloat16")
    """Arithmetic of pretraining."""

    def __post_init__(self) -> None:
        for name in ("memory_gib", "step_ms", "read_gb_per_second", "env_steps_per_second"):
            _positive(name, getattr(self, name))
        good = math.isfinite(self.price_per_hour) and self.price_per_hour >= 0
        require(good, "price_per_hour", self.price_per_hour, "0 or more")
        require(0 < self.achieved <= 1, "achieved", self.achieved, "more than 0 and at most 1")
        known = self.precision == "float32" or self.peak_tflops.bfloat16 is not None
        require(known, "peak_tflops.bfloat16", None, "a number, or precision = 'float32'")

    def flops_per_second(self, precision: str) -> float:
        """Return the rate of a whole step in a precision."""
        peak = self.peak_tflops.bfloat16 if precision == "bfloat16" else None
        return 1e12 * self.achieved * (peak or self.peak_tflops.float32)


def _positive(name: str, value: float) -> None:
    require(math.isfinite(value) and value > 0, name, value, "more than 0")


def shipped() -> list[str]:
    """Name the profiles of this package."""
    found = (path.name for path in (files("protovalue.study") / "profiles").iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))


def load_profile(given: str) -> Profile:
    """Read a profile of this package by its name, or a file of the user's by its path."""
    if given in shipped():
        name, text = given, (files("protovalue.study") / "profiles" / f"{given}{_SUFFIX}").read_text(encoding="utf-8")
    elif Path(given).is_file():
        try:
            name, text = given, Path(given).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{given}: not TOML: it is not text in UTF-8") from None
    elif given.endswith(_SUFFIX) or "/" in given:
        raise UserError(f"--on: found no file {given}, expected one of {', '.join(shipped())} or a TOML file of yours")
    else:
        raise UserError(f"--on: {unknown('profile', given, shipped())}")
    return checked(Profile, Source(name, text).values, name)
