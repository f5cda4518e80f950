"""The scale of other results: their random policy and end-to-end DQN, for runs that have neither."""

from dataclasses import replace
from pathlib import Path

from protovalue.errors import UserError
from protovalue.report.cells import DQN
from protovalue.report.checking import about_variants, refuse_mixtures
from protovalue.report.reading import read_whole
from protovalue.report.results import Results


def with_yardstick(results: Results, path: Path) -> Results:
    """Put random policy and DQN of a study or a file of results beside results, on whose scale they are then measured.

    Args:
        results: those to be measured; some with a DQN or a random policy of their own are refused.
        path: folder of a study or of a report, or a results.jsonl.
    """
    flag = f"--yardstick {path}"
    if results.end_to_end is not None or results.random_policy:
        raise UserError(f"{flag}: found runs with a yardstick of their own, expected none with a DQN or random policy")
    other = read_whole(path)
    cells = [cell for cell in other.cells if cell.settings["kind"] == DQN and cell.env in results.envs]
    title = other.end_to_end
    if title is None or not cells:
        raise UserError(f"{flag}: found no end-to-end DQN in {', '.join(results.envs)}, expected one to measure by")
    if title in results.methods:
        raise UserError(f"{flag}: found {title} among the runs, expected the name for their yardstick alone")
    features = {key: own for key, own in other.features.items() if key[0] in results.envs and key[1] == title}
    together = (*results.cells, *cells)
    refuse_mixtures(together)
    return replace(
        results,
        normalise="dqn",
        methods=(*results.methods, title),
        cells=together,
        missing=(*results.missing, *(one for one in other.missing if one.method == title and one.env in results.envs)),
        random_policy={env: value for env, value in other.random_policy.items() if env in results.envs},
        features={**results.features, **features},
        notes=tuple(dict.fromkeys((*results.notes, *about_variants(together)))),
        yardstick=other.name,
    )
