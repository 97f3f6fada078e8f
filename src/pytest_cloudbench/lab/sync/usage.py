"""The cost of a transfer besides traffic: memory of processes, energy of the machine.

It is read from the kernel's counters. None means "not known", never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")
_PAGE_UNIT_BYTES = 1024


def rss_bytes(pids: Iterable[int], *, peak: bool = False) -> int | None:
    """Return the resident memory of processes, or the sum of their peaks so far, or None if nothing can be read.

    Pages that processes share count once for each of them, so this is an upper bound.
    """
    field, total_bytes, is_any_read = "VmHWM:" if peak else "VmRSS:", 0, False
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
        except OSError:
            continue  # it has ended
        for line in text.splitlines():
            if line.startswith(field):
                total_bytes, is_any_read = total_bytes + int(line.split()[1]) * _PAGE_UNIT_BYTES, True
    return total_bytes if is_any_read else None


def read_energy_uj(root: Path = _POWERCAP) -> dict[str, tuple[int, int]]:
    """Return RAPL's counters by zone, or nothing if they are not readable.

    Each counter is its microjoules, and the value at which they wrap to zero. The energy is that of the whole machine:
    of the zone ``psys`` where there is one, as it includes all others, and otherwise of all packages
    (``intel-rapl:0``), which include their parts.
    """
    zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1]
    zones = [zone for zone in zones if _read_zone_name(zone) == "psys"] or zones
    counters_uj = {}
    for zone in zones:
        try:
            value, wrap = (int((zone / name).read_text("ascii")) for name in ("energy_uj", "max_energy_range_uj"))
        except (OSError, ValueError):
            return {}  # since Linux 5.10 only root may read them, and a sum over part of the machine would be wrong
        counters_uj[zone.name] = (value, wrap)
    return counters_uj


def _read_zone_name(zone: Path) -> str:
    try:
        return (zone / "name").read_text("ascii", "replace").strip()
    except OSError:
        return ""


def energy_j(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> float | None:
    """Return the joules of the whole machine between two readings, or None if unknown.

    A counter that is lower than before has wrapped once. Several wraps cannot be detected (one takes minutes).
    """
    if not before or before.keys() != after.keys():
        return None
    used_uj = 0
    for name, (first, wrap) in before.items():
        last = after[name][0]
        used_uj += last - first if last >= first else last - first + wrap
    return used_uj / 1e6


def difference(after: float | None, before: float | None) -> float | None:
    """Return the use in between, or None if one of the two is unknown."""
    return None if after is None or before is None else after - before
