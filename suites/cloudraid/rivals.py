"""Alternatives to an array: rclone's union with crypt, and Tahoe-LAFS, each over this machine's disk.

CPU time is that of the client alone: this process and, for a rival, its daemon or gateway. It is read from /proc;
without that, it is not known.
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
_HERE = "folders of this machine"
"""Takes the place of a behaviour profile: files written here are removed with the run."""

Measured = tuple[tuple["Result", "Result"], dict[str, Any], str]


def measured_rival(
    experiment: Experiment, payloads: Payloads, name: str, objects: int, size_bytes: int
) -> Measured | str:
    """Returns a rival's measurements and a note; or why it cannot be measured here."""
    folder = Path(experiment.agent.once(f"folder:{name}", lambda: tempfile.mkdtemp(prefix="cloudraid-")))
    try:
        with _OPENERS[name](folder) as (driver, survives, is_client):
            return _measured(
                experiment, payloads, Provider(name, driver, _HERE), objects, size_bytes, folder, survives, is_client
            )
    except UsageError as error:
        return str(error)
    finally:
        experiment.agent.once(f"gone:{name}", lambda: shutil.rmtree(folder, ignore_errors=True))


def _measured(
    experiment: Experiment, payloads: Payloads, provider: Provider, objects: int, size_bytes: int, folder: Path,
    survives: str, is_client: Callable[[str], bool],
) -> Measured:  # fmt: skip
    with experiment.elsewhere(provider):
        first = experiment.run(payloads.random(1), arrival=Threads(1), files=1, keep=True, store=False, verify=False)
        del first  # everything that starts with the first operation is running now
        began_s = cpu_s(is_client)
        up = experiment.run(
            payloads.random(size_bytes), arrival=Threads(1), files=objects, keep=True, store=False, detail=True,
            verify=False,
        )  # fmt: skip
        wrote_s = cpu_s(is_client)
        stored = sum(path.stat().st_size for path in folder.glob("[0-9]/**/*") if path.is_file())
        down = experiment.run(arrival=Threads(1), on=up.files, operation=Verb.GET, store=False, detail=True)
        read_s = cpu_s(is_client)
    moved_mb = up["ok"] * size_bytes / 1e6

    def rate(from_s: float | None, to_s: float | None) -> float | None:
        return None if from_s is None or to_s is None or to_s <= from_s else moved_mb / (to_s - from_s)

    extra = {
        "put_mb_per_cpu": rate(began_s, wrote_s), "get_mb_per_cpu": rate(wrote_s, read_s),
        "overhead": stored / (objects * size_bytes) if stored else None, "survives": survives, "system": provider.spec,
    }  # fmt: skip
    return (up, down), extra, "payloads are also generated and compared in this process, which counts"


# --- the rivals ---------------------------------------------------------------------------------------


@contextmanager
def _raid(folder: Path) -> Iterator[tuple[Driver, str, Callable[[str], bool]]]:
    children = ", ".join(f'"folder:{folder}/{number}"' for number in range(6))
    file = folder / "array.toml"
    file.write_text(f'k = 4\nm = 2\nkey = "array.key"\nchildren = [{children}]\n', "utf-8")
    with open_provider(f"raid:{file}") as provider:
        yield provider.driver, "any 2 of 6", lambda command: False


@contextmanager
def _rclone(folder: Path) -> Iterator[tuple[Driver, str, Callable[[str], bool]]]:
    """Every child holds everything, encrypted: rclone's union has no erasure code."""
    program = shutil.which("rclone")
    if program is None:
        raise UsageError("rclone is not installed")
    upstreams = [folder / str(number) for number in range(4)]
    for upstream in upstreams:
        upstream.mkdir(exist_ok=True)
    hidden = subprocess.run([program, "obscure", _PASSWORD], capture_output=True, text=True, check=True).stdout.strip()
    settings = {
        "RCLONE_CONFIG_CLOUDRAIDUNION_TYPE": "union",
        "RCLONE_CONFIG_CLOUDRAIDUNION_UPSTREAMS": " ".join(map(str, upstreams)),
        "RCLONE_CONFIG_CLOUDRAIDUNION_CREATE_POLICY": "all",
        "RCLONE_CONFIG_CLOUDRAIDCRYPT_TYPE": "crypt",
        "RCLONE_CONFIG_CLOUDRAIDCRYPT_REMOTE": "cloudraidunion:",
        "RCLONE_CONFIG_CLOUDRAIDCRYPT_PASSWORD": hidden,
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)  # the driver's daemon reads its remotes from there
    try:
        driver = connect_driver(ProviderSpec.parse("rclone:cloudraidcrypt:"))
        try:
            yield driver, "any 3 of 4", lambda command: "rclone" in command
        finally:
            driver.close()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _tahoe(folder: Path) -> Iterator[tuple[Driver, str, Callable[[str], bool]]]:
    """The recipe's grid of three nodes, any two of which are enough. It has its own folder."""
    del folder
    with open_provider("local:tahoe") as provider:
        yield provider.driver, "any 1 of 3", lambda command: command.rstrip().endswith("gateway")


_OPENERS = dict(zip(RIVALS, (_raid, _rclone, _tahoe), strict=True))


# --- CPU time -----------------------------------------------------------------------------------------


def cpu_s(is_client: Callable[[str], bool]) -> float | None:
    """CPU seconds of this process, and of its descendants that belong to the client; None without /proc."""
    own = os.times()
    found = own.user + own.system
    try:
        for process in _below(os.getpid()):
            command = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if is_client(command):
                ticks = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
                found += (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return found


def _below(parent: int) -> Sequence[int]:
    """Returns all descendants of a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, left = [], [parent]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found
