"""`pvn collect`: experience of a random policy, or of a DQN in training."""

from pathlib import Path

from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import Dataset, open_dataset
from protovalue.online.config import DqnConfig


def collect_command(config: CollectConfig) -> None:
    """Collect, and say what there is now."""
    data = collect_as(config)
    then = f"look at it: pvn data info {config.out} --picture frames.png"
    if config.policy == "dqn":
        then = f"the agent: pvn evaluate {_agent(config)}; its iterations: pvn data info {config.out}"
    print(f"{config.out}: {data.num_transitions:,} transitions of {data.env_id} in {data.num_episodes:,} episodes")
    print(then)


def collect_as(config: CollectConfig, quiet: bool = False) -> Dataset:
    """Collect with the policy that `config` names; return the data set."""
    if config.policy == "random":
        return collect(config, quiet)
    from protovalue.online.dqn import train_dqn  # here and not above, because it imports torch

    out, seeds = _agent(config), str(config.seed)
    training = DqnConfig(
        env=config.env, out=out, record=config.out, steps=config.steps, seeds=seeds, options=config.options
    )
    train_dqn(training, quiet)
    return open_dataset(config.out)


def _agent(config: CollectConfig) -> Path:
    """Return the folder of the DQN whose training is recorded."""
    return config.out.with_name(f"{config.out.name}-agent")
