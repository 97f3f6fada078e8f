"""Install the programs that runs need besides Python: sync clients, and servers that stand in for providers.

The table of what can be installed is ``data/testbed.toml``. Packages of the system need root. Node's and Go's go into a
folder of the user's, and so do Python programs that need so many packages that they get an environment of their own.
Nothing is installed that is there already.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench.commands.command import Command, print_line
from pytest_cloudbench.lab.clients.processes import find_binary
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.services.command import is_module_installed, search_path, testbed_folder

if TYPE_CHECKING:
    import argparse

    from pytest_cloudbench.commands.command import Parsers

_TABLE = Path(__file__).parents[1] / "data" / "testbed.toml"
_QUICK_S = 60
_LISTS = ("programs", "modules", "debian", "wheels", "npm", "go", "apart", "unpacked", "folders")


class TestbedError(UsageError):
    """Something cannot be installed. The message says why."""


@dataclass(frozen=True)
class TestbedRow:
    """One table of testbed.toml, whose head explains the keys."""

    name: str
    programs: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()
    seconds: float = 0.0
    wheels: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    explicit: str = ""
    npm: tuple[str, ...] = ()
    go: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    unpacked: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Return the programs, modules and folders of this row that are missing."""
        programs = [name for name in self.programs if not _find_program(name)]
        programs += [name for name in self.modules if not is_module_installed(name)]
        return programs + [folder for folder in self.folders if not Path(folder).is_dir()]


def _find_program(program: str) -> str | None:
    return find_binary(program) or shutil.which(program, path=search_path())


def read_table() -> dict[str, TestbedRow]:
    """Return all rows by name."""
    data = tomllib.loads(_TABLE.read_text("utf-8"))
    return {
        name: TestbedRow(
            name,
            seconds=float(keys["seconds"]),
            explicit=keys.get("explicit", ""),
            **{key: tuple(keys.get(key, ())) for key in _LISTS},
        )
        for name, keys in data.items()
    }


def select_quick(rows: dict[str, TestbedRow]) -> list[TestbedRow]:
    """Return the rows that take under a minute together, shortest first."""
    quick_rows: list[TestbedRow] = []
    for row in sorted(rows.values(), key=lambda row: row.seconds):
        if not row.explicit and sum(other.seconds for other in quick_rows) + row.seconds < _QUICK_S:
            quick_rows.append(row)
    return quick_rows


def select_rows(options: argparse.Namespace, rows: dict[str, TestbedRow]) -> list[TestbedRow]:
    """Return the rows that a command line asks for. Raises TestbedError."""
    unknown = [name for name in options.names if name not in rows]
    if unknown:
        raise TestbedError(f"{unknown[0]} is not in the table; there are: {', '.join(rows)}")
    if options.all:
        return [row for row in rows.values() if not row.explicit]
    if options.quick:
        return select_quick(rows)
    if not options.names:
        raise TestbedError("install: expected a NAME of the table (--list shows it), --quick or --all")
    return [rows[name] for name in options.names]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``select_rows`` reads."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="a program or server of the table")
    parser.add_argument("--quick", action="store_true", help="all that take under a minute together")
    parser.add_argument("--all", action="store_true", help="all but those that are installed only by name")
    parser.add_argument("--list", action="store_true", help="show what there is, and whether it is installed")


def render_rows(rows: dict[str, TestbedRow]) -> list[str]:
    """Return a line for each row, which says whether it is installed."""
    lines = []
    for row in rows.values():
        missing = row.missing()
        state = f"missing: {', '.join(missing)}" if missing else "installed"
        note = f"; only by name: {row.explicit}" if row.explicit else ""
        lines.append(f"{row.name:<10} {row.seconds:>4.0f} s  {state}{note}")
    return lines


# --- install ----------------------------------------------------------------------------------------


def install(rows: Sequence[TestbedRow], say: Callable[[str], None] = lambda _: None) -> list[TestbedRow]:
    """Install what is missing, with one call of each installer. Returns the rows that were incomplete.

    Args:
        rows: what shall be installed.
        say: called with a line before each installer runs.

    Raises TestbedError.
    """
    incomplete = [row for row in rows if row.missing()]
    in_environment = sys.prefix != sys.base_prefix
    wheels = [wheel for row in incomplete if in_environment for wheel in row.wheels]
    packages = [package for row in incomplete if not (in_environment and row.wheels) for package in row.debian]
    if wheels:
        say(f"pip: {' '.join(wheels)}")
        _run_quietly([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wheels])
    if packages and any(not _find_program(program) for row in incomplete for program in row.programs):
        say(f"apt-get: {' '.join(packages)}")
        _install_debian(list(dict.fromkeys(packages)))
    if npm := [package for row in incomplete for package in row.npm]:
        say(f"npm: {' '.join(npm)}")
        folder = str(_create_folder(testbed_folder()))
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        _run_quietly([_require_tool("npm", "Node.js"), "install", "--prefix", folder, *quiet, *npm])
    for module in (module for row in incomplete for module in row.go):
        say(f"go: {module}")
        _install_go(*module.split())
    for row in (row for row in incomplete if row.apart):
        say(f"pip, in an environment of its own: {' '.join(row.apart)}")
        _install_apart(row)
    for row in (row for row in incomplete if row.unpacked):
        say(f"apt-get, without installing: {' '.join(row.unpacked)}")
        _unpack_debian(row)
    for folder in (folder for row in incomplete for folder in row.folders if not Path(folder).is_dir()):
        _run_quietly([*_root_prefix(), "mkdir", "-p", "-m", "0755", folder])
    still_missing = {row.name: row.missing() for row in rows if row.missing()}
    if still_missing:
        only_wheels = [row.name for row in incomplete if row.wheels and not row.debian and not in_environment]
        hint = f"; {', '.join(only_wheels)} can only be installed into a virtual environment" if only_wheels else ""
        raise TestbedError(f"installed, but not found: {still_missing}{hint}")
    return incomplete


def _install_go(module: str, expected_sum: str = "") -> None:
    """Build a module's program.

    With ``expected_sum``, a module of another sum is not built. The module's own go.sum then vouches
    for its dependencies.
    """
    go, programs = _require_tool("go", "Go"), _create_folder(testbed_folder() / "bin")
    if not expected_sum:
        _run_quietly([go, "install", module], GOBIN=str(programs))
        return
    download = json.loads(_run_quietly([go, "mod", "download", "-json", module], GOSUMDB="off"))
    if download["Sum"] != expected_sum:
        raise TestbedError(f"{module} has the sum {download['Sum']}, expected {expected_sum}: not built")
    name = module.partition("@")[0].rpartition("/")[2]
    _run_quietly([go, "build", "-C", download["Dir"], "-mod=readonly", "-o", str(programs / name), "."], GOSUMDB="off")


def _install_apart(row: TestbedRow) -> None:
    environment = _create_folder(testbed_folder()) / "environments" / row.name
    programs = _create_folder(testbed_folder() / "bin")
    _run_quietly([sys.executable, "-m", "venv", "--clear", str(environment)])
    python = str(environment / "bin" / "python")
    _run_quietly([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *row.apart])
    for name in row.programs:
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(environment / "bin" / name)


def _unpack_debian(row: TestbedRow) -> None:
    """Unpack Debian packages into a folder of the user's, so that no server of theirs starts, now or at a boot."""
    root = _create_folder(testbed_folder() / "unpacked" / row.name)
    programs = _create_folder(testbed_folder() / "bin")
    with tempfile.TemporaryDirectory() as downloads:
        _run_apt(["apt-get", "-q", "download", *row.unpacked], row.unpacked, downloads)
        for archive in Path(downloads).glob("*.deb"):
            _run_quietly(["dpkg-deb", "-x", str(archive), str(root)])
    for name in row.programs:
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(root / "usr" / "sbin" / name)


def _require_tool(name: str, brought_by: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise TestbedError(f"there is no {name} here: install {brought_by}")
    return program


def _create_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _root_prefix() -> list[str]:
    """Return the prefix that runs a command as root, empty for root itself. Raises TestbedError if there is no way."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and (
        sys.stdin.isatty() or subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return ["sudo"]
    raise TestbedError("packages are installed by root: run it as root, or where sudo asks for no password")


def _run_quietly(argv: Sequence[str], *, cwd: str | None = None, **environment: str) -> str:
    """Run a command and return its output. Raises TestbedError with the last line of its output if it fails."""
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=cwd,
        env={**os.environ, **environment},
    )  # fmt: skip
    if done.returncode:
        last_line = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise TestbedError(f"{argv[0]} ended with {done.returncode}: {last_line}")
    return done.stdout


def _install_debian(packages: Sequence[str]) -> None:
    """Install Debian packages, after waiting up to two minutes for another apt-get to end."""
    options = ["-o", "DPkg::Lock::Timeout=120", "install", "-y", "--no-install-recommends"]
    _run_apt([*_root_prefix(), "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", *options, *packages], packages)


def _run_apt(argv: Sequence[str], packages: Sequence[str], cwd: str | None = None) -> None:
    """Run a command of apt. If it fails, update the lists of packages and run it once more."""
    if shutil.which("apt-get") is None:
        raise TestbedError(f"there is no apt-get here; install by other means: {', '.join(packages)}")
    try:
        _run_quietly(argv, cwd=cwd)
    except TestbedError:
        _run_quietly([*_root_prefix(), "apt-get", "-q", "-o", "DPkg::Lock::Timeout=120", "update"])
        _run_quietly(argv, cwd=cwd)


def add_commands(parsers: Parsers) -> None:
    """Add ``testbed install``."""
    testbed = parsers.add_parser(
        "testbed",
        help="install programs that local: providers and sync clients need",
        description="Programs that runs need besides Python: servers for local: providers, and sync clients.",
    )
    add_options(INSTALL.add_to(testbed.add_subparsers(metavar="COMMAND", required=True)))


def run_install(options: argparse.Namespace) -> int:
    """Install what is missing, or list it. Returns the exit status. Raises UsageError."""
    rows = read_table()
    if options.list:
        lines = render_rows(rows)
    else:
        installed = install(select_rows(options, rows), print_line)
        names = ", ".join(row.name for row in installed)
        lines = [f"installed: {names}" if names else "nothing to install: everything is there"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


INSTALL = Command(
    "install",
    run_install,
    "install what is missing",
    "Install what is missing: packages of the system as root or through sudo, wheels into this environment, Node.js "
    "packages and Go modules into a folder of yours.",
)
