"""`make demo`: what there is, from an empty folder to agents that play."""

from pathlib import Path

from protovalue.config import (
    CollectConfig,
    DataInfoConfig,
    DataVerifyConfig,
    DemoConfig,
    EvaluateConfig,
    OnlineConfig,
    TabularConfig,
)
from protovalue.data.collect import collect_command
from protovalue.data.info import info, verify
from protovalue.evaluate.episodes import evaluate_run
from protovalue.online.linear_dqn import train_online
from protovalue.pretrain.loop import pretrain_command
from protovalue.pretrain.pvn import PvnConfig
from protovalue.tabular.command import tabular

GAME = "minatar/space_invaders"
AGENT_STEPS, EPISODES = 15_000, 30


def demo(config: DemoConfig) -> None:
    """Show the theory, collect experience, pretrain a proto-value network, let linear agents play on its features."""
    out = config.out
    print("\n== Four Rooms: proto-value functions and the paper's theorem, exactly")
    tabular(TabularConfig(out=out / "four-rooms", world="four-rooms"))

    for env, steps in ((GAME, 50_000), ("atari/Pong", 2_000)):
        print(f"\n== {env}: {steps:,} steps of a random policy")
        data = out / "data" / _name(env)
        collect_command(CollectConfig(env, data, steps=steps))
        verify(DataVerifyConfig(data))
        info(DataInfoConfig((data,), picture=out / f"{_name(env)}.png"))

    print(f"\n== a proto-value network for {GAME}, compared with rollouts that it has not seen")
    held_out = CollectConfig(GAME, out / "data" / "held-out", steps=10_000, seed=1)
    collect_command(held_out)
    run = PvnConfig(
        out=out / "pvn",
        data=(out / "data" / _name(GAME),),
        holdout=(held_out.out,),
        steps=3_000,
        cache=out / "cache",
    )
    pretrain_command(run)

    print(f"\n== what the features are worth: linear agents, three seeds, {AGENT_STEPS:,} steps each")
    scores = {
        "proto-value network": _agents(str(run.out), out / "online-pvn", out / "episode.gif"),
        "random initialisation": _agents("random:minatar:1:0", out / "online-random", None),
    }
    print(f"\nmean return of {EPISODES} episodes, by seed of the agent, on one encoder each:")
    for name, returns in scores.items():
        print(f"  {name:<22}" + "".join(f"{value:8.2f}" for value in returns))
    print(f"\nopen {out / 'four-rooms' / 'index.html'} in a browser; an episode is in {out / 'episode.gif'}")


def _agents(encoder: str, out: Path, video: Path | None) -> list[float]:
    """Train linear agents on an encoder and return the mean return of each in evaluation."""
    train_online(OnlineConfig(encoder=encoder, env=GAME, out=out, seeds="0-2", steps=AGENT_STEPS))
    result = evaluate_run(EvaluateConfig(out, episodes=EPISODES, video=video))
    return [row["mean_return"] for row in result["seeds"]]


def _name(env: str) -> str:
    return env.replace("/", "-").lower()
