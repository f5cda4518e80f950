"""The options of the commands that make and show data sets."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from protovalue.data import importing
from protovalue.data.dataset import open_dataset
from protovalue.encoder import load_encoder
from tests.data.published import Ring, atari_episode, write_atari, write_rlu
from tests.data.test_import_minari import name_environment, write_minari
from tests.options.world import Check, Ran, World, both, contents, differ, made, manifest, printed, refused
from tests.released import saved

COLLECT = "collect minatar/breakout --steps 60 --num-envs 2 --out {out}"


def _collect_out(world: World) -> None:
    assert contents(world.once(COLLECT))
    refused(f"collect minatar/asterix --steps 60 --out {world.once(COLLECT).out}", "holds a data set with env_id")(
        world
    )
    refused(f"{COLLECT.format(out=world.once(COLLECT).out)} --sticky 0", "holds a data set with env_options")(world)


def _policy(world: World) -> None:
    ran = world.good("collect minatar/breakout --steps 60 --out {out} --policy dqn")
    assert contents(ran) != contents(world.once("collect minatar/breakout --steps 60 --num-envs 1 --out {out}"))
    assert (ran.out.with_name(f"{ran.out.name}-agent") / "done.json").is_file()


def _picture(world: World) -> None:
    ran = world.good("data info {breakout} --picture {out}.png")
    assert ran.out.with_name(f"{ran.out.name}.png").read_bytes().startswith(b"\x89PNG")


def _verify(world: World) -> None:
    damaged = world.good(COLLECT).out
    raw = bytearray((damaged / "frames.bin").read_bytes())
    raw[20] ^= 1
    (damaged / "frames.bin").write_bytes(raw)
    assert ": good: " in world.good("data verify {breakout}").printed
    refused(f"data verify {damaged}", "damaged")(world)


# Imports: what the public formats hold is written by tests/data/published.py


@made("episodes")
def _episodes(world: World) -> Any:
    rng = np.random.default_rng(0)
    return write_atari(world["out"], [atari_episode(length, rng) for length in (3, 4, 5, 6, 2)])


@made("shards")
def _shards(world: World) -> Path:
    """Two runs: the first has iterations 0, 24, 25 and 49, the second iteration 0."""
    folder: Path = world["out"] / "Breakout"
    names = ("run_1-00000", "run_1-00024", "run_1-00025", "run_1-00049", "run_2-00000")
    for number, name in enumerate(names):
        write_rlu(folder / f"{name}-of-00050", world["episodes"], number, number + 1)
    return folder


@made("several")
def _several(world: World) -> Path:
    return write_rlu(world["out"] / "Breakout" / "run_1-00000-of-00050", world["episodes"])


@made("damaged shard")
def _damaged_shard(world: World) -> Path:
    good = world["several"].read_bytes()
    path: Path = world["out"] / "Breakout" / "run_1-00000-of-00050"
    path.parent.mkdir(parents=True)
    path.write_bytes(good[: len(good) - 200])
    return path


@made("nameless")
def _nameless(world: World) -> Path:
    return write_rlu(world["out"] / "run_1-00000-of-00050", world["episodes"])


@made("replay")
def _replay(world: World) -> Path:
    """Two runs of iterations 0 and 49, the first one also 24."""
    folder: Path = world["out"] / "Breakout"
    for run, numbers in ((1, (0, 24, 49)), (2, (0, 49))):
        for number in numbers:
            ring = Ring(40)
            for index in range(run + number // 24, 5):
                ring.add_episode(world["episodes"].episode(index))
            ring.save(folder / str(run) / "replay_logs", number)
    return folder


@made("damaged replay")
def _damaged_replay(world: World) -> Path:
    """Two iterations of four episodes each, of which the second cannot be read."""
    ring = Ring(40)
    for index in range(4):
        ring.add_episode(world["episodes"].episode(index))
    folder: Path = world["out"] / "Breakout" / "1" / "replay_logs"
    for number in (0, 1):
        ring.save(folder, number)
    frames = folder / "$store$_observation_ckpt.1.gz"
    frames.write_bytes(frames.read_bytes()[:-2000])
    return folder


@made("nameless replay")
def _nameless_replay(world: World) -> Path:
    ring = Ring(40)
    ring.add_episode(world["episodes"].episode(0))
    return ring.save(world["out"] / "1" / "replay_logs", 0)


def _minari(world: World, name: str, env: str = "Loud-v0") -> Path:
    world.patch.setenv("MINARI_DATASETS_PATH", str(world.root / "minari"))
    data, space = open_dataset(world["loud"]), gymnasium.make("Loud-v0")
    episodes = [data.episode(index) for index in range(4)]
    folder = write_minari(name, episodes, space.observation_space, space.action_space)
    name_environment(folder, env)
    return folder


@made("minari")
def _minari_one(world: World) -> Path:
    return _minari(world, "loud/one-v0")


@made("minari two")
def _minari_two(world: World) -> Path:
    return _minari(world, "loud/two-v0")


@made("damaged minari")
def _damaged_minari(world: World) -> Path:
    import h5py

    folder = _minari(world, "loud/damaged-v0")
    with h5py.File(folder / "main_data.hdf5", "r+") as file:
        rewards = file["episode_1/rewards"][()]
        del file["episode_1/rewards"]
        file["episode_1"].create_dataset("rewards", data=rewards, chunks=rewards.shape, fletcher32=True)
    with h5py.File(folder / "main_data.hdf5", "r") as file:
        place = file["episode_1/rewards"].id.get_chunk_info(0).byte_offset
    with (folder / "main_data.hdf5").open("r+b") as raw:
        raw.seek(place)
        raw.write(b"\xff")
    return folder


@made("minari of nothing")
def _unnamed_minari(world: World) -> Path:
    folder = _minari(world, "loud/unnamed-v0")
    fields = json.loads((folder / "metadata.json").read_text())
    del fields["env_spec"]
    (folder / "metadata.json").write_text(json.dumps(fields))
    return folder


RLU = "import rlu {shards} --out {out} --workers 1"
REPLAY = "import dqn-replay {replay} --out {out}"
MINARI = "import minari {minari} --out {out} --workers 1"


def _import_out(command: str, other: str, message: str) -> Check:
    def check(world: World) -> None:
        out = world.good(command).out
        assert open_dataset(out).num_episodes
        refused(other.replace("{out}", str(out)), message)(world)

    return check


def _workers(command: str) -> Check:
    def check(world: World) -> None:
        counts: list[int] = []

        class Spied(importing.Workers):
            def __init__(self, count: int) -> None:
                counts.append(count)
                super().__init__(1)

        world.patch.setattr(importing, "Workers", Spied)
        ran = world.good(command.replace("--workers 1", "--workers 3"))
        assert counts == [3]
        assert contents(ran) == contents(world.once(command))

    return check


def _skips(bad: str, left: int) -> Check:
    def check(world: World) -> None:
        refused(bad, "--skip-damaged leaves it out")(world)
        assert open_dataset(world.good(f"{bad} --skip-damaged").out).num_episodes == left

    return check


def atari(command: str, of_one: str, nameless: str, several: str) -> dict[str, Check]:
    """The options that the two Atari collections share."""

    def more(flags: str) -> Check:
        return differ(command, f"{command} {flags}", contents)

    return {
        "source": differ(command, of_one, contents),
        "out": _import_out(command, f"{command} --actions full", "holds a data set with env_options"),
        "split": both(
            more("--runs 1 --split mixed-small"),
            refused(f"{command} --split mixed", "--split mixed: iteration 9, 19, 29, 39 is not in the source"),
        ),
        "iterations": both(
            more("--iterations 49 --runs 1"),
            refused(f"{command} --iterations 0 --split mixed", "--iterations: found 0 beside --split mixed"),
        ),
        "runs": more("--runs 2"),
        "proportion": differ(several, f"{several} --proportion 0.5", contents),
        "game": both(
            refused(nameless, "--game: found none in the path"),
            differ(f"{nameless} --game Breakout", f"{nameless} --game Pong", manifest),
        ),
        "actions": differ(command, f"{command} --actions full", manifest),
    }


IMPORTS: dict[str, dict[str, Check]] = {
    "import rlu": {
        **atari(
            RLU,
            RLU.replace("{shards}", "{shards}/run_1-00024-of-00050"),
            RLU.replace("{shards}", "{nameless}"),
            RLU.replace("{shards}", "{several}"),
        ),
        "skip_damaged": _skips(RLU.replace("{shards}", "'{damaged shard}'"), 4),
        "workers": _workers(RLU),
    },
    "import dqn-replay": {
        **atari(
            REPLAY,
            REPLAY.replace("{replay}", "{replay}/1"),
            REPLAY.replace("{replay}", "'{nameless replay}'"),
            REPLAY.replace("{replay}", "{replay}/1"),
        ),
        "skip_damaged": _skips(REPLAY.replace("{replay}", "'{damaged replay}'"), 4),
    },
    "import minari": {
        "source": differ(MINARI, MINARI.replace("{minari}", "{minari} '{minari two}'"), contents),
        "out": _import_out(MINARI, f"{MINARI} --stack 2", "holds a data set with env_options"),
        "skip_damaged": _skips(MINARI.replace("{minari}", "'{damaged minari}'"), 3),
        "workers": _workers(MINARI),
        "env": both(
            refused(MINARI.replace("{minari}", "'{minari of nothing}'"), "names no environment, expected one such as"),
            differ(MINARI, f"{MINARI} --env gym/Louder-v0", manifest),
        ),
    },
}

ENCODER = "import encoder {savedmodel} --env atari/Pong --out {out}"


@made("savedmodel")
def _savedmodel(world: World) -> Path:
    return _saved(world, "savedmodel")


@made("savedmodel of width 1/4")
def _wider(world: World) -> Path:
    return _saved(world, "wider", 0.25)


def _saved(world: World, name: str, width: float = 0.125) -> Path:
    nodes, _ = saved.impala(width, size=20)
    return saved.write(world.root / name, saved.model(nodes, (-1, 20, 20, 4)))


def _weights(ran: Ran) -> bytes:
    return (ran.out / "model.safetensors").read_bytes()


def _encoder_env(world: World) -> None:
    refused(ENCODER.replace(" --env atari/Pong", ""), "--env: found no game in")(world)
    assert load_encoder(world.once(ENCODER.replace("Pong", "Breakout")).out).about["env_id"] == "atari/Breakout"


def _encoder_out(world: World) -> None:
    out = world.once(ENCODER).out
    assert load_encoder(out).num_features == 64
    refused(ENCODER.replace("{out}", str(out)) + " --width 0.125", "holds another encoder already")(world)


IMPORTS["import encoder"] = {
    "source": differ(ENCODER, ENCODER.replace("{savedmodel}", "'{savedmodel of width 1/4}'"), _weights),
    "out": _encoder_out,
    "env": _encoder_env,
    "input_range": differ(ENCODER, f"{ENCODER} --input-range pixels", _weights),
    "width": refused(f"{ENCODER} --width 8", "--width: found an encoder of width 0.125"),
}

CHECKS: dict[tuple[str, str], Check] = {
    ("collect", "env"): differ(COLLECT, COLLECT.replace("breakout", "asterix"), contents),
    ("collect", "out"): _collect_out,
    ("collect", "steps"): differ(COLLECT, COLLECT.replace("60", "61"), contents),
    ("collect", "policy"): _policy,
    ("collect", "num_envs"): both(
        differ(COLLECT, COLLECT.replace("envs 2", "envs 3"), contents),
        refused(f"{COLLECT} --policy dqn", "--num-envs: found 2, expected 1 with dqn"),
    ),
    ("collect", "seed"): differ(COLLECT, f"{COLLECT} --seed 1", contents),
    ("data info", "paths"): differ("data info {breakout}", "data info {breakout} {breakout again}", printed),
    ("data info", "picture"): _picture,
    ("data verify", "path"): _verify,
    **{(command, name): check for command, checks in IMPORTS.items() for name, check in checks.items()},
}


@made("breakout again")
def _breakout_again(world: World) -> Path:
    return world.good("collect minatar/breakout --steps 60 --out {out} --seed 5").out
