"""Indicators by name, and the document's own indicator, which is run as it is printed."""

import re
from pathlib import Path

import pytest
import torch

from protovalue.errors import UserError
from protovalue.indicators.base import Indicator
from protovalue.indicators.registry import indicator_from_config, make_indicator
from protovalue.registry import INDICATORS

DOCUMENT = Path(__file__).parents[2] / "docs" / "adding-an-indicator.md"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def _names_are_put_back() -> object:
    before = dict(INDICATORS.loaded)
    yield
    INDICATORS.loaded.clear()
    INDICATORS.loaded.update(before)


def test_the_document_s_indicator_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition, use = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("pixel.py").write_text(definition)
    names: dict[str, object] = {}
    exec(use, names)
    rewards, indicator, obs = names["rewards"], names["indicator"], names["obs"]
    assert isinstance(rewards, torch.Tensor)
    assert isinstance(indicator, Indicator)
    assert isinstance(obs, torch.Tensor)
    assert rewards.shape == (1000, 20)
    # 256 levels of brightness, each on about 4 of 1000 frames, hardly ever on more than 12: half of that is the most
    # by which the nearest proportion misses.
    assert (rewards.double().mean(0) - 0.05).abs().max() <= 0.006
    pixel = indicator.get_buffer("pixel").tolist()
    assert min(pixel) >= 3 * 84 * 84  # the latest of four frames
    one = rewards[:, 0]
    brightness = obs.flatten(1)[:, pixel[0]]
    assert brightness[one].min() > brightness[~one].max()


def test_unknown_names_and_options_are_named() -> None:
    with pytest.raises(UserError, match="unknown indicator 'rnj': did you mean 'rni'"):
        make_indicator("rnj", (1, 10, 10), 5, 0.1, generator())
    with pytest.raises(UserError, match="unknown option of indicator 'rni' 'task_per_module': did you mean 'tasks_per"):
        make_indicator("rni", (1, 10, 10), 5, 0.1, generator(), task_per_module=3)
    with pytest.raises(UserError, match="indicator rni: field hidden: found 3, expected true or false"):
        make_indicator("rni", (1, 10, 10), 5, 0.1, generator(), hidden=3)
    with pytest.raises(UserError, match="unknown option of indicator 'hash' 'hidden'"):
        make_indicator("hash", (1, 10, 10), 5, 0.1, generator(), hidden=True)
    with pytest.raises(UserError, match="unknown option of indicator 'hash' 'name'"):
        make_indicator("hash", (1, 10, 10), 5, 0.1, generator(), name="x")


CONSTANT = """
from protovalue.indicators.base import Indicator
class Constant(Indicator):
    def __init__(self, observation_shape, num_tasks, proportion, generator, value=1.0):
        super().__init__(observation_shape, num_tasks, proportion)
    def scores(self, obs):
        return obs.new_full((len(obs), self.num_tasks), self.options["value"], dtype=obs.float().dtype)
INDICATOR = Constant
"""


def test_a_users_indicator_is_tuned_unless_it_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "constant.py").write_text(CONSTANT)
    INDICATORS.load(str(tmp_path / "constant.py"))
    made = make_indicator("constant", (1, 3, 4), 2, 0.3, generator(), value=2.5)
    assert made.tuned_on_data
    assert made.expected_proportion == 0.3
    assert made.config() == {
        "name": "constant",
        "observation_shape": [1, 3, 4],
        "num_tasks": 2,
        "proportion": 0.3,
        "options": {"value": 2.5},
    }
    obs = torch.zeros(2, 1, 3, 4, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="'constant' has no thresholds yet"):
        made.rewards(obs)
    made.set_thresholds(torch.tensor([2.5, torch.nan]))
    with pytest.raises(RuntimeError, match="'constant' has no thresholds yet"):
        made.rewards(obs)
    made.set_thresholds(torch.tensor([2.5, 2.75]))  # fires on the threshold, not below it
    assert made.rewards(obs).tolist() == [[True, False], [True, False]]
    again = indicator_from_config(made.config(), made.state_dict())
    assert again.rewards(obs).tolist() == [[True, False], [True, False]]


@pytest.mark.parametrize("name", ["rni", "hash"])
def test_bad_numbers_are_named(name: str) -> None:
    for proportion in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(UserError, match=f"proportion: found {proportion}, expected more than 0 and less than 1"):
            make_indicator(name, (1, 10, 10), 5, proportion, generator())
    assert make_indicator(name, (1, 10, 10), 1, 0.1, generator()).num_tasks == 1
    with pytest.raises(UserError, match="number of tasks: found 0, expected at least 1"):
        make_indicator(name, (1, 10, 10), 0, 0.1, generator())
    with pytest.raises(UserError, match=r"observation shape: found \(10, 10\)"):
        make_indicator(name, (10, 10), 5, 0.1, generator())
