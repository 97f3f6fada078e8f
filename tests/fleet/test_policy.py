"""A load suite's policy for other plugins, which it sets through public options only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cloudbench.load import policy

SUITE = Path("/checkout/suites")


def make_config(*args: str, worker: bool = False, ini: Path | None = None, **option: Any) -> Any:
    """Return the part of pytest's configuration that the policy reads."""
    options = {
        "cloudbench_expectations": None, "cloudbench_results": None, "collectonly": False, "pyargs": False,
        "benchmark_storage": "file://./.benchmarks", "benchmark_compare": None, "benchmark_quiet": False,
        "benchmark_verbose": False, "benchmark_columns": None, **option,
    }  # fmt: skip
    config = SimpleNamespace(
        option=SimpleNamespace(**options),
        stash=pytest.Stash(),
        args=[arg for arg in args if not arg.startswith("-")],
        invocation_params=SimpleNamespace(args=args, dir=SUITE.parent),
        getini=lambda name: [],
        inipath=ini,
    )
    if worker:
        config.workerinput = {}
    return config


def list_blocked(config: Any) -> set[str]:
    """Return the plugins that workers start without."""
    spec = SimpleNamespace(env={})
    policy.lean_workers(config, [spec])
    words = spec.env.get("PYTEST_ADDOPTS", "").split()
    return {word.removeprefix("no:") for word in words if word != "-p"}


def test_results_go_below_the_results_folder_unless_the_user_says_otherwise() -> None:
    config = make_config("suites/iot")
    policy.adopt(config, SUITE)
    assert config.option.benchmark_storage == "file:///checkout/results"
    own_config = make_config("suites/iot", "--benchmark-storage=x", benchmark_storage="x")
    policy.adopt(own_config, SUITE)
    assert own_config.option.benchmark_storage == "x"


def test_the_stock_table_is_shown_when_runs_are_compared() -> None:
    plain, compared = (
        make_config("suites/iot"),
        make_config("suites/iot", "--benchmark-compare", benchmark_compare=True),
    )
    policy.adopt(plain, SUITE)
    policy.adopt(compared, SUITE)
    assert plain.option.benchmark_quiet
    assert not compared.option.benchmark_quiet


def test_workers_do_not_compare_as_well() -> None:
    config = make_config("suites/iot", "--benchmark-compare", worker=True, benchmark_compare=True)
    policy.adopt(config, SUITE)
    assert config.option.benchmark_compare is None
    assert config.option.benchmark_quiet


@pytest.mark.parametrize(
    ("args", "plugins"),
    [
        (["suites/iot", "-n50"], set()),
        (["suites/iot", "tests/mine.py"], {"benchmark", "anyio"}),
        (["suites/iot", "--benchmark-json=x"], {"benchmark"}),
        (["suites/iot", "--hypothesis-seed=1"], {"hypothesispytest"}),
        (["suites/iot", "-oanyio_mode=auto"], {"anyio"}),
    ],
)
def test_workers_of_suites_start_without_unused_plugins(args: list[str], plugins: set[str]) -> None:
    config = make_config(*args)
    policy.adopt(config, SUITE)
    assert (
        list_blocked(config) == {"hypothesispytest", "platformdirs", "xdist.looponfail", "benchmark", "anyio"} - plugins
    )


def test_a_plugin_with_a_key_in_the_configuration_file_stays(tmp_path: Path) -> None:
    """Otherwise workers would warn that they do not know the key."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\n")
    config = make_config("suites/iot", ini=tmp_path / "pytest.ini")
    policy.adopt(config, SUITE)
    assert "anyio" not in list_blocked(config)


def test_an_option_in_a_comment_of_the_configuration_file_is_not_asked_for(tmp_path: Path) -> None:
    """A comment about ``--benchmark-compare`` once made fifty agents import pytest-benchmark."""
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\n# --benchmark-compare=0001 warns\nxfail_strict = true\n"
    )
    config = make_config("suites/iot", ini=tmp_path / "pyproject.toml")
    policy.adopt(config, SUITE)
    assert "benchmark" in list_blocked(config)


def test_workers_of_other_runs_are_left_alone() -> None:
    assert list_blocked(make_config("tests")) == set()
