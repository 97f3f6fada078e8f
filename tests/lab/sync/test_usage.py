"""Memory and energy as the kernel reports them, and None if it reports nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cloudbench.lab.sync.usage import energy_j, read_energy_uj, rss_bytes


def write_package(root: Path, name: str, energy_uj: str, title: str = "package-0") -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "name").write_text(f"{title}\n")
    (root / name / "energy_uj").write_text(f"{energy_uj}\n")
    (root / name / "max_energy_range_uj").write_text("1000000\n")


def test_packages_are_summed_and_their_parts_are_not(tmp_path: Path) -> None:
    write_package(tmp_path, "intel-rapl:0", "100000")
    write_package(tmp_path, "intel-rapl:1", "900000")
    write_package(tmp_path, "intel-rapl:0:0", "5")
    before = read_energy_uj(tmp_path)
    assert sorted(before) == ["intel-rapl:0", "intel-rapl:1"]
    write_package(tmp_path, "intel-rapl:0", "300000")
    write_package(tmp_path, "intel-rapl:1", "100000")  # the counter has begun again at zero
    assert energy_j(before, read_energy_uj(tmp_path)) == pytest.approx(0.2 + 0.2)


def test_the_zone_of_the_whole_machine_is_not_added_to_its_packages(tmp_path: Path) -> None:
    energies_uj = []
    for package_uj, whole_uj in ((0, 0), (50_000, 80_000)):
        write_package(tmp_path, "intel-rapl:0", str(package_uj))
        write_package(tmp_path, "intel-rapl:1", str(whole_uj), "psys")
        energies_uj.append(read_energy_uj(tmp_path))
    assert energy_j(*energies_uj) == pytest.approx(0.08)


def test_energy_is_unknown_if_a_counter_is_unreadable(tmp_path: Path) -> None:
    assert read_energy_uj(tmp_path) == {}
    write_package(tmp_path, "intel-rapl:0", "100000")
    before = read_energy_uj(tmp_path)
    write_package(tmp_path, "intel-rapl:1", "no number")
    assert read_energy_uj(tmp_path) == {}, "one package of two would be half of the energy"
    assert energy_j({}, {}) is None
    assert energy_j(before, {}) is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_that_of_processes_that_run() -> None:
    code = "x = bytearray(50_000_000); x[::4096] = b'1' * len(x[::4096]); del x; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        now, peak = rss_bytes([process.pid]), rss_bytes([process.pid], peak=True)
        process.communicate(b"\n")
    assert now is not None
    assert peak is not None
    assert peak - now > 40_000_000
    assert rss_bytes([process.pid]) is None
    both = rss_bytes([os.getpid(), os.getpid()])
    assert both == pytest.approx(2 * (rss_bytes([os.getpid()]) or 0), rel=0.05)
