"""The files around the package agree with it: versions, extras, workflow, citation, image, licences."""

import re
import tomllib
from importlib import metadata
from typing import Any

import pathspec
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import protovalue
from protovalue.demo.command import STUDY
from protovalue.study.file import load_study
from tests.documents import ROOT, text_of

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
METADATA: dict[str, Any] = PROJECT["project"]
PINNED = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def read(name: str) -> Any:
    """Return a YAML file."""
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_citation_changelog_and_package_have_one_version() -> None:
    citation = read("CITATION.cff")
    assert citation["version"] == protovalue.__version__
    assert citation["license"] == METADATA["license"]
    (newest, *_) = re.findall(r"^## ([\d.]+), (?:\d{4}-\d\d-\d\d|not released yet)$", text_of("CHANGELOG.md"), re.M)
    assert newest == protovalue.__version__
    assert f"protovalue-{protovalue.__version__}-py3" in text_of("CONTRIBUTING.md")


def test_the_citation_names_the_paper_as_the_project_does() -> None:
    (paper,) = read("CITATION.cff")["references"]
    assert paper["title"] in " ".join(text_of("README.md").split())
    assert paper["url"] == METADATA["urls"]["Paper"]
    assert [author["family-names"] for author in paper["authors"]] == [
        "Farebrother", "Greaves", "Agarwal", "Le Lan", "Goroshin", "Castro", "Bellemare",
    ]  # fmt: skip


def test_pre_commit_has_the_versions_of_the_tests() -> None:
    hooks = [hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert [hook["entry"].split()[:2] for hook in hooks] == [
        ["ruff", "check"], ["ruff", "format"], ["mypy", "--python-executable"],
    ]  # fmt: skip
    for hook in hooks:
        name, version = hook["additional_dependencies"][0].split("==")
        assert hook["entry"].startswith(name)
        assert version == PINNED[name]


def test_the_workflow_runs_what_every_change_must_pass() -> None:
    jobs = read(".github/workflows/tests.yml")["jobs"]
    steps = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert steps["test"] == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    assert {"make docs", ".venv/bin/python -m build", "clean/bin/pvn demo"} <= set(steps["wheel"])
    versions = jobs["test"]["strategy"]["matrix"]["python"]
    assert versions == [
        name.rpartition(" ")[2] for name in METADATA["classifiers"] if name.startswith("Programming Language")
    ]
    assert METADATA["requires-python"] == f">={versions[0]}"


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_an_issue_template_has_what_the_server_asks_for(path: Any) -> None:
    template = read(str(path.relative_to(ROOT)))
    assert template["name"]
    assert template["description"]
    ids = [part["id"] for part in template["body"]]
    assert ids
    assert len(ids) == len(set(ids))
    assert all(part["type"] in ("textarea", "input") and part["attributes"]["label"] for part in template["body"])


def test_every_package_that_is_asked_for_is_pinned() -> None:
    asked = [*METADATA["dependencies"], *(one for extra in METADATA["optional-dependencies"].values() for one in extra)]
    pinned = {canonicalize_name(name) for name in PINNED}
    assert {canonicalize_name(Requirement(one).name) for one in asked} - pinned == set()
    assert set(METADATA["optional-dependencies"]["docs"]) <= set(METADATA["optional-dependencies"]["dev"])


def test_the_wheel_has_all_that_the_demo_needs() -> None:
    """The builder takes the package's folder, but for what .gitignore names."""
    package = ROOT / "src/protovalue"
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/protovalue"]
    ignored = pathspec.GitIgnoreSpec.from_lines((ROOT / ".gitignore").read_text().splitlines())
    files = [path.relative_to(ROOT) for path in package.rglob("*.*") if "__pycache__" not in path.parts]
    assert STUDY.resolve().relative_to(ROOT) in files
    assert [str(path) for path in files if ignored.match_file(path)] == []
    assert load_study(STUDY).name == "demo"


def test_the_image_copies_what_an_installation_reads() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    assert all((ROOT / name).exists() for name in copied)
    read_by_pip = {"pyproject.toml", "constraints.txt", METADATA["readme"], *METADATA["license-files"], "src"}
    assert copied == read_by_pip
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == copied


def installed(asked: list[str]) -> dict[str, Any]:
    """Return what pip would install for requirements, of what is installed here, with each package's description."""
    found: dict[str, Any] = {}
    left = [(Requirement(one), "") for one in asked]
    while left:
        one, extra = left.pop()
        name = canonicalize_name(one.name)
        if name in found or (one.marker and not one.marker.evaluate({"extra": extra})):
            continue
        found[name] = metadata.metadata(name)
        left += [(Requirement(line), extra) for line in metadata.requires(name) or []]
    return found


def licence(description: Any) -> str:
    """Return what a package says about its licence: the text may be all of it, the first line says which."""
    said = [description.get("License-Expression"), *(description.get_all("Classifier") or [])]
    said += [(description.get("License") or "").strip().partition("\n")[0]]
    return " ".join(line for line in said if line)


def test_no_other_package_of_a_plain_installation_is_copyleft() -> None:
    plain = installed(METADATA["dependencies"])
    assert len(plain) > 40
    strict = r"GPL|General Public|Affero|Mozilla|MPL|EUPL|CC-BY-SA"
    assert {name for name, description in plain.items() if re.search(strict, licence(description))} == {"ale-py"}
    assert "minatar" not in plain
    assert "GPL" in licence(installed(["minatar"])["minatar"])


def test_only_the_tests_need_minatar() -> None:
    extras = METADATA["optional-dependencies"]
    assert [name for name, asked in extras.items() if any(one.startswith("minatar") for one in asked)] == ["dev"]
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"^\s*(import|from) minatar\b", path.read_text(encoding="utf-8"), re.MULTILINE), path
