"""A small server that speaks the part of the Hugging Face Hub's API that huggingface_hub uses, with faults to order."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml
from huggingface_hub import constants

TOKEN = "hf_a_token_that_may_write"
LARGE = (".safetensors", ".png", ".bin", ".hdf5")  # what the Hub keeps as large files, whose SHA-256 it lists


@dataclass
class Repo:
    """Its commits, oldest first: each has a name and all files."""

    private: bool = False
    gated: bool = False
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)

    def commit(self, files: dict[str, bytes]) -> str:
        """Add a commit; return its name."""
        before = self.commits[-1][1] if self.commits else {}
        name = hashlib.sha1(repr((len(self.commits), sorted(files.items()))).encode()).hexdigest()
        self.commits.append((name, {**before, **files}))
        return name


@dataclass
class Hub:
    """The state of the server, to look at and to change from a test."""

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    """By kind and name, as models/org/name."""
    uploads: dict[str, bytes] = field(default_factory=dict)
    cuts: int = 0
    """How many transfers of a large file break off in their middle."""
    cut_uploads: bool = False
    wrong: set[str] = field(default_factory=set)
    """Names of files that arrive with a byte changed."""
    down: bool = False
    """Answer 503 to everything."""
    asked: list[str] = field(default_factory=list)

    def repo(self, name: str, kind: str = "models") -> Repo:
        """Return a repository, made if it is not there."""
        return self.repos.setdefault(f"{kind}/{name}", Repo())


def _listed(name: str, data: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    fields: dict[str, Any] = {"oid": blob, "size": len(data)}
    if name.endswith(LARGE):
        sha = hashlib.sha256(data).hexdigest()
        fields["lfs"] = {"oid": sha, "sha256": sha, "size": len(data), "pointerSize": 134}
    return fields


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, status: int, body: Any = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _may_write(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repo(self, kind: str, name: str) -> Repo | None:
        """Return a repository that may be seen, or answer."""
        repo = self.hub.repos.get(f"{kind}/{name}")
        if repo is None or (repo.private and not self._may_write()):
            self._answer(401, {"error": "Invalid username or password."}, X_Error_Code="RepoNotFound")
            return None
        if repo.gated and not self._may_write():
            self._answer(403, {"error": "gated"}, X_Error_Code="GatedRepo")
            return None
        return repo

    def _commit(self, repo: Repo, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Return a commit, or answer."""
        for sha, files in reversed(repo.commits):
            if revision in (sha, "main"):
                return sha, files
        self._answer(404, {"error": "no such revision"}, X_Error_Code="RevisionNotFound")
        return None

    def _dispatch(self) -> None:
        body = self._body()
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        if self.hub.down:
            self._answer(503)
            return
        api = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|preupload|commit|tree|paths-info)/"
                           r"([^/]+)(?:/(.*))?)?", path)  # fmt: skip
        file = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            wrong = _wrong_in(json.loads(body)["content"])
            self._answer(400 if wrong else 200, {"errors": wrong, "warnings": []})
        elif path.endswith(".git/info/lfs/objects/batch"):
            self._batch(json.loads(body))
        elif path.startswith("/lfs/"):
            self._put(path.removeprefix("/lfs/"), body)
        elif file and (repo := self._repo("datasets" if file[1] else "models", file[2])):
            self._file(repo, file[3], file[4])
        elif api and (repo := self._repo(api[1], api[2])):
            self._api(repo, api, body)
        elif not file and not api:
            self._answer(404, {"error": path})

    do_GET = do_HEAD = do_POST = do_PUT = _dispatch  # noqa: N815

    def _create(self, wanted: dict[str, Any]) -> None:
        if not self._may_write():
            self._answer(401, {"error": "Invalid token"})
            return
        kind, name = f"{wanted.get('type', 'model')}s", wanted["name"]
        full = f"{wanted['organization']}/{name}" if wanted.get("organization") else name
        if f"{kind}/{full}" in self.hub.repos:
            self._answer(409, {"error": "exists", "url": f"{self.hub.url}/{full}"})
            return
        self.hub.repo(full, kind).private = bool(wanted.get("private") or wanted.get("visibility") == "private")
        self._answer(200, {"url": f"{self.hub.url}/{full}", "id": full, "name": full})

    def _batch(self, wanted: dict[str, Any]) -> None:
        if not self._may_write():
            self._answer(403, {"error": "no"})
            return
        self._answer(200, {
            "transfer": "basic",
            "objects": [
                {**one, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{one['oid']}", "header": {}}}}
                for one in wanted["objects"]
            ],
        }, Content_Type="application/vnd.git-lfs+json")  # fmt: skip

    def _put(self, oid: str, body: bytes) -> None:
        if self.hub.cut_uploads:
            self.close_connection = True
            self.connection.close()
            return
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.uploads[oid] = body
        self._answer(200)

    def _file(self, repo: Repo, revision: str, name: str) -> None:
        commit = self._commit(repo, revision)
        if commit is None:
            return
        sha, files = commit
        if name not in files:
            self._answer(404, {"error": "no such file"}, X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
            return
        data = files[name]
        listed = _listed(name, data)
        etag = listed["lfs"]["sha256"] if "lfs" in listed else listed["oid"]
        if name in self.hub.wrong:
            data = bytes([data[0] ^ 1]) + data[1:] if len(data) < 2_000 else data[:-1] + bytes([data[-1] ^ 1])
        headers = {"ETag": f'"{etag}"', "X_Repo_Commit": sha, "Accept_Ranges": "bytes"}
        start, status = 0, 200
        if span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            start, status = int(span[1]), 206
            end = min(int(span[2] or len(data) - 1), len(data) - 1)
            headers["Content_Range"] = f"bytes {start}-{end}/{len(data)}"
            data = data[start : end + 1]
        if self.command == "GET" and self.hub.cuts and name.endswith(LARGE):
            self.hub.cuts -= 1
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self._answer(status, data, **headers)

    def _api(self, repo: Repo, api: re.Match[str], body: bytes) -> None:
        _, name, action, revision, rest = api.groups()
        if action in ("preupload", "commit") and not self._may_write():
            self._answer(403, {"error": "no right to write"})
            return
        if action == "preupload":
            files = json.loads(body)["files"]
            modes = [
                {"path": one["path"], "uploadMode": "lfs" if one["path"].endswith(LARGE) else "regular",
                 "shouldIgnore": False} for one in files
            ]  # fmt: skip
            self._answer(200, {"files": modes})
            return
        if action == "commit":
            self._write(repo, name, body)
            return
        commit = self._commit(repo, revision or "main")
        if commit is None:
            return
        sha, files = commit
        if action in ("tree", "paths-info"):
            self._answer(200, self._tree(files, action, rest or "", body))
            return
        siblings = [
            {"rfilename": one, "size": len(data), "blobId": _listed(one, data)["oid"],
             **({"lfs": _listed(one, data)["lfs"]} if one.endswith(LARGE) else {})}
            for one, data in files.items()
        ]  # fmt: skip
        self._answer(200, {"id": name, "modelId": name, "sha": sha, "private": repo.private, "siblings": siblings,
                           "tags": [], "downloads": 0, "likes": 0})  # fmt: skip

    def _tree(self, files: dict[str, bytes], action: str, rest: str, body: bytes) -> list[dict[str, Any]]:
        """List what lies in a folder, or what is known of some paths."""
        if action == "paths-info":
            text = body.decode()
            wanted = json.loads(text)["paths"] if text.startswith("{") else _form(text)
        else:
            inside = [name for name in files if name.startswith(f"{rest}/" if rest else "")]
            depth = rest.count("/") + 1 if rest else 0
            whole = parse_qs(urlsplit(self.path).query).get("recursive", [""])[0].lower() in ("true", "1")
            deepest = max((name.count("/") for name in inside), default=0) if whole else depth
            levels = range(depth + 1, deepest + 2)
            wanted = list(dict.fromkeys("/".join(name.split("/")[:level]) for level in levels for name in inside))
        found: list[dict[str, Any]] = []
        for one in wanted:
            if one in files:
                found.append({"type": "file", "path": one, **_listed(one, files[one])})
            elif any(name.startswith(f"{one}/") for name in files):
                found.append({"type": "directory", "path": one, "oid": "0" * 40, "size": 0})
        return found

    def _write(self, repo: Repo, name: str, body: bytes) -> None:
        added: dict[str, bytes] = {}
        for line in body.splitlines():
            one = json.loads(line)
            if one["key"] == "file":
                added[one["value"]["path"]] = base64.b64decode(one["value"]["content"])
            elif one["key"] == "lfsFile":
                added[one["value"]["path"]] = self.hub.uploads[one["value"]["oid"]]
        sha = repo.commit(added)
        self._answer(200, {"success": True, "commitOid": sha, "commitUrl": f"{self.hub.url}/{name}/commit/{sha}"})


def _wrong_in(card: str) -> list[dict[str, str]]:
    """Return what the Hub would refuse in the metadata of a card."""
    found = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    try:
        fields = yaml.safe_load(found[1]) if found else {}
    except yaml.YAMLError as error:
        return [{"message": f"not YAML: {error}"}]
    good = isinstance(fields.get("license", "mit"), str) and isinstance(fields.get("tags", []), list)
    return [] if good else [{"message": "license must be text, tags a list"}]


def _form(text: str) -> list[str]:
    return parse_qs(text).get("paths", [])


@contextmanager
def serving() -> Iterator[Hub]:
    """Run the server on a free port of this machine."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def connected(patch: pytest.MonkeyPatch, folder: Path, token: str | None = TOKEN) -> Iterator[Hub]:
    """Let huggingface_hub know the server and no other, keep its cache in a folder, and be logged in or not."""
    with serving() as hub:
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
        patch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the storage behind the Hub, with a protocol of its own
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            patch.delenv(name, raising=False)
        if token:
            patch.setenv("HF_TOKEN", token)
        yield hub
