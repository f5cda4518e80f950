"""The options of `pvn online`, `pvn dqn` and `pvn evaluate`."""

import json
from typing import Any

import torch

from protovalue.data.dataset import open_dataset
from protovalue.registry import ENCODERS
from protovalue.runs import read_checkpoint
from tests.options.world import (
    Check,
    Ran,
    World,
    both,
    checkpoints,
    differ,
    learned,
    logged,
    made,
    places,
    refused,
)

BASE = {
    "online": "online --encoder random:minatar:1 --env gym/Loud-v0 --out {out} --steps 60 --replay-min 20 "
    "--learning-rate 0.01",
    "dqn": "dqn --architecture minatar --env gym/Loud-v0 --out {out} --steps 60 --replay-min 20 --learning-rate 0.01 "
    "--update-every 2",
}
C51 = "--head c51"


def _out(command: str) -> Check:
    def check(world: World) -> None:
        assert {"config.json", "done.json", "metrics.jsonl"} <= set(places(world.once(BASE[command]).out))

    return check


def _seeds(command: str) -> Check:
    def check(world: World) -> None:
        rows = read_checkpoint(world.good(f"{BASE[command]} --seeds 3-4").out).tensors["agent.theta"]
        assert len(rows) == 2
        assert rows[0].tobytes() != learned(world.once(BASE[command]))

    return check


def _device(command: str) -> Check:
    def check(world: World) -> None:
        world.patch.setattr(torch.cuda, "is_available", lambda: False)
        refused(f"{BASE[command]} --device cuda", "--device: found cuda, expected cpu")(world)

    return check


def _threads(command: str) -> Check:
    def check(world: World) -> None:
        try:
            world.good(f"{BASE[command]} --threads 2")
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(1)

    return check


def _keep_replay(command: str) -> Check:
    def check(world: World) -> None:
        assert not any(name.startswith("replay/") for name in places(world.once(BASE[command]).out))
        assert "replay/items.bin" in places(world.good(f"{BASE[command]} --keep-replay").out)

    return check


def _replay_dir(command: str) -> Check:
    def check(world: World) -> None:
        ran = world.good(f"{BASE[command]} --keep-replay --replay-dir {{out}}-replay")
        assert "items.bin" in places(ran.out.with_name(f"{ran.out.name}-replay"))
        assert not any(name.startswith("replay/") for name in places(ran.out))
        assert learned(ran) == learned(world.once(BASE[command]))

    return check


def shared(command: str) -> dict[str, Check]:
    """The options that both have."""
    own = BASE[command]

    def more(flags: str, with_: str = "") -> Check:
        start = f"{own} {with_}".strip()
        return differ(start, f"{start} {flags}", learned)

    return {
        "env": differ(own, own.replace("gym/Loud-v0", "minatar/breakout"), learned),
        "out": _out(command),
        "seeds": _seeds(command),
        "preset": differ(
            own.replace(" --learning-rate 0.01", ""),
            own.replace(" --learning-rate 0.01", " --preset paper --replay-size 1000"),
            learned,
        ),
        "steps": more("--steps 62"),
        "epsilon": more("--epsilon 0.9", "--epsilon-steps 5"),
        "epsilon_start": more("--epsilon-start 0"),
        "epsilon_steps": more("--epsilon-steps 5"),
        "gamma": more("--gamma 0.5"),
        "n_step": more("--n-step 2"),
        "learning_rate": more("--learning-rate 0.02"),
        "adam_epsilon": more("--adam-epsilon 0.1"),
        "max_gradient_norm": more("--max-gradient-norm 0.001"),
        "batch_size": more("--batch-size 5"),
        "replay_min": more("--replay-min 30"),
        "replay_size": more("--replay-size 21 --checkpoint-every 5", "--checkpoint-every 5"),
        "update_every": more("--update-every 5"),
        "updates": more("--updates 2"),
        "target_every": more("--target-every 3"),
        "clip_rewards": more("--no-clip-rewards"),
        "double": more("--double", "--target-every 7"),
        "huber": both(
            more("--huber", "--no-clip-rewards"),
            refused(f"{own} {C51} --huber", "--huber: found it together with --head c51"),
        ),
        "head": more(C51),
        "atoms": both(more("--atoms 7", C51), refused(f"{own} --atoms 7", "--atoms: found 7")),
        "value_range": both(more("--value-range 3", C51), refused(f"{own} --value-range 3", "--value-range: found 3")),
        "prioritised": more("--prioritised"),
        "hidden": more("--hidden 8 8"),
        "replay_dir": _replay_dir(command),
        "keep_replay": _keep_replay(command),
        "device": _device(command),
        "threads": _threads(command),
        "log_every": differ(own, f"{own} --log-every 7", logged),
        "checkpoint_every": differ(own, f"{own} --checkpoint-every 25", checkpoints),
    }


@made("encoder")
def _encoder(world: World) -> Any:
    return world.good("pretrain --method random --data {breakout} --out {out}").out


def _other_game(world: World) -> None:
    other = "online --encoder {encoder} --env minatar/asterix --steps 30 --replay-min 20 --out {out}"
    refused(other, "--other-game allows it all the same")(world)
    world.good(f"{other} --other-game")
    refused(f"{BASE['online']} --other-game", "--other-game: found it with random:minatar:1")(world)


def _record(world: World) -> None:
    ran = world.good(f"{BASE['dqn']} --record {{out}}-data")
    assert open_dataset(ran.out.with_name(f"{ran.out.name}-data")).num_transitions == 60


def _iterations(world: World) -> None:
    refused(f"{BASE['dqn']} --iterations 3", "--iterations: found 3")(world)
    found = []
    for flags in ("", "--iterations 3"):
        ran = world.good(f"{BASE['dqn']} --record {{out}}-data {flags}")
        found.append(set(open_dataset(ran.out.with_name(f"{ran.out.name}-data")).iterations.tolist()))
    assert len(found[0]) > 3
    assert found[1] == {0, 1, 2}


@made("wide encoder")
def _wide_encoder(world: World) -> Any:
    return world.good("pretrain --method random --architecture {wide} --data {breakout} --out {out}").out


def _code(world: World) -> None:
    """Without it, an encoder of an architecture of the user's is not loaded."""
    words = "online --encoder {wide encoder} --steps 30 --replay-min 20 --out {out}"
    made = world["wide encoder"], world["wide"]
    ENCODERS.loaded.clear()
    refused(words, "config.json: unknown encoder 'wide'")(world)
    world.good(f"{words} --code {made[1]}")
    refused(f"{words} --code {made[0]}", "--code: found")(world)


def _evaluation_code(world: World) -> None:
    run = world.good("online --encoder {wide encoder} --code {wide} --steps 30 --replay-min 20 --out {out}").out
    file = world["wide"]
    ENCODERS.loaded.clear()
    refused(f"evaluate {run} --episodes 1", "config.json: unknown encoder 'wide'")(world)
    world.good(f"evaluate {run} --episodes 1 --code {file}")


DEEP = BASE["dqn"].replace("--architecture minatar", "--architecture {wide}")
ONLINE: dict[str, Check] = {
    "encoder": differ(BASE["online"], BASE["online"].replace("minatar:1", "minatar:1:3"), learned),
    "epsilon_steps": both(
        shared("online")["epsilon_steps"],
        refused(f"{BASE['online']} --preset paper --replay-size 1000 --epsilon-steps 5", "--epsilon-steps: found 5"),
    ),
    "feature_scale": differ(BASE["online"], f"{BASE['online']} --feature-scale none", learned),
    "replay_dtype": both(
        differ(BASE["online"], f"{BASE['online']} --replay-dtype float32", learned),
        refused(f"{BASE['online']} --finetune --replay-dtype float32", "--replay-dtype: found float32"),
    ),
    "finetune": differ(BASE["online"], f"{BASE['online']} --finetune", learned),
    "other_game": _other_game,
    "code": _code,
}
DQN: dict[str, Check] = {
    "architecture": differ(
        BASE["dqn"], BASE["dqn"].replace("--architecture minatar", "--architecture nature"), learned
    ),
    "architecture_options": both(
        differ(DEEP, f"{DEEP} --architecture-options depth=1", learned),
        refused(
            f"{BASE['dqn']} --architecture-options depth=1", "unknown option of encoder 'minatar' 'depth': it has none"
        ),
    ),
    "width": differ(BASE["dqn"], f"{BASE['dqn']} --width 2", learned),
    "record": _record,
    "iterations": _iterations,
}


@made("agents")
def _agents(world: World) -> Any:
    return world.good(f"{BASE['online']} --seeds 0-1").out


@made("others")
def _others(world: World) -> Any:
    return world.good(BASE["dqn"]).out


PLAY = "evaluate {agents} --episodes 4 --num-envs 4 --out {out}"


def played(ran: Ran) -> Any:
    """Every return of every agent."""
    return [row["returns"] for row in json.loads(ran.out.read_bytes())["seeds"]]


def _evaluation_out(world: World) -> None:
    assert played(world.once(PLAY))
    world.good("evaluate {agents} --episodes 1")
    assert (world["agents"] / "evaluation.json").is_file()


def _video(world: World) -> None:
    ran = world.good(f"{PLAY} --video {{out}}.gif")
    assert ran.out.with_name(f"{ran.out.name}.gif").read_bytes().startswith(b"GIF89a")


EVALUATE: dict[str, Check] = {
    "run": differ(PLAY, PLAY.replace("{agents}", "{others}"), played),
    "episodes": differ(PLAY, PLAY.replace("episodes 4", "episodes 5"), played),
    "epsilon": differ(PLAY, f"{PLAY} --epsilon 1", played),
    "num_envs": both(
        differ(PLAY, PLAY.replace("envs 4", "envs 1"), played),
        refused(f"{PLAY} --num-envs 9", "--num-envs: found 9"),
    ),
    "seed": differ(PLAY, f"{PLAY} --seed 1", played),
    "out": _evaluation_out,
    "env": refused(f"{PLAY} --env minatar/asterix", "--env: found minatar/asterix, expected gym/Loud-v0"),
    "video": _video,
    "code": _evaluation_code,
}

CHECKS: dict[tuple[str, str], Check] = {
    **{("online", name): check for name, check in {**shared("online"), **ONLINE}.items()},
    **{("dqn", name): check for name, check in {**shared("dqn"), **DQN}.items()},
    **{("evaluate", name): check for name, check in EVALUATE.items()},
}
