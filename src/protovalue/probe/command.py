"""What `pvn probe` runs: label states, read them from every encoder's features, write and print the scores."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from protovalue.data.dataset import open_dataset
from protovalue.encoder import FrozenEncoder, load_encoder
from protovalue.envs.base import Env
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.evaluate.aggregate import Estimate, mean_interval
from protovalue.evaluate.features import features_of
from protovalue.evaluate.probe_file import FORMAT, KINDS, RESULT, VERSION, Kind, Probed, ProbeFile
from protovalue.files import make_folder, write_json
from protovalue.nets.encoders import make_encoder
from protovalue.online.linear_dqn import RANDOM, encoder_checksum, find_encoder
from protovalue.probe.config import ProbeConfig
from protovalue.probe.labels import Labelled, cells_states, player_labels
from protovalue.probe.ram import published_f1, ram_states, variables_of
from protovalue.probe.readout import Task, majority, make_task, read_frozen, read_trained
from protovalue.progress import ProgressBar
from protovalue.randomness import Purpose, seeded
from protovalue.report.rendering import plain, write_table
from protovalue.report.table import Number, Table, shown

ENVS = 8  # games that play side by side
ATARI = "atari/"
MAJORITY, SUPERVISED, INITIAL = "majority", "supervised", "random"
SAID: dict[Kind, str] = {"F1": "Weighted F1", "area": "Area under the curve"}


def probe_command(config: ProbeConfig) -> None:
    """Probe the encoders, print a table of categories and write all of it."""
    env = _environment(config)
    if config.player is None and not env.env_id.startswith(ATARI) and env.single_observation_space.dtype != np.bool_:
        raise UserError(
            f"--env: found {env.env_id}, expected an Atari game, a game whose frames are bits such as MinAtar's, or "
            "--player with a data set"
        )
    if config.player is None and env.env_id.startswith(ATARI):
        variables_of(env.env_id)  # a game without labels is refused before it is played
    encoders = list(_encoders(config, env))
    task = make_task(_states(config, env), config.seed)
    probed = list(_probed(config, task, encoders))
    categories = {kind: categories_table(task, probed, env.env_id, kind) for kind in KINDS}
    make_folder(config.out)
    for kind, table in categories.items():
        write_table(table, config.out, f"categories-{kind.lower()}")
        write_table(variables_table(task, probed, kind), config.out, f"variables-{kind.lower()}")
    found = ProbeFile(
        format=FORMAT,
        version=VERSION,
        env=env.env_id,
        feature_scale=config.feature_scale,
        states={"train": len(task.train), "stop": len(task.stop), "judge": len(task.judge)},
        variables=list(task.variables),
        probed=probed,
    )
    write_json(config.out / RESULT, asdict(found))
    print("\n".join(plain(table) for table in categories.values()), end="")
    print(f"wrote {config.out / RESULT} and the tables beside it")


def _environment(config: ProbeConfig) -> Env:
    """Make the environment that is played: from its first state on, without no-ops."""
    named, options = config.env, {}
    if named is None:
        first = next((name for name in config.encoders if not name.startswith(RANDOM)), None)
        if first is None:
            raise UserError("--env: missing, expected an environment: random initialisations do not name one")
        about = load_encoder(Path(first)).about
        named, options = str(about["env_id"]), dict(about.get("env_options", {}))
    if named.startswith(ATARI):
        options |= {"noop_max": 0, "episodic_life": False}
    return make(named, ENVS, **options)


def _encoders(config: ProbeConfig, env: Env) -> Iterator[tuple[str, str, FrozenEncoder]]:
    """Yield method, name and encoder: those that were asked for, then random ones of the same architectures."""
    shapes: dict[tuple[str, float], None] = {}
    for name in config.encoders:
        encoder = find_encoder(name, env)
        shape = _shape(name, encoder)
        shapes[shape] = None
        yield str(encoder.about.get("method") or "unknown"), name, encoder
    for architecture, width in shapes:
        for seed in range(config.random):
            name = f"{RANDOM}{architecture}:{width}:{seed}"
            if name not in config.encoders:
                yield INITIAL, name, find_encoder(name, env)


def _shape(name: str, encoder: FrozenEncoder) -> tuple[str, float]:
    """Return architecture and width."""
    if name.startswith(RANDOM):
        architecture, width = name.removeprefix(RANDOM).split(":")[:2]
        return architecture, float(width)
    made = encoder.about.get("config", {})
    return str(made["architecture"]), float(made.get("width", 1))


def _states(config: ProbeConfig, env: Env) -> Labelled:
    if config.player is not None:
        data = open_dataset(config.player)
        if data.frame_shape != env.frame_shape:
            raise UserError(f"--player: found frames {data.frame_shape}, expected {env.frame_shape} of {env.env_id}")
        return player_labels(data, config.states, env.stack)
    if env.env_id.startswith(ATARI):
        return ram_states(env, config.states, config.seed)
    return cells_states(env, config.states, config.seed)


def _probed(config: ProbeConfig, task: Task, encoders: Sequence[tuple[str, str, FrozenEncoder]]) -> Iterator[Probed]:
    yield Probed(MAJORITY, "", None, majority(task))
    with ProgressBar("probes", len(encoders) + (config.supervised > 0), "encoders") as bar:
        for method, name, encoder in encoders:
            features = torch.from_numpy(features_of(encoder.features, task.states.observations))
            scores = read_frozen(task, features, config.seed, config.epochs, config.feature_scale)
            yield Probed(method, name, encoder_checksum(encoder), scores)
            bar.advance(1)
        if config.supervised:
            _, name, encoder = encoders[0]
            architecture, width = _shape(name, encoder)
            network = make_encoder(architecture, encoder.observation_shape, width, seeded(config.seed, Purpose.ENCODER))
            scores = read_trained(task, network, encoder.num_features, config.seed, config.supervised)
            yield Probed(SUPERVISED, f"{architecture}:{width}", None, scores)
            bar.advance(1)


def categories_table(task: Task, probed: Sequence[Probed], env_id: str, kind: Kind) -> Table:
    """Make the table of mean scores by category, and over categories, with intervals over encoders."""
    categories = list(dict.fromkeys(variable.category for variable in task.variables))
    of = [[j for j, variable in enumerate(task.variables) if variable.category == name] for name in categories]
    rows = []
    for method, grid in _by_method(probed, kind).items():
        each = np.stack([grid[:, own].mean(axis=1) for own in of], axis=1)  # (encoders, categories)
        numbers = [*(mean_interval(each[:, i]) for i in range(len(categories))), mean_interval(each.mean(axis=1))]
        rows.append((Number(method), Number(f"{len(grid)}"), *(shown(number, 3) for number in numbers)))
    known = kind == "F1" and env_id.startswith(ATARI)
    landmark = published_f1().get(env_id.removeprefix(ATARI), {}) if known else {}
    note = (
        f"{SAID[kind]} on {len(task.judge):,} states of episodes that the readouts have not seen, mean over variables; "
        "in brackets Student's 95% interval over encoders. The last column is the mean over categories."
    )
    if landmark and all(variable.category != "player" for variable in task.variables):
        printed = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in landmark.items())
        note += f" A landmark, of another input (one frame of 210 x 160), as the benchmark printed: {printed}."
    title = f"What can be read from features in {env_id}: {SAID[kind][0].lower()}{SAID[kind][1:]}"
    return Table(title, ("Method", "Encoders", *categories, "mean"), tuple(rows), note)


def variables_table(task: Task, probed: Sequence[Probed], kind: Kind) -> Table:
    """Make the table of mean scores by variable."""
    methods = _by_method(probed, kind)
    rows = []
    for j, variable in enumerate(task.variables):
        numbers: list[Estimate] = [mean_interval(grid[:, j]) for grid in methods.values()]
        rows.append(
            (Number(variable.name), Number(variable.category), Number(f"{task.counts[j]}", task.counts[j]),
             *(shown(number, 3) for number in numbers))
        )  # fmt: skip
    return Table(f"{SAID[kind]} by variable", ("Variable", "Category", "Classes", *methods), tuple(rows))


def _by_method(probed: Sequence[Probed], kind: Kind) -> dict[str, NDArray[np.float64]]:
    """Return scores (encoders, variables) by method."""
    methods = dict.fromkeys(one.method for one in probed)
    return {name: np.array([one.scores.of(kind) for one in probed if one.method == name]) for name in methods}
