"""Tests of the profile loader: valid profiles, and a ConfigError for all others."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pytest_cloudbench.emulators.profile import (
    Meta,
    Profile,
    change_profile,
    list_settings,
    load_profile,
    parse_profile,
    profile_digest,
    profile_names,
)
from pytest_cloudbench.emulators.registry import SKINS
from pytest_cloudbench.model import ConfigError

_PROFILES = Path(__file__).parents[2] / "src" / "pytest_cloudbench" / "emulators" / "profiles"
_META = '[meta]\nname = "x"\napi = "dropbox"\ndescription = "d"\n'


def test_shipped_profiles_load() -> None:
    assert {"dropbox", "ideal"} <= set(profile_names())
    for name in profile_names():
        profile = load_profile(name)
        assert profile.meta.name == name
        assert profile.meta.api in SKINS


def test_every_number_of_the_default_profile_has_a_reason() -> None:
    profile = load_profile("dropbox")
    tables = tomllib.loads((_PROFILES / "dropbox.toml").read_text())
    keys = [f"{section}.{key}" for section in set(tables) - {"meta", "why"} for key in tables[section]]
    assert sorted(profile.why) == sorted(keys)


@pytest.mark.parametrize("name", ["box", "dropbox", "gdrive", "mega", "onedrive"])
def test_every_reason_is_a_choice_or_has_a_date(name: str) -> None:
    pattern = re.compile(r"a choice|off\b|the same|the code in the answer that the same|.*\b20\d\d\b")
    assert [text for text in load_profile(name).why.values() if not pattern.match(text)] == []


def test_settings_omitted_in_a_profile_are_off() -> None:
    profile = parse_profile(_META, "x.toml")
    assert profile == Profile(profile.meta)
    settings = {key: value for key, value in list_settings(profile).items() if value}
    assert sorted(settings) == [
        "account.token_lifetime_s",
        "account.type",
        "latency.read_factor",
        "latency.write_factor",
        "throttle.reason",
        "throttle.retry_after_s",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"x\.toml: meta: expected a table with name, api, description"),
        ("nonsense", r"x\.toml: not TOML "),
        ("a = " + "[" * 5000, r"x\.toml: not TOML "),
        ("a = " + "1" * 5000, r"x\.toml: not TOML "),
        ('[meta]\nname = "x"\napi = "dropbox"\n', r"x\.toml: meta\.description: expected a text that is not empty"),
        (_META + "typo = 1", r"x\.toml: meta\.typo: unknown; expected one of name, api, description"),
        (_META + "[typo]\n", r"x\.toml: typo: unknown; expected one of meta, why, throttle, latency"),
        ("latency = 3\n" + _META, r"x\.toml: latency: expected a table with median_s, sigma, min_s"),
        (_META + "[latency]\nmedian = 1", r"x\.toml: latency\.median: unknown; expected one of median_s"),
        (_META + '[latency]\nmedian_s = "1"', r"latency\.median_s: expected a number from 0 to 3600, got '1'"),
        (_META + "[latency]\nmedian_s = true", r"latency\.median_s: expected a number from 0 to 3600, got True"),
        (_META + "[latency]\nmedian_s = -1", r"latency\.median_s: expected a number from 0 to 3600, got -1"),
        (_META + "[latency]\nmedian_s = nan", r"latency\.median_s: expected a number from 0 to 3600, got nan"),
        (_META + "[latency]\nmedian_s = inf", r"latency\.median_s: expected a number from 0 to 3600, got inf"),
        (_META + f"[latency]\nmedian_s = {'9' * 400}", r"latency\.median_s: expected a number from 0 to 3600"),
        (_META + "[throttle]\nwrite_lock = 1.5", r"throttle\.write_lock: expected a whole number .*, got 1\.5"),
        (_META + '[throttle]\nreason = "because"', r"throttle\.reason: expected one of too_many_write_operations"),
        (_META + "[throttle]\nreason = []", r"throttle\.reason: expected one of .*, got \[\]"),
        (_META + "[faults]\nerror_rate = 1.1", r"faults\.error_rate: expected a number from 0 to 1, got 1\.1"),
        (_META + "[freeze]\nduration_s = 1", r"freeze\.duration_s: expected less than freeze\.period_s"),
        (_META + "[quota]\nbytes = 2024-01-01", r"quota\.bytes: expected a whole number"),
        (_META + '[account]\ntype = "gold"', r"account\.type: expected one of basic, pro, business, got 'gold'"),
        (_META + "[why]\nx = 1", r"why\.x: expected a quoted setting"),
        (_META + '[why]\n"latency.median_s" = 1', r"why\.latency\.median_s: expected a text that is not empty"),
        (_META + '[latency]\n"a\\nb" = 1', r"latency\.'a\\nb': unknown"),
        ('"a\\nb" = 1\n' + _META, r"'a\\nb': unknown"),
    ],
)
def test_wrong_profiles_are_named_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_profile(text, "x.toml")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file or directory\)"):
        load_profile(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"cannot be read \(not UTF-8 text\)"):
        load_profile(str(tmp_path / "binary.toml"))
    with pytest.raises(ConfigError, match=r"cannot be read"):
        load_profile(f"{tmp_path}/")
    for name in ("../profiles/ideal", "nul\0/x.toml"):
        with pytest.raises(ConfigError):
            load_profile(name)


def test_apply_changes_one_setting_and_checks_it() -> None:
    profile = load_profile("ideal")
    changed = change_profile(profile, {"latency.median_s": 1, "throttle.write_lock": 2})
    assert (changed.latency.median_s, changed.throttle.write_lock) == (1.0, 2)
    assert change_profile(changed, {"latency.median_s": 0, "throttle.write_lock": 0}) == profile
    assert dataclasses.replace(changed, latency=profile.latency, throttle=profile.throttle) == profile
    wrong: list[dict[str, object]] = [{"latency": {}}, {"meta.name": "y"}, {"faults.error_rate": 2}, {"a\nb": 1}]
    for changes in wrong:
        with pytest.raises(ConfigError, match=r"^set: "):
            change_profile(profile, changes)


_NAMES = list_settings(Profile(Meta("x", "dropbox", "x")))
_KEYS = st.sampled_from(["meta", "why", *(key for name in _NAMES for key in name.split("."))])
_VALUES: Any = st.one_of(
    st.integers().map(str),
    st.floats().map(lambda value: str(value).replace("inf", "inf")),
    st.sampled_from(["true", "[]", "{}", "1e400", '""', "2024-01-01", "'x'", "0x10", "1_000", "[[1], {a = 1}]"]),
)
_LINES = st.one_of(
    st.builds("[{}]".format, _KEYS),
    st.builds("[[{}]]".format, _KEYS),
    st.builds("{} = {}".format, _KEYS, _VALUES),
    st.text(max_size=20),
)


def _outcome(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except ConfigError as error:
        return error


@hypothesis_settings(deadline=None)
@given(st.one_of(st.text(), st.lists(_LINES, max_size=12).map("\n".join)), st.booleans())
def test_any_text_is_a_profile_or_a_config_error(text: str, with_meta: bool) -> None:
    outcome = _outcome(lambda: parse_profile((_META if with_meta else "") + text, "x.toml"))
    if isinstance(outcome, ConfigError):
        assert str(outcome).startswith("x.toml: ")
        assert "\n" not in str(outcome)
    else:
        assert outcome.meta.name


@hypothesis_settings(deadline=None)
@given(
    st.dictionaries(
        st.one_of(st.text(), st.sampled_from(sorted(list_settings(load_profile("ideal"))))),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
            st.lists,
            max_leaves=3,
        ),
    )
)
def test_any_change_is_applied_or_a_config_error(changes: dict[str, Any]) -> None:
    outcome = _outcome(lambda: list_settings(change_profile(load_profile("ideal"), changes)))
    if isinstance(outcome, ConfigError):
        assert str(outcome).startswith("set: ")
    else:
        assert {key: outcome[key] for key in changes} == changes


def test_profile_without_job_times_keeps_its_former_digest() -> None:
    """The digest of ``ideal`` is the one in older results files. A profile whose jobs take time has another digest."""
    assert profile_digest(load_profile("ideal")) == "230ab19e1559"
    slow = [
        profile_digest(change_profile(load_profile("ideal"), {"jobs.entry_s": seconds})) for seconds in (0.0, 0.1, 0.2)
    ]
    assert slow[0] == "230ab19e1559"
    assert len(set(slow)) == 3
