"""Which stages of a study are complete."""

from pathlib import Path

from protovalue.data.format import MANIFEST, Manifest
from protovalue.encoder import CONFIG, MODEL
from protovalue.errors import UserError
from protovalue.files import read_json
from protovalue.runs import DONE
from protovalue.study.folder import warn_once
from protovalue.study.plan import Stage


def is_done(stage: Stage, root: Path) -> bool:
    """Whether a stage's result is complete. A damaged one is not, and is named."""
    try:
        return _CHECKS[stage.kind](stage, root)
    except FileNotFoundError:
        return False
    except (UserError, OSError) as error:
        warn_once(f"{stage.id} is not done: {error}")
        return False


def _data(stage: Stage, root: Path) -> bool:
    folder = root / stage.expect.get("data", stage.folder)
    if not (folder / MANIFEST).exists():
        return False
    manifest = Manifest.read(folder)
    return manifest.complete and manifest.transitions >= stage.expect.get("transitions", 0)


def _encoder(stage: Stage, root: Path) -> bool:
    folder = root / stage.folder
    return (folder / MODEL).is_file() and bool(read_json(folder / CONFIG))


def _run(stage: Stage, root: Path) -> bool:
    return (root / stage.folder / DONE).is_file() and bool(read_json(root / stage.folder / DONE))


def _end_to_end(stage: Stage, root: Path) -> bool:
    """Whether a DQN is trained and, where it is to be recorded, its data set is whole."""
    return _run(stage, root) and ("data" not in stage.expect or _data(stage, root))


def _evaluation(stage: Stage, root: Path) -> bool:
    found = read_json(root / stage.expect["file"])
    return all(found.get(name) == expected for name, expected in stage.expect.items() if name != "file")


_CHECKS = {
    "collect": _data,
    "import": _data,
    "encoder": _encoder,
    "pretrain": _run,
    "online": _run,
    "dqn": _end_to_end,
    "evaluate": _evaluation,
    "random-policy": _evaluation,
}
