"""Does the storage service keep up with our weather stations?"""

from pytest_cloudbench import FixedInterval

STATIONS = 60
READING_BYTES = 900


def test_ordinary_hour(experiment, payloads):
    """Stations report every two seconds, each at its own time."""
    result = experiment.run(
        payloads.text(READING_BYTES),
        arrival=FixedInterval(interval_s=2, first_delay_max_s=2),
        sensors=STATIONS,
        ops_per_sensor=2,
    )
    result.check()


def test_rush_after_a_power_cut(experiment, payloads):
    """All stations come back at the same moment."""
    result = experiment.run(
        payloads.text(READING_BYTES),
        arrival=FixedInterval(interval_s=2),
        sensors=STATIONS,
        ops_per_sensor=1,
    )
    result.check()
