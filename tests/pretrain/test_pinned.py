"""Six steps of every method: a change of the code that should change no result must leave these numbers as they are.

Sums have another order on another machine, so they agree to 1e-5 (seen with ATEN_CPU_CAPABILITY=default and
MKL_CBWR=COMPATIBLE). Bit for bit is what `test_loop.py` asks for, of the same machine.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.data.dataset import Dataset
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.methods import method_class, method_names
from protovalue.runs import read_checkpoint, read_metrics
from protovalue.tabular.gridworlds import open_grid
from tests.pretrain.helpers import successors, walks

# Method, settings, loss of the sixth step, norm of all that is learned and of Adam's moments.
PINNED = [
    ("pvn", {"tasks": 7, "proportion": 0.3}, 0.225599691, 18.0846241, 0.0626890199),
    ("pvn", {"tasks": 7, "proportion": 0.3, "backup": "max", "target_every": 2}, 0.35407573, 18.3873908, 0.156566924),
    ("pvn", {"tasks": 7, "indicator": "hash", "proportion": 0.3}, 0.258224785, 18.1115613, 0.0668849657),
    ("cumulants", {"tasks": 7}, 1.72618592, 18.191706, 0.115761721),
    ("cumulants", {"tasks": 7, "backup": "mean", "unit": "none"}, 0.0297678672, 17.9841513, 0.0112621903),
    ("reward", {}, 0.0892889425, 15.3679253, 0.2113127),
    ("reward", {"double": False, "huber": True}, 0.0409680605, 15.3448041, 0.119445505),
    ("bc", {}, 1.37900841, 10.0072958, 0.0662792857),
    ("laplacian", {"dimensions": 7}, 5.91242695, 10.3894297, 1.62520476),
    ("spr", {"channels": 4, "horizon": 2}, 2.10532331, 22.9438913, 1.42474505),
    (
        "pvn",
        {
            "tasks": 7,
            "groups": ("proportion=0.3,gamma=0.9", "proportion=0.6,backup=max,arrival=yes", "proportion=1,weight=0.1"),
            "scale_errors": "spread",
            "inverse": 0.5,
        },
        0.724813998,
        18.2898611,
        0.0404300188,
    ),
    ("contrastive", {"dimensions": 7}, 2.52143264, 18.9199226, 2.01733722),
    ("contrastive", {"dimensions": 7, "arrival": "yes", "second_map": "own"}, 2.42699099, 23.1625982, 1.55270678),
    ("rldp", {"dimensions": 7}, 3.02777076, 16.7721532, 2.49458265),
    ("rldp", {"dimensions": 7, "ahead": 0.6, "hidden": 0}, 3.42094851, 16.4999446, 0.0959643678),
    ("tdjepa", {"dimensions": 7}, 6.14846325, 18.3661061, 1.69936581),
    ("bc", {"layer_norm": True}, 2.00200987, 10.2338759, 1.09309521),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("walk") / "set"
    return walks(folder, successors(open_grid(4, 4)), 40, 9, reward=lambda state: state / 10, ends=(15,))


def norm(arrays: Any) -> float:
    return float(np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in arrays)))


def test_every_method_is_here() -> None:
    assert {name for name, *_ in PINNED} == set(method_names()) - {"random"}


@pytest.mark.parametrize(("name", "settings", "loss", "learned", "moments"), PINNED, ids=str)
def test_six_steps(
    data: Dataset, tmp_path: Path, name: str, settings: Any, loss: Any, learned: Any, moments: Any
) -> None:
    config = method_class(name).Config(
        out=tmp_path / "run", data=(data.folders[0].path,), method=name, architecture="minatar", steps=6, batch_size=16,
        learning_rate=1e-2, threads=1, log_every=6, **settings,
    )  # fmt: skip
    pretrain(config, quiet=True)
    tensors = read_checkpoint(config.out).tensors
    found = [
        read_metrics(config.out)[-1]["loss"],
        norm(array for key, array in tensors.items() if key.startswith("method.")),
        norm(array for key, array in tensors.items() if ".exp_avg" in key),
    ]
    assert found == pytest.approx([loss, learned, moments], rel=1e-5)
