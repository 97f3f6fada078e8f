"""The ``cloudbench`` command: what is useful outside pytest.

What may live here: argument parsing and one call per command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pytest_cloudbench import __version__
from pytest_cloudbench.model import CloudbenchError, CloudError, ErrorKind, ProviderSpec, UsageError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0 done, 1 failed, 4 to be mended by the user."""
    options = _parser().parse_args(argv)
    try:
        status: int = options.run(options)
    except UsageError as error:
        sys.stderr.write(f"cloudbench: {error}\n")
        return 4
    except CloudbenchError as error:
        sys.stderr.write(f"cloudbench: {error}\n")
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cloudbench", description="Measure and gate cloud storage.")
    parser.add_argument("--version", action="version", version=f"pytest-cloudbench {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    emulate = commands.add_parser(
        "emulate",
        help="run an emulated provider in the foreground",
        description="Run an emulated provider on loopback until Ctrl-C. Prints one JSON line when it is ready: "
        "hosts, port, ca_file, access_token, control.",
    )
    emulate.add_argument("api", help="the API to imitate")
    emulate.add_argument("--profile", metavar="NAME", help="a profile's name or TOML file (default: the API's)")
    emulate.add_argument("--port", type=int, default=0, help="TCP port; 0 takes a free one (default: %(default)s)")
    emulate.add_argument("--time-scale", type=float, default=1.0, metavar="K", help="run its clock K times faster")
    emulate.add_argument("--seed", type=int, default=0, help="seed of its random behaviour (default: %(default)s)")
    emulate.set_defaults(run=_emulate)
    clean = commands.add_parser(
        "clean",
        help="remove what killed runs left on providers",
        description="Remove the folders that killed runs left on real providers, as the journal names them. "
        "Nothing outside these folders is touched.",
    )
    clean.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    clean.set_defaults(run=_clean)
    return parser


def _clean(options: argparse.Namespace) -> int:
    from pytest_cloudbench import credentials, drivers
    from pytest_cloudbench.results import journal

    left = journal.pending()
    for text, folder in left:
        sys.stdout.write(f"{text} {folder}\n")
        if options.dry_run:
            continue
        spec = ProviderSpec.parse(text)
        driver = drivers.connect(spec, None, credentials.load(spec.scheme, spec.params.get("token_env")))
        try:
            driver.delete(folder)
        except CloudError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
        finally:
            driver.close()
        journal.forget(text, folder)
    sys.stdout.write(f"{len(left)} folders {'would be ' if options.dry_run else ''}removed\n")
    return 0


def _emulate(options: argparse.Namespace) -> int:
    from pytest_cloudbench import emulators

    if options.api not in emulators.SKINS:
        raise UsageError(f"emulate {options.api}: there is no such emulator; there are: {', '.join(emulators.SKINS)}")
    return emulators.serve_foreground(
        options.api, options.profile, port=options.port, time_scale=options.time_scale, seed=options.seed
    )


if __name__ == "__main__":
    sys.exit(main())
