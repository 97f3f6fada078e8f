"""Follows a page of docs/ to the letter, in a copy of this checkout.

Pages say in one of two ways where a block goes. Either its first line names the file, with ``, in TABLE`` where it is
rows of a table in it (``steps``). Or the paragraph right before it does (``follow``): ``Create `PATH```: a new file.
``below `TEXT` in `PATH```, or ``below the row of `TEXT` in `PATH```: after the line that begins so. ``at the end of
`PATH```. ``in `NAME` of `PATH```: in place of the function's body. Blocks of commands go nowhere; every other block
must say where it goes.
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

from tests.runs import QUIET
from tests.test_docs import NOT_COPIED

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"(?P<before>(?:^[^\n]+\n)+)\n```(?P<kind>\w+)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
_PLACES = {
    "create": re.compile(r"Create\s+`(?P<path>[^`]+)`"),
    "below": re.compile(r"below\s+(?:the row of\s+)?`(?P<anchor>[^`]+)`\s+in\s+`(?P<path>[^`]+)`"),
    "end": re.compile(r"at the end of\s+`(?P<path>[^`]+)`"),
    "body": re.compile(r"in\s+`(?P<anchor>\w+)`\s+of\s+`(?P<path>[^`]+)`"),
}

_NAMED = re.compile(
    r"^```\w+\n(?:# |<!-- )(?P<path>\S+/\S+?\.\w+)(?:, in (?P<table>\w+))?(?: -->)?\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Step:
    """What a page says to write: a new file, or lines of a table in an existing file."""

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


def steps(page: str) -> list[Step]:
    """The blocks whose first line names a file."""
    return [Step(found["path"], found["table"], found["text"]) for found in _NAMED.finditer(page)]


def places(page: str) -> list[str]:
    """The table at the top of the page, which names every file that it touches."""
    return re.findall(r"^\| `(\S+/\S+)` \|", page, re.M)


def environment_of(folder: Path, **more: str) -> dict[str, str]:
    """An environment in which a copy's package comes before this one's, and nothing shows that a test started it."""
    leaky = ("PYTEST", "CLOUDBENCH", "COV_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(leaky)}
    own = {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "", "COLUMNS": "200", "PYTEST_ADDOPTS": QUIET}
    return kept | own | more


def run_in(
    folder: Path, *words: str, environment: Mapping[str, str] | None = None, timeout_s: float = 500
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words in a copy."""
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=dict(environment or environment_of(folder)),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def copy_checkout(folder: Path) -> Path:
    """A copy of this checkout without what was made in it."""

    def ignored(base: str, names: list[str]) -> set[str]:
        return NOT_COPIED(base, names) | ({".ci"} if Path(base) == ROOT else set())

    return Path(shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored))


@dataclass(frozen=True)
class Followed:
    """A copy of the checkout in which a page was followed.

    Attributes:
        folder: the copy.
        touched: paths that the page has changed or made.
    """

    folder: Path
    touched: list[str]

    def run(self, *words: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Run pytest on the copy, whose package comes before this one's."""
        return run_in(self.folder, "-m", "pytest", "-p", "no:cacheprovider", *words, timeout_s=timeout_s)


def follow(page: str, folder: Path) -> Followed:
    """Copy the checkout to ``folder``, and do there what the page says."""
    copy_checkout(folder)
    text = (ROOT / "docs" / page).read_text("utf-8")
    blocks = [each for each in _BLOCK.finditer(text) if each["kind"] != "console"]
    assert len(blocks) == len(re.findall(r"^```(?!console)\w", text, re.MULTILINE)), "no paragraph before a block"
    for block in blocks:
        _apply(folder, block["before"], block["text"])
    return Followed(folder, [_place(block["before"])[1]["path"] for block in blocks])


def _place(before: str) -> tuple[str, re.Match[str]]:
    found = [(what, match) for what, pattern in _PLACES.items() if (match := pattern.search(before))]
    assert len(found) == 1, f"it does not say where the block goes, or says it twice: {before}"
    return found[0]


def _apply(folder: Path, before: str, text: str) -> None:
    what, said = _place(before)
    path = folder / said["path"]
    if what == "create":
        assert not path.exists(), path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return
    lines = path.read_text("utf-8").splitlines(keepends=True)
    if what == "end":
        lines += ["\n", text]
    elif what == "below":
        lines.insert(_only(lines, said["anchor"], path) + 1, text)
    else:
        first = _only(lines, f"def {said['anchor']}(", path) + 1
        last = next(number for number in range(first, len(lines)) if not lines[number].strip())
        lines[first:last] = [text]
    path.write_text("".join(lines), "utf-8")


def _only(lines: list[str], anchor: str, path: Path) -> int:
    found = [number for number, line in enumerate(lines) if line.lstrip(" |[-`").startswith(anchor)]
    assert len(found) == 1, f"{path}: {len(found)} lines begin with {anchor}"
    return found[0]
