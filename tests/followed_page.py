"""Copies of this checkout in which the instructions of a page of docs/ are followed.

A page says in one of two ways where a block goes. Either its first line names the file, with ``, in TABLE`` if it is
rows of a table in that file (``parse_steps``). Or the paragraph right before it does (``follow_page``):
``Create `PATH```: a new file. ``below `TEXT` in `PATH```, or ``below the row of `TEXT` in `PATH```: after the line that
begins so. ``at the end of `PATH```. ``in `NAME` of `PATH```: in place of the function's body. Every block except one of
commands must say where it goes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.provider_folders import make_folders
from tests.runs import QUIET
from tests.test_docs import NOT_COPIED

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"(?P<before>(?:^[^\n]+\n)+)\n```(?P<kind>\w+)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
_INSTRUCTIONS = {
    "create": re.compile(r"Create\s+`(?P<path>[^`]+)`"),
    "below": re.compile(r"below\s+(?:the row of\s+)?`(?P<anchor>[^`]+)`\s+in\s+`(?P<path>[^`]+)`"),
    "end": re.compile(r"at the end of\s+`(?P<path>[^`]+)`"),
    "body": re.compile(r"in\s+`(?P<anchor>\w+)`\s+of\s+`(?P<path>[^`]+)`"),
}

_NAMED_BLOCK = re.compile(
    r"^```\w+\n(?:# |<!-- )(?P<path>\S+/\S+?\.\w+)(?:, in (?P<table>\w+))?(?: -->)?\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Step:
    """An instruction of a page: write a new file, or add lines to a table in an existing file."""

    path: str
    table: str | None
    text: str

    def do(self, root: Path) -> None:
        file = root / self.path
        if self.table is None:
            assert not file.exists(), f"{self.path} is there already"
            file.parent.mkdir(exist_ok=True)
            file.write_text(self.text, "utf-8")
            return
        text = file.read_text("utf-8")
        (begin,) = re.finditer(rf"^{self.table}\b[^\n]*{{\n", text, re.M)
        file.write_text(text[: begin.end()] + self.text + text[begin.end() :], "utf-8")


def parse_steps(page: str) -> list[Step]:
    """Return the blocks whose first line names a file."""
    return [Step(block["path"], block["table"], block["text"]) for block in _NAMED_BLOCK.finditer(page)]


def listed_paths(page: str) -> list[str]:
    """Return the paths in the table at the top of the page, which names every file that it touches."""
    return re.findall(r"^\| `(\S+/\S+)` \|", page, re.M)


def environment_of(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment in which a copy's package comes before this one's, and nothing shows that a test set it."""
    leaky = ("PYTEST", "CLOUDBENCH", "COV_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(leaky)}
    settings = {
        "PYTHONPATH": str(folder / "src"),
        "PYTHONDONTWRITEBYTECODE": "",
        "COLUMNS": "200",
        "PYTEST_ADDOPTS": QUIET,
    }
    return clean | settings | more


def run_in(
    folder: Path, *words: str, environment: Mapping[str, str] | None = None, timeout_s: float = 500
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a copy."""
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=dict(environment or environment_of(folder)),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def copy_checkout(folder: Path) -> Path:
    """Copy this checkout, without files that were generated in it."""

    def ignored_names(base: str, names: list[str]) -> set[str]:
        return NOT_COPIED(base, names) | ({".ci"} if Path(base) == ROOT else set())

    return Path(shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored_names))


@dataclass(frozen=True)
class FollowedPage:
    """A copy of the checkout in which the instructions of a page were followed.

    Attributes:
        folder: the copy.
        touched: paths that the page has changed or created.
    """

    folder: Path
    touched: list[str]

    def run(self, *words: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Run pytest in the copy, whose package comes before this one's."""
        make_folders(self.folder, words)
        return run_in(self.folder, "-m", "pytest", "-p", "no:cacheprovider", *words, timeout_s=timeout_s)


def follow_page(page: str, folder: Path) -> FollowedPage:
    """Copy the checkout to ``folder``, and follow the instructions of the page there."""
    copy_checkout(folder)
    text = (ROOT / "docs" / page).read_text("utf-8")
    blocks = [block for block in _BLOCK.finditer(text) if block["kind"] != "console"]
    assert len(blocks) == len(re.findall(r"^```(?!console)\w", text, re.MULTILINE)), "no paragraph before a block"
    for block in blocks:
        _apply_block(folder, block["before"], block["text"])
    return FollowedPage(folder, [_find_instruction(block["before"])[1]["path"] for block in blocks])


def _find_instruction(before: str) -> tuple[str, re.Match[str]]:
    matches = [(kind, match) for kind, pattern in _INSTRUCTIONS.items() if (match := pattern.search(before))]
    assert len(matches) == 1, f"it does not say where the block goes, or says it twice: {before}"
    return matches[0]


def _apply_block(folder: Path, before: str, text: str) -> None:
    kind, match = _find_instruction(before)
    path = folder / match["path"]
    if kind == "create":
        assert not path.exists(), path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return
    lines = path.read_text("utf-8").splitlines(keepends=True)
    if kind == "end":
        lines += ["\n", text]
    elif kind == "below":
        lines.insert(_find_line(lines, match["anchor"], path) + 1, text)
    else:
        first = _find_line(lines, f"def {match['anchor']}(", path) + 1
        last = next(number for number in range(first, len(lines)) if not lines[number].strip())
        lines[first:last] = [text]
    path.write_text("".join(lines), "utf-8")


def _find_line(lines: list[str], anchor: str, path: Path) -> int:
    numbers = [number for number, line in enumerate(lines) if line.lstrip(" |[-`").startswith(anchor)]
    assert len(numbers) == 1, f"{path}: {len(numbers)} lines begin with {anchor}"
    return numbers[0]
