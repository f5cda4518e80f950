"""The notebook of examples/ runs from its first cell to its last, in a kernel of its own, with smaller numbers."""

import ast
import os
import re
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"
SMALLER = {"DATA_STEPS": 400, "PRETRAINING_STEPS": 2, "TASKS": 3, "AGENT_STEPS": 60, "EPISODES": 2}
LARGEST = 300_000  # bytes of the file, with its pictures


def read() -> Any:
    return nbformat.read(TOUR, as_version=4)  # type: ignore[no-untyped-call]


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is smaller stands in its one cell of numbers, and all of them are replaced."""
    with warnings.catch_warnings(action="ignore"):  # of the machinery of notebooks, in this process
        from nbclient import NotebookClient

        notebook = read()
        (numbers,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
        assert set(re.findall(r"^(\w+) = ", numbers.source, re.MULTILINE)) == set(SMALLER)
        numbers.source = "\n".join(f"{name} = {value}" for name, value in SMALLER.items())
        source = str(Path(__file__).parents[1] / "src")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert "transitions of minatar/space_invaders" in printed
    assert "PVN: a mean return of" in printed
    assert not any(output.output_type == "stream" and output.name == "stderr" for output in outputs)
    assert ast.literal_eval(outputs[-1]["data"]["text/plain"]) == ((4, 128), (128,))


def test_what_is_kept_of_it_is_whole_small_and_of_no_machine() -> None:
    text = TOUR.read_text()
    assert len(text) < LARGEST
    assert "/tmp" not in text
    assert "/home" not in text
    cells = [cell for cell in read().cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert sum("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs) == 3
