"""Streams over HTTP from a server on this machine that fails now and then, and what a source may be."""

import gzip
import importlib.util
import json
import os
import re
import threading
import zlib
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
from protovalue.data.sources import Ahead, DamagedError, Gunzip, SourceFile, Stream, find_sources
from protovalue.errors import UserError
from tests.data.published import Ring, atari_episode, same_contents, write_atari, write_rlu

USUAL_PAUSE = sources.PAUSE  # the tests below wait much less


class Server(ThreadingHTTPServer):
    """Serves a folder. Every third GET of a file is cut off half-way, every fourth answered with 503."""

    def __init__(self, folder: Path, ranges: bool = True) -> None:
        self.folder, self.ranges = folder, ranges
        self.failing = True
        self.encoding = ""  # what it says that a file is packed with
        self.gets = self.cuts = self.refusals = self.partial = 0
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

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
        if self.server.encoding:
            self.send_header("Content-Encoding", self.server.encoding)
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


def test_a_file_that_the_server_calls_packed_arrives_as_it_lies_there(tmp_path: Path, serve: Any) -> None:
    """Buckets say so of gzip files; unpacked on the way, its size and the places of its bytes would not hold."""
    content = gzip.compress(np.random.default_rng(0).bytes(50_000))
    (tmp_path / "file.gz").write_bytes(content)
    server = serve(tmp_path)
    server.failing, server.encoding = False, "gzip"
    (source,) = find_sources([f"{server.url}/file.gz"], "x")
    with source.open() as stream:
        assert stream.read(10**6) == content


@pytest.mark.parametrize(("size", "requests"), [(19_999, 1), (20_000, 1), (20_001, 2), (50_000, 3)])
def test_each_block_is_asked_for_once_and_nothing_after_the_end(
    tmp_path: Path, serve: Any, size: Any, requests: Any
) -> None:
    """Blocks have 20,000 bytes; the last may have only one."""
    content = np.random.default_rng(0).bytes(size)
    (tmp_path / "file").write_bytes(content)
    server = serve(tmp_path)
    server.failing = False
    (source,) = find_sources([f"{server.url}/file"], "x")
    with source.open() as stream:
        assert stream.read(10**6) == content
        assert stream.read(1) == b""
        assert stream.read(1) == b""
    assert (server.gets, server.partial) == (requests, requests)


def test_a_local_file_gives_what_was_asked_for(tmp_path: Path) -> None:
    """25,000 bytes are a block of 20,000 and a part of the next."""
    content = np.random.default_rng(0).bytes(50_000)
    (tmp_path / "file").write_bytes(content)
    (source,) = find_sources([str(tmp_path / "file")], "x")
    with source.open() as stream:
        assert stream.read(25_000) == content[:25_000]
        assert stream.position == 25_000
        assert stream.read(30_000) == content[25_000:]


def test_a_long_transfer_is_closed(tmp_path: Path, serve: Any) -> None:
    (tmp_path / "file").write_bytes(bytes(50_000))
    server = serve(tmp_path, ranges=False)
    server.failing = False
    (source,) = find_sources([f"{server.url}/file"], "x")
    with source.open() as stream:
        assert stream.read(10) == bytes(10)
        transfer = stream._whole
        assert not transfer.closed
    assert transfer.closed


@pytest.fixture
def memory() -> Any:
    found = fsspec.filesystem("memory")
    yield found
    found.rm("/bucket", recursive=True)


def test_a_broken_transfer_goes_on_behind_what_had_arrived(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first breaks after 40,000 of 50,000 bytes, the second after 10,000: the third passes over 40,000."""
    content = np.random.default_rng(0).bytes(50_000)
    memory.pipe_file("/bucket/file", content)
    real, lengths = memory.open, [40_000, 10_000, 50_000]
    given: list[Any] = []

    def begin(path: Any, mode: Any, **settings: Any) -> Any:
        file, length = real(path, mode, **settings), lengths[len(given)]
        given.append(0)

        class Transfer:
            def read(self, size: Any) -> Any:
                if file.tell() == length < 50_000:
                    raise OSError("broken")
                part = file.read(min(size, length - file.tell()))
                given[-1] += len(part)
                return part

            def close(self) -> Any:
                file.close()

        return Transfer()

    monkeypatch.setattr(type(memory), "open", lambda self, *args, **settings: begin(*args, **settings))
    with Stream(SourceFile("memory://bucket/file", "/bucket/file", 0)) as stream:  # a size of 0 is an unknown one
        assert stream.read(10**6) == content
    assert given == lengths


def test_pauses_double_up_to_half_a_minute_and_are_told(
    memory: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory.pipe_file("/bucket/file", b"contents")
    (source,) = find_sources(["memory://bucket/file"], "x")
    pauses: list[float] = []
    monkeypatch.setattr(sources, "PAUSE", USUAL_PAUSE)
    monkeypatch.setattr("protovalue.data.sources.time.sleep", pauses.append)

    def fails(self: Any, *args: Any, **settings: Any) -> Any:
        raise OSError("no\nanswer")

    monkeypatch.setattr(type(memory), "cat_file", fails)
    with caplog.at_level("INFO", logger="protovalue"), pytest.raises(UserError, match=r"no answer \(tried 8 times\)"):
        source.open().read(1)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30]
    assert len(caplog.messages) == 7
    assert caplog.messages[0] == "memory:///bucket/file: no answer; trying again in 0.5 s"
    assert caplog.messages[-1] == "memory:///bucket/file: no answer; trying again in 30.0 s"


@pytest.mark.parametrize(
    ("status", "tries"), [(400, 1), (403, 1), (407, 1), (408, 8), (409, 1), (429, 8), (499, 1), (500, 8)]
)
def test_only_what_may_pass_is_tried_again(
    tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch, status: Any, tries: Any
) -> None:
    (tmp_path / "file").write_bytes(b"contents")
    (source,) = find_sources([f"{serve(tmp_path).url}/file"], "x")
    asked = []

    def refuse(self: Any) -> None:
        asked.append(1)
        self.send_error(status, "No")

    monkeypatch.setattr(Handler, "do_GET", refuse)
    with pytest.raises(UserError, match=rf"file: the server answered {status} No \(tried {tries} times\)$"):
        source.open().read(1)
    assert len(asked) == tries


def test_what_is_not_there_is_looked_for_once(tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protovalue.data.sources.time.sleep", lambda pause: pytest.fail("tried again"))
    with pytest.raises(UserError, match=r"/nothing: not found$"):
        find_sources([str(tmp_path / "nothing")], "x")
    monkeypatch.setattr(Handler, "do_HEAD", lambda self: self.send_error(410))
    monkeypatch.setattr(Handler, "do_GET", lambda self: self.send_error(410))
    with pytest.raises(UserError, match=r"/nothing: not found$"):
        find_sources([f"{serve(tmp_path).url}/nothing"], "x")


def test_a_server_that_is_busy_at_first_is_asked_again_what_it_has(
    tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To fsspec every failure means that there is no such file."""
    (tmp_path / "file").write_bytes(b"contents")
    real, asked = Handler.do_HEAD, []

    def head(self: Any) -> Any:
        asked.append(1)
        self.send_error(503) if len(asked) < 3 else real(self)

    monkeypatch.setattr(Handler, "do_HEAD", head)
    monkeypatch.setattr(Handler, "do_GET", lambda self: self.send_error(503))
    (source,) = find_sources([f"{serve(tmp_path).url}/file"], "x")
    assert source.size == 8


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


def test_gzip_is_read_no_further_than_asked(tmp_path: Path) -> None:
    """What follows the third byte is damaged: the first three are good."""
    path = tmp_path / "file"
    for rest in (b"no gzip at all", zlib.compress(b"two")):
        path.write_bytes(gzip.compress(b"one") + rest)
        (source,) = find_sources([str(path)], ".")
        with source.open() as stream:
            unpacked = Gunzip(stream)
            assert unpacked.read(3) == b"one"
            with pytest.raises(DamagedError, match=f"file: damaged gzip at or before byte {path.stat().st_size}: inc"):
                unpacked.read(1)
    path.write_bytes(zlib.compress(b"one"))
    with source.open() as stream, pytest.raises(DamagedError, match="damaged gzip at or before byte 11: incorrect hea"):
        Gunzip(stream).read(1)


def test_gzip_that_expands_a_lot_is_unpacked_bit_by_bit(tmp_path: Path) -> None:
    """A megabyte of zeros has a thousand bytes packed; for the first of them, 64 KiB are unpacked."""
    (tmp_path / "file").write_bytes(gzip.compress(bytes(1 << 20)))
    (source,) = find_sources([str(tmp_path / "file")], ".")
    with source.open() as stream:
        unpacked = Gunzip(stream)
        assert unpacked.read(1) == b"\0"
        assert len(unpacked._buffer) == (1 << 16) - 1
        assert unpacked.read(1 << 20) == bytes((1 << 20) - 1)


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


def test_reading_ahead_is_four_items_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = Ahead(iter(range(100)))
    monkeypatch.setattr(ahead._changed, "wait", lambda: setattr(ahead, "_stopped", True))  # when there is no room
    ahead._run()
    assert [item for item, _ in ahead._waiting] == [0, 1, 2, 3]
