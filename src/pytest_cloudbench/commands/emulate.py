"""The command ``cloudbench emulate``: an emulated provider in the foreground, for the tests of a client."""

from __future__ import annotations

import argparse
from math import inf

from pytest_cloudbench.commands.command import Command, argument
from pytest_cloudbench.emulators.registry import SKINS
from pytest_cloudbench.model import UsageError

_HIGHEST_PORT = 65_535


def emulate(options: argparse.Namespace) -> int:
    """Serve an emulated provider until Ctrl-C. Returns the exit status. Raises UsageError and ServiceError."""
    from pytest_cloudbench import emulators

    if options.api not in emulators.SKINS:
        raise UsageError(f"emulate {options.api}: there is no such emulator; there are: {', '.join(emulators.SKINS)}")
    if not 0 < options.time_scale < inf:
        raise UsageError(f"--time-scale {options.time_scale:g}: expected a number above 0")
    if not 0 <= options.port <= _HIGHEST_PORT:
        raise UsageError(f"--port {options.port}: expected a number from 0 to {_HIGHEST_PORT}")
    return emulators.serve_foreground(
        options.api, options.profile, port=options.port, time_scale=options.time_scale, seed=options.seed
    )


COMMAND = Command(
    "emulate",
    emulate,
    "run an emulated provider in the foreground",
    "Run an emulated provider on loopback until Ctrl-C. Prints one JSON line when it is ready: urls, credentials, "
    "ca_file, control, api, proxy, control_token_file, profile, pid.",
    (
        argument("api", metavar="API", help=f"the API to imitate: {', '.join(SKINS)}"),
        argument("--profile", metavar="NAME", help="a profile's name or TOML file (default: the API's)"),
        argument("--port", type=int, default=0, help="TCP port; 0 takes a free one (default: %(default)s)"),
        argument("--time-scale", type=float, default=1.0, metavar="K", help="run its clock K times faster"),
        argument("--seed", type=int, default=0, help="seed of its random behaviour (default: %(default)s)"),
    ),
)
COMMANDS = (COMMAND,)
