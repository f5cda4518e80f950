"""`pvn collect`: experience of a random policy, or of a DQN in training."""

import sys
from pathlib import Path

from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import open_dataset
from protovalue.online.config import DqnConfig
from protovalue.presets import resolved


def collect_command(config: CollectConfig) -> None:
    """Collect, and say what there is now."""
    if config.policy == "random":
        data = collect(config)
        then = f"look at it: pvn data info {config.out} --picture frames.png"
    else:
        agent = config.out.with_name(f"{config.out.name}-agent")
        _record_training(config, agent)
        data = open_dataset(config.out)
        then = f"the agent: pvn evaluate {agent}; its iterations: pvn data info {config.out}"
    print(f"{config.out}: {data.num_transitions:,} transitions of {data.env_id} in {data.num_episodes:,} episodes")
    print(then)


def _record_training(config: CollectConfig, agent: Path) -> None:
    """Train a DQN in the folder `agent` and keep all of its transitions."""
    from protovalue.online.dqn import act_and_train  # here and not above, because it imports torch

    seeds = str(config.seed)
    training = DqnConfig(
        env=config.env, out=agent, record=config.out, steps=config.steps, seeds=seeds, options=config.options
    )
    first = resolved(training, config.env).first_update
    if config.steps < first:
        print(
            f"--steps: found {config.steps:,}, and the DQN makes its first update after step {first:,}: ALL OF THIS IS "
            f"RANDOM PLAY (`pvn dqn --record` has --replay-min and the rest of its settings)",
            file=sys.stderr,
        )
    act_and_train(training)
