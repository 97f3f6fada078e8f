"""Bring sync clients and their servers: install their packages, start a pair, end it.

    tools/testbed list
    tools/testbed install syncthing unison      or --quick: all that take under a minute together; --all: the rest, too
    tools/testbed up syncthing                  prints one JSON line; with options: 'syncthing?compression=always'
    tools/testbed down syncthing

``testbed.toml`` beside this file is the table. Nothing is installed that is there already.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
# Another checkout's package may be installed: this one's comes first.
sys.path.insert(0, str(TOOLS.parent / "src"))

from pytest_cloudbench import clients  # noqa: E402  # the path above comes first
from pytest_cloudbench.clients.processes import find_binary, tail  # noqa: E402  # the same
from pytest_cloudbench.clients.watchdog import read_stat  # noqa: E402  # the same
from pytest_cloudbench.model import CloudbenchError  # noqa: E402  # the same

QUICK_S = 60
UP_S = 120.0
DOWN_S = 30.0
STATE = TOOLS.parent / ".testbed"


class TestbedError(Exception):
    """What went wrong, in one line."""


@dataclass(frozen=True)
class Row:
    """One table of testbed.toml."""

    name: str
    programs: tuple[str, ...]
    debian: tuple[str, ...]
    seconds: float
    wheels: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    explicit: str = ""

    def missing(self) -> list[str]:
        """Programs that are not there, and folders."""
        programs = [name for name in self.programs if find_binary(name) is None]
        return programs + [folder for folder in self.folders if not Path(folder).is_dir()]


def table() -> dict[str, Row]:
    """All rows by name."""
    data = tomllib.loads((TOOLS / "testbed.toml").read_text("utf-8"))
    return {
        name: Row(
            name,
            programs=tuple(keys["programs"]),
            debian=tuple(keys["debian"]),
            seconds=float(keys["seconds"]),
            wheels=tuple(keys.get("wheels", ())),
            folders=tuple(keys.get("folders", ())),
            explicit=keys.get("explicit", ""),
        )
        for name, keys in data.items()
    }


def quick(rows: dict[str, Row]) -> list[Row]:
    """The rows that take under a minute together, shortest first."""
    chosen: list[Row] = []
    for row in sorted(rows.values(), key=lambda row: row.seconds):
        if not row.explicit and sum(other.seconds for other in chosen) + row.seconds < QUICK_S:
            chosen.append(row)
    return chosen


# --- install --------------------------------------------------------------------------------------


def as_root() -> list[str]:
    """How a command is run as root; raises TestbedError where it cannot."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and (
        sys.stdin.isatty() or subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return ["sudo"]
    raise TestbedError("packages are installed by root: run it as root, or where sudo asks for no password")


def run(argv: Sequence[str]) -> None:
    """Run quietly; raises TestbedError with the last line it said."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise TestbedError(f"{argv[0]} ended with {done.returncode}: {said}")


def apt_get(packages: Sequence[str]) -> None:
    """Install Debian packages, with fresh lists only where the first attempt fails."""
    if shutil.which("apt-get") is None:
        raise TestbedError(f"there is no apt-get here; install by other means: {', '.join(packages)}")
    # A minute or two of another apt-get is waited for.
    apt = [*as_root(), "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"]
    install = [*apt, "install", "-y", "--no-install-recommends", *packages]
    try:
        run(install)
    except TestbedError:
        run([*apt, "update"])
        run(install)


def install(rows: Sequence[Row]) -> None:
    """Bring what is missing, in one call of each installer."""
    started_s = time.monotonic()
    lacking = [row for row in rows if row.missing()]
    in_environment = sys.prefix != sys.base_prefix
    wheels = [wheel for row in lacking if in_environment for wheel in row.wheels]
    packages = [package for row in lacking if not (in_environment and row.wheels) for package in row.debian]
    if wheels:
        run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wheels])
    if packages and any(find_binary(program) is None for row in lacking for program in row.programs):
        apt_get(list(dict.fromkeys(packages)))
    for folder in (folder for row in lacking for folder in row.folders if not Path(folder).is_dir()):
        run([*as_root(), "mkdir", "-p", "-m", "0755", folder])
    still = {row.name: row.missing() for row in rows if row.missing()}
    if still:
        raise TestbedError(f"installed, but not found: {still}")
    brought = ", ".join(row.name for row in lacking) or "nothing: all is there"
    print(f"testbed: installed {brought} ({time.monotonic() - started_s:.0f} s)")


# --- up and down ----------------------------------------------------------------------------------


def state_folder(spec: str) -> Path:
    """Where a pair's state and files are."""
    return STATE / re.sub(r"[^A-Za-z0-9]+", "-", spec).strip("-")


def read_state(spec: str) -> dict[str, object] | None:
    """What ``up`` printed, if its process still runs."""
    try:
        state: dict[str, object] = json.loads((state_folder(spec) / "state.json").read_text("utf-8"))
        stat = read_stat(int(str(state["pid"])))
    except (OSError, ValueError, KeyError):
        return None
    return state if stat is not None and stat.start == state["start"] and stat.state != "Z" else None


def up(spec: str, folder: Path) -> None:
    """Start a pair, held by a process of its own; print its addresses in one JSON line."""
    if (state := read_state(spec)) is not None:
        print(json.dumps(state))
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (folder / "holder.log").open("wb") as log:
        holder = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), "hold", spec],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert holder.stdout is not None
    with holder.stdout:
        ready = select.select([holder.stdout], [], [], UP_S)[0]
        line = holder.stdout.readline().decode() if ready else ""
    if not line:
        holder.terminate()
        holder.wait()
        raise TestbedError(f"{spec} did not come up:{tail(folder / 'holder.log')}")
    print(line.rstrip())


def hold(spec: str, folder: Path) -> None:
    """Be the process that holds a pair until SIGTERM."""
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    for number in signals:
        signal.signal(number, lambda *_: sys.exit(1))
    client = clients.client(spec)
    client.prepare(folder / "work")
    try:
        client.start()
        # Only now: the client's processes would inherit it, and not hear that they should end.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        stat = read_stat(os.getpid())
        state = {
            "name": spec,
            "pid": os.getpid(),
            "start": stat.start if stat else 0,
            "folder": str(client.folder),
            "server": f"{getattr(client, 'server_host', '')}:{getattr(client, 'server_port', '')}",
            "stored": str(getattr(client, "stored", "")),
            "client_pids": client.pids("client"),
            "server_pids": client.pids("server"),
            "versions": dict(client.versions()),
        }
        line = json.dumps(state)
        (folder / "state.json").write_text(line, "utf-8")
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        signal.sigwait(signals)
    finally:
        client.stop()


def down(spec: str, folder: Path) -> None:
    """End a pair and remove its files."""
    state = read_state(spec)
    if state is not None:
        pidfd = os.pidfd_open(int(str(state["pid"])))
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if not select.select([pidfd], [], [], DOWN_S)[0]:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)  # its watchdog ends the rest
        os.close(pidfd)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"testbed: {spec} {'is down' if state else 'was not up'}")


# --- the command line -----------------------------------------------------------------------------


def show(rows: dict[str, Row]) -> None:
    """The table, with what is there."""
    for row in rows.values():
        state = f"missing: {', '.join(row.missing())}" if row.missing() else "installed"
        note = f"; only by name: {row.explicit}" if row.explicit else ""
        print(f"{row.name:<10} {row.seconds:>4.0f} s  {state}{note}")


def chosen(arguments: argparse.Namespace, rows: dict[str, Row]) -> list[Row]:
    """The rows that the command line asks for."""
    unknown = [name for name in arguments.names if name not in rows]
    if unknown:
        raise TestbedError(f"{unknown[0]} is not in the table; there are: {', '.join(rows)}")
    if arguments.all:
        return [row for row in rows.values() if not row.explicit]
    if arguments.quick:
        return quick(rows)
    if not arguments.names:
        raise TestbedError("install what? a NAME of `tools/testbed list`, --quick or --all")
    return [rows[name] for name in arguments.names]


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 1 with one line on standard error."""
    parser = argparse.ArgumentParser(prog="tools/testbed", description="Sync clients and their servers.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what there is, and whether it is installed")
    bring = commands.add_parser("install", help="install packages where programs are missing")
    bring.add_argument("names", nargs="*", metavar="NAME")
    bring.add_argument("--quick", action="store_true", help="all that take under a minute together")
    bring.add_argument("--all", action="store_true", help="all but those that are installed only by name")
    bring.add_argument("--may-fail", action="store_true", help="exit with 0 even so, and say what failed")
    for name, what in (("up", "start a pair, print a JSON line"), ("down", "end a pair"), ("hold", argparse.SUPPRESS)):
        commands.add_parser(name, help=what).add_argument("spec", metavar="NAME")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "list":
            show(table())
        elif arguments.command == "install":
            install(chosen(arguments, table()))
        else:
            {"up": up, "down": down, "hold": hold}[arguments.command](arguments.spec, state_folder(arguments.spec))
    except (TestbedError, CloudbenchError) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 0 if getattr(arguments, "may_fail", False) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
