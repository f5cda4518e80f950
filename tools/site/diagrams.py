"""Draw the diagrams of docs/ as pictures of the site: python tools/site/diagrams.py path/to/mermaid.min.js.

The library is the file dist/mermaid.min.js of the npm package mermaid (11.x); Chromium draws. Pages on GitHub show the
diagrams themselves. Only this script needs either: the pictures are part of the repository.
"""

import html
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from hooks import DIAGRAM, ROOT, mark, picture_of

PAGE = """<!doctype html><meta charset="utf-8"><script src="{library}"></script><pre id="drawn"></pre><script>
mermaid.initialize({{startOnLoad: false, theme: "neutral", htmlLabels: false, flowchart: {{htmlLabels: false}}}});
mermaid.render("diagram", {diagram!r}).then(({{svg}}) => document.getElementById("drawn").textContent = svg);
</script>"""


def draw(diagram: str, library: Path) -> str:
    """Return a diagram as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(PAGE.format(library=library.resolve().as_uri(), diagram=diagram), encoding="utf-8")
        command = ["chromium", "--headless", "--no-sandbox", "--virtual-time-budget=20000", "--dump-dom", page.as_uri()]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (svg,) = re.findall(r'<pre id="drawn">(.*?)</pre>', shown, re.DOTALL)
    return html.unescape(svg)


def main() -> None:
    """Draw all of them."""
    (library,) = sys.argv[1:]
    docs = ROOT / "docs"
    for path in sorted(docs.rglob("*.md")):
        for number, match in enumerate(DIAGRAM.finditer(path.read_text(encoding="utf-8")), 1):
            picture = docs / picture_of(str(path.relative_to(docs)), number)
            picture.parent.mkdir(parents=True, exist_ok=True)
            picture.write_text(f"{draw(match[1], Path(library))}\n{mark(match[1])}\n", encoding="utf-8")
            print(picture.relative_to(ROOT))


if __name__ == "__main__":
    main()
