"""Install sync clients and their servers, start a pair of them, and end it.

    tools/testbed list
    tools/testbed install syncthing unison      or --quick: all that take under a minute together; --all: the rest, too
    tools/testbed up syncthing                  prints one JSON line; with options: 'syncthing?compression=always'
    tools/testbed down syncthing

``cloudbench testbed`` installs, too. This tool adds the commands that only a checkout needs. The table is
``data/testbed.toml`` of the package. Packages that are there already are not installed again.
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
from collections.abc import Sequence
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
# Another checkout's package may be installed, so this one's comes first.
sys.path.insert(0, str(TOOLS.parent / "src"))

from pytest_cloudbench.commands import testbed  # noqa: E402  # the path above comes first
from pytest_cloudbench.lab import clients  # noqa: E402  # the path above comes first
from pytest_cloudbench.lab.clients.processes import tail  # noqa: E402  # the same
from pytest_cloudbench.lab.clients.watchdog import read_stat  # noqa: E402  # the same
from pytest_cloudbench.model import CloudbenchError  # noqa: E402  # the same

UP_S = 120.0
DOWN_S = 30.0
STATE = TOOLS.parent / ".testbed"


# --- up and down ----------------------------------------------------------------------------------


def state_folder(spec: str) -> Path:
    """Return the folder of a pair's state and files."""
    return STATE / re.sub(r"[^A-Za-z0-9]+", "-", spec).strip("-")


def read_state(spec: str) -> dict[str, object] | None:
    """Return the state that ``up`` printed, or None if its process no longer runs."""
    try:
        state: dict[str, object] = json.loads((state_folder(spec) / "state.json").read_text("utf-8"))
        stat = read_stat(int(str(state["pid"])))
    except (OSError, ValueError, KeyError):
        return None
    return state if stat is not None and stat.start == state["start"] and stat.state != "Z" else None


def up(spec: str, folder: Path) -> None:
    """Start a pair in a process of its own, and print its addresses in one JSON line."""
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
        raise testbed.TestbedError(f"{spec} did not come up:{tail(folder / 'holder.log')}")
    print(line.rstrip())


def hold(spec: str, folder: Path) -> None:
    """Be the process that holds a pair until SIGTERM."""
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    for number in signals:
        signal.signal(number, lambda *_: sys.exit(1))
    client = clients.make_client(spec)
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


def install(arguments: argparse.Namespace) -> None:
    """Install missing packages, and print how long that took."""
    started_s = time.monotonic()
    missing_rows = testbed.install(testbed.select_rows(arguments, testbed.read_table()))
    names = ", ".join(row.name for row in missing_rows) or "nothing: everything is there"
    print(f"testbed: installed {names} ({time.monotonic() - started_s:.0f} s)")


# --- the command line -----------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return the exit status: 0, or 1 with one line on standard error."""
    parser = argparse.ArgumentParser(prog="tools/testbed", description="Sync clients and their servers.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what there is, and whether it is installed")
    bring = commands.add_parser("install", help="install packages where programs are missing")
    testbed.add_options(bring)
    bring.add_argument("--may-fail", action="store_true", help="exit with 0 even so, and say what failed")
    for name, description in (
        ("up", "start a pair, print a JSON line"),
        ("down", "end a pair"),
        ("hold", argparse.SUPPRESS),
    ):
        commands.add_parser(name, help=description).add_argument("spec", metavar="NAME")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "list" or (arguments.command == "install" and arguments.list):
            print("\n".join(testbed.render_rows(testbed.read_table())))
        elif arguments.command == "install":
            install(arguments)
        else:
            {"up": up, "down": down, "hold": hold}[arguments.command](arguments.spec, state_folder(arguments.spec))
    except CloudbenchError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 0 if getattr(arguments, "may_fail", False) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
