"""The end of the processes of a run: who waits for whom."""

import threading
from pathlib import Path

from protovalue.distributed.watch import First, Other, Peer
from tests.distributed.ranks import Forked


def test_a_process_that_is_done_waits_for_the_first_and_then_goes_on() -> None:
    """What a process does after its part, such as ending, comes after the first one has ended the run."""
    first = First("127.0.0.1")
    order: list[str] = []

    def other() -> None:
        watch = Other("127.0.0.1", first.port, "token", Peer(1, 2, "here", 2), Peer(0, 2, "here", 1))
        order.append("done")
        watch.over(0)
        order.append("goes on")

    thread = threading.Thread(target=other)
    thread.start()
    assert first.admit("token", 2, 60.0, lambda: None) == []
    thread.join(0.3)
    assert order == ["done"]
    order.append("first ends")
    first.over(0)
    thread.join(60.0)
    assert order == ["done", "first ends", "goes on"]


def test_a_process_that_is_told_of_a_failure_ends_with_its_code(tmp_path: Path) -> None:
    first = First("127.0.0.1")

    def other() -> int:
        watch = Other("127.0.0.1", first.port, "token", Peer(1, 2, "here", 2), Peer(0, 2, "here", 1))
        watch.over(0)
        return 0

    process = Forked(tmp_path / "log", other)
    assert first.admit("token", 2, 60.0, lambda: None) == []
    first.over(7)
    assert process.ended() == (7, "")
