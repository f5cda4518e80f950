"""The report's page in a real browser: it sorts, explores, fits a phone, and says nothing in the console."""

import base64
import io
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protovalue.report.page import write_page
from tests.report import chromium, fake
from tests.report.chromium import Browser, Tab
from tests.report.fake import ENVS, METHODS

MESSAGE = f"NO BROWSER FOUND: the report's page was not driven; install one of {', '.join(chromium.PROGRAMS)}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if chromium.find() is None:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn(MESSAGE, stacklevel=1)
        pytest.skip(MESSAGE)
    with chromium.browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_page(fake.report(folder), folder / "index.html")


@pytest.fixture
def tab(running: Browser, page: Path) -> Iterator[Tab]:
    """The page on a laptop; whatever a test does with it, the console stays silent and the network unused."""
    tab = running.tab()
    tab.view(1280)
    tab.open(page)
    yield tab
    assert tab.complaints == []


def column(tab: Tab, table: str, index: int) -> list[str]:
    """The texts of a column, without intervals."""
    cells = f"[...document.querySelectorAll('#{table} tbody tr')].map(row => row.cells[{index}])"
    found: list[str] = tab.evaluate(
        f"{cells}.map(cell => cell.querySelector('a, b')?.textContent ?? cell.textContent.trim())"
    )
    return found


def test_complaints_are_heard(running: Browser, tmp_path: Path) -> None:
    """The silence that the other tests ask for means something."""
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('said'); nowhere();</script>")
    tab = running.tab()
    tab.open(bad)
    heard = " ".join(tab.complaints)
    assert "said" in heard
    assert "nowhere is not defined" in heard
    assert "network: http://127.0.0.1:9/x.png" in heard


def test_titles_do_not_run(tab: Tab) -> None:
    assert tab.evaluate("document.title") == f"Two games {fake.INJECTION}"
    assert tab.evaluate("document.querySelector('h1').textContent") == f"Two games {fake.INJECTION}"


def test_a_header_sorts_its_column(tab: Tab) -> None:
    random = METHODS.index(fake.RANDOM) + 1
    head = f"#returns-table th:nth-child({random + 1})"
    sorted_by = f"document.querySelector('{head}').getAttribute('aria-sort')"
    assert column(tab, "returns-table", random) == ["1.75", "41.5"]
    tab.click(f"{head} button")
    tab.wait(f"{sorted_by} === 'descending'")
    assert column(tab, "returns-table", random) == ["41.5", "1.75"]
    tab.evaluate(f"document.querySelector('{head} button').focus()")
    tab.press("Enter")
    tab.wait(f"{sorted_by} === 'ascending'")
    assert column(tab, "returns-table", random) == ["1.75", "41.5"]
    # By name, from the first letter; one header at a time is marked.
    tab.click("#returns-table th:first-child button")
    tab.wait(f"{sorted_by} === 'none'")
    assert column(tab, "returns-table", 0) == list(ENVS)
    tab.click("#returns-table th:first-child button")
    tab.wait("document.querySelector('#returns-table th').getAttribute('aria-sort') === 'descending'")
    assert column(tab, "returns-table", 0) == [*reversed(ENVS)]


def test_what_has_no_value_sorts_last(tab: Tab) -> None:
    head = "#returns-table th:last-child"
    for way in ("descending", "ascending"):
        tab.click(f"{head} button")
        tab.wait(f"document.querySelector('{head}').getAttribute('aria-sort') === '{way}'")
        assert column(tab, "returns-table", 4) == ["123.4", ""]


def test_returns_or_scores(tab: Tab) -> None:
    shown = "[...document.querySelectorAll('table.games')].filter(t => t.offsetParent !== null).map(t => t.id).join()"
    assert tab.evaluate(shown) == "returns-table"
    tab.click("label[for=as-scores]")
    tab.wait(f"{shown} === 'scores-table'")


def frame_shown(tab: Tab) -> bytes:
    """The picture in the first viewer, when the browser has decoded it."""
    tab.wait("(image => image.complete && image.naturalWidth === 10)(document.querySelector('.viewer img'))")
    source = tab.evaluate("document.querySelector('.viewer img').src")
    return base64.b64decode(source.removeprefix("data:image/png;base64,"))


def rings(tab: Tab) -> list[list[float]]:
    """Where the states are ringed, in every picture of the first game."""
    circles = "[...document.querySelector('.explorer').querySelectorAll('.here')]"
    found: list[list[float]] = tab.evaluate(f"{circles}.map(ring => [ring.cx.baseVal.value, ring.cy.baseVal.value])")
    return found


def at_state(tab: Tab, state: int) -> None:
    """Check that all of the first explorer is at one state."""
    tab.wait(f"document.querySelector('.explorer').dataset.state === '{state}'")
    assert frame_shown(tab) == fake.frame(state)
    assert tab.evaluate("document.querySelector('.viewer output').value") == str(3 * state)
    both = [90 * fake.points(name)[state] * (1, -1) for name in (fake.PVN, fake.RANDOM)]
    np.testing.assert_allclose(rings(tab), both, atol=0.06)


def test_pointing_at_a_state_shows_its_frame(tab: Tab) -> None:
    at_state(tab, 0)
    tab.hover(".explorer figure:nth-of-type(1) g circle:nth-of-type(5)")
    at_state(tab, 4)
    tab.hover(".explorer figure:nth-of-type(2) g circle:nth-of-type(10)")
    at_state(tab, 9)
    assert tab.evaluate("document.querySelectorAll('.explorer')[1].dataset.state") == "0"  # another game


def test_the_episode_plays_and_pauses(tab: Tab) -> None:
    """The clock is ours: a tick is one frame."""
    tab.evaluate("window.setInterval = (tick) => { window.tick = tick; return 7; }; 1")
    tab.evaluate("window.clearInterval = (timer) => { if (timer === 7) window.tick = null; }; 1")
    words, last = "document.querySelector('.viewer button').textContent", fake.STATES - 1
    assert tab.evaluate(words) == "play"
    tab.click(".viewer button")
    tab.wait(f"{words} === 'pause'")
    for state in (1, 2):
        tab.evaluate("window.tick()")
        at_state(tab, state)
    tab.click(".viewer button")
    tab.wait(f"{words} === 'play' && window.tick === null")
    at_state(tab, 2)
    tab.click(".viewer button")  # goes on
    tab.wait(f"{words} === 'pause'")
    tab.hover(".explorer figure:nth-of-type(1) g circle:nth-of-type(9)")  # passing by does not disturb
    tab.evaluate("window.tick()")
    at_state(tab, 3)
    tab.evaluate("document.querySelector('.explorer svg').focus()")
    tab.press("ArrowRight")
    tab.wait(f"{words} === 'play' && window.tick === null")
    at_state(tab, 4)
    tab.click(".viewer button")
    tab.wait(f"{words} === 'pause'")
    for _ in range(last - 4):
        tab.evaluate("window.tick()")
    tab.wait(f"{words} === 'play' && window.tick === null")
    at_state(tab, last)
    tab.click(".viewer button")  # from the beginning
    tab.wait(f"{words} === 'pause'")
    at_state(tab, 0)


def test_keys_and_slider_move_through_the_episode(tab: Tab) -> None:
    tab.evaluate("document.querySelector('.explorer svg').focus()")
    for _ in range(3):
        tab.press("ArrowRight")
    at_state(tab, 3)
    tab.press("ArrowLeft")
    at_state(tab, 2)
    assert tab.evaluate("document.querySelector('.explorer svg').getAttribute('aria-valuetext')") == "step 6"
    tab.evaluate("document.querySelector('.viewer input').focus()")
    tab.press("ArrowRight")
    at_state(tab, 3)


def test_a_tap_shows_the_frame(tab: Tab) -> None:
    tab.view(375, mobile=True)
    tab.tap(".explorer figure:nth-of-type(1) g circle:nth-of-type(8)")
    at_state(tab, 7)


def test_a_number_leads_to_its_commands(tab: Tab) -> None:
    command = "#made-0-0 pre"
    assert tab.evaluate(f"document.querySelector('{command}').checkVisibility()") is False
    tab.click("#returns-table tbody tr:first-child td a")
    tab.wait(f"document.querySelector('{command}').checkVisibility()")
    tab.click("#made-0-0 button.copy")
    tab.wait("['copied', 'selected'].includes(document.querySelector('#made-0-0 button.copy').textContent)")


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
def test_the_page_does_not_scroll_sideways(tab: Tab, width: int) -> None:
    tab.view(width, mobile=width < 500)
    tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    tab.wait(f"innerWidth === {width}")
    wide = tab.evaluate(
        "[...document.body.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > innerWidth + 1"
        " && !e.closest('.scroll, .plate, pre')).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    if width < 500:  # there is something that would not fit, and it can be scrolled
        assert tab.evaluate("(box => box.scrollWidth > box.clientWidth)(document.querySelector('#games .scroll'))")


def luminance(tab: Tab) -> float:
    """Mean lightness of what is in view, from 0 to 255."""
    return float(np.asarray(Image.open(io.BytesIO(tab.screenshot())).convert("L")).mean())


def test_light_and_dark(tab: Tab) -> None:
    colour = "getComputedStyle(document.querySelector('{}')).{}"
    light = [tab.evaluate(colour.format("body", name)) for name in ("color", "backgroundColor")]
    bright = luminance(tab)
    tab.view(1280, dark=True)
    tab.wait("matchMedia('(prefers-color-scheme: dark)').matches")
    dark = [tab.evaluate(colour.format("body", name)) for name in ("color", "backgroundColor")]
    assert bright > 200
    assert luminance(tab) < 90
    for ink, paper in (light, dark):
        assert contrast(ink, paper) > 7  # WCAG's AAA
    for card in (".plate", ".plots svg"):
        assert relative_luminance(tab.evaluate(colour.format(card, "backgroundColor"))) < 0.05


def test_a_figure_is_dark_in_the_dark(tab: Tab) -> None:
    """One on white, drawn as a figure is: in the dark its paper is dark, and its red is still the reddest."""
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="600" height="200"><rect width="600" height="200" fill="#fff"/>'
        '<rect width="300" height="200" fill="#c02020"/></svg>'
    )
    uri = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    tab.evaluate(
        f"new Promise(done => {{ const e = document.querySelector('.plate img'); e.onload = done; e.src = '{uri}'; }})"
    )
    for dark in (False, True):
        tab.view(1280, dark=dark)
        tab.wait(f"matchMedia('(prefers-color-scheme: dark)').matches === {str(dark).lower()}")
        box = tab.evaluate(
            "(() => { const e = document.querySelector('.plate img'); e.scrollIntoView({block: 'center'});"
            "const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()"
        )
        seen = np.asarray(Image.open(io.BytesIO(tab.screenshot())).convert("RGB")).astype(int)
        red, paper = (seen[int(box[1] + box[3] / 2), int(box[0] + share * box[2])] for share in (0.25, 0.75))
        assert red[0] > red[1] + 50
        assert red[0] > red[2] + 50
        assert paper.max() < 60 if dark else paper.min() > 230


def test_a_figure_whose_light_and_dark_mean_something_is_shown_as_drawn(tab: Tab, tmp_path: Path) -> None:
    tab.view(1280, dark=True)
    tab.open(write_page(replace(fake.report(tmp_path), galleries=()), tmp_path / "index.html"))
    tab.wait("matchMedia('(prefers-color-scheme: dark)').matches")
    turned = "[...document.querySelectorAll('{} .plate img')].map(e => getComputedStyle(e).filter === 'none')"
    assert set(tab.evaluate(turned.format("#mds"))) == {True}
    assert set(tab.evaluate(turned.format("#curves"))) == {False}


def test_figures_fit_a_phone_and_grow_when_they_are_tapped(tab: Tab) -> None:
    tab.view(400, mobile=True)
    tab.wait("innerWidth === 400")
    scrolling = "[...document.querySelectorAll('.plate')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert tab.evaluate(scrolling) == 0
    tab.evaluate("document.querySelector('.plate').focus()")
    assert tab.evaluate(scrolling) == 1


def relative_luminance(colour: str) -> float:
    """WCAG 2's, of a computed colour rgb(r, g, b)."""
    parts = np.array([float(part) for part in colour[colour.index("(") + 1 : -1].split(",")][:3]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def contrast(one: str, other: str) -> float:
    low, high = sorted((relative_luminance(one), relative_luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_printed(tab: Tab) -> None:
    tab.view(800, dark=True, media="print")
    tab.wait("matchMedia('print').matches")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("document.querySelector('nav').checkVisibility()") is False
    assert tab.call("Page.printToPDF")["data"].startswith(base64.b64encode(b"%PDF").decode()[:5])
