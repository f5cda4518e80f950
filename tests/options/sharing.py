"""The options of the commands that give things to others: the Hub, the zoo, Minari, copies."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

from protovalue.card import read_results
from protovalue.files import read_json
from tests.hub_server import Hub, connected
from tests.options.world import Check, World, both, contents, made, refused


def _push(world: World, words: str, encoder: str = "{encoder}", to: str = "hf://me/x") -> tuple[Hub, dict[str, bytes]]:
    """Push to a server of its own; return it with what is there then."""
    with connected(world.patch, world["out"]) as hub, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Use 'content=", DeprecationWarning)  # huggingface_hub's own, in uploads
        world.good(f"push {encoder} {to} {words}")
        ((_, files),) = hub.repo(to.removeprefix("hf://")).commits
        return hub, files


@made("encoder")
def _encoder(world: World) -> Path:
    words = "--tasks 2 --steps 2 --batch-size 8"
    return world.good(f"pretrain --data {{breakout}} --out {{out}} {words}").out


@made("other encoder")
def _other_encoder(world: World) -> Path:
    return world.good("pretrain --method random --env minatar/breakout --out {out}").out


@made("evaluated")
def _evaluated(world: World) -> Path:
    run = world.good("online --encoder {encoder} --steps 25 --replay-min 20 --out {out}").out
    world.good(f"evaluate {run} --episodes 1")
    return run


@made("picture")
def _picture(world: World) -> Path:
    file: Path = world["out"].with_suffix(".png")
    file.write_bytes(b"\x89PNG\r\n\x1a\nmine")
    return file


PUSH = "--license mit --picture {picture}"


def _push_encoder(world: World) -> None:
    name = "model.safetensors"
    assert _push(world, PUSH)[1][name] == (world["encoder"] / "encoder" / name).read_bytes()
    assert _push(world, PUSH, "'{other encoder}'")[1][name] != _push(world, PUSH)[1][name]


def _push_to(world: World) -> None:
    hub, _ = _push(world, PUSH, to="hf://me/other")
    assert set(hub.repos) == {"models/me/other"}
    refused("push {encoder} me/other --license mit", "expected hf://ORG/NAME")(world)


def _push_license(world: World) -> None:
    for licence in ("mit", "cc-by-4.0"):
        files = _push(world, PUSH.replace("mit", licence))[1]
        assert f"license: {licence}\n" in files["README.md"].decode()


def _push_runs(world: World) -> None:
    assert "results.json" not in _push(world, PUSH)[1]
    files = _push(world, f"{PUSH} --runs {{evaluated}}")[1]
    assert json.loads(files["results.json"])["results"][0]["episodes"] == 1
    refused(f"push '{{other encoder}}' hf://me/x {PUSH} --runs {{evaluated}}", "found agents on another encoder")(world)


def _push_picture(world: World) -> None:
    assert _push(world, PUSH)[1]["features.png"].endswith(b"mine")
    assert not _push(world, "--license mit")[1]["features.png"].endswith(b"mine")


def _push_private(world: World) -> None:
    assert [_push(world, words)[0].repo("me/x").private for words in (PUSH, f"{PUSH} --private")] == [False, True]


def _zoo_make(world: World) -> None:
    """A study has three seeds of one method, and a DQN."""
    out = world.good("zoo make {runs} --methods random --out {out}").out
    assert read_results(out / "minatar/breakout/random")
    made_by = read_json(out / "index.json")["made_by"]
    assert made_by.endswith(f"--methods random --out {out}")
    refused("zoo make {encoder} --methods random --out {out}", "no finished, evaluated run")(world)


def _zoo_seed(world: World) -> None:
    name = "minatar/breakout/random/model.safetensors"
    outs = [world.good(f"zoo make {{runs}} --methods random --out {{out}} --seed {seed}").out for seed in (0, 1)]
    assert (outs[0] / name).read_bytes() != (outs[1] / name).read_bytes()


def _zoo_list(world: World) -> None:
    world.patch.setenv("PROTOVALUE_ZOO", str(world.good("zoo make {runs} --methods random --out {out}").out))
    card = world.good("zoo list minatar/breakout/random").printed
    assert card.startswith("# Encoder for minatar/breakout: random")
    assert world.good("zoo list").printed != card


def _copy(world: World) -> None:
    ran = world.good("import copy {breakout} --out {out}")
    assert contents(ran) == contents(replace(ran, out=world["breakout"]))
    refused("import copy {nowhere} --out {out}", "not found")(world)


@made("nowhere")
def _nowhere(world: World) -> Path:
    place: Path = world["out"]
    return place


EXPORT = "export minari {seaquest} --out {out}"


def _export_name(world: World) -> None:
    out = world.good(f"{EXPORT} --name some/thing-v7").out
    assert json.loads((out / "data/metadata.json").read_text())["dataset_id"] == "some/thing-v7"
    refused(f"{EXPORT} --name 'some thing'", "--name: found 'some thing'")(world)


def _export_data(world: World) -> None:
    ran, other = world.good(EXPORT), world.good(EXPORT.replace("seaquest", "breakout"))
    sizes = [json.loads((one.out / "data/metadata.json").read_text())["total_steps"] for one in (ran, other)]
    assert sizes == [200, 400]


CHECKS: dict[tuple[str, str], Check] = {
    ("push", "encoder"): _push_encoder,
    ("push", "to"): _push_to,
    ("push", "license"): both(_push_license, refused("push {encoder} hf://me/x", "--license: missing")),
    ("push", "runs"): _push_runs,
    ("push", "picture"): _push_picture,
    ("push", "private"): _push_private,
    ("zoo make", "study"): _zoo_make,
    ("zoo make", "methods"): both(
        _zoo_make, refused("zoo make {runs} --methods dqn --out {out}", "--methods: dqn trains agents end to end")
    ),
    ("zoo make", "out"): _zoo_make,
    ("zoo make", "seed"): _zoo_seed,
    ("zoo list", "name"): _zoo_list,
    ("import copy", "source"): _copy,
    ("import copy", "out"): both(_copy, refused("import copy {breakout} --out {seaquest}", "--out: ")),
    ("export minari", "data"): _export_data,
    ("export minari", "out"): both(_export_data, refused("export minari {seaquest} --out {breakout}", "--out: ")),
    ("export minari", "name"): _export_name,
}
