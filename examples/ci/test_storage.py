"""Readings must be stored, with no more requests and bytes than before."""

import pytest

from pytest_cloudbench import FixedInterval


@pytest.mark.parametrize("size_bytes", [900, 9_000])
def test_readings_are_stored(experiment, payloads, size_bytes):
    """Ten stations report ten times a second, each at its own time."""
    result = experiment.run(
        payloads.text(size_bytes),
        arrival=FixedInterval(interval_s=0.1, first_delay_max_s=0.1),
        sensors=10,
        ops_per_sensor=30,
    )
    result.check()
