"""Streams over HTTP from a server on this machine that fails now and then, and what a source may be."""

import gzip
import importlib.util
import json
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import fsspec
import numpy as np
import pytest

from protovalue.data import sources
from protovalue.data.config import ImportDqnReplayConfig, ImportRluConfig
from protovalue.data.import_dqn_replay import import_dqn_replay
from protovalue.data.import_rlu import import_rlu
from protovalue.data.sources import Ahead, DamagedError, Gunzip, find_sources
from protovalue.errors import UserError
from tests.data.published import Ring, atari_episode, same_contents, write_atari, write_rlu


class Server(ThreadingHTTPServer):
    """Serves a folder. Every third GET of a file is cut off half-way, every fourth answered with 503."""

    def __init__(self, folder: Path, ranges: bool = True) -> None:
        self.folder, self.ranges = folder, ranges
        self.failing = True
        self.gets = self.cuts = self.refusals = self.partial = 0
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that leaves early is no news


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def __init__(self, request: Any, client_address: Any, server: Any) -> None:
        super().__init__(request, client_address, server, directory=str(server.folder))

    def log_message(self, format: Any, *args: Any) -> None:
        pass

    def end_headers(self) -> None:
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            super().do_GET()  # a listing, or 404
            return
        with self.server.lock:
            self.server.gets += 1
            cut = self.server.failing and self.server.gets % 3 == 0
            refuse = self.server.failing and self.server.gets % 4 == 0
            self.server.cuts += cut and not refuse
            self.server.refusals += refuse
        if refuse:
            self.send_error(503)
            return
        data = path.read_bytes()
        wanted = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if self.server.ranges else None
        if wanted:
            self.server.partial += 1
            first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            data = data[first : last + 1]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PAUSE", 0.001)
    monkeypatch.setattr(sources, "BLOCK", 20_000)


@pytest.fixture
def serve() -> Iterator[Any]:
    servers = []

    def start(folder: Path, ranges: bool = True) -> Server:
        servers.append(Server(folder, ranges))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A published-looking tree of two shards, and the data set that they hold."""
    rng = np.random.default_rng(0)
    data = write_atari(tmp_path / "set", [atari_episode(n, rng) for n in (20, 30, 10, 40)])
    for shard in range(2):
        write_rlu(tmp_path / "web" / "Breakout" / f"run_1-{shard:05d}-of-00002", data, 2 * shard, 2 * shard + 2)
    return tmp_path


@pytest.mark.parametrize("ranges", [True, False])
def test_rlu_over_a_failing_connection(shards: Path, serve: Any, ranges: bool) -> None:
    server = serve(shards / "web", ranges)
    source = (f"{server.url}/Breakout/run_1-*",)
    import_rlu(ImportRluConfig(source=source, out=shards / "imported", workers=1), quiet=True)
    assert same_contents(shards / "set", shards / "imported")
    assert server.cuts > 0
    assert server.refusals > 0
    assert (server.partial > 0) == ranges


def test_dqn_replay_over_a_failing_connection(tmp_path: Path, serve: Any) -> None:
    rng = np.random.default_rng(0)
    data = write_atari(tmp_path / "set", [atari_episode(n, rng) for n in (20, 30)])
    ring = Ring(60)
    for index in range(2):
        ring.add_episode(data.episode(index))
    ring.save(tmp_path / "web" / "Breakout" / "1" / "replay_logs", 7)
    server = serve(tmp_path / "web")
    config = ImportDqnReplayConfig(source=(f"{server.url}/Breakout/1/replay_logs/",), out=tmp_path / "imported")
    import_dqn_replay(config, quiet=True)
    assert same_contents(tmp_path / "set", tmp_path / "imported")
    assert server.cuts + server.refusals > 1


def test_any_other_file_system(shards: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in (shards / "web" / "Breakout").iterdir():
        memory.pipe_file(f"/bucket/Breakout/{path.name}", path.read_bytes())
    for number, text in enumerate(["memory://bucket/Breakout", "memory://bucket/*/run_1-*"]):
        out = shards / f"imported-{number}"
        import_rlu(ImportRluConfig(source=(text,), out=out, workers=1), quiet=True)
        assert same_contents(shards / "set", out)
    memory.rm("/bucket", recursive=True)


class FolderServer(ThreadingHTTPServer):
    folder: Path


class Bucket(BaseHTTPRequestHandler):
    """The parts of Google Cloud Storage's JSON interface that reading a bucket needs."""

    protocol_version = "HTTP/1.1"
    server: FolderServer

    def log_message(self, format: Any, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        asked = dict(parse_qsl(address.query))
        match = re.fullmatch(r"(?:/download)?/storage/v1/b/bucket/o(?:/(.+))?", address.path)
        assert match is not None, address.path
        sizes = {path.relative_to(self.server.folder).as_posix(): path for path in self.server.folder.rglob("run_*")}
        objects = {
            name: {"name": name, "size": str(path.stat().st_size), "bucket": "bucket", "generation": "1"}
            for name, path in sizes.items()
        }
        name = unquote(match[1] or "")
        if name and name not in objects:
            self.send_error(404)
        elif name and asked.get("alt") == "media":
            data = sizes[name].read_bytes()
            wanted = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            self.answer(206 if wanted else 200, data[int(wanted[1]) : int(wanted[2]) + 1] if wanted else data)
        elif name:
            self.answer(200, json.dumps(objects[name]).encode())
        else:
            prefix = asked.get("prefix", "")
            rest = {key: key.removeprefix(prefix) for key in objects if key.startswith(prefix)}
            deep = "delimiter" not in asked
            items = [objects[key] for key, tail in rest.items() if deep or "/" not in tail]
            folders = {prefix + tail.split("/")[0] + "/" for tail in rest.values() if not deep and "/" in tail}
            self.answer(200, json.dumps({"items": items, "prefixes": sorted(folders)}).encode())

    def answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def test_a_public_bucket_without_an_account(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("gcsfs") is None:  # not imported here: what it does depends on how it is imported
        pytest.skip("needs the extra gcs")
    server = FolderServer(("127.0.0.1", 0), Bucket)
    server.folder = shards / "web"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = {"endpoint_url": f"http://127.0.0.1:{server.server_port}", "token": "anon"}
    monkeypatch.setitem(fsspec.config.conf, "gs", endpoint)
    source = ("gs://bucket/Breakout/run_1-*",)
    import_rlu(ImportRluConfig(source=source, out=shards / "imported", workers=1), quiet=True)
    server.shutdown()
    server.server_close()
    assert same_contents(shards / "set", shards / "imported")


def test_a_server_that_never_answers_is_one_line(shards: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(shards / "web")
    files = find_sources([f"{server.url}/Breakout/"], r"-of-00002$")
    assert [file.name for file in files] == ["run_1-00000-of-00002", "run_1-00001-of-00002"]
    assert all(file.size > 0 for file in files)
    monkeypatch.setattr(Handler, "do_GET", lambda self: self.send_error(503))
    with pytest.raises(UserError, match=r"run_1-00000-of-00002: the server answered 503 .*\(tried 8 times\)"):
        files[0].open().read(1)
    monkeypatch.setattr(Handler, "do_GET", lambda self: self.send_error(403))
    with pytest.raises(UserError, match=r"the server answered 403 .*\(tried 1 times\)"):
        files[0].open().read(1)
    monkeypatch.undo()
    with pytest.raises(UserError, match="nothing: not found"):
        find_sources([f"{server.url}/nothing"], ".")


def test_the_bytes_are_those_of_the_file(tmp_path: Path, serve: Any) -> None:
    """Any sizes of reads, over a connection that fails, give the file; gzip files are not unpacked on the way."""
    content = gzip.compress(np.random.default_rng(0).bytes(100_000))
    (tmp_path / "file.gz").write_bytes(content)
    for ranges in (True, False):
        server = serve(tmp_path, ranges)
        (source,) = find_sources([f"{server.url}/file.gz"], "x")
        with source.open() as stream:
            parts, size = [], 1
            while part := stream.read(size):
                parts.append(part)
                size = size * 3 % 40_009
            assert b"".join(parts) == content
            assert stream.position == len(content)


def test_folders_files_and_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/x-1", "a/deep/x-2", "b/x-3", "b/other", "c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    def names(*texts: Any) -> list[Any]:
        return [os.path.relpath(source.path, tmp_path) for source in find_sources(texts, r"^x-\d$")]

    root = str(tmp_path)
    assert sorted(names(root)) == ["a/deep/x-2", "a/x-1", "b/x-3"]
    assert names(f"{root}/b") == ["b/x-3"]
    assert names(f"{root}/*/x-*") == ["a/x-1", "b/x-3"]
    assert sorted(names(f"{root}/[ab]")) == ["a/deep/x-2", "a/x-1", "b/x-3"]
    assert names(f"{root}/c.txt") == ["c.txt"]  # named itself, so taken whatever its name
    assert names(f"{root}/b/x-3", f"{root}/b") == ["b/x-3"]
    with pytest.raises(UserError, match=r"c.txt/: not found"):
        names(f"{root}/c.txt/")
    monkeypatch.chdir(tmp_path)
    assert [source.path for source in find_sources(["b"], "x")] == [f"{root}/b/x-3"]


def test_gzip_members_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"two" * 100_000))
    (source,) = find_sources([str(path)], ".")
    with source.open() as stream:
        unpacked = Gunzip(stream)
        assert unpacked.read(6) == b"one tw"
        assert unpacked.read(10**6) == (b"two" * 100_000)[2:]
        assert unpacked.read(1) == b""
    path.write_bytes(gzip.compress(b"one")[:-1])
    with source.open() as stream, pytest.raises(DamagedError, match="truncated: the gzip stream ends at byte"):
        Gunzip(stream).read(100)


def test_reading_ahead_keeps_order_and_hands_errors_over() -> None:
    def numbers() -> Iterator[Any]:
        yield from range(50)
        raise DamagedError("the end")

    taken = []
    with pytest.raises(DamagedError, match="the end"), Ahead(numbers(), depth=3) as ahead:
        for number in ahead:
            taken.append(number)
    assert taken == list(range(50))
    with Ahead(iter(range(10**9)), depth=2) as ahead:  # left early, its thread ends
        assert next(iter(ahead)) == 0
    assert not ahead._thread.is_alive()


def test_reading_ahead_stops_at_its_budget() -> None:
    """Items of 40 bytes with a budget of 100: two wait; one of 1,000 waits alone."""
    made = []

    def items() -> Iterator[bytes]:
        for number, size in enumerate([40] * 6 + [1000] * 3):
            made.append(number)
            yield bytes(size)

    with Ahead(items(), 10, len, 100) as ahead:
        iterator = iter(ahead)
        sizes, most = [], 0
        for taken, item in enumerate(iterator, 1):
            with ahead._changed:
                waiting = [weight for _, weight in ahead._waiting]
            assert sum(waiting) <= 100 or len(waiting) == 1
            assert len(made) <= taken + 3
            most = max(most, len(waiting))
            sizes.append(len(item))
    assert sizes == [40] * 6 + [1000] * 3
    assert not ahead._thread.is_alive()


def test_reading_ahead_fills_its_budget_exactly() -> None:
    ready = []
    with Ahead(iter([b"a" * 50] * 9), 10, len, 150) as ahead:
        with ahead._changed:
            ahead._changed.wait_for(lambda: len(ahead._waiting) == 3, timeout=10)
            ready = [weight for _, weight in ahead._waiting]
    assert ready == [50, 50, 50]
