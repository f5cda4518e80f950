"""All pages of the site as data: their fenced blocks, the commands in them, and those inside sentences."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)


@dataclass(frozen=True)
class Block:
    """A fenced block; one without a language holds commands."""

    document: str
    line: int
    language: str
    text: str


def text_of(document: str) -> str:
    """Return a document."""
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str) -> list[Block]:
    """Return the fenced blocks of a document, in their order."""
    text = text_of(document)
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(document, text[: match.start()].count("\n") + 1, match[1], match[2]) for match in found]


def commands(block: Block) -> list[str]:
    """Return the commands of a block, one a line, without their comments."""
    lines = (shlex.join(shlex.split(line, comments=True)) for line in block.text.splitlines())
    return [line for line in lines if line]


def sentences(document: str) -> str:
    """Return what is not in fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(document), flags=re.MULTILINE | re.DOTALL)


def inline(document: str) -> list[str]:
    """Return the commands of `pvn` that stand in a sentence, between backticks."""
    return [" ".join(found.split()) for found in re.findall(r"`(pvn [^`]+)`", sentences(document))]
