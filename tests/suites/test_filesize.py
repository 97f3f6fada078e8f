"""A known latency and bandwidth are found, and so is a size that is handled badly."""

from __future__ import annotations

from statistics import fmean

import pytest

from suites.filesize.test_filesize import LARGEST_BYTES, SIZES
from tests.fleet.harness import FOLDER, Lab
from tests.truths import Truths

from .harness import SUITES, conclusion, profile, run_suite

MEAN_BYTES = fmean(size for size in SIZES.values() if size <= LARGEST_BYTES["quick"])


@pytest.mark.slow
def test_latency_and_bandwidth_are_found_and_no_size_is_off(lab: Lab, truths: Truths) -> None:
    speed = {"up_bytes_per_s": 20_000_000, "down_bytes_per_s": 40_000_000}
    run = run_suite(lab, "filesize", *profile(lab, latency={"median_s": 0.05}, bandwidth=speed))
    lines = {bytes_per_s: conclusion(run, "line", test)
             for test, bytes_per_s in (("test_upload", 20e6), ("test_download", 40e6))}  # fmt: skip
    if not truths.judged(run, *lines.values()):
        return
    for bytes_per_s, line in lines.items():
        own_s = line["client_cpu_s"] / line["ops"]
        truths.assert_time(line["latency"], 0.05, 0.2, own_s)
        truths.assert_time(1e6 / line["bandwidth"], 1e6 / bytes_per_s, 0.15, own_s * 1e6 / MEAN_BYTES)
        assert (line["sizes_off"], line["off"]) == (0, [])


@pytest.mark.slow
def test_a_size_that_is_handled_badly_is_flagged_and_no_other(lab: Lab, truths: Truths) -> None:
    lab.write(
        """
        import time
        import pytest
        from pytest_cloudbench.drivers.folder import FolderDriver
        from pytest_cloudbench.providers import Provider
        from pytest_cloudbench.model import ProviderSpec

        class Slow(FolderDriver):
            def put(self, path, content):
                time.sleep(0.02 + content.size_bytes / 50e6 + (0.08 if 100_000 < content.size_bytes < 200_000 else 0))
                return super().put(path, content)

        @pytest.fixture
        def provider(tmp_path):
            return Provider("own:slow", Slow.connect(ProviderSpec.parse("folder:" + str(tmp_path)), None, {}))

        @pytest.fixture
        def grid():
            return "quick"
    """,
        "conftest.py",
    )
    (lab.folder / "test_filesize.py").write_text((SUITES / "filesize/test_filesize.py").read_text())
    run = lab.run("test_filesize.py::test_upload")
    if truths.judged(run, conclusion(run, "line")):
        assert conclusion(run, "line")["off"] == ["100KB"]
    assert conclusion(run, "100KB")["deviation"] > 1


@pytest.mark.slow
def test_the_total_time_of_a_size_with_refused_files_is_not_known(lab: Lab) -> None:
    limits = {"rate_per_s": 1, "burst": 5, "retry_after_s": 1, "reason": '"too_many_requests"'}
    run = run_suite(lab, "filesize::test_upload", *profile(lab, throttle=limits))
    refused = conclusion(run, "1KB")
    assert (refused["throttled"] > 0, refused["elapsed"]) == (True, None), "refused files take no time"


@pytest.mark.slow
def test_a_folder_is_a_provider_too(lab: Lab) -> None:
    run = run_suite(lab, "filesize", *FOLDER, "-n", "2")
    assert run.counts() == {"passed": 2}, run.text
    assert conclusion(run, "1KB", "test_upload")["elapsed"] > 0
