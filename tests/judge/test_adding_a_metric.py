"""Test of docs/extending/metric.md, followed word for word in a copy of the project."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_cloudbench.report.quantities import format_with_unit
from pytest_cloudbench.report.table import column_of
from tests.followed_page import run_in
from tests.provider_folders import make_folders

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending" / "metric.md").read_text("utf-8")
REGISTRY = "src/pytest_cloudbench/judge/metrics.py"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def anchor_of(section: str) -> str:
    """Return the line above which a section's block belongs, as the section says."""
    anchors: list[str] = re.findall(r"^Above the line `(.+?)`", PAGE.partition(f"\n## {section}\n")[2], re.MULTILINE)
    return anchors[0]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with everything that the page adds."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("src", "tools", "tests/judge"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "limits.py"):
        shutil.copy(ROOT / "tests" / name, copy / "tests")
    function, row, test, experiment = blocks("python")
    text = (copy / REGISTRY).read_text("utf-8")
    for section, addition in (("How it is computed", f"{function}\n\n"), ("The row", row)):
        anchor = anchor_of(section)
        assert text.count(f"\n{anchor}\n") == 1, f"{REGISTRY} has no such line, or several: {anchor}"
        text = text.replace(f"\n{anchor}\n", f"\n{addition}{anchor}\n")
    (copy / REGISTRY).write_text(text, "utf-8")
    with (copy / "tests/judge/test_metrics.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{test}")
    (copy / "test_mean.py").write_text(experiment)
    (copy / "mean.toml").write_text(blocks("toml")[0])
    (copy / "pytest.ini").write_text("[pytest]\n")
    return copy


def run(copy: Path, *words: str) -> str:
    """Run a command in the copy, where it must succeed, and return its output."""
    make_folders(copy, words)
    process = run_in(copy, *words)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


SHOWN = {"ms": "50", "%": "5.00 %", "MB/s": "0.00000005", "B to GB": "0.05 B", "its own unit": "0.05"}
"""Maps a kind of unit in the table of the page to how 0.05 is shown in it."""


def test_page_documents_how_metrics_are_shown() -> None:
    rows = re.findall(r"^\| (.*?) \| (.*?)\s*\| (ms|%|MB/s|B to GB|its own unit) \|$", PAGE, re.MULTILINE)
    assert [shown for _, _, shown in rows] == [*SHOWN]
    for units, ends, shown in rows:
        for unit in re.findall(r"`(\S+?)`", units):
            assert format_with_unit(0.05, unit).startswith(SHOWN[shown])
        for end in re.findall(r"`(\S+?)`", ends):
            assert column_of(f"of{end}")[2](0.05) == SHOWN[shown], end


def command(start: str) -> list[str]:
    """Return the words after ``$ START`` in the only command of the page that begins so."""
    (command_line,) = [
        line for block in blocks("console") for line in block.splitlines() if line.startswith(f"$ {start}")
    ]
    return command_line.removeprefix(f"$ {start}").split()


def test_metric_of_the_page_passes_its_test_and_ruff(copy: Path) -> None:
    module_path = run(copy, "-c", "import pytest_cloudbench; print(pytest_cloudbench.__file__)")
    assert Path(module_path.strip()).is_relative_to(copy)
    assert "1 passed" in run(
        copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/judge/test_metrics.py", "-k", "the_mean_is_of"
    )
    run(copy, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), REGISTRY)


def test_bench_files_know_the_metric(copy: Path) -> None:
    schema = copy / "src/pytest_cloudbench/plugin/configs/bench.schema.json"
    assert "response_mean" not in schema.read_text("utf-8")
    run(copy, *command("python"))
    assert "response_mean" in schema.read_text("utf-8")


def test_the_metric_is_in_table_entry_expectation_gate_and_junit(copy: Path) -> None:
    output = run(copy, "-m", "pytest", "-p", "no:cacheprovider", *command("pytest"), "--benchmark-json=out.json")
    assert "p50 ms  p95 ms  p99 ms  mean ms  late p99" in re.sub(" {2,}", "  ", output)
    (entry,) = json.loads((copy / "out.json").read_text("utf-8"))["benchmarks"]
    mean_s = entry["extra_info"]["response_mean"]
    assert 0 < mean_s <= entry["extra_info"]["response_max"]
    gate = f"gate response_mean:60: {mean_s:.6g} s is within the bound <= 60"
    assert gate in output
    claim = f"response_mean <= 30 (a bound that holds everywhere, 2026-11-22): met, measured {mean_s:.6g}"
    assert entry["extra_info"]["expectations"] == [claim, gate]
    properties = {
        element.get("name"): element.get("value") for element in ElementTree.parse(copy / "junit.xml").iter("property")
    }
    assert properties["cloudbench.response_mean"] == str(mean_s)
    assert properties["cloudbench.verdict"] == "met"


def test_a_gate_on_the_metric_can_break(copy: Path) -> None:
    words = [word.replace("response_mean:60", "response_mean:0") for word in command("pytest")]
    with pytest.raises(AssertionError, match=r"gate response_mean:0: \S+ s breaks the bound <= 0"):
        run(copy, "-m", "pytest", "-p", "no:cacheprovider", *words)
