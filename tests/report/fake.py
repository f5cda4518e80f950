"""A report whose every number was written by hand, for tests of the page."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from protovalue.evaluate.aggregate import mean_interval
from protovalue.evaluate.scores import paper_results
from protovalue.report.cells import CellResult
from protovalue.report.model import (
    Aggregate,
    Cost,
    Embedding,
    Estimate,
    FeatureNumbers,
    Gallery,
    GameScore,
    Picture,
    Report,
    Spread,
    TableFiles,
)
from protovalue.report.results import Missing, Results

ENVS = ("minatar/breakout", "minatar/space_invaders")
PVN, RANDOM, DQN = "PVN (RNI)", "Random <init> & frozen", "DQN"
METHODS = (PVN, RANDOM, DQN)
INJECTION = "<script>document.title = 'taken over'</script>"
STATES = 12
# Mean return and interval of each method in each game.
MEANS = {
    (ENVS[0], PVN): (5.125, 4.5, 5.75),
    (ENVS[0], RANDOM): (1.75, 1.25, 2.25),
    (ENVS[0], DQN): (9.5, 8.0, 11.0),
    (ENVS[1], PVN): (33.25, 30.5, 36.0),
    (ENVS[1], RANDOM): (41.5, 35.0, 48.0),
    (ENVS[1], DQN): (1234.5, 1100.0, 1300.0),
}
BEST = {(ENVS[0], PVN), (ENVS[1], RANDOM)}
SECONDS = {PVN: 3725.0, RANDOM: 62.0, DQN: 7322.0}


def cell(env: str, method: str, seed: int) -> CellResult:
    """One encoder with two agents that lie evenly around the mean of its method."""
    mean = MEANS[env, method][0]
    end_to_end = method == DQN
    return CellResult(
        env=env,
        method=method,
        width=1,
        tasks=50 if method == PVN else None,
        data_seed=None if end_to_end else 0,
        pretraining_seed=None if end_to_end else seed,
        seeds=(0, 1),
        returns=np.array([mean - 0.5, mean + 0.5]),
        episodes=100,
        steps=30_000,
        curve_steps=np.array([1000.0, 2000.0]),
        curve=np.array([[0.0, 1.0], [1.0, np.nan]]),
        run=Path(f"runs/{method[:3]}-{env[-3:]}-{seed}"),
        encoder=None if end_to_end else Path(f"pretrain/{method[:3]}-{env[-3:]}-{seed}"),
        data=None,
        settings={
            "kind": "dqn" if end_to_end else "online",
            "agent.gamma": 0.99,
            "agent.hidden": [64] if end_to_end else [],
            "version.protovalue": "0.1.0",
            **({} if end_to_end else {"data.steps": 500}),
            **({"pretrain.tasks": 50} if method == PVN else {}),
        },
        commands=(f"pvn online --encoder 'a b' --seeds 0,1 --out runs/{seed} && echo <done>",),
        seconds=SECONDS[method] / 4,
    )


def frame(state: int) -> bytes:
    """A PNG of 10 x 10 pixels in which one more is lit for every state."""
    pixels = np.zeros((10, 10, 3), np.uint8)
    pixels.reshape(-1, 3)[: state + 1] = (20 * state, 200, 90)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def points(method: str) -> np.ndarray:
    """Half a circle for one method, and a line for the other."""
    t = np.linspace(0.0, 1.0, STATES)
    if method == PVN:
        return np.stack([np.cos(np.pi * t), np.sin(np.pi * t)], axis=1)
    return np.stack([2 * t - 1, np.zeros(STATES)], axis=1)


def gallery(env: str) -> Gallery:
    """One episode through two methods' features."""
    return Gallery(
        env=env,
        player="the best agent of DQN",
        episode_return=7.0,
        steps=tuple(3 * state for state in range(STATES)),
        frames=tuple(frame(state) for state in range(STATES)),
        embeddings=tuple(Embedding(name, f"{name}-0", points(name), 0.125) for name in (PVN, RANDOM)),
    )


def picture(folder: Path, section: str, name: str, env: str | None = None) -> Picture:
    """A figure that is a rectangle."""
    (folder / f"{name}.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="240"><rect x="20" y="20" width="600" height="200" '
        'fill="#7aa6c2"/></svg>'
    )
    (folder / f"{name}.png").write_bytes(frame(3))
    caption = f"What {name} shows, over 2 encoders of 2 agents."
    return Picture(section, name, f"Figure {name}", caption, folder / f"{name}.png", folder / f"{name}.svg", env)


def table(folder: Path, name: str) -> TableFiles:
    """A table in three empty files."""
    files = [folder / f"{name}.{ending}" for ending in ("md", "csv", "tex")]
    for file in files:
        file.touch()
    return TableFiles(name, f"Table {name}", "", *files)


def report(folder: Path) -> Report:
    """The whole: two games, three methods, two encoders each, one failed and one that was not begun."""
    missing = (
        Missing(ENVS[1], PVN, 2, "pretrain failed: out of memory <here>"),
        Missing(ENVS[0], RANDOM, 2, "not begun"),
    )
    results = Results(
        name="small-study",
        title=f"Two games {INJECTION}",
        normalise="dqn",
        methods=METHODS,
        envs=ENVS,
        cells=tuple(cell(env, method, seed) for method in METHODS for env in ENVS for seed in (0, 1)),
        missing=missing,
        stage_seconds={"pretrain": 3600.0, "online": 1800.0},
        file=f'name = "small-study"\ntitle = "{INJECTION}"\n',
    )
    per_game = tuple(
        GameScore(
            env, method, Estimate(*mean), Estimate(mean[0] / 50, mean[1] / 50, mean[2] / 50),
            encoders=1 if (env, method) == (ENVS[1], PVN) else 2, agents=1 if method == DQN else 2, episodes=100,
        )
        for (env, method), mean in MEANS.items()
    )  # fmt: skip
    aggregates = (
        aggregate(PVN, (0.42, 0.35, 0.49), 0.6),
        aggregate(RANDOM, (0.40, 0.31, 0.47), 0.7),
        aggregate(DQN, (1.0, 0.9, 1.1), 0.1),
    )
    rank, smoothness, probe = Spread(3.25, 2.5, 4.0), Spread(0.5, 0.5, 0.5), Spread(0.9, 0.8, 1.0)
    features = tuple(
        FeatureNumbers(env, method, 2, 128, rank, smoothness, None if method == RANDOM else probe)
        for env in ENVS
        for method in (PVN, RANDOM)
    )
    names = [
        ("aggregates", "aggregates", None),
        ("profile", "profiles", None),
        ("games", "games", None),
        *(("curves", f"curves-{i}", env) for i, env in enumerate(ENVS)),
        *(("mds", f"mds-{i}", env) for i, env in enumerate(ENVS)),
    ]
    return Report(
        results=results,
        draws=2000,
        colours={PVN: "#0072b2", RANDOM: "#e69f00", DQN: "#333333"},
        scale="A normalised score is 0 for uniformly random actions and 1 for end-to-end DQN.",
        per_game=per_game,
        scores={},
        aggregates=aggregates,
        features=features,
        pictures=tuple(picture(folder, *name) for name in names),
        tables=(table(folder, "per-game"),),
        galleries=tuple(gallery(env) for env in ENVS),
        notes=("one note & another",),
        costs=(Cost("pretrain", 3600.0), Cost("online", 1800.0)),
        headline=("PVN (RNI): 0.42",),
        references=(DQN,),
        paper={ENVS[0]: {"PVN": 123.4}},
        details={"protovalue": "0.1.0", "bootstrap": {"draws": 2000, "seed": 0}},
    )


def of_scores(scores: Mapping[str, Mapping[str, np.ndarray]], references: Sequence[str] = ()) -> Report:
    """A report that has nothing but returns (P, S) by method and environment, and the paper's numbers beside them."""
    envs = tuple(dict.fromkeys(env for games in scores.values() for env in games))
    per_game = tuple(
        GameScore(env, method, mean_interval(games[env]), None, len(games[env]), games[env].shape[1], episodes=100)
        for env in envs
        for method, games in scores.items()
        if env in games
    )
    return Report(
        results=Results("made", "Made", "none", tuple(scores), envs, ()), draws=100, colours={}, scale="",
        per_game=per_game, scores={}, aggregates=(), features=(), galleries=(), notes=(), costs=(),
        references=tuple(references), paper={env: paper_results(env) for env in envs},
    )  # fmt: skip


def aggregate(method: str, iqm: tuple[float, float, float], gap: float) -> Aggregate:
    """Median and mean a little beside the IQM."""
    point, low, high = iqm
    beside = Estimate(point + 0.01, low, high)
    statistics = {"median": beside, "iqm": Estimate(*iqm), "mean": beside, "optimality_gap": Estimate(gap, gap, gap)}
    return Aggregate(method, 2, 2, 1 if method == DQN else 2, statistics)
