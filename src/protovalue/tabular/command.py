"""What `pvn tabular` runs: build the world, compute, draw, write the page."""

from protovalue.errors import UserError, unknown
from protovalue.processes import one_thread
from protovalue.progress import ProgressBar
from protovalue.randomness import numpy_generator
from protovalue.tabular import experiments, figures, gridworlds
from protovalue.tabular.config import TabularConfig
from protovalue.tabular.gridworlds import Walls, World
from protovalue.tabular.page import PageContents, write_page

WORLDS = ("four-rooms", "open", "ring", "chain", "random")
# Default sizes: near Four Rooms' 104 states, so that the page is quick and pictures are legible.
SIZES = {"open": 10, "ring": 48, "chain": 48, "random": 100}
MAX_STATES = 1000  # the page inverts a dense n x n matrix and decomposes one of n x 4n, many times


def tabular(config: TabularConfig) -> None:
    """Write the pictures and `index.html` for one world into `config.out`."""
    world = build_world(config)
    n = world.num_states
    if n > MAX_STATES:
        raise UserError(
            f"{config.map or config.world}: found {n:,} states, expected at most {MAX_STATES:,}: the page needs dense "
            "matrices; protovalue.tabular.protovalues does without them"
        )
    if not config.dimensions < n:
        raise UserError(f"--dimensions: found {config.dimensions}, expected less than the {n} states of {world.name}")
    config.out.mkdir(parents=True, exist_ok=True)
    gamma, share, seed = config.gamma, config.proportion, config.seed
    draws = 20 if n <= 200 else 5
    parts = 4 + experiments.RUNS * len(experiments.families(world, share))
    with ProgressBar(f"tabular {world.name}", parts, "parts") as bar, one_thread():
        exact = experiments.exact_objects(world, gamma, config.dimensions)
        examples = experiments.contrast(world, gamma, share, seed)
        bar.advance(1, "exact subspaces")
        descents = experiments.descents(world, exact, gamma, seed)
        bar.advance(1, "gradient descent")
        counts, by_count = experiments.by_number_of_sets(world, exact, gamma, share, draws, seed)
        bar.advance(1, "number of sets")
        by_size = experiments.by_size(world, exact, gamma, draws, seed)
        bar.advance(1, "size of sets")
        learned = experiments.learned(world, exact, gamma, share, seed, lambda: bar.advance(1, "temporal differences"))
    pictures = {
        "protovalues": figures.proto_values_figure(world, exact),
        "contrast": figures.contrast_figure(world, examples, gamma),
        "spectrum": figures.spectrum_figure(exact, gamma),
        "claim": figures.claim_figure(by_size),
        "theorem": figures.theorem_figure(descents, counts, by_count),
        "learned": figures.learned_figure(learned),
    }
    for name, picture in pictures.items():
        figures.save(picture, config.out / f"{name}.png")
    results = PageContents(config, world, exact, examples, descents, counts, by_count, by_size, learned)
    page = write_page(results, {name: config.out / f"{name}.png" for name in pictures}, config.out / "index.html")
    print(f"wrote {page} and {len(pictures)} pictures beside it")


def build_world(config: TabularConfig) -> World:
    """Make the world that the flags name; a flag that does not apply to it is refused."""
    name, walls = config.world, config.walls
    if (name is None) == (config.map is None):
        found = "neither" if name is None else f"both {name!r} and --map {config.map}"
        raise UserError(f"WORLD: found {found}, expected one of {', '.join(WORLDS)}, or --map FILE")
    if name is not None and name not in WORLDS:
        raise unknown("world", name, WORLDS)
    if config.size is not None and name not in SIZES:
        raise UserError(f"--size: found {config.size} for a world of fixed size, expected one of {', '.join(SIZES)}")
    if walls is not None and name in ("ring", "random"):
        raise UserError(f"--walls: found {walls} for {name}, which has no walls; expected no --walls")
    convention: Walls = walls or "stay"
    if config.map is not None:
        return gridworlds.load_map(config.map, convention)
    if name == "four-rooms" or name is None:
        return gridworlds.four_rooms(convention)
    size = config.size or SIZES[name]
    if name == "open":
        return gridworlds.open_grid(size, size, convention)
    if name == "ring":
        return gridworlds.ring(size)
    if name == "chain":
        return gridworlds.chain(size, convention)
    return gridworlds.random_mdp(size, numpy_generator(config.seed))
