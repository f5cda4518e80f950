"""`make demo`: what there is, from an empty folder to a picture."""

from protovalue.config import CollectConfig, DataInfoConfig, DataVerifyConfig, DemoConfig
from protovalue.data.collect import collect_command
from protovalue.data.info import info, verify


def demo(config: DemoConfig) -> None:
    """Collect a MinAtar and an Atari data set with a random policy, verify them and draw some of their frames."""
    for env, steps in (("minatar/space_invaders", 50_000), ("atari/Pong", 5_000)):
        name = env.replace("/", "-").lower()
        data = config.out / "data" / name
        print(f"\n== {env}: {steps:,} steps of a random policy")
        collect_command(CollectConfig(env, data, steps=steps))
        verify(DataVerifyConfig(data))
        info(DataInfoConfig((data,), picture=config.out / f"{name}.png"))
