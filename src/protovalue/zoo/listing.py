"""`pvn zoo list`: the encoders of the zoo with what agents on them reach, or the card of one."""

from protovalue.card import read_results
from protovalue.errors import UserError
from protovalue.zoo.config import ZooListConfig
from protovalue.zoo.index import SCHEME, card_of, empty, folder_of, home, read_index


def zoo_list(config: ZooListConfig) -> None:
    """Print the list, or a card."""
    if config.name:
        print(card_of(f"{SCHEME}{config.name.removeprefix(SCHEME)}"), end="")
        return
    index = read_index(home())
    if index is None or not index.encoders:
        raise UserError(empty(home()))
    rows = [("encoder", "return", "agents", "random play", "KiB")]
    for name in index.encoders:
        folder = folder_of(f"{SCHEME}{name}")
        size = sum((folder / file).stat().st_size for file in index.encoders[name])
        for result in read_results(folder):
            random = next((f"{row.mean:.2f}" for row in result.table if row.runs == 0), "")
            rows.append(
                (f"{SCHEME}{name}", f"{result.mean:.2f}", str(len(result.returns)), random, f"{size / 1024:.0f}")
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *rest in rows:
        cells = (f"{text:>{width}}" for text, width in zip(rest, widths[1:], strict=True))
        print(f"{first:<{widths[0]}}  {'  '.join(cells)}")
    print(f"made by: {index.made_by}")
