"""What must not get worse: readings are stored, with as few requests as before, and in time."""

import pytest

from pytest_cloudbench.arrival import FixedInterval


@pytest.mark.parametrize("size_bytes", [900, 9_000])
def test_readings_are_stored(experiment, payloads, size_bytes):
    """Ten stations report every second, each at its own time."""
    result = experiment.run(
        payloads.text(size_bytes),
        arrival=FixedInterval(interval_s=1, first_delay_max_s=1),
        sensors=10,
        ops_per_sensor=3,
    )
    result.check()
