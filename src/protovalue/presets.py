"""All numbers that commands take where none is given: by stage, preset and environment, each with its source."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from protovalue.config import PRESET, Settings, flag, whole

C = TypeVar("C", bound=Settings)


class Preset:
    """Values for settings that are not given, and where they come from."""

    def __init__(self, source: str, **values: Any) -> None:
        self.source, self.values = source, values


class SameAs:
    """The value of another setting."""

    def __init__(self, name: str) -> None:
        self.name = name


Presets = Mapping[tuple[str, str], Preset]
"""By the name of the preset and the environments it is for: "*" is all, then those of small frames, then a family, then
one environment."""

LEAST, MOST = 3, 24
SMALL_FRAMES = f"frames up to {MOST}x{MOST}"
"""For whom the network of MinAtar's authors is: it needs 3 x 3 pixels, and of 24 x 24 Impala's three poolings would
leave 3 x 3, too little to say where something stands."""


def resolved(config: C, env: str, frame: Sequence[int] = ()) -> C:
    """Return `config` with every setting set, by its preset, the environment and the shape of a frame, if it is known.

    A setting that does not apply, such as the atoms of an agent without a distribution, is None.
    """
    values: dict[str, Any] = {}
    for table in config.presets:
        for preset in _for(table, getattr(config, "preset", ""), env, frame):
            values |= preset.values
    missing = [one.name for one in fields(config) if getattr(config, one.name) is PRESET]
    dependent = config.dependent()
    found: dict[str, Any] = {}
    for name in missing:
        only = dependent.get(name)
        found[name] = only.otherwise if only and not only.applies else values[name]
    for name, value in found.items():
        if isinstance(value, SameAs):
            found[name] = found.get(value.name, getattr(config, value.name))
    if isinstance(width := getattr(config, "width", None), float):
        found["width"] = whole(width)
    result = replace(config, **found)
    result.check_given(config)
    return result


def _for(table: Presets, preset: str, env: str, frame: Sequence[int]) -> Iterator[Preset]:
    """Go through the entries for an environment, the most special one last."""
    small = len(frame) > 1 and min(frame[:2]) >= LEAST and max(frame[:2]) <= MOST
    for name in ("*", preset):
        for whom in ("*", *([SMALL_FRAMES] if small else []), env.partition("/")[0], env):
            if (name, whom) in table:
                yield table[name, whom]


def in_brackets(name: str, tables: Iterable[Presets]) -> str:
    """Say what a setting is when it is not given, for a help text: [256], or [paper 8; small 1, minatar 2]."""
    by_preset: dict[str, dict[str, str]] = {}
    for table in tables:
        for (preset, whom), entry in table.items():
            if name in entry.values:
                by_preset.setdefault(preset, {})[whom] = _text(entry.values[name])
    if not by_preset:
        return ""
    said = {preset: _listed(values) for preset, values in by_preset.items()}
    if len(set(said.values())) == 1 and ("*" in said or len(said) > 1):
        return f"[{next(iter(said.values()))}]"
    return "[" + "; ".join(text if preset == "*" else f"{preset} {text}" for preset, text in said.items()) + "]"


def _listed(values: Mapping[str, str]) -> str:
    """List values by environment; one that says what all do is left out."""
    general = values.get("*")
    special = [f"{whom} {text}" for whom, text in values.items() if whom != "*" and text != general]
    return ", ".join([*([general] if general is not None else []), *special])


def _text(value: Any) -> str:
    if isinstance(value, SameAs):
        return flag(value.name)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


PAPER_PRETRAINING = 'the paper\'s table "PVN Hyperparameters"'
PAPER_ONLINE = 'the paper\'s table "Online Hyperparameters"'
SMALL = "chosen on MinAtar's games, docs/results.md"
SMALL_ATARI = "chosen on seed 100, docs/results.md"
SMALL_NETWORK = "frames that are too small for three poolings"
MACHINE_SIZE = "what a small machine can do"

PRETRAIN: Presets = {
    ("*", "*"): Preset(PAPER_PRETRAINING, batch_size=256, adam_epsilon=1.5e-4, layer_norm=False),
    # 1,562,500 steps of 256 transitions: 400 million samples, eight times the 50 million of a data set.
    ("paper", "*"): Preset(PAPER_PRETRAINING, architecture="impala", width=8, steps=1_562_500, learning_rate=1e-4),
    ("paper", SMALL_FRAMES): Preset(SMALL_NETWORK, architecture="minatar"),
    ("paper", "minatar"): Preset("frames of 10x10 cells", architecture="minatar"),
    ("small", "*"): Preset(MACHINE_SIZE, architecture="impala", width=1, steps=10_000, learning_rate=1e-4),
    ("small", SMALL_FRAMES): Preset(SMALL_NETWORK, architecture="minatar"),
    # The paper's epsilon is no longer small beside gradients that are means over many tasks of rare events.
    ("small", "minatar"): Preset(SMALL, architecture="minatar", steps=5_000, learning_rate=1e-3, adam_epsilon=1e-8),
    # Without layer norm most units die within some hundred steps.
    ("small", "atari"): Preset(
        SMALL_ATARI,
        architecture="der", batch_size=64, steps=15_000, learning_rate=1e-3, adam_epsilon=1e-8, layer_norm=True,
    ),
}  # fmt: skip

_TASKS = {"tasks": 100, "target_ema": 0.99}
_MINATAR_TASKS = {"tasks": 50, "target_ema": 0.95}
_ATARI_TASKS = {"tasks": 100, "target_ema": 0.95, "head_start": "mean"}
# Images are augmented, with the trained network as its own target. MinAtar has no pixels to spare: where a piece stands
# is the state, and a cell is on or off.
_AUGMENTED = {"channels": 64, "shift": 4, "intensity": 0.05, "dropout": 0.0, "target_ema": 0.0}
_NOT_AUGMENTED = {"shift": 0, "intensity": 0.0, "dropout": 0.5, "target_ema": 0.99}

METHODS: Mapping[str, Presets] = {
    "pvn": {
        ("*", "*"): Preset(
            PAPER_PRETRAINING,
            gamma=0.99,
            burn_in=62_500,
            tasks_per_module=10,
            rni_network="dqn",
            rni_output="linear",
            head_start="zero",
        ),
        ("paper", "*"): Preset(PAPER_PRETRAINING, **_TASKS, proportion=0.01, normalize="no"),
        ("small", "*"): Preset(PAPER_PRETRAINING, **_TASKS, proportion=0.01, normalize="yes"),
        ("small", "minatar"): Preset(SMALL, **_MINATAR_TASKS, proportion=0.05),
        ("small", "atari"): Preset(SMALL_ATARI, **_ATARI_TASKS, proportion=0.05, gamma=0.9),
    },
    # The paper says neither how many nor at what scale: as many as its indicators, and the same target network.
    "cumulants": {
        ("*", "*"): Preset("as for pvn", gamma=0.99, head_start="zero"),
        ("paper", "*"): Preset("as for pvn", **_TASKS, normalize="no"),
        ("small", "*"): Preset("as for pvn", **_TASKS, normalize="yes"),
        ("small", "minatar"): Preset("as for pvn", **_MINATAR_TASKS),
        ("small", "atari"): Preset("as for pvn", **_ATARI_TASKS, gamma=0.9),
    },
    # The paper gives no settings of its own for this one: the target network follows as that of its main method.
    "reward": {
        ("*", "*"): Preset("as for pvn", gamma=0.99, target_ema=0.99),
        ("small", "minatar"): Preset("as for pvn", target_ema=0.95),
        ("small", "atari"): Preset("as for pvn", target_ema=0.95),
    },
    # d: as many as the other methods have tasks; lambda: the source's. With beta = 1 the optimum holds every
    # eigenvector whose eigenvalue is below 2 beta = 2: an eigenvalue e leaves the squared length 1 - e / (2 beta).
    "laplacian": {
        ("*", "*"): Preset("docs/methods.md", dimensions=100, beta=1.0, ahead=0.9),
        ("small", "minatar"): Preset("as many as pvn has tasks", dimensions=50),
    },
    # d, gamma and target as pvn has them, so that the methods differ in what is predicted alone.
    "contrastive": {
        ("*", "*"): Preset("as for pvn", dimensions=100, gamma=0.99, target_ema=0.99),
        ("small", "minatar"): Preset("as for pvn", dimensions=50, target_ema=0.95),
    },
    "rldp": {
        ("*", "*"): Preset("docs/methods.md", dimensions=100, horizon=3, hidden=256, target_ema=0.99),
        ("small", "minatar"): Preset("as for pvn", dimensions=50, hidden=128, target_ema=0.95),
    },
    "tdjepa": {
        ("*", "*"): Preset("its paper; d and the target as for pvn", dimensions=100, gamma=0.98, target_ema=0.99),
        ("small", "minatar"): Preset("as for pvn", dimensions=50, target_ema=0.95),
    },
    "spr": {
        ("*", "*"): Preset("its paper's settings with augmentation", **_AUGMENTED),
        ("*", "minatar"): Preset("its paper's settings without augmentation", **_NOT_AUGMENTED),
        ("paper", "*"): Preset("its paper", center="no"),
        # Not centred, all states become one within a hundred steps: docs/methods.md.
        ("small", "*"): Preset("measured, docs/methods.md", center="yes"),
        ("small", "minatar"): Preset("as many as its encoder has: 64 cost twice as much", channels=16),
    },
}

_AGENTS = {"batch_size": 32, "double": False, "atoms": 51, "value_range": 10.0, "n_step": 1, "epsilon": 0.01}

ONLINE: Presets = {
    ("*", "*"): Preset(
        f"{PAPER_ONLINE}; atoms are C51's, float16 is measured (docs/decisions.md)",
        **_AGENTS, replay_dtype="float16", update_every=1, max_gradient_norm=10.0,
    ),
    # 3.75M agent steps are 15M frames. The copy of the target network every 2,000 updates is from the reference code:
    # the paper does not say. There is no schedule of exploration.
    ("paper", "*"): Preset(
        PAPER_ONLINE,
        steps=3_750_000, epsilon_start=SameAs("epsilon"), epsilon_steps=0, learning_rate=6.25e-5, replay_min=2_000,
        replay_size=1_000_000, target_every=2_000, feature_scale="none", log_every=10_000, checkpoint_every=50_000,
    ),
    ("small", "*"): Preset(
        MACHINE_SIZE,
        steps=100_000, epsilon_start=1.0, epsilon_steps=10_000, learning_rate=2.5e-4, replay_min=1_000,
        replay_size=100_000, target_every=500, feature_scale="rms", log_every=1_000, checkpoint_every=10_000,
    ),
    ("small", "minatar"): Preset(SMALL, steps=60_000, learning_rate=5e-4, target_every=250),
    ("small", "atari"): Preset(SMALL_ATARI, n_step=5, double=True),
}  # fmt: skip

DQN: Presets = {
    ("*", "*"): Preset(
        "Dopamine's DQN", **_AGENTS, architecture="nature", epsilon_start=1.0, iterations=50
    ),
    ("*", SMALL_FRAMES): Preset(SMALL_NETWORK, architecture="minatar"),
    ("*", "minatar"): Preset("frames of 10x10 cells", architecture="minatar"),
    # Its target network is copied every 8,000 agent steps: with an update every 4 steps, 2,000 updates.
    ("paper", "*"): Preset(
        "Dopamine's DQN",
        steps=50_000_000, epsilon_steps=250_000, learning_rate=6.25e-5, max_gradient_norm=0.0, replay_min=20_000,
        replay_size=1_000_000, update_every=4, target_every=2_000, log_every=10_000, checkpoint_every=50_000,
    ),
    ("small", "*"): Preset(
        MACHINE_SIZE,
        steps=1_000_000, epsilon_steps=100_000, learning_rate=1e-4, max_gradient_norm=10.0, replay_min=10_000,
        replay_size=100_000, update_every=4, target_every=1_000, log_every=5_000, checkpoint_every=25_000,
    ),
    ("small", "minatar"): Preset(
        "chosen on seed 100, docs/online.md",
        steps=300_000, n_step=3, learning_rate=1e-3, update_every=2, target_every=500,
    ),
    ("small", "atari"): Preset(
        SMALL_ATARI,
        architecture="der", steps=500_000, n_step=5, double=True, learning_rate=2.5e-4, epsilon_steps=50_000,
        replay_min=5_000, target_every=500,
    ),
    # In Asterix learning often from few transitions overfits: values explode and the policy stays random. So: few
    # updates, large batches, nothing forgotten, one-step returns.
    ("small", "minatar/asterix"): Preset(
        "chosen on seed 100, docs/online.md",
        n_step=1, double=True, batch_size=256, update_every=32, target_every=40, replay_size=300_000,
    ),
}  # fmt: skip

TABLES: Mapping[str, Presets] = {
    "pvn pretrain": PRETRAIN,
    **{f"pvn pretrain --method {name}": table for name, table in METHODS.items()},
    "pvn online": ONLINE,
    "pvn dqn": DQN,
}
"""All presets, by the command that they are for."""


def listed() -> list[str]:
    """Write all presets as lines: for whom, where the numbers come from, and what they are."""
    lines: list[str] = []
    for command, table in TABLES.items():
        lines += [*([""] if lines else []), command]
        for (preset, whom), entry in table.items():
            who = ", ".join([*(["every preset"] if preset == "*" else [preset]), *([whom] if whom != "*" else [])])
            values = ", ".join(f"{flag(name)} {_text(value)}" for name, value in entry.values.items())
            lines.append(f"  {who}: {entry.source}")
            lines += textwrap.wrap(values, 96, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    return lines
