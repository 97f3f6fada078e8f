"""The page of a package index renders, and its links lead somewhere. The changelog begins with the first release."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from email.message import Message
from email.parser import Parser
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path

import pytest
from readme_renderer import markdown

import pytest_cloudbench
from tests.limits import HANG_S
from tests.tool_scripts import load_tool

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
REPOSITORY = "https://forge.example/owner/pytest-cloudbench"
TOOL = load_tool("index_readme")


class Page(HTMLParser):
    """The targets of the links and pictures of a page, and its elements and ids."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.targets, self.elements, self.ids = list[str](), set[str](), set[str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.targets += [value for name, value in attrs if name in {"href", "src"} and value]
        self.ids |= {value for name, value in attrs if name == "id" and value}


def build_metadata(folder: Path, repository: str) -> Message:
    """Return the metadata of a copy of this checkout that has an address, as a package index reads it."""
    copy = folder / "copy"
    ignored = shutil.ignore_patterns(".*", "results", "fixtures", "build", "tests", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
    if repository:
        text = (copy / "pyproject.toml").read_text("utf-8")
        changed = re.sub(r'(?m)^repository = ".*"', f'repository = "{repository}"', text)
        (copy / "pyproject.toml").write_text(changed, "utf-8")
    code = (
        "import sys\n"
        "from hatchling.metadata.core import ProjectMetadata\n"
        "from hatchling.metadata.spec import get_core_metadata_constructors\n"
        "from hatchling.plugin.manager import PluginManager\n"
        "project = ProjectMetadata(sys.argv[1], PluginManager())\n"
        "sys.stdout.buffer.write(get_core_metadata_constructors()['2.3'](project).encode())\n"
    )
    argv = [sys.executable, "-c", code, str(copy)]
    done = subprocess.run(argv, cwd=copy, capture_output=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return Parser().parsestr(done.stdout.decode())


@pytest.fixture(scope="module", params=["", REPOSITORY], ids=["without an address", "with an address"])
def metadata(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Message:
    return build_metadata(tmp_path_factory.mktemp("metadata"), request.param)


def get_description(metadata: Message) -> str:
    """Return the description, which is the metadata's body."""
    text = metadata.get_payload()
    assert isinstance(text, str)
    return text


def test_the_description_renders_as_on_an_index(metadata: Message) -> None:
    """The index's own renderer is used, as ``twine check`` does."""
    assert metadata["Description-Content-Type"] == "text/markdown"
    html = markdown.render(get_description(metadata))
    assert html is not None
    assert {"h1", "h2", "pre", "table", "strong"} <= Page(html).elements
    assert "](" not in re.sub(r"<(pre|code).*?</\1>", "", html, flags=re.DOTALL)


def test_no_link_of_the_description_is_dead(metadata: Message) -> None:
    html = markdown.render(get_description(metadata))
    assert html is not None
    page = Page(html)
    targets = [target for target in page.targets if target.removeprefix("#") not in page.ids]
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    assert all(target.startswith("https://") for target in [*targets, *urls.values()])
    base = f"{REPOSITORY}/blob/v{metadata['Version']}/"
    paths = [ROOT / target.removeprefix(base).partition("#")[0] for target in targets]
    assert [path for path in paths if not path.exists()] == []
    if urls:
        assert urls.keys() == {"Homepage", "Documentation", "Changelog", "Issues"}
        assert len(targets) > 30
        inside = [url for url in urls.values() if "/blob/main/" in url]
        assert [url for url in inside if not (ROOT / url.partition("/blob/main/")[2]).exists()] == []
    else:
        assert targets == []
        assert "(`docs/tutorial.md`)" in get_description(metadata)


@pytest.mark.parametrize(
    ("text", "base", "shown"),
    [
        ("see [a](docs/a.md#b), [c](https://c.example)", "", "see a (`docs/a.md`), [c](https://c.example)"),
        ("[`a`](docs/a.md) and [here](#there)", "", "`a` (`docs/a.md`) and [here](#there)"),
        ("see [a](docs/a.md#b)", "https://h.example/x", "see [a](https://h.example/x/docs/a.md#b)"),
        ("`[a](b)` and\n```\n[a](b)\n```\n[a](b)", "", "`[a](b)` and\n```\n[a](b)\n```\na (`b`)"),
    ],
)
def test_links_outside_code_change(text: str, base: str, shown: str) -> None:
    assert TOOL.index_readme(text, base) == shown


def test_the_version_has_one_source() -> None:
    assert version("pytest-cloudbench") == pytest_cloudbench.__version__
    assert "version" not in PYPROJECT["project"]
    sources = [path.read_text("utf-8") for path in ROOT.glob("src/pytest_cloudbench/**/*.py")]
    assert sum(pytest_cloudbench.__version__ in text for text in sources) == 1


def test_the_changelog_begins_with_the_first_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    sections = re.split(r"(?m)^## ", text)[1:]
    first = next(section for section in sections if section.startswith("1.0.0rc1 "))
    assert first == sections[-1], "nothing was released before"
    assert 30 < len(first.splitlines()) <= 120
    assert "<!-- towncrier release notes start -->\n" in text.partition("## ")[0]


def test_the_next_release_gathers_its_fragments(tmp_path: Path) -> None:
    """They are added above the first release, which stays as it is."""
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src/pytest_cloudbench", tmp_path / "src/pytest_cloudbench", ignore=lambda *_: {"suites"})
    (tmp_path / "changelog.d").mkdir()
    shutil.copy(ROOT / "changelog.d/README.md", tmp_path / "changelog.d")
    (tmp_path / "changelog.d/+words.fix.md").write_text("Something is mended.\n")
    argv = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", "1.0.0", "--date", "2027-01-02"]
    git = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True, env=os.environ | git)
    done = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False, env=os.environ | git
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"(?m)^## (.*?) \(", text)[:2] == ["1.0.0", "1.0.0rc1"]
    assert "Something is mended." in text
