"""The page of `pvn tabular`: one HTML file with its pictures inside, which explains what they show."""

import base64
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from protovalue.files import write_atomic
from protovalue.tabular.config import TabularConfig
from protovalue.tabular.experiments import BySize, Exact, Example, Learned, largest_angle
from protovalue.tabular.gridworlds import Floats, World
from protovalue.tabular.theorem import Descent


@dataclass(frozen=True)
class PageContents:
    """All that the page shows."""

    config: TabularConfig
    world: World
    exact: Exact
    examples: tuple[Example, Example]
    descents: dict[str, list[Descent]]
    counts: list[int]
    by_count: dict[str, Floats]
    by_size: BySize
    learned: dict[str, Learned]


def write_page(results: PageContents, pictures: dict[str, Path], path: Path) -> Path:
    """Fill the template and write it beside the pictures; an old page stays whole until the new one is complete."""
    environment = Environment(
        loader=PackageLoader("protovalue.tabular", "templates"), autoescape=True, undefined=StrictUndefined
    )
    html = environment.get_template("page.html.j2").render(facts(results), pictures=_embedded(pictures))
    write_atomic(path, html.encode())
    return path


def facts(results: PageContents) -> dict[str, object]:
    """The numbers of the page, formatted, under the names the template uses."""
    exact, world, config, by_size = results.exact, results.world, results.config, results.by_size
    last = [run.angles[-1] for runs in results.descents.values() for run in runs]
    rows = [(name, [f"{value:.1f}" for value in angles.mean(axis=1)]) for name, angles in results.by_count.items()]
    few = min(8, results.counts[-1])
    at_few = {name: float(angles[results.counts.index(few)].mean()) for name, angles in results.by_count.items()}
    at_all = {name: float(angles[-1].mean()) for name, angles in results.by_count.items()}
    learned_rows = [
        (name, _mean_and_range(curve.to_exact[:, -1]), _mean_and_range(curve.to_own[:, -1]))
        for name, curve in results.learned.items()
    ]
    return {
        "name": world.name,
        "states": world.num_states,
        "actions": ", ".join(world.actions),
        "walls": None if world.walls is None else (config.walls or "stay"),
        "gamma": f"{config.gamma:g}",
        "proportion": f"{config.proportion:g}",
        "seed": config.seed,
        "d": exact.d,
        "asked": config.dimensions,
        "symmetric": world.symmetric,
        "pvf_angle": f"{largest_angle(exact.proto_values[:, : exact.d], exact.by_state):.2g}",
        "action_angle": f"{largest_angle(exact.by_action, exact.by_state):.2g}",
        "gap": [f"{value:.3g}" for value in exact.action_gap],
        "members": int(results.examples[1].reward.sum()),
        "peaks": [f"{example.value.max():.2g}" for example in results.examples],
        "reached": [f"{100 * float(np.mean(e.value > 0.1 * e.value.max())):.0f}" for e in results.examples],
        "starts": len(last),
        "worst_angle": f"{max(last):.1e}",
        "worst_steps": f"{max(run.steps[-1] for runs in results.descents.values() for run in runs):,}",
        "counts": results.counts,
        "rows": rows,
        "few": few,
        "draws": by_size.angles.shape[1],
        "best_few": (min(at_few, key=at_few.__getitem__), f"{min(at_few.values()):.0f}"),
        "best_all": (min(at_all, key=at_all.__getitem__), f"{min(at_all.values()):.0f}"),
        "sizes": by_size.sizes,
        "weights": [f"{weight:,.1f}" for weight in by_size.weights],
        "shares": [f"{100 * share:.0f}%" for share in by_size.share],
        "size_angles": [f"{angle:.1f}" for angle in by_size.angles.mean(axis=1)],
        "size_steps": [_steps(steps) for steps in by_size.descent_steps],
        "num_sets": by_size.num_sets,
        "runs": len(next(iter(results.learned.values())).to_exact),
        "learned_rows": learned_rows,
        "learned_steps": f"{next(iter(results.learned.values())).steps[-1]:,}",
    }


def _steps(steps: Floats) -> str:
    """Mean number of gradient steps, if every start arrived."""
    return "not reached" if np.isnan(steps).any() else f"{steps.mean():,.0f}"


def _mean_and_range(values: Floats) -> str:
    return f"{values.mean():.1f} ({values.min():.1f} to {values.max():.1f})"


def _embedded(pictures: dict[str, Path]) -> dict[str, str]:
    """PNG files as data URIs, so that the page is one file that can be sent around."""
    return {
        name: "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
        for name, path in pictures.items()
    }
