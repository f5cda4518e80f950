"""What the site needs beside docs/: pages from the top of the repository, links between both, diagrams as pictures."""

import hashlib
import logging
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that do not lie in docs/, and what the site calls them."""
ASSETS = ("iframe-worker.js", "site.css")
ADDRESS = re.compile(r"\]\((?![a-z]+:)([^)\s#]+)")
BY_NAME = re.compile(r"\[([\w./-]+\.md)\](?=\(\1[#)])")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)

log = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what does not lie in docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for name in ASSETS:
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(HERE / name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages, and diagrams into their pictures."""
    name = page.file.src_uri
    outside = {value: key for key, value in PAGES.items()}
    return moved(with_pictures(markdown, name), outside.get(name, f"docs/{name}"))


def moved(markdown: str, source: str) -> str:
    """Return the text of a file of the repository with links that hold between pages of the site."""
    page = PAGES.get(source, source.removeprefix("docs/"))

    def found(address: str) -> str:
        return posixpath.normpath(posixpath.join(posixpath.dirname(source), address))

    def address(match: re.Match[str]) -> str:
        there = PAGES.get(found(match[1]), found(match[1]).removeprefix("docs/"))
        return "](" + posixpath.relpath(there, posixpath.dirname(page) or ".")

    def links(text: str) -> str:
        return ADDRESS.sub(address, BY_NAME.sub(lambda match: f"[{title(found(match[1]))}]", text))

    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else links(part) for part in parts)


def title(source: str) -> str:
    """Return the heading of a file, up to its colon: what a link is called whose text is only the file's name."""
    first = (ROOT / source).read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ").partition(":")[0]


def with_pictures(markdown: str, page: str) -> str:
    """Put a picture in the place of each diagram: drawn beforehand, so that no reader needs the library."""
    number = 0

    def picture(match: re.Match[str]) -> str:
        nonlocal number
        number += 1
        name = picture_of(page, number)
        drawn = ROOT / "docs" / name
        if not drawn.is_file() or mark(match[1]) not in drawn.read_text(encoding="utf-8"):
            log.warning(f"{page}: {name} is not of the diagram that stands there: python tools/site/diagrams.py")
        return f"![diagram]({posixpath.relpath(name, posixpath.dirname(page) or '.')}){{ .diagram }}"

    return DIAGRAM.sub(picture, markdown)


def picture_of(page: str, number: int) -> str:
    """Return where the picture of a page's diagram lies in docs/."""
    return f"images/diagrams/{page.removesuffix('.md').replace('/', '-')}-{number}.svg"


def mark(diagram: str) -> str:
    """Return what a picture says about the diagram that it was drawn from."""
    return f"<!-- {hashlib.sha256(diagram.encode()).hexdigest()} -->"
