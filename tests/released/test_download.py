"""Released encoders behind a URL: a server that fails, a download that goes on, a checksum that the server tells."""

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from protovalue.cli import main
from protovalue.data import sources
from protovalue.encoder import load_encoder
from protovalue.released import files
from tests.data.published import crc32c
from tests.data.test_sources import Server
from tests.released.test_import import expected


@pytest.fixture
def server(released: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(sources, "PAUSE", 0.001)
    for module in (sources, files):
        monkeypatch.setattr(module, "BLOCK", 50_000)
    found = Server(released)
    yield found
    found.shutdown()
    found.server_close()


def words(url: str, out: Path) -> list[str]:
    return ["import", "encoder", url, "--env", "atari/Pong", "--out", str(out)]


@pytest.mark.parametrize("name", ["jax-plain", "tf-variables"])
def test_a_server_that_fails_now_and_then_is_asked_again(
    released: Path, server: Server, tmp_path: Path, name: str
) -> None:
    assert main(words(f"{server.url}/{name}", tmp_path / "out")) == 0
    assert server.cuts + server.refusals
    frames, features = expected(released / name)
    assert abs(load_encoder(tmp_path / "out").features(frames).numpy() - features).max() < 1e-3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_an_interrupted_download_goes_on_with_the_missing_bytes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sources, "TRIES", 1)
    command = words(f"{server.url}/jax-plain/", tmp_path / "out")
    assert main(command) == 2  # the third answer, of 101,501 bytes in three parts, is cut off
    assert "saved_model.pb" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    part = tmp_path / "out.download" / "saved_model.pb"
    assert part.stat().st_size == 100_000
    server.failing, asked = False, server.partial
    assert main(command) == 0
    assert server.partial - asked == 3  # the rest of the graph, and the index and the shard, which are small
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_part_of_another_file_is_not_gone_on_with(server: Server, tmp_path: Path) -> None:
    server.failing = False
    folder = tmp_path / "out.download"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"something else")
    (folder / "saved_model.pb.json").write_text("{}")
    assert main(words(f"{server.url}/jax-plain", tmp_path / "out")) == 0


def test_what_is_not_there_is_said(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(f"{server.url}/nothing", tmp_path / "out")) == 2
    assert "nothing/saved_model.pb: not found" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main(words(f"{server.url}/jax-native", tmp_path / "out")) == 2  # refused: what was downloaded goes
    assert "XlaCallModule" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


class Telling(MemoryFileSystem):  # type: ignore[misc]
    """Tells checksums, as Google's storage does."""

    protocol = "telling"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    wrong = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("telling:").replace("//", "/"))  # type: ignore[no-any-return]

    def info(self, path: str, **kwargs: Any) -> Any:
        found = super().info(path, **kwargs)
        if found["type"] == "file":
            crc = crc32c(self.store[self._strip_protocol(path)].getvalue()) ^ self.wrong
            found["crc32c"] = base64.b64encode(struct.pack(">I", crc)).decode()
        return found


def test_a_checksum_that_the_server_tells_is_compared(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fsspec.register_implementation("telling", Telling, clobber=True)
    system = Telling()
    for path in (released / "jax-plain").rglob("*"):
        if path.is_file():
            system.pipe_file(f"/Pong/1/{path.relative_to(released / 'jax-plain')}", path.read_bytes())
    monkeypatch.setattr(Telling, "wrong", True)
    command = ["import", "encoder", "telling://Pong/1", "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "its checksum is not the one that the server tells" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(Telling, "wrong", False)
    assert main(command) == 0
    assert load_encoder(tmp_path / "out").about["env_id"] == "atari/Pong"
