"""The paper's claims, an entry for each: what it says, where, on what evidence, and what is compared."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from protovalue.evaluate.aggregate import iqm
from protovalue.evaluate.differences import difference
from protovalue.evaluate.scores import human_normalised, paper_scores, with_human_scores
from protovalue.report.comparing import (
    Compare,
    Compared,
    OfGrid,
    Side,
    Subject,
    against,
    features,
    grid,
    scores,
    zero,
)
from protovalue.report.model import Contrast, Verdict
from protovalue.report.numbers import fixed
from protovalue.report.summary import variants

NEAR = 0.1
"""A method is near another if it is less than this below it, in normalised scores."""
COLLAPSED = 1.0
"""Features have collapsed if their effective rank has been halved this often."""


@dataclass(frozen=True)
class Claim:
    """A claim that a number is higher on one side than on the other, or at most `margin` lower."""

    text: str
    place: str
    evidence: str | tuple[str, str]
    """What the paper has for it, in words, or the two methods of its table that it is about."""
    compare: Compare
    margin: float = 0.0
    unit: str = "normalised score"


def printed(first: str, second: str) -> str:
    """Compare two methods of the paper's per-game table: IQM of human-normalised scores, and in how many games."""
    table = paper_scores()
    games, _ = with_human_scores(table[first])
    aggregate = [
        iqm({game: np.array([[human_normalised(game, table[method][game])]]) for game in games})
        for method in (first, second)
    ]
    higher = sum(table[first][game] > table[second][game] for game in table[first])
    values = " against ".join(fixed(value, 2) for value in aggregate)
    return f"IQM {values}; higher in {higher} of {len(table[first])} games"


PVN = Side("pvn", {"indicator": "rni", "backup": "mean"})
RANDOM = Side("random")
BASELINES, ABLATIONS = 'section "Evaluating the learned representation"', 'section "Ablations"'
SCALING, DISCUSSION = 'section "Scaling capacity with auxiliary tasks"', 'section "Discussion"'
FIGURE = "a figure without numbers"
PER_DOUBLING = "normalised score per doubling of the tasks"


def _few_tasks(own: OfGrid) -> Compared | None:
    narrow, wide = own.grid.widths[0], own.grid.widths[-1]
    few = max(own.grid.tasks(width)[0] for width in (narrow, wide))
    places = [(wide, few), (narrow, few)]
    if any(place not in own.grid.cells for place in places):
        return None
    titles = (f"width {wide}, {few} tasks", f"width {narrow}, {few} tasks")
    return own.compared(titles, own.at(*places[0]), own.at(*places[1]), places)


def _some_tasks(own: OfGrid) -> Compared | None:
    none = [(width, 0) for width in own.grid.widths if (width, 0) in own.grid.cells]
    some = [(width, tasks) for width, _ in none for tasks in own.grid.tasks(width)]
    return own.compared(("some tasks", "none"), own.mean(some), own.mean(none), some + none) if none else None


def _more_tasks(own: OfGrid) -> Compared | None:
    wide = own.grid.widths[-1]
    tasks = own.grid.tasks(wide)
    slope = own.slope(wide, tasks)
    return own.compared((f"width {wide}", "no gain"), slope, zero(slope), [(wide, number) for number in tasks])


def _wide_networks(own: OfGrid) -> Compared | None:
    narrow, wide = own.grid.widths[0], own.grid.widths[-1]
    slopes = [own.slope(width, own.grid.tasks(width)) for width in (wide, narrow)]
    places = [(width, number) for width in (wide, narrow) for number in own.grid.tasks(width)]
    return own.compared((f"width {wide}", f"width {narrow}"), slopes[0], slopes[1], places)


def _too_many_tasks(own: OfGrid) -> Compared | None:
    narrow = own.grid.widths[0]
    many = own.grid.tasks(narrow)[len(own.grid.tasks(narrow)) // 2 :]
    if len(many) < 2:
        return None
    slope = own.slope(narrow, many)
    titles = ("no loss", f"width {narrow}, {many[0]} tasks and more")
    return own.compared(titles, zero(slope), slope, [(narrow, number) for number in many])


CLAIMS = (
    Claim(
        "PVN scores higher than the random initialisation",
        BASELINES,
        ("pvn", "random"),
        scores(PVN, RANDOM),
    ),
    Claim(
        "PVN scores higher than random cumulants",
        BASELINES,
        ("pvn", "cumulants"),
        scores(PVN, Side("cumulants")),
    ),
    Claim("PVN scores higher than SPR", BASELINES, ("pvn", "spr"), scores(PVN, Side("spr"))),
    Claim("PVN scores higher than behaviour cloning", BASELINES, ("pvn", "bc"), scores(PVN, Side("bc"))),
    Claim(
        "PVN is near the oracle, which saw the reward",
        BASELINES,
        ("pvn", "reward"),
        scores(PVN, Side("reward")),
        -NEAR,
    ),
    Claim(
        "Random networks are better indicators than hashes",
        ABLATIONS,
        FIGURE,
        scores(PVN, Side("pvn", {"indicator": "hash"})),
    ),
    Claim(
        "The mean backup is better than the maximum",
        ABLATIONS,
        FIGURE,
        scores(PVN, Side("pvn", {"indicator": "rni", "backup": "max"})),
    ),
    Claim("Wider networks score higher, even with few tasks", SCALING, FIGURE, grid(PVN, _few_tasks)),
    Claim("Some tasks are better than none", SCALING, FIGURE, grid(PVN, _some_tasks)),
    Claim("More tasks help the widest network", SCALING, FIGURE, grid(PVN, _more_tasks), unit=PER_DOUBLING),
    Claim(
        "Wider networks carry more tasks",
        SCALING,
        f"{FIGURE}; 2x is best with 10 tasks, 8x with 50 to 100",
        grid(PVN, _wide_networks),
        unit=PER_DOUBLING,
    ),
    Claim(
        "Small networks suffer from too many tasks",
        DISCUSSION,
        FIGURE,
        grid(PVN, _too_many_tasks),
        unit=PER_DOUBLING,
    ),
    Claim(
        "Features do not collapse: at least half the rank of the random initialisation",
        "not measured there",
        "none",
        features(PVN, RANDOM, lambda one: math.log2(one.rank)),
        -COLLAPSED,
        "binary logarithm of the effective rank",
    ),
    Claim(
        "Successive states are nearer than in the random initialisation",
        BASELINES,
        "MDS pictures of single episodes",
        features(RANDOM, PVN, lambda one: one.smoothness),
        unit="distance of consecutive states over that of all pairs",
    ),
)


def in_order(judged: Iterable[Verdict]) -> list[str]:
    """Return what verdicts are about, each claim once: in the order of CLAIMS, whatever else there is after them."""
    places = {claim.text: place for place, claim in enumerate(CLAIMS)}
    return sorted(dict.fromkeys(one.claim for one in judged), key=lambda text: places.get(text, len(places)))


def verdicts(subject: Subject, claims: Sequence[Claim] = CLAIMS) -> tuple[Verdict, ...]:
    """Say of each claim that the results have both sides of whether it holds in them."""
    judged = []
    for claim in claims:
        compared = claim.compare(subject)
        if compared is not None and compared.games:
            found = difference(compared.first, compared.second)
            judged.append(
                Verdict(
                    claim=claim.text,
                    place=claim.place,
                    evidence=claim.evidence if isinstance(claim.evidence, str) else printed(*claim.evidence),
                    methods=compared.titles,
                    difference=found.estimate,
                    margin=claim.margin,
                    stands_on=compared.stands_on,
                    needed=found.needed(claim.margin),
                    unit=claim.unit,
                )
            )
    return tuple(judged)


def contrasts(subject: Subject) -> tuple[Contrast, ...]:
    """Compare the variants of a method with the first of them."""
    rows = []
    for titles in variants(subject.results):
        for title in titles[1:]:
            compared = against(subject, title, titles[0])
            if compared.games:
                found = difference(compared.first, compared.second)
                rows.append(Contrast(title, titles[0], found.estimate, compared.stands_on, found.needed()))
    return tuple(rows)
