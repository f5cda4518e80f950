"""`make demo`: what there is, from an empty folder to an encoder and a page."""

from protovalue.config import CollectConfig, DataInfoConfig, DataVerifyConfig, DemoConfig, TabularConfig
from protovalue.data.collect import collect_command
from protovalue.data.info import info, verify
from protovalue.pretrain.loop import pretrain_command
from protovalue.pretrain.pvn import PvnConfig
from protovalue.tabular.command import tabular


def demo(config: DemoConfig) -> None:
    """Show the theory on Four Rooms, collect experience, and pretrain a proto-value network on it."""
    out = config.out
    print("\n== Four Rooms: proto-value functions and the paper's theorem, exactly")
    tabular(TabularConfig(out=out / "four-rooms", world="four-rooms"))

    for env, steps, seed in (("minatar/space_invaders", 50_000, 0), ("atari/Pong", 2_000, 0)):
        name = env.replace("/", "-").lower()
        data = out / "data" / name
        print(f"\n== {env}: {steps:,} steps of a random policy")
        collect_command(CollectConfig(env, data, steps=steps, seed=seed))
        verify(DataVerifyConfig(data))
        info(DataInfoConfig((data,), picture=out / f"{name}.png"))

    print("\n== a proto-value network for Space Invaders, compared with rollouts that it has not seen")
    held_out = CollectConfig("minatar/space_invaders", out / "data" / "held-out", steps=10_000, seed=1)
    collect_command(held_out)
    run = PvnConfig(
        out=out / "pvn",
        data=(out / "data" / "minatar-space_invaders",),
        holdout=(held_out.out,),
        steps=2_000,
        cache=out / "cache",
    )
    pretrain_command(run)
    print(f"\nopen {out / 'four-rooms' / 'index.html'} in a browser; the encoder is in {run.out / 'encoder'}")
