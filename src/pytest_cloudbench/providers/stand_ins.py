"""Stand-ins: the emulators and real servers that a run starts in a provider's place.

What may live here: how a spec leads to one, before anything starts. Fifty agents import this module, so functions
import what only the controller needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cloudbench.fleet.run import slug
from pytest_cloudbench.model import LOCAL, SERVED, SERVICE_SCHEMES, ProviderSpec, SpecError
from pytest_cloudbench.results.places import make_results_folder

if TYPE_CHECKING:
    from pytest_cloudbench.services import Service


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The settings of a run for all its services.

    Attributes:
        seed: the run's seed, from which emulators draw their random numbers.
        time_scale: the speed of the emulators' clocks, as a multiple of real time.
        address: the address at which emulators listen.
        logs: the folder for the output of services. None keeps the output for messages only.
    """

    seed: str
    time_scale: float = 1.0
    address: str = "127.0.0.1"
    logs: Path | None = None

    def log_path(self, name: str) -> Path | None:
        """Return the file for a service's output, in a folder that exists, or None if there is none."""
        if self.logs is None:
            return None
        make_results_folder(self.logs)
        return self.logs / name


@dataclass(frozen=True, slots=True)
class StandIn:
    """A service that can stand in for a provider.

    Attributes:
        api: the API that it speaks.
        driver: the scheme of the driver that speaks to it, unless the user's spec names another one.
        digest: a digest of what decides how it behaves. Entries of runs are compared only if it is the same.
        make: makes the service, without starting it. Its second argument tells equal children of a provider apart.
        target: the target of the driver's spec.
        params: parameters of the driver's spec. Those of the user's spec override them.
        profile: the name of an emulator's behaviour profile, or None for a server.
        missing: what is not installed that it needs, in one line. Empty if nothing is missing.
    """

    api: str
    driver: str
    digest: str
    make: Callable[[ServiceSettings, str], Service] = field(repr=False)
    target: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    profile: str | None = None
    missing: str = ""


def find_stand_in(spec: ProviderSpec) -> StandIn | None:
    """Return the stand-in that a spec names, None if it names a driver. Raises SpecError and ConfigError."""
    if spec.is_emulated:
        return _find_emulator(spec)
    return _find_server(spec) if spec.scheme in SERVICE_SCHEMES else None


def _find_emulator(spec: ProviderSpec) -> StandIn:
    from pytest_cloudbench.emulators.profile import find_profile, full_name, profile_digest

    wanted = spec.params.get("profile")
    name = spec.target if wanted is None else full_name(wanted, spec.target)
    profile = find_profile(name, "" if wanted is None else spec.target)
    meta = profile.meta

    def make(settings: ServiceSettings, suffix: str) -> Service:
        from pytest_cloudbench.emulators import EmulatorService

        # The same --cloudbench-seed gives the same random numbers again. Equal children get different ones.
        digest = sha256(f"{settings.seed}/{name}{suffix}".encode()).digest()
        return EmulatorService(
            name, time_scale=settings.time_scale, seed=int.from_bytes(digest[:6], "big"),
            address=settings.address, log_path=settings.log_path(f"emulator-{slug(name)}{suffix}.log"),
        )  # fmt: skip

    return StandIn(meta.api, meta.api, profile_digest(profile), make, profile=meta.name)


def _find_server(spec: ProviderSpec) -> StandIn:
    from pytest_cloudbench.services.command import load_recipe, recipe_names

    is_file = spec.target.endswith(".toml") or "/" in spec.target
    if not spec.target or is_file != (spec.scheme == SERVED):
        local = f"{LOCAL}:NAME, NAME being one of {', '.join(recipe_names())}"
        expected = local if spec.scheme == LOCAL else f"{SERVED}:RECIPE.toml"
        raise SpecError(f"provider {spec.text!r}: expected {expected}")
    recipe = load_recipe(spec.target)

    def make(settings: ServiceSettings, suffix: str) -> Service:
        from pytest_cloudbench.services.command import CommandService

        return CommandService(recipe, log_path=settings.log_path(f"server-{slug(recipe.name)}{suffix}.log"))

    more = filter(None, (recipe.setup, sorted(recipe.params.items())))
    decisive = (recipe.driver, recipe.command, sorted(recipe.environment.items()), *more)
    return StandIn(
        recipe.api, recipe.driver, short_digest(repr(decisive)), make, recipe.target, recipe.params,
        missing=recipe.describe_missing(),
    )  # fmt: skip


def short_digest(text: str) -> str:
    """Return a digest of a text: 12 hexadecimal digits."""
    return sha256(text.encode()).hexdigest()[:12]
