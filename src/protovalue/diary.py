"""A study's diary, events.jsonl: one line of JSON per event, each written at once and with a checksum."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protovalue.files import Lines, json_line, naming, open_file, read_lines, write_all, write_atomic

EVENTS = "events.jsonl"


class Events:
    """The diary of the study in a folder, open to write."""

    def __init__(self, root: Path) -> None:
        """Go on after the last whole line."""
        self._path = root / EVENTS
        lines = read_diary(root)
        if lines.cut_short:
            write_atomic(self._path, lines.whole)
        self._descriptor = open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, stage: str, event: str, **details: Any) -> None:
        """Note what happened to a stage, now."""
        with naming(self._path):
            fields = {"time": round(time.time(), 3), "stage": stage, "event": event, **details}
            write_all(self._descriptor, json_line(fields))

    def close(self) -> None:
        """Stop writing."""
        os.close(self._descriptor)


def read_diary(root: Path) -> Lines:
    """Read all events of the study in `root`; what is damaged, or was cut short by a kill, is left out and named."""
    return read_lines(root / EVENTS, _misfit)


def _misfit(event: Mapping[str, Any]) -> str:
    """Say what is wrong with an event."""
    for name in ("stage", "event"):
        if not isinstance(event.get(name), str):
            return f"no {name}"
    for name in ("time", "seconds", "cpu_seconds"):
        value = event.get(name)
        if value is not None and (type(value) not in (int, float) or not math.isfinite(value) or value < 0):
            return f"{name} is no time"
    return "" if isinstance(event.get("error"), str | None) else "error is no text"
