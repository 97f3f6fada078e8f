"""Alternatives to an array over this machine's disk: rclone's union with crypt, and Tahoe-LAFS.

CPU time is that of the client alone: this process and the daemon or gateway of a rival. It is read from /proc, and
unknown where there is none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cloudbench import Driver, Provider, ProviderSpec, Threads, UsageError, Verb, connect_driver, open_provider

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads, Result

RIVALS = ("raid 4+2", "rclone union x4 + crypt", "tahoe")
_PASSWORD = "cloudraid"
_LOCAL_FOLDERS = "folders of this machine"
"""The name in place of a behaviour profile, which marks files as removed with the run."""

RivalMeasurement = tuple[tuple["Result", "Result"], dict[str, Any], str]


def measure_rival(
    experiment: Experiment, payloads: Payloads, name: str, objects: int, size_bytes: int
) -> RivalMeasurement | str:
    """Return the measurements of a rival and a note, or the reason why it cannot be measured here."""
    folder = Path(experiment.agent.once(f"folder:{name}", lambda: tempfile.mkdtemp(prefix="cloudraid-")))
    try:
        with _OPENERS[name](folder) as (driver, survives, is_client):
            return _measure_provider(
                experiment,
                payloads,
                Provider(name, driver, _LOCAL_FOLDERS),
                objects,
                size_bytes,
                folder,
                survives,
                is_client,
            )
    except UsageError as error:
        return str(error)
    finally:
        experiment.agent.once(f"gone:{name}", lambda: shutil.rmtree(folder, ignore_errors=True))


def _measure_provider(
    experiment: Experiment, payloads: Payloads, provider: Provider, objects: int, size_bytes: int, folder: Path,
    survives: str, is_client: Callable[[str], bool],
) -> RivalMeasurement:  # fmt: skip
    with experiment.elsewhere(provider):
        first = experiment.run(payloads.random(1), arrival=Threads(1), files=1, keep=True, store=False, verify=False)
        del first  # programs that start with the first operation are running now
        stored_before = _count_stored_bytes(folder)
        began_s = client_cpu_s(is_client)
        up = experiment.run(
            payloads.random(size_bytes), arrival=Threads(1), files=objects, keep=True, store=False, detail=True,
            verify=False,
        )  # fmt: skip
        wrote_s = client_cpu_s(is_client)
        stored = _count_stored_bytes(folder) - stored_before
        down = experiment.run(arrival=Threads(1), on=up.files, operation=Verb.GET, store=False, detail=True)
        read_s = client_cpu_s(is_client)
    extra = {
        "put_mb_per_cpu": rate_per_cpu(up["ok"] * size_bytes, began_s, wrote_s),
        "get_mb_per_cpu": rate_per_cpu(down["ok"] * size_bytes, wrote_s, read_s),
        "stored_per_byte": stored / (up["ok"] * size_bytes) if stored and up["ok"] else None,
        "survives": survives, "system": provider.spec,
    }  # fmt: skip
    return (up, down), extra, "payloads are also generated and compared in this process, which counts"


def _count_stored_bytes(folder: Path) -> int:
    """Return the size of all files in the folders of children. 0 if a rival has a folder of its own."""
    return sum(path.stat().st_size for path in folder.glob("[0-9]/**/*") if path.is_file())


# --- the rivals ---------------------------------------------------------------------------------------


@contextmanager
def _open_raid(folder: Path) -> Iterator[tuple[Driver, str, Callable[[str], bool]]]:
    for number in range(6):
        (folder / str(number)).mkdir()
    children = ", ".join(f'"folder:{folder}/{number}"' for number in range(6))
    file = folder / "array.toml"
    file.write_text(f'k = 4\nm = 2\nkey = "array.key"\nchildren = [{children}]\n', "utf-8")
    with open_provider(f"raid:{file}") as provider:
        yield provider.driver, "any 2 of 6", lambda command: False


@contextmanager
def _open_rclone(folder: Path) -> Iterator[tuple[Driver, str, Callable[[str], bool]]]:
    """Open rclone's union with encryption. It has no erasure code, so every child holds everything."""
    program = shutil.which("rclone")
    if program is None:
        raise UsageError("rclone is not installed")
    upstreams = [folder / str(number) for number in range(4)]
    for upstream in upstreams:
        upstream.mkdir(exist_ok=True)
    obscured_password = subprocess.run(
        [program, "obscure", _PASSWORD], capture_output=True, text=True, check=True
    ).stdout.strip()
    settings = {
        "RCLONE_CONFIG_CLOUDRAIDUNION_TYPE": "union",
        "RCLONE_CONFIG_CLOUDRAIDUNION_UPSTREAMS": " ".join(map(str, upstreams)),
        "RCLONE_CONFIG_CLOUDRAIDUNION_CREATE_POLICY": "all",
        "RCLONE_CONFIG_CLOUDRAIDCRYPT_TYPE": "crypt",
        "RCLONE_CONFIG_CLOUDRAIDCRYPT_REMOTE": "cloudraidunion:",
        "RCLONE_CONFIG_CLOUDRAIDCRYPT_PASSWORD": obscured_password,
    }
    former = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)  # the daemon of the driver reads its remotes from the environment
    try:
        driver = connect_driver(ProviderSpec.parse("rclone:cloudraidcrypt:"))
        try:
            yield driver, "any 3 of 4", lambda command: "rclone" in command
        finally:
            driver.close()
    finally:
        for name, value in former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _open_tahoe(folder: Path) -> Iterator[tuple[Driver, str, Callable[[str], bool]]]:
    """Open the recipe's grid of three nodes, any two of which are enough. It uses a folder of its own."""
    del folder
    with open_provider("local:tahoe") as provider:
        yield provider.driver, "any 1 of 3", lambda command: command.rstrip().endswith("gateway")


_OPENERS = dict(zip(RIVALS, (_open_raid, _open_rclone, _open_tahoe), strict=True))


# --- CPU time -----------------------------------------------------------------------------------------


def rate_per_cpu(moved_bytes: int, from_s: float | None, to_s: float | None) -> float | None:
    """Return the megabytes for each CPU second between two readings, or None if nothing was moved or it is unknown."""
    if not moved_bytes or from_s is None or to_s is None or to_s <= from_s:
        return None
    return moved_bytes / 1e6 / (to_s - from_s)


def client_cpu_s(is_client: Callable[[str], bool]) -> float | None:
    """Return the CPU seconds of this process and of descendants that ``is_client`` accepts, or None without /proc."""
    times = os.times()
    total_s = times.user + times.system
    try:
        for pid in _find_descendants(os.getpid()):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if is_client(command):
                ticks = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
                total_s += (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return total_s


def _find_descendants(parent: int) -> Sequence[int]:
    """Return all descendants of a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            except OSError:
                continue  # the process has just ended
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    descendants, pending = [], [parent]
    while pending:
        children = parents.get(pending.pop(), [])
        descendants += children
        pending += children
    return descendants
