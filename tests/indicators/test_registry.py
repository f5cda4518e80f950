"""Indicators by name, and the document's own indicator, which is run as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import protovalue.indicators.hashing
import protovalue.indicators.random_network
from protovalue.errors import UserError
from protovalue.indicators.base import INDICATORS, Indicator, register
from protovalue.indicators.registry import (
    indicator_class,
    indicator_from_config,
    load_indicator_file,
    make_indicator,
)
from protovalue.user_code import module_name

DOCUMENT = Path(__file__).parents[2] / "docs" / "adding-an-indicator.md"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def _names_are_put_back() -> object:
    before = dict(INDICATORS)
    yield
    INDICATORS.clear()
    INDICATORS.update(before)


def test_names_are_found_in_the_folder_without_an_import() -> None:
    code = (
        "from protovalue.indicators.registry import indicator_class\n"
        "print(indicator_class('rni').__name__, indicator_class('hash').__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["RandomNetworkIndicator", "HashIndicator"]


def test_the_document_s_indicator_works(tmp_path: Path) -> None:
    definition, use = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    path = tmp_path / "bright_pixel.py"
    path.write_text(definition)
    load_indicator_file(path)
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


def test_unknown_names_and_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown indicator 'rnj': did you mean 'rni'"):
        indicator_class("rnj")
    with pytest.raises(UserError, match="unknown option of indicator 'rni' 'task_per_module': did you mean 'tasks_per"):
        make_indicator("rni", (1, 10, 10), 5, 0.1, generator(), task_per_module=3)
    with pytest.raises(UserError, match="unknown option of indicator 'hash' 'hidden'"):
        make_indicator("hash", (1, 10, 10), 5, 0.1, generator(), hidden=True)
    with pytest.raises(UserError, match=r"nothing.py: found no such file"):
        load_indicator_file(tmp_path / "nothing.py")
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(UserError, match=r"empty.py: found no indicator in it"):
        load_indicator_file(tmp_path / "empty.py")
    (tmp_path / "notes.txt").write_text("x = 1\n")
    with pytest.raises(UserError, match=r"notes.txt: found a file that is no Python code"):
        load_indicator_file(tmp_path / "notes.txt")


CONSTANT = """
from protovalue.indicators.base import Indicator, register
@register("constant")
class Constant(Indicator):
    def __init__(self, observation_shape, num_tasks, proportion, generator, value=1.0):
        super().__init__(observation_shape, num_tasks, proportion, value=value)
    def scores(self, obs):
        return obs.new_full((len(obs), self.num_tasks), self.options["value"], dtype=obs.float().dtype)
"""


def test_a_users_indicator_is_tuned_unless_it_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "constant.py").write_text(CONSTANT)
    load_indicator_file(tmp_path / "constant.py")
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


def test_a_users_file_may_be_loaded_again(tmp_path: Path) -> None:
    (tmp_path / "constant.py").write_text(CONSTANT)
    for _ in range(2):
        load_indicator_file(tmp_path / "constant.py")
    assert INDICATORS["constant"].__module__ == module_name(tmp_path / "constant.py")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "constant.py").write_text(CONSTANT)  # the same name, but another file
    with pytest.raises(UserError, match="indicator name 'constant': found it in"):
        load_indicator_file(tmp_path / "other" / "constant.py")


def test_a_file_that_only_imports_an_indicator_registers_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that import is the first, so that the table of names grows."""
    hashing = "protovalue.indicators.hashing"
    monkeypatch.setattr(protovalue.indicators, "hashing", sys.modules[hashing])  # put back at the end
    monkeypatch.delitem(sys.modules, hashing)
    del INDICATORS["hash"]
    (tmp_path / "imports.py").write_text(f"from {hashing} import HashIndicator\n")
    with pytest.raises(UserError, match=r"imports.py: found no indicator in it"):
        load_indicator_file(tmp_path / "imports.py")
    assert "hash" in INDICATORS


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


def test_two_indicators_cannot_share_a_name() -> None:
    indicator_class("hash")
    with pytest.raises(UserError, match="indicator name 'hash': found it in"):

        @register("hash")
        class Other(Indicator):
            pass
