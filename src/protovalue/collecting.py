"""`pvn collect`: experience of a random policy, or of a DQN in training."""

import sys
from pathlib import Path

from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import Dataset, open_dataset
from protovalue.online.config import DqnConfig
from protovalue.presets import resolved
from protovalue.registry import env_again


def collect_command(config: CollectConfig) -> None:
    """Collect, and say what there is now."""
    data = collect_as(config)
    then = f"look at it: pvn data info {config.out} --picture frames.png"
    if config.policy == "dqn":
        played = f"pvn evaluate {_agent(config)}{env_again(config.env)}"
        then = f"the agent: {played}; its iterations: pvn data info {config.out}"
    print(f"{config.out}: {data.num_transitions:,} transitions of {data.env_id} in {data.num_episodes:,} episodes")
    print(then)


def collect_as(config: CollectConfig, quiet: bool = False) -> Dataset:
    """Collect with the policy that `config` names; return the data set."""
    if config.policy == "random":
        return collect(config, quiet)
    from protovalue.online.dqn import act_and_train  # here and not above, because it imports torch

    out, seeds = _agent(config), str(config.seed)
    training = DqnConfig(
        env=config.env, out=out, record=config.out, steps=config.steps, seeds=seeds, options=config.options
    )
    first = resolved(training, config.env).first_update
    if config.steps < first:
        print(
            f"--steps: found {config.steps:,}, and the DQN makes its first update after step {first:,}: ALL OF THIS IS "
            f"RANDOM PLAY (`pvn dqn --record` has --replay-min and the rest of its settings)",
            file=sys.stderr,
        )
    act_and_train(training, quiet)
    return open_dataset(config.out)


def _agent(config: CollectConfig) -> Path:
    """Return the folder of the DQN whose training is recorded."""
    return config.out.with_name(f"{config.out.name}-agent")
