"""Run folders and studies written by hand, as the commands leave them, for tests of what reads them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protovalue.files import write_json
from protovalue.runs import FORMAT, VERSION

VERSIONS = {"protovalue": "0.1.0", "torch": "2.13.0"}


def encoder(folder: Path, method: str = "pvn", seed: int = 0, **settings: Any) -> Path:
    """Write what a report reads of an encoder: its config."""
    (folder / "encoder").mkdir(parents=True)
    about = {"method": method, "config": {"seed": seed, "width": 1, **settings}}
    write_json(folder / "encoder" / "config.json", {"format": "protovalue encoder", "version": 1, "about": about})
    return folder


def run(
    folder: Path,
    env: str,
    returns: Sequence[float],
    encoder: Path | str | None = None,
    versions: Mapping[str, str] | Sequence[Mapping[str, str]] = VERSIONS,
    steps: int = 3_000,
    seeds: Sequence[int] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    network: str = "minatar",
    done: bool = True,
    evaluated: bool = True,
    **settings: Any,
) -> Path:
    """Write a finished, evaluated run of `pvn online`, or of `pvn dqn` where there is no encoder.

    The agents' training curves rise in three equal steps to their evaluation returns; in the first part the first
    agent ends no episode. `evaluation` changes what evaluation.json says.
    """
    folder.mkdir(parents=True)
    seeds = range(len(returns)) if seeds is None else seeds
    kind: dict[str, Any] = {"kind": "dqn", "architecture": network}
    if encoder is not None:
        kind = {"kind": "online", "encoder": str(encoder), "encoder_checksum": f"that of {encoder}"}
    config = {"env": env, "out": str(folder), "gamma": 0.99, "steps": steps, **kind, **settings}
    history = [dict(versions)] if isinstance(versions, Mapping) else [dict(one) for one in versions]
    fields = {"format": FORMAT, "version": VERSION, "config": config, "versions": history}
    write_json(folder / "config.json", fields)
    rows = []
    for part in (1, 2, 3):
        own = {
            f"return/seed-{s}": value * part / 3 for s, value in zip(seeds, returns, strict=True) if (part, s) != (1, 0)
        }
        rows.append(json.dumps({"step": steps * part // 3, "return": 0.5, **own}) + "\n")
    (folder / "metrics.jsonl").write_text("".join(rows))
    if done:
        write_json(folder / "done.json", {})
    if done and evaluated:
        write_json(folder / "evaluation.json", played(env, returns, seeds, steps) | dict(evaluation or {}))
    return folder


def played(env: str, returns: Sequence[float], seeds: Iterable[int] = (0,), steps: int = 3_000) -> dict[str, Any]:
    """Return what `pvn evaluate` writes after two episodes of each seed."""
    rows = [
        {"seed": s, "mean_return": r, "returns": [r, r], "lengths": [9, 9]} for s, r in zip(seeds, returns, strict=True)
    ]
    return {
        "env": env, "env_options": {"sticky": 0.1}, "steps": steps, "episodes": 2, "epsilon": 0.001, "seed": 0,
        "mean_return": sum(returns) / len(returns), "seeds": rows,
    }  # fmt: skip


def study(folder: Path, cells: Sequence[Mapping[str, Any]], **fields: Any) -> Path:
    """Write study.json with `cells`, whose stages are made up from their runs."""
    titles = {"pvn": {"title": "PVN"}, "random": {"title": "Random"}, "bc": {"title": "BC"}, "dqn": {"title": "DQN"}}
    used = {cell["method"]: titles[cell["method"]] for cell in cells}
    entries, stages = [], []
    for cell in cells:
        stage = cell["run"]
        entries.append(
            {"width": 1, "tasks": None, "data_seed": 0, "pretraining_seed": 0, "data": None, "encoder": None,
             "stages": [stage], **cell}
        )  # fmt: skip
        kind = "dqn" if cell["method"] == "dqn" else "online"
        stages.append({"id": stage, "kind": kind, "folder": stage, "needs": [], "command": ["pvn", kind, "a b"]})
    whole = {
        "format": "protovalue study", "version": 1, "name": "made", "title": "A made study", "file": "title = 1",
        "normalise": "dqn", "methods": used, "random_policy": {}, "cells": entries, "stages": stages, **fields,
    }  # fmt: skip
    write_json(folder / "study.json", whole)
    return folder
