"""Parts of the tests: each test is in exactly one, whichever part is run."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.limits import HANG_S
from tests.parts import LARGE_FILE_TESTS, parse_part, part_of

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "test_large.py": f"""
import pytest

@pytest.mark.parametrize("number", range({LARGE_FILE_TESTS + 1}))
def test_one_of_many(number):
    pass
""",
    "test_slow.py": """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("number", range(60))
def test_slow(number):
    pass

@pytest.mark.parametrize("number", range(30))
def test_quick(number):
    pass
""",
    **dict.fromkeys([f"test_small_{number}.py" for number in range(12)], "def test_a(): pass\ndef test_b(): pass\n"),
}


def collect(folder: Path, *arguments: str) -> list[str]:
    quiet = ("--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")
    argv = [sys.executable, "-m", "pytest", *quiet, *arguments]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    (folder / "conftest.py").write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.conftest import _choose_part, pytest_addoption\n"
        "def pytest_collection_modifyitems(config, items):\n"
        "    _choose_part(config, items)\n"
    )
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow: takes long\n")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_each_test_is_in_exactly_one_part(project: Path, parts: int) -> None:
    everything = collect(project)
    divided = [collect(project, "--part", f"{part}/{parts}") for part in range(1, parts + 1)]
    assert len(everything) == LARGE_FILE_TESTS + 1 + 60 + 30 + 24
    assert Counter(test for tests in divided for test in tests) == Counter(everything)
    assert all(tests == [test for test in everything if test in set(tests)] for tests in divided)


@pytest.mark.slow
def test_small_files_stay_together_and_slow_tests_and_large_files_do_not(project: Path) -> None:
    for part in range(1, 5):
        tests = collect(project, "--part", f"{part}/4")
        files = Counter(test.partition("::")[0] for test in tests)
        assert {count for name, count in files.items() if "small" in name} <= {2}
        assert sum("test_quick" in test for test in tests) in {0, 30}
        assert 5 <= sum("test_slow.py::test_slow" in test for test in tests) <= 25
        assert 10 <= files["test_large.py"] <= 45


def test_cases_after_the_quick_ones_are_slow(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  slow: takes long\n  quick_cases(n): the first n are quick\n"
    )
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.parts import mark_slow_cases\n"
        "def pytest_collection_modifyitems(items):\n    mark_slow_cases(items)\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.quick_cases(2)\n"
        "@pytest.mark.parametrize('number', range(5))\n"
        "def test_some(number): pass\n"
        "def test_one(): pass\n"
    )
    quick = collect(tmp_path, "-m", "not slow")
    assert [test.partition("::")[2] for test in quick] == ["test_some[0]", "test_some[1]", "test_one"]


@pytest.mark.slow
def test_part_of_a_test_is_independent_of_other_tests(project: Path) -> None:
    all_tests = collect(project, "--part", "2/4", "-m", "not slow")
    alone = collect(project, "--part", "2/4", "test_large.py")
    assert [test for test in all_tests if test.startswith("test_large.py")] == alone


def test_a_part_is_the_same_in_every_process() -> None:
    assert part_of("tests/test_a.py::test_b[1]", 4, is_alone=False) == part_of("tests/test_a.py", 4, is_alone=True)
    assert [part_of(f"tests/test_{letter}.py", 4, is_alone=False) for letter in "abcdef"] == [1, 3, 3, 1, 2, 2]


@pytest.mark.parametrize("text", ["", "1", "0/4", "5/4", "-1/4", "1/0", "1/4/2", "a/b", "1.0/4", " 1/4"])
def test_no_part(text: str) -> None:
    with pytest.raises(ValueError, match="such as 2/4"):
        parse_part(text)
    assert parse_part("4/4") == (4, 4)


def test_make_hands_the_part_on_and_shows_the_slowest() -> None:
    for target, runs in (("test", 2), ("test-all", 3)):
        argv = ["make", "--dry-run", target, "PART=2/4", "STAMP=", f"PY={sys.executable}"]
        lines = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=True).stdout
        sessions = [line for line in lines.splitlines() if "-m pytest" in line]
        assert len(sessions) == runs
        assert all("--part 2/4" in line and "--durations=10" in line for line in sessions)
