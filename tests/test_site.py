"""The documentation site: built without a warning, every link holds, nothing comes from another host, search finds."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest
import yaml
from PIL import Image

import protovalue
from tests.documents import DOCUMENTS, ROOT, blocks, text_of
from tests.report import chromium
from tests.report.test_browser import MESSAGE

OUTSIDE = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}


@cache
def _settings() -> Any:
    """Return mkdocs.yml; what is Python's in it does not matter here."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # it has no types
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)


def _in_navigation() -> list[str]:
    return [page for section in _settings()["nav"] for pages in section.values() for page in pages]


def test_every_page_is_in_the_navigation_once() -> None:
    pages = _in_navigation()
    assert sorted(pages) == sorted(set(pages))
    assert {OUTSIDE.get(page, f"docs/{page}") for page in pages} == set(DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_page_begins_with_its_title_and_what_it_is_for(document: str) -> None:
    title, empty, first = text_of(document).split("\n")[:3]
    assert title.startswith("# ")
    assert not empty
    assert re.match(r"(\*\*)?`?\w", first), f"{document}: found {first!r}, expected a sentence"


def test_every_public_name_is_in_the_reference() -> None:
    shown = {
        line.split()[-1].rpartition(".")[2]
        for document in DOCUMENTS
        if document.startswith("docs/reference/")
        for line in text_of(document).splitlines()
        if line.startswith("::: ")
    }
    assert set(protovalue.__all__) - shown == {"__version__"}


def test_every_picture_is_in_the_gallery() -> None:
    pictures = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs" / "images").rglob("*.*")}
    assert pictures
    assert pictures == set(re.findall(r"!\[[^]]+\]\((images/[^)]+)\)", text_of("docs/gallery.md")))


def test_a_drawn_diagram_has_the_words_of_its_text() -> None:
    for document in DOCUMENTS:
        for number, block in enumerate((one for one in blocks(document) if one.language == "mermaid"), 1):
            drawn = (ROOT / "docs/images/diagrams" / f"{Path(document).stem}-{number}.svg").read_text(encoding="utf-8")
            shown = " ".join(re.sub("<[^>]+>", " ", drawn).split())
            words = " ".join(re.findall(r'"([^"]+)"', block.text)).split()
            assert words
            assert [word for word in words if word not in shown] == []


class _Parsed(HTMLParser):
    """The links, anchors and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {""}
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.classes |= set(given.get("class", "").split())
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADED and LOADED[tag] in given and given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    out = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return out


def test_links_hold_and_nothing_comes_from_another_host(site: Path) -> None:
    pages = {path: _Parsed(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.stem != "404"}
    assert len(pages) == len(DOCUMENTS)
    for path, page in pages.items():
        here = path.as_uri()
        for link in page.links:
            address, anchor = urldefrag(urljoin(here, link))
            if urlparse(address).scheme != "file":
                assert link.startswith("https://"), f"{path.name}: {link}"
                continue
            there = Path(unquote(urlparse(address).path))
            assert there.is_file(), f"{path.name}: {link}"
            assert there not in pages or unquote(anchor) in pages[there].anchors, f"{path.name}: {link}"
        for link in page.loaded:
            parts = urlparse(urljoin(here, link))
            assert parts.scheme in ("file", "data"), f"{path.name} loads {link}"
            assert parts.scheme == "data" or Path(unquote(parts.path)).is_file(), f"{path.name} loads {link}"
        assert "mermaid" not in page.classes, f"{path.name}: the theme fetches a library for such a diagram"
    for style in site.rglob("*.css"):
        assert re.findall(r"@import|url\(\s*['\"]?https?:", style.read_text(encoding="utf-8")) == [], style


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    if chromium.find() is None:
        pytest.skip(MESSAGE)
    with chromium.browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


TYPE = """(() => {
  const field = document.querySelector('[data-md-component=search-query]');
  field.focus();
  field.value = %r;
  field.dispatchEvent(new Event('input', {bubbles: true}));
  field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true, key: 'n'}));
})()"""
WIDE = ("index", "decisions", "reliability", "methods", "reference/settings", "architecture", "gallery")
"""Pages with the widest tables, the longest words, and pictures."""
FOUND = "[...document.querySelectorAll('.md-search-result__link')].map(one => one.getAttribute('href'))"


def test_opened_from_a_folder_it_fits_and_its_search_finds(site: Path, running: chromium.Browser) -> None:
    """On a laptop and on a phone these pages fit the screen; the console is silent, the network unused."""
    tab = running.tab()
    for name in WIDE:
        tab.open(site / f"{name}.html")
        for width in (1280, 400):
            tab.view(width, mobile=width == 400)
            tab.wait("document.documentElement.scrollWidth <= innerWidth")  # after the drawer has moved
    tab.view(1280)
    tab.open(site / "index.html")
    tab.evaluate(TYPE % "quantile regression")
    tab.wait(f"{FOUND}.length > 0")
    found = " ".join(tab.evaluate(FOUND))
    assert "studies.html" in found
    assert "#protovalue.pretrain.method_configs.PvnConfig.threshold" in found
    assert tab.complaints == []


def test_pictures_are_small_enough_for_a_page() -> None:
    for path in (ROOT / "docs/images").rglob("*.png"):
        with Image.open(path) as picture:
            assert picture.width <= 4_000, path
        assert path.stat().st_size < 500_000, path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_lines_are_short_enough_to_be_compared(document: str) -> None:
    """Tables, pictures and blocks of code are as wide as they must be."""
    lines = re.sub(r"^```.*?^```$", "", text_of(document), flags=re.MULTILINE | re.DOTALL).splitlines()
    free = re.compile(r"\||    |\[?!\[|\(?`[^`]+`[).,;]*$")
    assert [line for line in lines if len(line) > 100 and not free.match(line) and not free.match(line.strip())] == []
