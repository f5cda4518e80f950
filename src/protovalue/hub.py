"""The Hugging Face Hub: addresses such as hf://org/name, what is downloaded from there, and one commit to it.

Nothing here knows what an encoder is. Files come into the Hub's own cache, are compared with the Hub's checksums and
never run. HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE are those of huggingface_hub.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from protovalue import __version__
from protovalue.errors import UserError
from protovalue.files import reading

SCHEME = "hf://"
_KINDS = {"datasets/": "dataset", "": "model"}
_ADDRESS = re.compile(r"hf://(datasets/)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([^\s@/]+(?:/[^\s@/]+)*))?/?")
_COMMIT = re.compile("[0-9a-f]{40}")


def is_address(text: str) -> bool:
    """Whether a text names something on the Hub; what is wrong with it is told by `Repository.of`."""
    return text.startswith(SCHEME)


@dataclass(frozen=True)
class Repository:
    """A repository at a revision: a branch, a tag or a commit."""

    name: str
    """As org/name."""
    revision: str = "main"
    kind: str = "model"

    @classmethod
    def of(cls, address: str, kind: str = "model") -> Self:
        """Read hf://org/name[@revision], or hf://datasets/org/name[@revision]; anything else is a UserError."""
        found = _ADDRESS.fullmatch(address)
        if found is None or _KINDS[found[1] or ""] != kind:
            prefix = "datasets/" if kind == "dataset" else ""
            raise UserError(f"{address}: expected hf://{prefix}ORG/NAME or hf://{prefix}ORG/NAME@REVISION")
        return cls(found[2], found[3] or "main", kind)

    def __str__(self) -> str:
        """Return its address."""
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{SCHEME}{'datasets/' if self.kind == 'dataset' else ''}{self.name}{at}"


@dataclass(frozen=True)
class _Listed:
    """What the Hub says of a file."""

    size: int
    sha256: str | None
    """Of a large file."""
    blob: str | None
    """Of a small one: Git's SHA-1."""


def pinned(repository: Repository) -> Repository:
    """Return the repository at the commit that its revision is now: what was downloaded once is found again."""
    if _COMMIT.fullmatch(repository.revision):
        return repository
    with _telling(repository) as hub:
        if hub.constants.HF_HUB_OFFLINE:
            return replace(repository, revision=_commit_in_cache(hub, repository))
        return replace(repository, revision=_list(hub, repository)[0])


def fetch(repository: Repository, names: Sequence[str], missing: str, most: int, check: Callable[[Path], None]) -> Path:
    """Download files, or find them in the Hub's cache; return their folder, whose name is the commit.

    Args:
        repository: where from.
        names: of the files, the most telling one first.
        missing: what to say where one of them is not there, before its name.
        most: bytes that a file may have.
        check: called with the first file before the others are downloaded.
    """
    commit = pinned(repository)
    with _telling(repository) as hub:
        found = [_in_cache(hub, commit, name) for name in names]
        if found[0] is not None and None not in found:
            check(found[0])
            return found[0].parent
        if hub.constants.HF_HUB_OFFLINE:
            raise UserError(f"{repository}: not downloaded yet, and HF_HUB_OFFLINE is set")
        _, listed = _list(hub, commit)
        for name in names:
            if name not in listed:
                raise UserError(f"{repository}: {missing}: {name} is missing")
            if listed[name].size > most:
                raise UserError(f"{repository}: {name}: found {listed[name].size:,} bytes, expected at most {most:,}")
        # By the name that was given: the cache then knows which commit that is, also without a connection.
        first = _download(hub, repository, names[0], listed[names[0]])
        if first.parent.name != commit.revision:
            raise UserError(f"{repository}: it was changed while it was downloaded; the same command starts again")
        check(first)
        for name in names[1:]:
            _download(hub, commit, name, listed[name])
        return first.parent


def _in_cache(hub: Any, commit: Repository, name: str) -> Path | None:
    found = hub.try_to_load_from_cache(commit.name, name, revision=commit.revision, repo_type=commit.kind)
    return Path(found) if isinstance(found, str) else None


def _commit_in_cache(hub: Any, repository: Repository) -> str:
    """Return the commit that a revision was when it was downloaded last."""
    folder = Path(hub.constants.HF_HUB_CACHE) / f"{repository.kind}s--{repository.name.replace('/', '--')}"
    path = folder / "refs" / repository.revision
    commit = path.read_text().strip() if path.is_file() else ""
    if not _COMMIT.fullmatch(commit):
        raise UserError(f"{repository}: not downloaded yet, and HF_HUB_OFFLINE is set")
    return commit


def _list(hub: Any, repository: Repository) -> tuple[str, dict[str, _Listed]]:
    """Return the commit that a revision is now, and its files."""
    api = hub.HfApi(library_name="protovalue", library_version=__version__)
    info = api.repo_info(repository.name, revision=repository.revision, repo_type=repository.kind, files_metadata=True)
    if not isinstance(info.sha, str) or not _COMMIT.fullmatch(info.sha):
        raise UserError(f"{repository}: the Hub names no commit")
    files = {
        one.rfilename: _Listed(one.size or 0, one.lfs.sha256 if one.lfs else None, one.blob_id)
        for one in info.siblings or ()
    }
    return info.sha, files


def _download(hub: Any, repository: Repository, name: str, listed: _Listed) -> Path:
    """Download a file and compare it with what the Hub says of it; a wrong one is not kept."""
    found = hub.hf_hub_download(
        repository.name,
        name,
        revision=repository.revision,
        repo_type=repository.kind,
        library_name="protovalue",
        library_version=__version__,
    )
    path = Path(found)
    if not _is_as_listed(path, listed):
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise UserError(f"{repository}: {name}: its checksum is not the one that the Hub lists; it was not kept")
    return path


def _is_as_listed(path: Path, listed: _Listed) -> bool:
    size = path.stat().st_size
    sha256, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with reading(path) as file:
        while block := file.read(1 << 20):
            sha256.update(block)
            blob.update(block)
    if listed.sha256 is not None:
        return size == listed.size and sha256.hexdigest() == listed.sha256
    return listed.blob is None or blob.hexdigest() == listed.blob


def upload(repository: Repository, files: Mapping[str, bytes | Path], message: str, private: bool) -> Repository:
    """Write files to a repository in one commit, made if it is not there; return it at that commit."""
    with _telling(repository) as hub:
        api = hub.HfApi(library_name="protovalue", library_version=__version__)
        api.create_repo(repository.name, repo_type=repository.kind, private=private or None, exist_ok=True)
        added = [
            hub.CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
            for name, content in files.items()
        ]
        done = api.create_commit(repository.name, added, commit_message=message, repo_type=repository.kind)
        return replace(repository, revision=str(done.oid))


def files_of(repository: Repository) -> frozenset[str] | None:
    """Return the names of a repository's files; None where there is no such repository."""
    with _telling(repository) as hub:
        try:
            return frozenset(_list(hub, repository)[1])
        except hub.errors.RevisionNotFoundError:
            return frozenset()  # made a moment ago, and empty
        except hub.errors.RepositoryNotFoundError:
            return None


def require_token(repository: Repository) -> None:
    """Refuse to write to the Hub where nobody is logged in."""
    with _telling(repository) as hub:
        if not hub.get_token():
            raise UserError(
                f"{repository}: found no token of the Hub, expected one that may write: `hf auth login`, or HF_TOKEN"
            )


@contextmanager
def _telling(repository: Repository) -> Iterator[Any]:
    """Give huggingface_hub, quiet but for its progress; what goes wrong becomes one line."""
    try:
        import huggingface_hub as hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        from huggingface_hub.utils.logging import get_verbosity, set_verbosity
    except ImportError as error:
        raise UserError(
            f"{repository}: {SCHEME} needs another package: {error}; in the checkout: pip install -e '.[hub]'"
        ) from error
    said = get_verbosity()
    set_verbosity(logging.ERROR)
    try:
        yield hub
    except UserError:
        raise
    except Exception as error:  # its own, those of its HTTP library, of the operating system, and of its threads
        raise UserError(f"{repository}: {_reason(hub, error, repository)}") from error
    finally:
        set_verbosity(said)


def _reason(hub: Any, error: BaseException, repository: Repository) -> str:
    """Say what went wrong between here and the Hub."""
    errors, where = hub.errors, hub.constants.ENDPOINT
    login = "`hf auth login`, or HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        return f"its owner gives access on request only: ask on its page at {where}, then {login}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"found no such repository at {where}; if it is private: {login}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"found no revision {repository.revision!r} there"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the Hub refuses this ({status}): a token is needed that may do it: {login}"
    if status is not None:
        return f"the Hub answered {status}: {_first_line(error)}"
    deeper = error.__cause__ or error.__context__
    if isinstance(error, RuntimeError | errors.LocalEntryNotFoundError) and deeper is not None:
        return _reason(hub, deeper, repository)
    return f"the transfer from or to {where} failed: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
