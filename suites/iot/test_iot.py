"""How many sensors can a provider serve, and at what loss? (thesis, section 4.2.4)

The thesis's sensors sleep *after* each upload (``ThinkTime``, a closed loop), while a real sensor keeps to its clock
(``FixedInterval``). Tables 4.2 and 4.3 are repeated with the former, on the provider fitted to the thesis's Dropbox
unless ``--provider`` names another. Everything else uses the latter, on the default provider.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import KIB, FixedInterval, ThinkTime

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads

FILE_BYTES = 5 * KIB
"""One reading (thesis 4.2.4: "the size of each file storing temperature data is 5 KB")."""

FILES_PER_SENSOR = 10
"""Each row of the tables is this many files per sensor (columns "#Files" and "#Sensors")."""

QUICK_FILES_PER_SENSOR = 5
"""The number in the quick grid where the loss rate is the same from the first second on: a load well below the rate of
the provider, or sensors that start together. If none of 50 is lost, the rate is below 6 % (95 %), and 8 % are allowed.
"""

ROWS = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))["row"]

SENSORS = {"quick": (50,), "paper": (10, 30, 50, 80, 100)}
INTERVALS_S = {"quick": (1,), "paper": (1, 10, 60)}
QUICK_ROWS = {("4.2", 50, 1): FILES_PER_SENSOR, ("4.3", 10, 1): QUICK_FILES_PER_SENSOR}
"""The rows that show most, with their files per sensor. One loses four of five files, and the other none."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the tables with their own rows, and all other tests with sensors times interval."""
    grid = metafunc.config.option.cloudbench_grid
    if "row" in metafunc.fixturenames:
        table = metafunc.function.__name__.removeprefix("test_table_").replace("_", ".")
        rows = [row for row in ROWS if row["table"] == table and (grid == "paper" or _row_key(row) in QUICK_ROWS)]
        if grid != "paper":
            rows = [{**row, "files": row["sensors"] * QUICK_ROWS[_row_key(row)]} for row in rows]
        metafunc.parametrize("row", rows, ids=lambda row: f"{row['sensors']}-{row['interval_s']}s", indirect=True)
    elif "sensors" in metafunc.fixturenames:
        metafunc.parametrize("sensors", SENSORS[grid])
        metafunc.parametrize("interval_s", INTERVALS_S[grid], ids=lambda interval_s: f"{interval_s}s")


def _row_key(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["table"], row["sensors"], row["interval_s"]


def test_worst_case(
    experiment: Experiment, payloads: Payloads, sensors: int, interval_s: int, request: pytest.FixtureRequest
) -> None:
    """All sensors start together and keep to their clock: Table 4.2's question for real sensors."""
    is_paper = request.config.option.cloudbench_grid == "paper"
    result = experiment.run(
        payloads.random(FILE_BYTES),
        arrival=FixedInterval(interval_s),
        sensors=sensors,
        ops_per_sensor=FILES_PER_SENSOR if is_paper else QUICK_FILES_PER_SENSOR,
        may_drift=True,
    )
    result.check()


def test_average_case(experiment: Experiment, payloads: Payloads, sensors: int, interval_s: int) -> None:
    """Sensors start at a random time within one interval and keep to their clock: Table 4.3's question."""
    result = experiment.run(
        payloads.random(FILE_BYTES),
        arrival=FixedInterval(interval_s, first_delay_max_s=interval_s),
        sensors=sensors,
        ops_per_sensor=FILES_PER_SENSOR,
    )
    result.check()


THESIS_PROVIDER = pytest.mark.cloudbench_provider("emulated:dropbox-2014")
"""The tables' numbers are those of Dropbox in 2014, so they are repeated with the profile fitted to it."""


@pytest.fixture
def row(request: pytest.FixtureRequest, experiment: Experiment) -> dict[str, Any]:
    """One published row, whose numbers become the parameters of the entry."""
    published: dict[str, Any] = request.param
    keys = ("sensors", "interval_s", "first_delay_max_s")
    experiment.params = {key: published[key] for key in keys}
    return published


@THESIS_PROVIDER
def test_table_4_2(experiment: Experiment, payloads: Payloads, row: dict[str, Any]) -> None:
    """Table 4.2, the worst case: all sensors start together, and sleep after each upload."""
    _repeat_row(experiment, payloads, row)


@THESIS_PROVIDER
def test_table_4_3(experiment: Experiment, payloads: Payloads, row: dict[str, Any]) -> None:
    """Table 4.3, the average case: a random first delay, and sleep after each upload."""
    _repeat_row(experiment, payloads, row)


def _repeat_row(experiment: Experiment, payloads: Payloads, row: dict[str, Any]) -> None:
    result = experiment.run(
        payloads.random(FILE_BYTES),
        arrival=ThinkTime(row["interval_s"], row["first_delay_max_s"]),
        sensors=row["sensors"],
        ops_per_sensor=row["files"] // row["sensors"],
        published={"loss_rate": row["loss_rate"], "source": row["source"]},
        may_drift=True,  # sensors that start together drift apart, because each sleeps after its own upload
    )
    result.check()
