"""What tests of exact values need: an encoder that is a table, and sets that are known."""

import pytest

from protovalue.registry import ENCODERS, INDICATORS, _Loaded
from tests.pretrain.helpers import Singletons, Table


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the encoder `table` and the indicator `singletons` known; return the encoder's name."""
    monkeypatch.setitem(ENCODERS.loaded, "table", _Loaded("table", "helpers.py", Table))
    monkeypatch.setitem(INDICATORS.loaded, "singletons", _Loaded("singletons", "helpers.py", Singletons))
    return "table"
