"""A provider's behaviour as data: the TOML profile and its strict loader.

Whatever the text contains, this module raises only ConfigError, which names the file, the key and what was expected.

A profile has one table per section below, and an omitted key is off. ``[meta]`` describes the profile, and ``[why]``
gives the reason or source of every number::

    [meta]
    name = "slow"
    api = "dropbox"
    description = "a provider that takes its time"

    [latency]
    median_s = 0.5

    [why]
    "latency.median_s" = "a choice: a bad day"
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_cloudbench.emulators.registry import SKINS
from pytest_cloudbench.emulators.throttle import ThrottlePolicy
from pytest_cloudbench.model import ConfigError, did_you_mean
from pytest_cloudbench.support import opening

_FOLDER = Path(__file__).parent / "profiles"
_EXPECTED = "the profile of an emulator"
_DAY_S = 86_400.0
_HUGE = 1e15
_DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Meta:
    """The description of a profile. ``api`` names the emulator's skin."""

    name: str
    api: str
    description: str


@dataclass(frozen=True, slots=True)
class Latency:
    """Time from the request to the answer, without transfer: ``max(min_s, lognormal)``.

    Attributes:
        median_s: the median of a metadata request, seconds. 0 means no delay.
        sigma: the standard deviation of the logarithm. At 0, every latency is the median.
        min_s: the earliest time of an answer, seconds.
        write_factor: the median of a write divided by ``median_s``.
        read_factor: the same for a download.
    """

    median_s: float = 0.0
    sigma: float = 0.0
    min_s: float = 0.0
    write_factor: float = 1.0
    read_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The bytes per second of one connection. 0 means unlimited."""

    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """The number of requests that are worked on at the same time. Others wait in order of arrival. 0 means no limit."""

    slots: int = 0


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of requests (0 to 1) that fail.

    Attributes:
        error_rate: requests that are answered with status 500, and not executed.
        reset_rate: requests whose connection is reset, half of them after execution, so that the answer is lost.
        corrupt_rate: uploads whose stored content has one flipped bit.
    """

    error_rate: float = 0.0
    reset_rate: float = 0.0
    corrupt_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """The delays of reads behind writes, seconds.

    Attributes:
        delay_s: the time until any read sees an uploaded object.
        list_delay_s: the time until listings see it, if that is longer.
        delete_delay_s: how long reads and listings still see a removed file.
        replicas: how many replicas answer reads and listings. At 0 or 1 there is only one state.
        replica_lag_s: how much later than the others one of the replicas shows every write and removal.
        replica_turn_s: how long one replica answers before the next one does. At 0, each request meets any of them.
    """

    delay_s: float = 0.0
    list_delay_s: float = 0.0
    delete_delay_s: float = 0.0
    replicas: int = 0
    replica_lag_s: float = 0.0
    replica_turn_s: float = 0.0

    @property
    def flaps(self) -> bool:
        """True if replicas may differ."""
        return self.replicas > 1 and self.replica_lag_s > 0

    def of_last_replica(self) -> Readiness:
        """Return the delays of the replica that lags."""
        if not self.flaps:
            return self
        lag_s = self.replica_lag_s
        return dataclasses.replace(
            self, delay_s=self.delay_s + lag_s, list_delay_s=self.list_delay_s + lag_s,
            delete_delay_s=self.delete_delay_s + lag_s,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quota:
    """The bytes that the account may hold. 0 means unlimited."""

    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Freeze:
    """The freezes of a provider, which sends no answer in the last ``duration_s`` of each ``period_s`` (0: never)."""

    period_s: float = 0.0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobTimes:
    """The duration of jobs: work that the API accepts immediately and does later, entry by entry.

    Attributes:
        start_s: the time from the request until the job begins, seconds.
        entry_s: how long each of its entries takes, seconds.
        sync_entries: the largest batch that is not a job, if the API lets the service choose. At 0, the skin chooses.
    """

    start_s: float = 0.0
    entry_s: float = 0.0
    sync_entries: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """The account behind the token.

    Attributes:
        type: the API's word for its type.
        token_lifetime_s: the lifetime of an issued token, seconds.
        readers_delete: at 1, members that may only read may delete, too. This is a flaw for security tests to find.
        no_sharing_on: at 1, members can never share on, whatever their role says. This is another flaw.
    """

    type: str = ""
    token_lifetime_s: float = 14_400.0
    readers_delete: int = 0
    no_sharing_on: int = 0

    def lets_member(self, action: str, *, by_role: bool, may_read: bool = True) -> bool:
        """Return whether a member may ``write``, ``delete`` or ``share`` on: by its role, or by a flaw of the account.

        ``may_read`` says whether the role lets it read.
        """
        if action == "share" and self.no_sharing_on:
            return False
        return by_role or (action == "delete" and may_read and self.readers_delete > 0)


@dataclass(frozen=True, slots=True)
class Profile:
    """One provider's behaviour. Sections and fields have the same names as in the TOML file."""

    meta: Meta
    throttle: ThrottlePolicy = ThrottlePolicy()
    latency: Latency = Latency()
    bandwidth: Bandwidth = Bandwidth()
    capacity: Capacity = Capacity()
    faults: Faults = Faults()
    readiness: Readiness = Readiness()
    quota: Quota = Quota()
    freeze: Freeze = Freeze()
    account: Account = Account()
    jobs: JobTimes = JobTimes()
    why: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        defaults = _skin_table(self.meta.api, "DEFAULTS")
        for key in _WORD_KEYS:
            section, _, name = key.partition(".")
            value = getattr(self, section)
            if not getattr(value, name) and key in defaults:
                object.__setattr__(self, section, dataclasses.replace(value, **{name: defaults[key]}))


_SECTIONS: Mapping[str, type[Any]] = {
    "throttle": ThrottlePolicy,
    "latency": Latency,
    "bandwidth": Bandwidth,
    "capacity": Capacity,
    "faults": Faults,
    "readiness": Readiness,
    "quota": Quota,
    "freeze": Freeze,
    "account": Account,
    "jobs": JobTimes,
}
_LATER_KEYS = (
    "jobs.", "readiness.list_delay_s", "readiness.delete_delay_s", "readiness.replica", "account.readers_delete",
    "account.no_sharing_on",
)  # fmt: skip
"""Prefixes of the settings that were added after profiles were first compared."""

_UPPER: Mapping[str, float] = {
    "throttle.retry_after_s": _DAY_S,
    "latency.median_s": 3600.0,
    "latency.sigma": 10.0,
    "latency.min_s": 3600.0,
    "latency.write_factor": 1000.0,
    "latency.read_factor": 1000.0,
    "faults.error_rate": 1.0,
    "faults.reset_rate": 1.0,
    "faults.corrupt_rate": 1.0,
    "readiness.delay_s": _DAY_S,
    "readiness.list_delay_s": _DAY_S,
    "readiness.delete_delay_s": _DAY_S,
    "readiness.replicas": 1000.0,
    "readiness.replica_lag_s": _DAY_S,
    "readiness.replica_turn_s": _DAY_S,
    "account.readers_delete": 1.0,
    "account.no_sharing_on": 1.0,
    "freeze.period_s": _DAY_S,
    "freeze.duration_s": _DAY_S,
    "jobs.start_s": _DAY_S,
    "jobs.entry_s": _DAY_S,
}
"""The largest value of each number. For numbers that are missing here it is 1e15. The smallest is 0."""

_LAGS = frozenset({"readiness.list_delay_s", "readiness.delete_delay_s", "readiness.replica_lag_s"})
"""Settings that only some skins offer. The module of such a skin lists them in ``LAGS``."""

_WORD_KEYS = ("throttle.reason", "account.type")
"""Settings that are words of the API. Its skin lists the words, and the default."""


def profile_names() -> tuple[str, ...]:
    """Return the names of the profiles that ship with the package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def load_profile(name_or_path: str) -> Profile:
    """Read a shipped profile by its name, or a file if the argument has a ``/`` or ends in ``.toml``."""
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        path = name_or_path
    elif name_or_path in profile_names():
        path = str(_FOLDER / f"{name_or_path}.toml")
    else:
        near = did_you_mean(name_or_path, profile_names())
        expected = f"expected one of {', '.join(profile_names())}, or the path of a .toml file{near}"
        raise ConfigError(f"profile {name_or_path!r}", "", expected)
    return parse_profile(opening.read_text(path, _EXPECTED), path)


def find_profile(name_or_path: str, api: str = "") -> Profile:
    """Return the profile of that name or file. Raises ConfigError if its API does not exist, or is not ``api``."""
    profile = load_profile(full_name(name_or_path, api))
    expected = (api,) if api else tuple(SKINS)
    if profile.meta.api not in expected:
        raise ConfigError(name_or_path, "meta.api", f"expected one of {', '.join(expected)}, got {profile.meta.api!r}")
    return profile


def full_name(name_or_path: str, api: str = "") -> str:
    """Return the full name of a profile, as ``load_profile`` takes it: ``ideal`` of Drive is ``gdrive-ideal``.

    Dropbox's profiles came first and have no such prefix. The default profile of an API has the API's name.
    """
    if api and name_or_path == _DEFAULT:
        return api
    prefixed_name = f"{api}-{name_or_path}"
    return prefixed_name if api and prefixed_name in profile_names() else name_or_path


def parse_profile(text: str, source: str) -> Profile:
    """Read a profile from TOML text. Errors name ``source``."""
    data = opening.parse_toml(text, source, _EXPECTED)
    unknown = sorted(set(data) - set(_SECTIONS) - {"meta", "why"})
    if unknown:
        raise ConfigError(
            source, _format_key(unknown[0]), f"unknown; expected one of meta, why, {', '.join(_SECTIONS)}"
        )
    meta = _check_table(source, "meta", data.get("meta"), Meta)
    for name in (entry.name for entry in dataclasses.fields(Meta)):
        if not isinstance(meta.get(name), str) or not meta[name]:
            raise ConfigError(source, f"meta.{name}", "expected a text that is not empty")
    values = {
        f"{section}.{key}": value
        for section, kind in _SECTIONS.items()
        for key, value in _check_table(source, section, data.get(section, {}), kind).items()
    }
    profile = _apply_changes(Profile(Meta(**meta)), values, source)
    return dataclasses.replace(profile, why=_check_reasons(source, data.get("why", {})))


def change_profile(profile: Profile, changes: Mapping[str, object], source: str = "set") -> Profile:
    """Return the profile with changed settings, such as ``{"latency.median_s": 0.1}``, checked like those of a file."""
    return _apply_changes(profile, changes, source)


def list_settings(profile: Profile) -> dict[str, object]:
    """Return all settings of a profile by their dotted keys."""
    return {
        f"{section}.{entry.name}": getattr(getattr(profile, section), entry.name)
        for section, kind in _SECTIONS.items()
        for entry in dataclasses.fields(kind)
    }


def profile_digest(profile: Profile) -> str:
    """Return a digest of a profile's numbers. Profiles that behave alike have the same one, whatever their names.

    Settings that were added later count only if they are on, so older entries can still be compared.
    """
    counted_settings = {
        key: value for key, value in list_settings(profile).items() if value or not key.startswith(_LATER_KEYS)
    }
    return hashlib.sha256(json.dumps(counted_settings, sort_keys=True).encode()).hexdigest()[:12]


def _apply_changes(profile: Profile, changes: Mapping[str, object], source: str) -> Profile:
    """Return a profile with some settings changed. Raises ConfigError, also for settings that contradict each other."""
    known_settings, choices = list_settings(profile), _skin_table(profile.meta.api, "CHOICES")
    lags = getattr(importlib.import_module(SKINS[profile.meta.api]), "LAGS", ()) if profile.meta.api in SKINS else ()
    sections: dict[str, dict[str, object]] = {}
    for key, value in changes.items():
        if key not in known_settings:
            raise ConfigError(
                source,
                _format_key(key),
                f"unknown; expected one of {', '.join(known_settings)}{did_you_mean(key, known_settings)}",
            )
        section, _, name = key.partition(".")
        if key in _LAGS and value and key not in lags:
            raise ConfigError(source, key, f"expected 0: the emulator of {profile.meta.api} has no such delay")
        sections.setdefault(section, {})[name] = _check_value(source, key, value, choices.get(key, ()))
    for section, values in sections.items():
        try:
            changed_section = dataclasses.replace(getattr(profile, section), **values)
        except ValueError as error:
            raise ConfigError(source, section, str(error)) from error
        profile = dataclasses.replace(profile, **{section: changed_section})
    freeze = profile.freeze
    if freeze.duration_s and freeze.duration_s >= freeze.period_s:
        raise ConfigError(source, "freeze.duration_s", "expected less than freeze.period_s")
    if profile.readiness.replica_lag_s and profile.readiness.replicas < 2:
        raise ConfigError(source, "readiness.replicas", "expected 2 or more: one of them lags by replica_lag_s")
    return profile


def _skin_table(api: str, name: str) -> Mapping[str, Any]:
    """Return a table of an API's skin, which is empty if there is no such API (``find_profile`` refuses that)."""
    table: Mapping[str, Any] = getattr(importlib.import_module(SKINS[api]), name) if api in SKINS else {}
    return table


def _check_value(source: str, key: str, value: object, choices: Sequence[str]) -> object:
    if key in _WORD_KEYS:
        if value not in (choices or ("",)):  # an API that has no such words accepts only an empty one
            raise ConfigError(
                source, key, f"expected one of {', '.join(choices) or 'nothing'}, got {_format_value(value)}"
            )
        return value
    upper = _UPPER.get(key, _HUGE)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= upper:
        return value if key in _WHOLE_KEYS else float(value)
    if isinstance(value, float) and key not in _WHOLE_KEYS and 0 <= value <= upper:
        return value
    kind = "a whole number" if key in _WHOLE_KEYS else "a number"
    raise ConfigError(source, key, f"expected {kind} from 0 to {upper:g}, got {_format_value(value)}")


def _find_whole_keys() -> frozenset[str]:
    """Return the settings that are whole numbers according to the annotations of the sections."""
    return frozenset(
        f"{section}.{entry.name}"
        for section, kind in _SECTIONS.items()
        for entry in dataclasses.fields(kind)
        if entry.type == "int"
    )


_WHOLE_KEYS = _find_whole_keys()


def _check_table(source: str, section: str, value: object, kind: type[Any]) -> dict[str, Any]:
    names = [entry.name for entry in dataclasses.fields(kind)]
    if not isinstance(value, dict):
        raise ConfigError(source, section, f"expected a table with {', '.join(names)}")
    for key in value:
        if key not in names:
            expected = f"unknown; expected one of {', '.join(names)}{did_you_mean(key, names)}"
            raise ConfigError(source, f"{section}.{_format_key(key)}", expected)
    return value


def _check_reasons(source: str, value: object) -> dict[str, str]:
    known_settings = {
        f"{section}.{entry.name}" for section, kind in _SECTIONS.items() for entry in dataclasses.fields(kind)
    }
    if not isinstance(value, dict):
        raise ConfigError(source, "why", 'expected a table of texts such as "latency.median_s" = "source, date"')
    for key, reason in value.items():
        if key not in known_settings:
            raise ConfigError(source, f"why.{_format_key(key)}", 'expected a quoted setting such as "latency.median_s"')
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(source, f"why.{_format_key(key)}", "expected a text that is not empty")
    return value


def _format_key(key: str) -> str:
    """Return a key in a form that fits one line."""
    return key if key.isprintable() else repr(key)


def _format_value(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return type(value).__name__
    return text if len(text) <= 40 else f"{text[:37]}..."
