"""A study of seconds, and what is read back from its folder."""

import json
from pathlib import Path
from typing import Any

from protovalue.study.file import parse_study
from protovalue.study.lines import Source
from protovalue.study.model import Study

TINY = """name = "tiny"
environments = ["minatar/breakout"]
normalise = "dqn"

[data]
steps = 300

[seeds]
pretraining = 2
online = 2

[pretrain]
steps = 5
batch_size = 16

[online]
steps = 60
replay_min = 20

[dqn]
steps = 60
replay_min = 20
seeds = 1

[evaluate]
episodes = 2

[methods.pvn]
tasks = 8

[methods.random]

[methods.dqn]
"""


def parse(text: str) -> Study:
    """Parse a study file's text."""
    return parse_study(Source("study.toml", text), "study")


def events(root: Path) -> list[dict[str, Any]]:
    """Read the events with the standard library alone."""
    return [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]


def evaluations(root: Path) -> dict[str, Any]:
    """Return every return of every agent, by file."""
    files = sorted([*root.glob("*/*/evaluation.json"), *root.glob("*/*/random.json")])
    return {str(file.relative_to(root)): json.loads(file.read_bytes())["seeds"] for file in files}
