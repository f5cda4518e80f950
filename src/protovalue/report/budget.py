"""What the returns of a report stand on, network, data and steps, beside what the paper's stand on."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from protovalue.online.config import OnlineConfig
from protovalue.presets import resolved
from protovalue.pretrain.method_configs import PvnConfig
from protovalue.report.cells import DQN, CellResult
from protovalue.report.model import Budget
from protovalue.report.results import Results

PAPER = "The paper's"
PAPER_TRANSITIONS = 50_000_000
"""Of one run of RL Unplugged: the paper's encoders learned from one run each."""
PAPER_EPISODES = 100

Value = TypeVar("Value", int, str)


def budgets(results: Results, paper: Mapping[str, Mapping[str, float]]) -> tuple[Budget, ...]:
    """Return the budget of every method, and last the paper's; none where the paper has nothing to compare with."""
    if not paper:
        return ()
    own = {name: [cell for cell in results.cells if cell.method == name] for name in results.methods}
    return (*(_of_runs(name, cells) for name, cells in own.items() if cells), _of_the_paper())


def _of_runs(method: str, cells: list[CellResult]) -> Budget:
    settings = [cell.settings for cell in cells]
    part = "agent" if settings[0].get("kind") == DQN else "encoder"
    return Budget(
        method=method,
        networks=_each(_network(own, part) for own in settings),
        transitions=_each(cell.transitions for cell in cells),
        steps=_each(own.get("encoder.steps") for own in settings),
        batch_size=_each(own.get("encoder.batch_size") for own in settings),
        agent_steps=_each(cell.steps for cell in cells),
        episodes=_each(cell.episodes for cell in cells),
    )


def _each(values: Iterable[Value | None]) -> tuple[Value, ...]:
    """Return the different values that are known, in order."""
    return tuple(sorted({value for value in values if value is not None}))


def _network(settings: Mapping[str, object], part: str) -> str:
    return f"{settings.get(f'{part}.architecture')} {settings.get(f'{part}.width', 1)}x"


def _of_the_paper() -> Budget:
    pretrain = resolved(PvnConfig(out=Path(), preset="paper"), "atari/Pong")
    agents = resolved(OnlineConfig(out=Path(), encoder="", env="atari/Pong", preset="paper"), "atari/Pong")
    return Budget(
        method=PAPER,
        networks=(f"{pretrain.architecture} {pretrain.width}x",),
        transitions=(PAPER_TRANSITIONS,),
        steps=(pretrain.steps,),
        batch_size=(pretrain.batch_size,),
        agent_steps=(agents.steps,),
        episodes=(PAPER_EPISODES,),
    )
