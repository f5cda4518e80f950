"""Registers the rigged environment."""

import gymnasium
import pytest

from tests.online.rigged import Corridor


@pytest.fixture(scope="session", autouse=True)
def _register_corridor() -> None:
    gymnasium.register("Corridor-v0", Corridor)  # type: ignore[arg-type]  # a class that takes no options
