"""Whether the code that is emitted for fixed schedules is the same, byte by byte, as when the table was written.

    python -m tests.replay                  checks all cases, and names those whose text has changed
    python -m tests.replay --show NAME      the texts of the cases whose name has these words
    python -m tests.replay --diff REVISION  what has changed since a revision of the repository, as unified diffs
    python -m tests.replay --update         writes the hashes of today's texts into the table
    python -m tests.replay --draw           draws new schedules for all problems (`draw.py`), and writes the table

A change that claims to leave the emitted code alone shows it with the first; one that changes it says in its message
what, and updates the table.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.replay.cases import TABLE, Case, hash_of, read, write

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 900
SHOWN_LINES = 60  # of each diff, unless all are asked for


def main() -> int:
    options = _parser().parse_args()
    if options.draw:
        from tests.replay.draw import PROBLEMS, draw

        write(case for problem in PROBLEMS for case in draw(problem))
        return 0
    cases = [case for case in read() if all(word in case.name for word in options.only)]
    if options.emit:
        return _emit(cases, Path(options.emit))
    if options.show:
        print("\n".join(case.text() for case in cases if options.show in case.name))
        return 0
    if options.diff:
        return _diff(cases, options.diff, options.lines)
    return _check(cases, options.update)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("only", nargs="*", help="words that a case's name must have")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--show", metavar="NAME", help="print the texts of the cases whose name has this in it")
    action.add_argument("--diff", metavar="REVISION", help="show what has changed since a revision")
    action.add_argument("--update", action="store_true", help="write the hashes of today's texts into the table")
    action.add_argument("--draw", action="store_true", help="draw new schedules and write the table")
    action.add_argument("--emit", metavar="FOLDER", help="write the text of each case into a file")
    parser.add_argument("--lines", type=int, default=SHOWN_LINES, help="of each diff, at most")
    return parser


def _check(cases: list[Case], update: bool) -> int:
    now = {case.name: hash_of(case.text()) for case in cases}
    changed = [case for case in cases if now[case.name] != case.sha256]
    for case in changed:
        print(f"changed: {case.name}")
    print(f"{len(cases) - len(changed)} of {len(cases)} texts are as in {TABLE.name}")
    if update:
        write(replace(case, sha256=now.get(case.name, case.sha256)) for case in read())
    return 1 if changed and not update else 0


def _emit(cases: list[Case], folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        (folder / _file_name(case)).write_text(case.text())
    return 0


def _file_name(case: Case) -> str:
    return hash_of(case.problem.name + case.steps)[:16]


def _diff(cases: list[Case], revision: str, n_lines: int) -> int:
    """Emits the same cases with the code of `revision`, in a worktree of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        tree, texts = Path(scratch, "tree"), Path(scratch, "texts")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True, timeout=TIMEOUT_S)
        try:
            (tree / TABLE.relative_to(ROOT)).write_text(TABLE.read_text())
            command = [sys.executable, "-m", "tests.replay", "--emit", str(texts)]
            path = {**os.environ, "PYTHONPATH": str(tree)}
            subprocess.run(command, cwd=tree, env=path, check=True, timeout=TIMEOUT_S)
            changed = sum(_show_difference(case, texts / _file_name(case), revision, n_lines) for case in cases)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=False, timeout=TIMEOUT_S)
    print(f"{changed} of {len(cases)} texts have changed since {revision}")
    return 1 if changed else 0


def _show_difference(case: Case, before: Path, revision: str, n_lines: int) -> bool:
    old, new = before.read_text(), case.text()
    if old == new:
        return False
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), revision, "now", lineterm="", n=2)
    print(f"== {case.name}")
    for n, line in enumerate(lines):
        if n == n_lines:
            print("...")
            break
        print(line)
    return True


if __name__ == "__main__":
    sys.exit(main())
