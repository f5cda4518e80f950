"""Random numbers: one place makes all generators, and the bits of each stay from one version to the next."""

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import protovalue
from protovalue import randomness
from protovalue.randomness import (
    Drawn,
    Purpose,
    collection_seeds,
    entropy,
    environment_seed,
    generator_at,
    numpy_generator,
    seeded,
    throwaway,
    torch_generator,
)

ROOT = Path(protovalue.__file__).parent
MAKERS = {
    "default_rng", "Generator", "SeedSequence", "Philox", "PCG64", "PCG64DXSM", "MT19937", "SFC64", "RandomState",
    "Random", "SystemRandom", "seed", "manual_seed", "manual_seed_all", "set_state", "set_rng_state",
}  # fmt: skip


def made(source: str) -> list[str]:
    """List what a module calls to make or seed a generator."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            found += [name] if name in MAKERS else []
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            names = {module, *(alias.name for alias in node.names)}
            found += sorted(names & {"random", "numpy.random"})
    return found


def test_no_other_module_makes_a_generator() -> None:
    """`protovalue.pretrain.random` is a method's name; Python's own `random` is a global generator."""
    for path in ROOT.rglob("*.py"):
        if path != Path(randomness.__file__):
            assert made(path.read_text()) == [], path.relative_to(ROOT)


@pytest.mark.parametrize(
    "line",
    [
        "np.random.default_rng(0)",
        "numpy.random.Generator(bits)",
        "SeedSequence([seed, 1])",
        "torch.Generator().get_state()",
        "generator.manual_seed(3)",
        "torch.manual_seed(3)",
        "import random",
        "from random import choice",
        "from numpy.random import PCG64",
    ],
)
def test_a_generator_of_raw_numbers_is_seen(line: str) -> None:
    assert made(line)


def test_the_purposes_have_these_numbers() -> None:
    """Typed by hand: results are repeatable from one version to the next only while they stay."""
    steps = {"BATCH": 0, "AUGMENTATION": 1, "AHEAD": 2, "QUANTILES": 3, "OWN": 4}
    steps |= {"EXPLORE": 101, "REPLAY": 102, "REDRAW": 103, "PLAY": 104}
    once = {"ENCODER": 0, "METHOD": 1, "INVERSE": 2, "HEAD": 1000}
    environments = {"TRAINING": 1, "EVALUATION": 2}
    families = {Drawn.STEP: steps, Drawn.ONCE: once, Drawn.ENVIRONMENT: environments}
    expected = {name: (family, number) for family, numbers in families.items() for name, number in numbers.items()}
    assert {purpose.name: purpose.value for purpose in Purpose} == expected


def test_no_two_purposes_share_a_number_not_even_after_many_attempts() -> None:
    assert len(Purpose.__members__) == len(list(Purpose))  # an alias has a name but is no member of its own
    assert max(Counter(purpose.value for purpose in Purpose).values()) == 1
    steps = [number for family, number in (purpose.value for purpose in Purpose) if family is Drawn.STEP]
    assert 0 <= min(steps) <= max(steps) < randomness.RETRY


def test_a_purpose_of_another_family_is_refused() -> None:
    with pytest.raises(ValueError, match="Purpose.ENCODER: its numbers come from seeded, not from generator_at"):
        generator_at(0, Purpose.ENCODER, 0)
    with pytest.raises(ValueError, match="not from seeded"):
        seeded(0, Purpose.BATCH)
    with pytest.raises(ValueError, match="not from environment_seed"):
        environment_seed(0, Purpose.PLAY)


def pair(generator: Any) -> Any:
    return generator.integers(2**32, size=2).tolist()


def test_the_bits_of_steps() -> None:
    """Seed 7, step 11, as NumPy 2.4 draws them; Philox and the counter are what the formats promise."""
    expected = {
        Purpose.BATCH: [1794759157, 3391003184],
        Purpose.AUGMENTATION: [576296277, 1350882941],
        Purpose.AHEAD: [785481410, 3332931640],
        Purpose.QUANTILES: [834814776, 1534197444],
        Purpose.OWN: [238407249, 832161061],
        Purpose.EXPLORE: [2502825842, 4122883646],
        Purpose.REPLAY: [3497465848, 1503148537],
        Purpose.PLAY: [3063418477, 1436447554],
    }
    assert {purpose: pair(generator_at(7, purpose, 11)) for purpose in expected} == expected
    assert pair(generator_at(7, Purpose.REDRAW, 11, 1)) == [3434486422, 1308145958]
    assert pair(generator_at(7, Purpose.REDRAW, 11, 2)) == [4186162971, 97729596]


def test_the_seeds_of_what_is_drawn_once() -> None:
    expected = {
        Purpose.ENCODER: 8460147692890830636,
        Purpose.METHOD: 3317731564112288844,
        Purpose.HEAD: 3070391556088676067,
    }
    assert {purpose: seeded(7, purpose).initial_seed() for purpose in expected} == expected
    assert torch_generator(7).initial_seed() == 7
    assert torch.rand(1, generator=throwaway()).item() == pytest.approx(0.496256589)  # PyTorch's first after seed 0


def test_seeds_of_environments_are_31_bits_and_differ_by_seed_purpose_and_which() -> None:
    assert [environment_seed(seed, Purpose.TRAINING) for seed in (0, 5)] == [1982462498, 1898245334]
    assert environment_seed(7, Purpose.TRAINING, 30) == 1379144149
    assert environment_seed(7, Purpose.EVALUATION, 5, 3) == 1917591044
    keys = ((Purpose.TRAINING,), (Purpose.EVALUATION,), (Purpose.TRAINING, 10))
    found = [environment_seed(seed, *key) for key in keys for seed in range(50)]
    assert len(set(found)) == 150
    assert all(0 <= seed < 2**31 for seed in found)
    assert max(found) > 2**30


def test_a_seed_of_one_s_own_and_its_parts() -> None:
    assert pair(numpy_generator(7)) == pair(np.random.default_rng(7)) == [4058335883, 2684764585]
    assert pair(numpy_generator(7, 2)) == [1208267292, 1193873271]
    assert pair(numpy_generator(7, 2, 1)) == [874779943, 2246760744]


def test_a_part_of_a_data_set_has_seeds_and_a_policy_of_its_own() -> None:
    seeds, policy = collection_seeds(7, 2, 3)
    assert seeds == [842701051, 693456667, 625235361]
    assert pair(policy) == [3144384105, 1893510002]


def test_what_nobody_can_foresee_differs() -> None:
    found = [*entropy(3), *entropy(3)]
    assert found[0].dtype == np.uint64
    assert len(set(found)) == 6
