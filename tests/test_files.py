"""Files: atomic, complete, checked when read, and never written through a link."""

import fcntl
import hashlib
import json
import os
import resource
import signal
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from protovalue.errors import UserError
from protovalue.files import (
    FolderLock,
    beside,
    json_line,
    locked,
    make_folder,
    naming,
    open_file,
    read_bytes,
    read_json,
    read_lines,
    reading,
    refuse_links,
    size_and_crc,
    truncate,
    write_all,
    write_atomic,
    write_json,
)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def in_a_child(work: Any) -> int:
    """Run something in a forked process; return its exit code."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# Atomic writes


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"before")
    with beside(path) as new:
        assert new.parent == tmp_path
        assert new.suffix == ".json"
        assert new.name.startswith(".new-")
        new.write_bytes(b"after")
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o644
    assert names(tmp_path) == ["file.json"]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    for failure in (ValueError, KeyboardInterrupt):
        with pytest.raises(failure), beside(path) as new:
            new.write_bytes(b"half")
            raise failure
    assert path.read_bytes() == b"before"
    assert names(tmp_path) == ["file"]


def test_what_a_kill_left_is_swept_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    def killed() -> None:
        with beside(tmp_path / "file.json"):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(killed) == -signal.SIGKILL
    (left,) = names(tmp_path)
    (tmp_path / ".new-notes.txt").write_text("the user's own")
    with beside(tmp_path / "one") as mine:
        assert left not in names(tmp_path)
        write_atomic(tmp_path / "two", b"2")
        assert mine.exists()
    assert names(tmp_path) == [".new-notes.txt", "one", "two"]


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [bytes([65 + i]) * 50_000 for i in range(4)]

    def write_often(data: Any) -> None:
        for _ in range(10):
            write_atomic(path, data)

    threads = [threading.Thread(target=write_often, args=(data,)) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["file"]


def test_a_file_that_was_swept_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = fcntl.flock, list[Path]()

    def sweep_first(descriptor: Any, how: Any) -> None:
        if not swept:
            (entry,) = tmp_path.iterdir()
            entry.unlink()
            swept.append(entry)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    write_atomic(tmp_path / "file", b"data")
    assert len(swept) == 1
    assert (tmp_path / "file").read_bytes() == b"data"


# Links and other things in the place of files


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "file").symlink_to("precious")
    write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("flags", [os.O_WRONLY | os.O_CREAT | os.O_APPEND, os.O_RDWR | os.O_CREAT, os.O_RDONLY])
def test_links_are_not_opened(tmp_path: Path, flags: Any) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "file").symlink_to("precious")
    (tmp_path / "other").symlink_to("nowhere")
    for name in ("file", "other"):
        with pytest.raises(UserError, match=f"{name}: found a symbolic link, expected a file; links are not followed"):
            open_file(tmp_path / name, flags)
    assert names(tmp_path) == ["file", "other", "precious"]


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY])
def test_pipes_and_folders_are_not_opened_and_nobody_waits_for_them(tmp_path: Path, flags: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(UserError, match=f"{name}: found no regular file, expected one"):
            open_file(tmp_path / name, flags)
    for name in ("pipe", "folder"):
        with pytest.raises((UserError, IsADirectoryError)):
            read_bytes(tmp_path / name)
    with pytest.raises(UserError, match="pipe: found no regular file"), reading(tmp_path / "pipe"):
        pass
    with pytest.raises(UserError, match="pipe: found no regular file"):
        size_and_crc(tmp_path / "pipe")


def test_a_new_file_must_be_new(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(FileExistsError):
        open_file(tmp_path / "file", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.close(open_file(tmp_path / "other", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o644


def test_a_folder_of_ours_is_no_link(tmp_path: Path) -> None:
    make_folder(tmp_path / "a/b")
    make_folder(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(UserError, match="link: found a symbolic link, expected a folder"):
        make_folder(tmp_path / "link")
    make_folder(tmp_path / "link/c")  # the user's own folder may lie anywhere
    assert (tmp_path / "a/c").is_dir()


# JSON


def test_json_has_the_checksum_that_the_format_says(tmp_path: Path) -> None:
    fields = {"b": [1, 2.5, None], "a": "\u00fc"}
    write_json(tmp_path / "x.json", fields)
    stored = json.loads((tmp_path / "x.json").read_text())
    canonical = b'{"a":"\\u00fc","b":[1,2.5,null]}'
    assert stored == {**fields, "sha256": hashlib.sha256(canonical).hexdigest()}
    assert read_json(tmp_path / "x.json") == fields


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1, "sha256": "0"}', "its checksum does not match its contents"),
        (b'{"a": 1}', "its checksum does not match its contents"),
        (b"[1]", "found a JSON list, expected an object"),
        (b'{"a": 1', "not JSON"),
        (b"\xff\xfe\xff", "not JSON"),
        (b"", "not JSON"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested more than 64 deep"),
        (b'{"a":' * 300 + b"1" + b"}" * 300, "nested more than 64 deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_damaged_json_is_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        read_json(path)
    assert str(error.value).startswith(f"{path}: damaged: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate((1 << 26) + 1)
    with pytest.raises(UserError, match="found 67,108,865 bytes, expected at most 67,108,864"):
        read_json(path)
    truncate(path, 1 << 26)
    assert len(read_bytes(path)) == 1 << 26


# Lines of JSON


def anything(row: Any) -> str:
    return ""


def test_a_line_ends_in_the_checksum_of_the_rest() -> None:
    text = '{"step": 3, "x": 0.1, "name": "\\u00fc"}'
    line = json_line({"step": 3, "x": 0.1, "name": "\u00fc"})
    assert line == f'{text[:-1]}, "crc32": {zlib.crc32(text.encode())}}}\n'.encode()


def test_lines_come_back(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows: list[dict[str, Any]] = [{"a": 1}, {"b": [None, 1e-300, -0.0]}, {"c": "\n\r\u2028"}]
    path.write_bytes(b"".join(map(json_line, rows)) + b'{"without": "a checksum"}\n')
    found = read_lines(path, anything)
    assert found.rows == [*rows, {"without": "a checksum"}]
    assert b"".join(found.raw) == found.whole == path.read_bytes()
    assert (found.wrong, found.damage, found.cut_short) == ([], "", False)


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    found = read_lines(tmp_path / "x.jsonl", anything)
    assert (found.rows, found.raw, found.whole, found.damage, found.cut_short) == ([], [], b"", "", False)


def test_bad_lines_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    good = json_line({"a": 1})
    flipped = json_line({"a": 7}).replace(b"7", b"8", 1)
    lines = [
        good,
        b"nonsense\r\n",
        b"[1]\n",
        flipped,
        b"[" * 100_000 + b"\n",
        b"\xff\n",
        json_line({"a": 2}),
        good[:-1],
    ]
    path.write_bytes(b"".join(lines))
    found = read_lines(path, lambda row: "too many" if row["a"] == 2 else "")
    assert found.rows == [{"a": 1}]
    assert found.raw == [good]
    assert found.wrong == [
        (2, "not JSON"), (3, "not an object"), (4, "its checksum does not match"), (5, "not JSON"), (6, "not JSON"),
        (7, "too many"), (8, "cut short"),
    ]  # fmt: skip
    assert found.cut_short
    assert found.whole == b"".join(lines[:-1])
    assert found.damage == (
        f"{path}: damaged: line 2 (not JSON), line 3 (not an object), line 4 (its checksum does not match)"
        " and 4 more: left out"
    )
    path.write_bytes(good + b"x\n" + good + b"y\n" + b"z\n")
    assert read_lines(path, anything).damage.endswith(
        "line 2 (not JSON), line 4 (not JSON), line 5 (not JSON): left out"
    )


# Sizes, checksums, errors


def test_size_and_checksum_of_more_than_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 5000  # 1.28 MB
    (tmp_path / "x").write_bytes(data)
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    assert size_and_crc(tmp_path / "x") == (len(data), zlib.crc32(data))
    assert synced == []
    assert size_and_crc(tmp_path / "x", durable=True) == (len(data), zlib.crc32(data))
    assert synced == [str(tmp_path / "x")]


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    write_atomic(tmp_path / "x", b"data")
    new, folder = synced
    assert Path(new).name.startswith(".new-")
    assert folder == str(tmp_path)  # the name itself


def test_a_file_is_cut_or_grows_and_a_link_does_not(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abcdef")
    truncate(tmp_path / "x", 2)
    assert (tmp_path / "x").read_bytes() == b"ab"
    truncate(tmp_path / "x", 4)
    assert (tmp_path / "x").read_bytes() == b"ab\0\0"
    with pytest.raises(FileNotFoundError):
        truncate(tmp_path / "nothing", 0)
    (tmp_path / "link").symlink_to("x")
    with pytest.raises(UserError, match="link: found a symbolic link"):
        truncate(tmp_path / "link", 0)
    with pytest.raises(OSError, match="Invalid argument: '.*/x'"):
        truncate(tmp_path / "x", -1)
    with pytest.raises(UserError, match="link: found a symbolic link, expected a file"):
        refuse_links(tmp_path)
    (tmp_path / "link").unlink()
    refuse_links(tmp_path)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = names(Path("/proc/self/fd"))
    write_json(tmp_path / "x.json", {})
    read_json(tmp_path / "x.json")
    truncate(tmp_path / "x.json", 1)
    size_and_crc(tmp_path / "x.json")
    for refused in (lambda: open_file(tmp_path / "pipe", os.O_RDONLY), lambda: read_bytes(tmp_path / "pipe")):
        with pytest.raises(UserError):
            refused()
    with FolderLock(tmp_path):
        locked(tmp_path)
        with pytest.raises(UserError):
            FolderLock(tmp_path)
    assert names(Path("/proc/self/fd")) == before


def test_all_is_written_even_if_the_system_takes_a_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, taken = os.write, []

    def a_little(descriptor: Any, data: Any) -> int:
        taken.append(min(len(data), 3))
        return write(descriptor, bytes(data[:3]))

    monkeypatch.setattr(os, "write", a_little)
    descriptor = open_file(tmp_path / "x", os.O_WRONLY | os.O_CREAT)
    write_all(descriptor, b"0123456789")
    os.close(descriptor)
    assert taken == [3, 3, 3, 1]
    assert (tmp_path / "x").read_bytes() == b"0123456789"


def test_an_error_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device: '/some/file'"), naming(Path("/some/file")):
        raise OSError(28, "No space left on device")
    with pytest.raises(OSError, match="'/other'"), naming(Path("/some/file")):
        raise OSError(28, "No space left on device", "/other")
    with pytest.raises(OSError, match="'/some/file'") as error, naming(Path("/some/file"), Path("/other")):
        raise OSError(28, "No space left on device", "/other", None, "/third")
    assert error.value.filename2 is None


def limited(size: int) -> None:
    """Let no file of this process grow beyond some bytes; what is written beyond is an error."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def write() -> int:
        limited(10)
        try:
            write_atomic(path, b"x" * 20)
        except OSError as error:
            return 7 if error.filename == str(path) else 8
        return 9

    assert in_a_child(write) == 7
    assert path.read_bytes() == b"before"
    assert names(tmp_path) == ["file"]


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory: '.*/file'"):
        write_atomic(tmp_path / "file", b"x")
    assert names(tmp_path) == ["file"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_atomic(tmp_path / "nowhere/file", b"x")


# Locks


def test_a_lock_has_one_holder_whose_number_it_tells(tmp_path: Path) -> None:
    assert not locked(tmp_path)
    with FolderLock(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())
        assert locked(tmp_path)
        with pytest.raises(UserError, match=f"in use by another process \\(pid {os.getpid()}\\)"):
            FolderLock(tmp_path)
    assert not locked(tmp_path)
    FolderLock(tmp_path).release()


def test_one_can_wait_for_a_lock(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    order: list[Any] = []
    waiting = threading.Thread(target=lambda: order.append(FolderLock(tmp_path, wait=True)))
    waiting.start()
    order.append("released")
    lock.release()
    waiting.join()
    assert order[0] == "released"
    order[1].release()


def test_a_lock_is_no_link_and_no_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "lock").symlink_to("precious")
    with pytest.raises(UserError, match="lock: found a symbolic link"):
        FolderLock(tmp_path)
    with pytest.raises(UserError, match="lock: found a symbolic link"):
        locked(tmp_path)
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").hardlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="lock: found something else, expected an empty file or a process number"):
        FolderLock(tmp_path)
    assert (tmp_path / "precious").read_text() == "precious"
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").write_text("x1")
    with pytest.raises(UserError, match="lock: found something else"):
        FolderLock(tmp_path)
    (tmp_path / "lock").write_text("123456789")
    with FolderLock(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_a_lock_on_a_full_disk_names_its_file(tmp_path: Path) -> None:
    def lock() -> int:
        limited(0)
        before = len(names(Path("/proc/self/fd")))
        try:
            FolderLock(tmp_path)
        except OSError as error:
            closed = len(names(Path("/proc/self/fd"))) == before
            return 7 if error.filename == str(tmp_path / "lock") and closed else 8
        return 9

    assert in_a_child(lock) == 7
