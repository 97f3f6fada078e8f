"""The service that stands in for a provider in a spec: its profile, its driver, and the driver's parameters."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_cloudbench import providers
from pytest_cloudbench.emulators.profile import find_profile, full_name
from pytest_cloudbench.model import UsageError

RECIPE = """
name = "pail"
driver = "{driver}"
command = ["{program}"]
url = "http://127.0.0.1:{{port}}/"
needs = "pails"
"""


def recipe(folder: Path, driver: str = "folder", program: str = "{python}") -> str:
    path = folder / "pail.toml"
    path.write_text(RECIPE.format(driver=driver, program=program))
    return f"served:{path}"


@pytest.mark.parametrize(
    "spec", ["emulated:ideal", "emulated:dropbox?profile=ideal", "emulated:dropbox?content_hash=1"]
)
def test_a_profile_is_of_an_api_and_other_parameters_are_the_drivers(spec: str) -> None:
    providers.resolve(spec)
    with providers.opened(spec) as driver:
        assert driver.versions()["dropbox.content_hash"] == ("on" if "content_hash" in spec else "off")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("emulated:dropbox?profile=nothing", "expected one of"),
        ("emulated:ideal?profile=dropbox", "expected one of ideal, got 'dropbox'"),
        ("emulated:dropbox?driver=folder", "the driver folder does not speak dropbox"),
        ("emulated:dropbox?driver=dropbax", "did you mean dropbox"),
        ("local:nothing", "expected one of"),
        ("local:", "expected local:NAME"),
        ("local:./x.toml", "expected local:NAME"),
        ("served:x", "expected served:RECIPE.toml"),
    ],
)
def test_impossible_spec_is_refused_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        providers.resolve(spec)
    assert "\n" not in str(caught.value)


def test_a_parameter_that_the_driver_does_not_know_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown parameter 'speed'"), providers.opened("emulated:ideal?speed=1"):
        pass


def test_a_server_that_is_not_installed_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such-pail is not installed: run cloudbench testbed install pails"):
        providers.resolve(recipe(tmp_path, program="no-such-pail"))
    providers.resolve(recipe(tmp_path))
    providers.resolve(recipe(tmp_path, program=Path(sys.executable).name))
    with pytest.raises(UsageError, match="unknown parameter 'profile'"):
        providers.resolve(recipe(tmp_path) + "?profile=x")


def test_names_of_profiles_belong_to_an_api() -> None:
    assert full_name("ideal", "dropbox") == "ideal", "Dropbox's came first"
    for api in ("box", "dropbox", "gdrive", "mega", "onedrive"):
        assert find_profile("default", api) == find_profile(api)
    assert find_profile("ideal", "dropbox").meta.name == "ideal"
