"""The online loop on a rigged encoder and environment: seeds that never mix, and options that all matter."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.envs.options import EnvOptions
from protovalue.envs.registry import make
from protovalue.online.agent import Rule
from protovalue.online.linear_dqn import LinearDqn
from protovalue.online.loop import train
from protovalue.runs import read_metrics
from tests.online.rigged import CORRIDOR, config, learned, numbers, one_hot, run


@pytest.mark.parametrize(
    "options",
    [{}, {"double": True, "n_step": 3}, {"prioritised": True}, {"head": "c51", "atoms": 7}],
)
def test_three_seeds_together_are_three_seeds_alone_number_for_number(tmp_path: Path, options: dict[str, Any]) -> None:
    together = learned(run(config(tmp_path / "all", **options)))
    for s in range(3):
        path = run(config(tmp_path / str(s), seeds=str(s), **options))
        alone = learned(path)
        for name in ("agent.theta", "agent.target", "agent.exp_avg", "agent.exp_avg_sq"):
            np.testing.assert_array_equal(together[name][s : s + 1], alone[name])
        rows = {row["step"]: row for row in numbers(tmp_path / "all")}
        for row in numbers(path):
            assert rows[row["step"]].get(f"return/seed-{s}") == row.get("return")
        for name in ("items", "codes", "rewards"):
            array = np.fromfile(path / "replay" / f"{name}.bin", np.uint8)
            whole = np.fromfile(tmp_path / "all" / "replay" / f"{name}.bin", np.uint8)
            size = 60 + 88 + 1  # slots of a seed: capacity, slack, the open one
            width = {"items": 14, "codes": 1, "rewards": 2}[name]
            start = s * size * width
            np.testing.assert_array_equal(whole[start : start + len(array)], array)


@pytest.mark.parametrize("options", [{"hidden": (5,)}, {"env": "minatar/breakout", "finetune": True}])
def test_sums_in_another_order_differ_in_the_last_bits_only(tmp_path: Path, options: dict[str, Any]) -> None:
    """Networks whose sums are not exact, as features of a real encoder: the batch's size may change their order."""
    together = learned(run(config(tmp_path / "all", steps=60, learning_rate=1e-3, **options)))
    for s in range(3):
        alone = learned(run(config(tmp_path / str(s), steps=60, learning_rate=1e-3, seeds=str(s), **options)))
        np.testing.assert_allclose(together["agent.theta"][s : s + 1], alone["agent.theta"], rtol=0, atol=1e-4)


def test_agents_learn_to_walk_to_the_right(tmp_path: Path) -> None:
    path = run(config(tmp_path / "r", steps=1000))
    returns = [row["return"] for row in read_metrics(path) if "return" in row]
    assert np.mean(returns[:3]) < -0.3
    assert np.mean(returns[-3:]) > -0.1  # the best policy takes four or five steps of -.25, less with gusts, and then 1


@pytest.mark.parametrize(
    "change",
    [
        {"n_step": 3}, {"double": True}, {"updates": 2}, {"update_every": 2}, {"huber": True}, {"head": "c51"},
        {"prioritised": True}, {"hidden": (8,)}, {"clip_rewards": False}, {"epsilon": 0.5}, {"epsilon_start": 0.2},
        {"epsilon_steps": 10}, {"gamma": 0.5}, {"max_gradient_norm": 0.01}, {"target_every": 40}, {"replay_size": 30},
        {"replay_min": 40}, {"batch_size": 4}, {"adam_epsilon": 0.1}, {"learning_rate": 0.01}, {"finetune": True},
        {"replay_dtype": "float32"},
    ],
)  # fmt: skip
def test_every_option_changes_something(tmp_path: Path, change: dict[str, Any]) -> None:
    # Seaquest is left out: MinAtar's rewards are never beyond 1 there. The corridor pays 1, and -.25 for a step.
    settings = {"steps": 120, "seeds": "0", "env": CORRIDOR}
    if "finetune" in change:
        settings["env"] = "minatar/breakout"
    if "clip_rewards" in change:
        settings["env"] = "gym/Counting-v0"  # rewards up to 4
    if "replay_dtype" in change:
        path = run(config(tmp_path / "half", **settings))
        assert (path / "replay" / "items.bin").stat().st_size < (
            run(config(tmp_path / "float", **{**settings, **change})) / "replay" / "items.bin"
        ).stat().st_size
        return
    if "clip_rewards" in change:
        settings["options"] = EnvOptions(stack=1)
        first, second = (
            make_counting(tmp_path / name, **{**settings, **changes}) for name, changes in (("a", {}), ("b", change))
        )
    else:
        first, second = (
            learned(run(config(tmp_path / name, **{**settings, **changes})))["agent.theta"]
            for name, changes in (("a", {}), ("b", change))
        )
    assert first.shape != second.shape or not np.array_equal(first, second)


def make_counting(path: Any, **settings: Any) -> Any:
    """Train on the counting environment, whose frames are rows of three numbers."""
    chosen = config(path, **settings)
    env = make(chosen.env, 1)
    loop_agent = LinearDqn(Rule.of(chosen), (0,), env.num_actions, one_hot((1, 1, 3)), 1.0)
    network: Any = loop_agent.encoder.encoder
    network.forward = lambda obs: (obs.flatten(1) > 0).float()
    train(chosen, {}, env, loop_agent, quiet=True)
    return learned(path)["agent.theta"]
