"""What tests of exact values need: an encoder that is a table, and sets that are known."""

import pytest

from protovalue.indicators.base import INDICATORS
from protovalue.nets.encoders import ENCODERS
from tests.pretrain.helpers import Singletons, Table


@pytest.fixture
def table(monkeypatch) -> str:
    """Make the encoder `table` and the indicator `singletons` known; return the encoder's name."""
    monkeypatch.setitem(ENCODERS, "table", Table)
    monkeypatch.setitem(INDICATORS, "singletons", Singletons)
    return "table"
