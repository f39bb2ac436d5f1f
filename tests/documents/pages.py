"""The Markdown pages of the repository, and what their readers would follow in them: blocks, links, names of files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("autosched", "search_spaces", "cost_model", "experiments", "tests", ".github")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"(?:[\w.-]+/)*[\w-]+\.(?:py|md|toml|json|jsonl|png|sh|c|cl|cu|xz)|(?:[\w.-]+/)+")


@dataclass(frozen=True)
class Page:
    """`prose` is the text without its blocks."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[tuple[str, str]]:
        """(language, content) of each."""
        return BLOCK.findall(self.text)

    @property
    def python(self) -> list[str]:
        """The contents of its Python blocks."""
        return [content for language, content in self.blocks if language == "python"]

    @cached_property
    def prose(self) -> str:
        return BLOCK.sub("", self.text)

    @property
    def commands(self) -> list[str]:
        """The lines of blocks without a language that begin like a command; `&&` joins two."""
        lines = [line for language, content in self.blocks if not language for line in content.splitlines()]
        parts = [part.strip() for line in lines for part in line.split("&&")]
        return [part for part in parts if part.split(" ")[0] in ("autosched", "python", "pip", "ruff", "mypy", "git")]

    @property
    def operands(self) -> list[str]:
        """Files and folders of the repository that commands name, without the functions behind a colon."""
        words = [word.partition(":")[0] for command in self.commands for word in command.split()]
        return [word for word in words if word.split("/")[0] in FOLDERS and "/" in word and "NAME" not in word]

    @property
    def spans(self) -> list[str]:
        """What stands between backticks in the prose."""
        return CODE.findall(self.prose)

    @property
    def files(self) -> list[str]:
        """Files and folders that the prose names, but those with NAME for a name that its reader chooses."""
        return [s for s in self.spans if FILE.fullmatch(s) and "NAME" not in s]

    @property
    def links(self) -> list[str]:
        """The pages, files and anchors that it links to within the repository."""
        return [target for target in LINK.findall(self.prose) if "://" not in target]

    @cached_property
    def anchors(self) -> set[str]:
        """Of its headings, as GitHub writes them."""
        return {anchor_of(title) for title in re.findall(r"^#+ (.*)$", self.prose, re.MULTILINE)}

    def rows(self, first: str) -> list[list[str]]:
        """The cells of the rows of the table whose first heading is `first`."""
        table = re.search(rf"^\| {re.escape(first)} \|.*\n\|[-| ]*\n((?:\|.*\n)+)", self.prose + "\n", re.MULTILINE)
        return (
            [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[1].splitlines()] if table else []
        )


def anchor_of(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def find_pages() -> list[Page]:
    inner = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
    return [Page(path) for path in sorted([*ROOT.glob("*.md"), *inner])]


PAGES = find_pages()
