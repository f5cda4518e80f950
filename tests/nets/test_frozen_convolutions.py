"""The compiled forward pass of Impala, Nature and DER against PyTorch's."""

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.encoder import FrozenEncoder, load_encoder, save_encoder
from protovalue.nets.der import DerEncoder
from protovalue.nets.encoders import Encoder, Quick, make_encoder
from protovalue.nets.impala import ImpalaEncoder
from protovalue.nets.layers import planes
from protovalue.nets.nature import NatureEncoder
from protovalue.nets.tiles import LANES
from protovalue.online.agent import Rule
from protovalue.online.linear_dqn import LinearDqn

ATARI = (4, 84, 84)
ROOT = Path(__file__).parents[2]


def encoder(name: str, shape: tuple[int, ...] = ATARI, width: float = 1, readout: Any = "relu") -> Encoder:
    """Draw an encoder whose biases are not 0, as those of a trained one."""
    generator = torch.Generator().manual_seed(3)
    made = make_encoder(name, shape, width, generator)
    for parameter in made.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_(0, 0.1, generator=generator)
    made.readout = readout
    return made.requires_grad_(False)


def quick(made: Encoder) -> Quick:
    if LANES == 0:
        pytest.skip("this processor has none")
    found = made.compiled()
    assert found is not None
    return found


def observations(count: int, shape: tuple[int, ...] = ATARI) -> Any:
    """Draw pixels, with an empty and a white observation among them."""
    obs = np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)
    obs[1:2], obs[2:3] = 0, 255
    return obs


def exact(made: Encoder, obs: Any) -> Any:
    """Return what the network's sums are in double precision."""
    double = copy.deepcopy(made).double()
    with torch.inference_mode():
        latents = double.convolve(planes(torch.from_numpy(obs), made.observation_shape).double())
        sums = double.dense(latents).numpy()
    if made.readout == "normalized relu":
        sums = (sums - sums.mean(axis=1, keepdims=True)) / np.sqrt(sums.var(axis=1, keepdims=True) + 1e-5)
    return np.maximum(sums, 0)


@pytest.mark.parametrize(
    ("name", "shape", "width"),
    [
        ("impala", ATARI, 1), ("impala", ATARI, 2), ("nature", ATARI, 1), ("nature", ATARI, 2),
        ("impala", ATARI, 0.3),  # 5 and 10 channels, which do not fill a vector
        ("impala", (1, 10, 10, 4), 1), ("nature", (1, 10, 10, 4), 1), ("impala", (2, 9, 13, 3), 3),
        ("nature", (2, 9, 13, 3), 1), ("impala", (1, 1, 1), 1), ("impala", (1, 2, 30), 1), ("nature", (3, 50, 7), 0.7),
        ("der", ATARI, 1), ("der", (2, 33, 40, 3), 0.7),
    ],
)  # fmt: skip
@pytest.mark.parametrize("readout", ["relu", "normalized relu"])
def test_features_are_as_exact_as_pytorch_s(name: str, shape: tuple[int, ...], width: float, readout: str) -> None:
    """Both round some thousand additions in float32; neither may be much further from the exact sums."""
    made, obs = encoder(name, shape, width, readout), observations(4, shape)
    found, expected = quick(made)(obs), exact(made, obs)
    by_pytorch = made(torch.from_numpy(obs)).numpy()
    assert found.dtype == np.float32
    assert found.shape == (4, made.num_features)
    assert (expected > 0).any()
    error, usual = np.abs(found - expected).max(), np.abs(by_pytorch - expected).max()
    assert error < 5 * usual + 1e-6 * expected.max()
    assert usual < 1e-5 * expected.max(), "the oracle is the same network"


def test_boolean_observations_are_zeros_and_ones() -> None:
    made, obs = encoder("impala", (1, 10, 10, 4)), observations(5, (1, 10, 10, 4)) < 90
    found = quick(made)(obs)
    np.testing.assert_allclose(found, exact(made, obs), rtol=0, atol=1e-5 * found.max())


@pytest.mark.parametrize(
    ("name", "readout"), [("impala", "relu"), ("nature", "relu"), ("der", "relu"), ("der", "normalized relu")]
)
@pytest.mark.parametrize("width", [1, 2])
def test_features_depend_on_the_observation_alone(name: str, readout: str, width: int) -> None:
    """Not on the batch, nor on what the same buffers held before, nor on the number of threads."""
    made, obs = quick(encoder(name, width=width, readout=readout)), observations(27)
    whole = made(obs)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for count in (1, 3, 9):
                np.testing.assert_array_equal(made(obs[-count:]), whole[-count:])
            np.testing.assert_array_equal(made(obs), whole)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(made(obs[:3, :, ::-1]), made(obs[:3, :, ::-1].copy()))


NARROW = """
import sys
import llvmlite.binding
llvmlite.binding.get_host_cpu_features = lambda: {"avx2": True, "fma": True}
from protovalue.nets import tiles
from tests.nets.test_frozen_convolutions import encoder, observations, quick
assert tiles.LANES == 8
quick(encoder("impala", (2, 19, 13), 1.5))(observations(9, (2, 19, 13))).tofile(sys.argv[1])
"""


@pytest.mark.skipif(LANES != 16, reason="is for processors of which the others can do a part")
def test_shorter_vectors_of_other_processors_give_the_same_bits(tmp_path: Path) -> None:
    environ = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma"}
    subprocess.run([sys.executable, "-c", NARROW, tmp_path / "found"], check=True, env=environ, cwd=ROOT)
    found = quick(encoder("impala", (2, 19, 13), 1.5))(observations(9, (2, 19, 13)))
    np.testing.assert_array_equal(np.fromfile(tmp_path / "found", np.float32).reshape(found.shape), found)


@pytest.mark.parametrize("name", ["impala", "nature"])
def test_features_are_the_same_bits_after_loading_from_disk(tmp_path: Path, name: str) -> None:
    made, obs = encoder(name), observations(3)
    save_encoder(tmp_path, made, name, 1, {"method": "random"}, ["# card"])
    loaded = load_encoder(tmp_path)
    np.testing.assert_array_equal(quick(loaded.encoder)(obs), quick(made)(obs))


@pytest.mark.parametrize("name", ["impala", "nature"])
def test_it_has_the_parameters_of_when_it_was_made(name: str) -> None:
    made, obs = encoder(name, (1, 10, 10)), observations(3, (1, 10, 10))
    before = quick(made)
    found = before(obs)
    for parameter in made.parameters():
        parameter.data += 1.0
    np.testing.assert_array_equal(before(obs), found)
    assert np.abs(quick(made)(obs) - found).max() > 0.5


@pytest.mark.parametrize("base", [ImpalaEncoder, NatureEncoder, DerEncoder])
def test_other_networks_have_none(base: Any) -> None:
    for part in ("forward", "project", "convolve"):
        own = type("Own", (base,), {part: lambda self, x, part=part: -getattr(base, part)(self, x)})
        assert own((1, 30, 30), 1, torch.Generator()).compiled() is None, part
    made = base((1, 30, 30), 1, torch.Generator())
    for readout in ("projection", "normalized projection"):
        made.readout = readout
        assert made.compiled() is None


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_])
def test_agents_see_by_it(dtype: Any) -> None:
    made, obs = encoder("impala", (1, 10, 10)), observations(3, (1, 10, 10)).astype(dtype)
    agent = LinearDqn(Rule(1e-3, 1e-8, 10.0, 100), (0, 1, 2), 2, FrozenEncoder(made, {}), 0.5)
    np.testing.assert_array_equal(agent.see(obs).numpy()[:, 0], quick(made)(obs) * np.float32(2))
