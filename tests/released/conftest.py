"""The released encoders of tests/released/files, unpacked."""

import tarfile
from pathlib import Path

import pytest

FILES = Path(__file__).parent / "files"


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one SavedModel in each folder of it, as its framework wrote it."""
    top = tmp_path_factory.mktemp("released")
    for path in FILES.glob("*.tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(top / path.name.removesuffix(".tar.xz"), filter="data")
    return top
