"""The command: `experiments.report` says what it does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import experiments.report
from autosched.artifacts.linking import write_whole
from autosched.errors import UsageError
from experiments.report.pages import Difference, blocks_of, rewritten
from experiments.report.sections import lines_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = tuple(ROOT / folder / "README.md" for folder in ("", "experiments", "cost_model"))


def told(page: Path, difference: Difference) -> str:
    """What --check says of a table."""
    return (
        f"{page}:{difference.block.line}: table `{difference.block.name}` is out of date\n"
        f"  here:  {difference.here}\n  made:  {difference.made}"
    )


def bring_up_to_date(page: Path, results: Path, check: bool) -> int:
    """Writes the tables of a page, or with `check` says which would change; how many those are."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{page} cannot be read ({error}); name a page in Markdown") from None
    new, differences = rewritten(text, str(page), lambda name: lines_of(name, results))
    for difference in differences if check else ():
        print(told(page, difference))
    if differences and not check:
        write_whole(page, new.encode())
    word = "differ" if check else "rewritten"
    print(f"{page}: {len(blocks_of(text, str(page)))} tables, {len(differences)} {word}")
    return len(differences)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.report", description=experiments.report.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    pages = ", ".join(str(page.relative_to(ROOT)) for page in PAGES)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE.md", help=f"default: {pages}")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a table differs")
    parser.add_argument("--results", type=Path, default=ROOT / "experiments" / "results", metavar="DIRECTORY")
    args = parser.parse_args(argv)
    try:
        differing = [bring_up_to_date(page, args.results, args.check) for page in args.pages or PAGES]
    except UsageError as error:
        parser.error(str(error))
    if args.check and any(differing):
        print("`python -m experiments.report` writes these tables anew")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
