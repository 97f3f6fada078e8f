"""BenchCloud's files: appendix A of the thesis and its own examples keep their meaning, others are refused clearly."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.drivers import schemes
from pytest_cloudbench.model import ConfigError, Verb
from pytest_cloudbench.plugin.configs.benchcloud import (
    BenchCloudTest,
    CaptureSettings,
    is_benchcloud,
    parse_benchcloud,
    parse_capture,
)
from pytest_cloudbench.plugin.configs.benchcloud_classes import parse_classes
from pytest_cloudbench.workload.payload.registry import make_generator
from tests.limits import scale_examples

HERE = Path(__file__).parent
CLASSES_TEXT = (resources.files("pytest_cloudbench.data") / "benchcloud.toml").read_text("utf-8")
CLASSES = parse_classes(CLASSES_TEXT, "benchcloud.toml")
LISTINGS = {
    listing["name"]: listing for listing in tomllib.loads((HERE / "appendix_a.toml").read_text("utf-8"))["listing"]
}
FILES = {name: listing for name, listing in LISTINGS.items() if "file" in listing}
EXAMPLES_DATA = tomllib.loads((HERE / "examples.toml").read_text("utf-8"))
EXAMPLES = {example["name"]: example for example in EXAMPLES_DATA["example"]}

File = Mapping[str, Mapping[str, str]]


# --- layouts of the same values ---


def format_plain(file: File) -> str:
    lines = []
    for section, keys in file.items():
        lines += [f"[{section}]", *(f"{key} = {value}".replace("\n", "\n   ") for key, value in keys.items()), ""]
    return "\n".join(lines)


def format_folded(file: File) -> str:
    """Return the file with long values over several lines, as the thesis prints them.

    A class path breaks at a dot, JSON anywhere.
    """

    def fold(key: str, value: str) -> str:
        if key == "class":
            return value.replace("generators.random", "generators\n    .random").replace(".Delta", "\n .Delta")
        if key.endswith("params"):
            return json.dumps(json.loads(value), indent=4).replace("\n}", "\n    }")
        return "\n   " + value if key == "log_file" else value

    return format_plain(
        {section: {key: fold(key, value) for key, value in keys.items()} for section, keys in file.items()}
    )


def format_commented(file: File) -> str:
    """Return the file with colons, and with comments of each kind, between lines and within values."""
    lines = ["; a file of BenchCloud"]
    for section, keys in file.items():
        lines += [f"[{section}]  # of today", "rem nothing yet"]
        for key, value in keys.items():
            first, *more = value.split("\n")
            lines += [
                f"#{key} = other",
                f"{key.upper()}: {first} ; as before",
                "# no end",
                "",
                *(f"\t{line}" for line in more),
            ]
    return "\r\n".join(lines)


LAYOUTS: list[Callable[[File], str]] = [format_plain, format_folded, format_commented]


def parse(text: str, provider: str | None = None) -> BenchCloudTest:
    return parse_benchcloud(text, "old.conf", CLASSES, provider)


def noted_key(note: str) -> str:
    return note.partition(":")[0]


# --- appendix A ---


def test_all_nine_listings_are_there_and_one_is_the_readiness_experiment() -> None:
    assert list(LISTINGS) == [f"A.{number}" for number in range(1, 10)]
    assert LISTINGS.keys() - FILES.keys() == {"A.6"}
    readiness = LISTINGS["A.6"]["readiness"]
    assert Verb(readiness["verb"]) is Verb.GET
    assert readiness["poll_interval_s"] == 0.5


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FILES)
def test_a_listing_is_parsed_as_in_the_thesis(name: str, layout: Callable[[File], str]) -> None:
    text = layout(FILES[name]["file"])
    assert is_benchcloud(text)
    test = parse(text)
    driver_class = FILES[name]["file"]["driver"]["class"]
    expected = BenchCloudTest(
        **{"source": "old.conf", "driver_class": driver_class, "times": None, **FILES[name]["expected"]},
        notes=test.notes,
    )
    assert test == expected
    paths = FILES[name]["place"]
    assert test.log_name == paths["log_name"]
    if test.kind == "upload":
        assert test.path("x") == paths["path"]
    else:
        assert test.folder == paths["folder"]
    assert [noted_key(note) for note in test.notes] == paths["notes"]
    assert all(note.isprintable() for note in test.notes)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_benchcloud_is_parsed_as_recorded(name: str) -> None:
    example = EXAMPLES[name]
    file = {section: dict(keys) for section, keys in EXAMPLES_DATA["base"][example["kind"]].items()}
    for section, keys in example.get("change", {}).items():
        file.setdefault(section, {}).update(keys)
    fields = dataclasses.asdict(parse(format_plain(file)))
    expected = {key: tuple(value) if isinstance(value, list) else value for key, value in example["expected"].items()}
    assert {key: fields[key] for key in expected} == expected


@pytest.mark.parametrize("name", [name for name in FILES if name != "A.2"])
def test_payloads_and_drivers_exist_here(name: str) -> None:
    test = parse(format_plain(FILES[name]["file"]))
    assert test.generator is not None
    content = make_generator(test.generator, test.generator_params, "seed").content(0, 0)
    assert content.size_bytes == int(FILES[name]["file"]["file_generator"]["size"])
    assert all(not isinstance(value, bool) for value in test.generator_params.values())
    assert test.scheme in schemes()


def test_a_sparse_file_is_made_of_spaces_as_benchclouds_was() -> None:
    params = parse(format_plain(FILES["A.7"]["file"])).generator_params
    assert make_generator("sparse", params, "seed").content(0, 0).read(0, 100) == b" " * 100


# --- changes of one file: (section, key, value), None leaves it out ---

Change = tuple[str, str | None, str | None]


def changed(*changes: Change, listing: str = "A.1") -> str:
    file = {section: dict(keys) for section, keys in FILES[listing]["file"].items()}
    for section, key, value in changes:
        if key is None:
            del file[section]
        elif value is None:
            del file[section][key]
        else:
            file.setdefault(section, {})[key] = value
    return format_plain(file)


def params(**arguments: Any) -> Change:
    return "operator", "operation_method_params", json.dumps({"local_filename": "<generated_file.name>", **arguments})


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        (("concurrent", "threads", "3"), "threads", 3),
        (("concurrent", "threads", "0"), "threads", 1),
        (("concurrent", "threads", "-4"), "threads", 1),
        (("concurrent", "threads", "999"), "threads", 50),
        (("concurrent", None, None), "threads", 1),
        (("test", "sleep_seconds", "nonsense, but sleep is False"), "sleep_s", 0),
        (("test", "random_start_sleep_max", "3"), "random_start_sleep_s", None),
        (("logging", "enabled", "no"), "log_file", None),
        (("logging", None, None), "log_file", None),
        (("file_generator", "delete", "False"), "delete", False),
        (("file_generator", "delete", ""), "delete", False),
        (("file_generator", "delete", None), "delete", True),
        (("file_generator", "suffix", ".test"), "suffix", ".test"),
        (("file_generator", "prefix", None), "prefix", ""),
        (("test", "description", "90 %% of it"), "description", "90 % of it"),
        (params(), "remote_dir", "/"),
        (params(remote_dir=""), "remote_dir", "/"),
        (params(remote_filename="<GENERATED_file.name>"), "remote_dir", "/"),
        (params(remote_filename="/a/b"), "remote_filename", "/a/b"),
        (params(remote_filename="/a/b"), "remote_dir", None),
        (params(remote_dir="", remote_filename="/a/b"), "remote_filename", "/a/b"),
        (params(remote_dir="/c", remote_filename="/a/b"), "remote_filename", None),
    ],
)
def test_a_key_sets_its_field(change: Change, field: str, value: Any) -> None:
    assert getattr(parse(changed(change)), field) == value


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"remote_dir": "/a/b/"}, "a/b/benchmarking-x"),
        ({"remote_dir": "a//./b"}, "a/b/benchmarking-x"),
        ({"remote_filename": "/a/b"}, "a/b"),
        ({"remote_filename": "b"}, "b"),
        ({}, "benchmarking-x"),
    ],
)
def test_remote_names_become_a_path_below_the_runs_folder(arguments: dict[str, str], path: str) -> None:
    assert parse(changed(params(**arguments))).path("x") == path


@pytest.mark.parametrize("remote", ["/Users/x/Sync/delta", r"C:\Users\x\Sync\delta", "delta"])
def test_a_synchronised_folder_of_another_machine_is_the_providers_folder(remote: str) -> None:
    test = parse(changed(params(remote_filename=remote), listing="A.8"))
    assert test.path("x") == "delta"
    assert any("is a place of another machine: the provider's folder is used" in note for note in test.notes)


def test_an_overwritten_file_is_one_file() -> None:
    test = parse(format_plain(FILES["A.8"]["file"]))
    assert test.path("one") == test.path("two")
    other = parse(format_plain(FILES["A.9"]["file"]))
    assert other.path("one") != other.path("two")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (("concurrent", "threads", "0"), "concurrent.threads: 0 becomes 1, as in BenchCloud: at least one"),
        (
            ("concurrent", "threads", "99"),
            "concurrent.threads: 99 becomes 50, as in BenchCloud: no more threads than operations",
        ),
        (
            ("test", "random_start_sleep_min", "3"),
            "test.random_start_sleep_min: is ignored, as by BenchCloud, without its",
        ),
        (
            ("file_generator", "directory", "/var/tmp"),
            "file_generator.directory: /var/tmp is not used: files are made in",
        ),
        (("file_generator", "delete", "False"), "file_generator.delete: files are made in memory, so there is none"),
        (("file_generator", "percent", "0.5"), "file_generator.percent: is ignored, as by BenchCloud: random does not"),
        (("file_generator", "repeat_str", "x"), "file_generator.repeat_str: is ignored, as by BenchCloud: no such key"),
        (("logging", "times", "4"), "logging.times: is ignored, as by BenchCloud: no such key"),
        (("logging", None, None), "logging: the section is missing: no log is written"),
        (("logging", "log_file", "/var/log/a b.log"), "logging.log_file: '/var/log/a b.log' becomes 'a b.log' beside"),
        (("test", "local_dir", "/x"), "test.local_dir: is ignored, as by BenchCloud: it is for a download"),
        (("Test", "times", "4"), "[Test]: is ignored, as by BenchCloud: no such section"),
        (
            params(remote_dir="/c", remote_filename="/a"),
            "operator.operation_method_params: remote_filename: /a is ignored",
        ),
        (
            params(remote_filename="<generated_file.name>"),
            "operator.operation_method_params: remote_filename: files go",
        ),
        (params(remote_dir="/c"), "operator.operation_method_params: remote_dir: /c is below this run's own folder"),
    ],
)
def test_ignored_and_changed_settings_are_noted(change: Change, note: str) -> None:
    notes = parse(changed(change)).notes
    assert [text for text in notes if text.startswith(note)], notes


def test_a_log_beside_the_file_and_the_top_folder_need_no_note() -> None:
    notes = parse(changed(("logging", "log_file", "mine.log"), params(remote_dir="/"))).notes
    assert [noted_key(note) for note in notes] == ["driver.class"]


def test_download_notes_its_use_of_each_folder() -> None:
    notes = parse(changed(("test", "times", "4"), ("test", "remote_dir", "/"), listing="A.2")).notes
    assert "test.local_dir: /tmp/benchcloud-junk is not used: downloads are checked and not kept" in notes
    assert "test.remote_dir: / is below this run's own folder, and is filled first" in notes
    assert "test.times: is ignored, as by BenchCloud: it is for an upload" in notes


def test_random_start_sleeps_are_whole_seconds_from_least_to_most() -> None:
    text = changed(("test", "random_start_sleep_min", "0"), ("test", "random_start_sleep_max", "5"))
    assert parse(text).random_start_sleep_s == (0, 5)


# --- drivers ---


@pytest.mark.parametrize("name", ["wuala_driver.WualaDriver", "mine.MyDriver"])
def test_a_driver_that_is_not_here_needs_a_provider(name: str) -> None:
    text = changed(("driver", "class", f"benchcloud.drivers.{name}"))
    with pytest.raises(
        ConfigError, match=r"^old\.conf: driver\.class: .*expected .*--provider in (place of|its place)"
    ):
        parse(text)
    test = parse(text, "folder:/tmp/x")
    assert test.scheme is None
    assert test.notes[0] == f"driver.class: benchcloud.drivers.{name} is overridden by --provider folder:/tmp/x"


def test_a_provider_replaces_the_driver_of_the_file_and_its_note() -> None:
    notes = parse(format_plain(FILES["A.1"]["file"]), "folder:/tmp/x").notes
    assert [note for note in notes if note.startswith("driver.class")] == [
        "driver.class: benchcloud.drivers.dropbox_driver.DropboxDriver is overridden by --provider folder:/tmp/x"
    ]


# --- refused files ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("test", None, None), "test: the section is missing; expected [test] and [driver]"),
        (("driver", None, None), "driver: the section is missing"),
        (("operator", None, None), "operator.class: is missing; expected the path of a class"),
        (("file_generator", None, None), "file_generator.class: is missing"),
        (("test", "description", None), "test.description: is missing; expected a text"),
        (("test", "description", "100 %"), "test.description: expected %% or %(name)s, found '%'"),
        (("test", "times", None), "test.times: is missing; expected a whole number, 1 or more"),
        (("test", "times", "0"), "test.times: expected a whole number, 1 or more, found '0'"),
        (("test", "times", "ten"), "test.times: expected a whole number, 1 or more, found 'ten'"),
        (("test", "sleep", None), "test.sleep: is missing; expected True or False"),
        (("test", "sleep", "10"), "test.sleep: expected True or False, found '10'"),
        (("test", "sleep", "True"), "test.sleep_seconds: is missing; expected a whole number, 0 or more"),
        (("concurrent", "threads", "many"), "concurrent.threads: expected a whole number, found 'many'"),
        (("logging", "enabled", None), "logging.enabled: is missing; expected True or False"),
        (("logging", "log_file", None), "logging.log_file: is missing; expected the path of a file"),
        (("logging", "log_file", "/tmp/.."), "logging.log_file: expected the path of a file, found '/tmp/..'"),
        (("driver", "class", None), "driver.class: is missing; expected the path of a class"),
        (("operator", "class", "a.B"), "operator.class: expected one of benchcloud.operators.uploader.Uploader, found"),
        (("operator", "operation_method", "upload_dir"), "operator.operation_method: expected upload of benchcloud."),
        (("operator", "operation_method", "x"), "operator.operation_method: expected upload of benchcloud."),
        (("operator", "operation_method_params", "{"), "operator.operation_method_params: expected JSON such as {"),
        (("operator", "operation_method_params", "[" * 99999), "operator.operation_method_params: expected JSON such"),
        (("operator", "operation_method_params", "[]"), "operator.operation_method_params: expected a JSON object of"),
        (params(remote_dir=3), "operator.operation_method_params: expected a JSON object of texts"),
        (
            params(to="/x"),
            "operator.operation_method_params: to: no such parameter; expected local_filename, remote_dir",
        ),
        (params(local_filename="/etc/hosts"), "operator.operation_method_params: local_filename: expected <generated_"),
        (params(remote_dir="/a/../../b"), "operator.operation_method_params: remote_dir: expected a path without .."),
        (params(remote_dir="<generated_file.name>"), "operator.operation_method_params: remote_dir: expected a path"),
        (params(remote_filename="/a\n"), "operator.operation_method_params: remote_filename: expected a path without"),
        (
            params(remote_filename="\ud800"),
            "operator.operation_method_params: remote_filename: expected a path without",
        ),
        (params(remote_filename="/"), "operator.operation_method_params: remote_filename: expected the path of a file"),
        (params(remote_filename=""), "operator.operation_method_params: remote_filename: expected the path of a file"),
        (
            ("file_generator", "class", "a.B"),
            "file_generator.class: expected one of benchcloud.file_generators.random_",
        ),
        (("file_generator", "size", None), "file_generator.size: is missing; expected a whole number, 0 or more"),
        (("file_generator", "size", "5 KB"), "file_generator.size: expected a whole number, 0 or more, found '5 KB'"),
        (("file_generator", "prefix", "a/b"), "file_generator.prefix: expected a part of a file's name"),
        (("file_generator", "prefix", "a\\b"), "file_generator.prefix: expected a part of a file's name"),
        (("file_generator", "suffix", "a\nb"), "file_generator.suffix: expected a part of a file's name"),
        (("file_generator", "delete", "maybe"), "file_generator.delete: expected True or False, found 'maybe'"),
        (("capture", "device", "lo"), "capture.snaplen: is missing; expected a whole number, 1 or more"),
    ],
)
def test_wrong_file_is_refused_in_one_line_naming_its_key(change: Change, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(changed(change))
    assert str(caught.value).startswith(f"old.conf: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("file_generator", "percent", None), "file_generator.percent: is missing; expected a number from 0 to 1"),
        (("file_generator", "percent", "90"), "file_generator.percent: expected a number from 0 to 1, found '90'"),
        (("file_generator", "size", "0"), "file_generator.size: expected a whole number, 1 or more, found '0'"),
    ],
)
def test_a_delta_needs_its_share_and_a_size(change: Change, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(changed(change, listing="A.8"))
    assert str(caught.value) == f"old.conf: {message}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("test", "local_dir", None), "test.local_dir: is missing; expected the path of a folder"),
        (("test", "remote_dir", None), "test.remote_dir: is missing; expected the path of a folder"),
        (("test", "remote_dir", "/a/.."), "test.remote_dir: expected a path without .. and control characters"),
    ],
)
def test_a_download_needs_both_folders(change: Change, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(changed(change, listing="A.2"))
    assert str(caught.value).startswith(f"old.conf: {message}")


def test_file_without_upload_or_download_is_refused_with_missing_sections() -> None:
    text = changed(("test", "local_dir", None), ("test", "remote_dir", None), listing="A.2")
    with pytest.raises(
        ConfigError, match=r"^old\.conf: expected \[operator\] and \[file_generator\] \(upload\), or test"
    ):
        parse(text)


def test_a_start_sleep_that_ends_before_it_begins_is_refused() -> None:
    text = changed(("test", "random_start_sleep_min", "3"), ("test", "random_start_sleep_max", "2"))
    with pytest.raises(
        ConfigError, match=r"test\.random_start_sleep_max: expected a whole number, 3 or more, found '2'"
    ):
        parse(text)


# --- capture ---

CAPTURE = "[capture]\ndevice = en0\nsnaplen = 65535\npromisc = False\nto_ms = 3000\nfilename = /tmp/capture_data.pcap\n"


def test_benchclouds_capture_file_is_read() -> None:
    expected = CaptureSettings("en0", 65535, promiscuous=False, read_timeout_ms=3000, file="/tmp/capture_data.pcap")
    assert parse_capture(CAPTURE, "c.conf") == expected
    assert parse_capture(CAPTURE + "filter = tcp port 443\n", "c.conf").filter == "tcp port 443"
    assert not is_benchcloud(CAPTURE)


def test_capture_section_in_a_test_is_read_and_noted() -> None:
    test = parse(format_plain(FILES["A.1"]["file"]) + CAPTURE)
    assert test.capture == parse_capture(CAPTURE, "c.conf")
    assert "[capture]: is read here; BenchCloud read it from the file of its option -c" in test.notes


def test_a_capture_file_without_its_section_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^c\.conf: capture: the section is missing; expected \[capture\]$"):
        parse_capture("[test]\na = 1\n", "c.conf")


# --- recognition of BenchCloud's files ---


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("[test]\n[driver]\n", True),
        ("# x\r\n[driver] ; y\r\n[test]\r\n", True),
        ("[test]\n", False),
        ("[driver]\n", False),
        ("[test]\na = b\n [driver]\n", False),
        ("# [test] [driver]\n[Test]\n[driver]\n", False),
        ("[testenv]\n[driver]\n", False),
        ("", False),
    ],
)
def test_is_benchcloud_needs_both_sections(text: str, answer: bool) -> None:
    assert is_benchcloud(text) is answer


# --- any text ---


def check_parsed_or_refused(text: str) -> None:
    try:
        test = parse(text)
    except ConfigError as error:
        line = str(error)
        assert line.startswith("old.conf: ")
        assert "\n" not in line
        return
    assert test.threads >= 1
    assert all(note.isprintable() for note in test.notes)
    if test.generator is not None:
        path = test.path("x")
        assert ".." not in path.split("/")
        assert not path.startswith("/")
        assert path.isprintable()
        make_generator(test.generator, test.generator_params, "seed")


@given(st.text(max_size=80))
@settings(deadline=None, max_examples=scale_examples(100))
def test_any_text_is_parsed_or_refused_in_one_line(text: str) -> None:
    is_benchcloud(text)
    check_parsed_or_refused(text)
    check_parsed_or_refused(f"[test]\n{text}\n[driver]\n")


@given(
    st.sampled_from(sorted(FILES)),
    st.sampled_from(
        [(section, key) for listing in FILES.values() for section, keys in listing["file"].items() for key in keys]
    ),
    st.one_of(
        st.text(max_size=30),
        st.sampled_from(["", "-1", "1e9", "nan", "%(size)s", "%(class)s", "{}", "\\", "..", "/", "a/../b", "9" * 5000]),
        st.dictionaries(
            st.sampled_from(["local_filename", "remote_dir", "remote_filename", "x"]),
            st.one_of(
                st.sampled_from(["<generated_file.name>", "", "/", ".", "\\"]), st.text(max_size=8), st.integers()
            ),
        ).map(json.dumps),
    ),
)
@settings(deadline=None, max_examples=scale_examples(400))
def test_any_value_of_any_key_is_parsed_or_refused_in_one_line(
    name: str, section_and_key: tuple[str, str], value: str
) -> None:
    check_parsed_or_refused(
        changed((*section_and_key, value.replace("%", "%%") if "{" in value else value), listing=name)
    )


@given(st.sampled_from(sorted(FILES)), st.integers(0, 1000), st.integers(0, 40), st.text(max_size=5))
@settings(deadline=None, max_examples=scale_examples(200))
def test_a_damaged_file_is_parsed_or_refused_in_one_line(name: str, start: int, length: int, inserted: str) -> None:
    text = format_plain(FILES[name]["file"])
    check_parsed_or_refused(text[:start] + inserted + text[start + length :])


# --- the classes ---


def test_the_classes_that_ship_name_verbs_and_drivers_that_exist() -> None:
    assert {entry.scheme for entry in CLASSES.drivers.values() if entry.scheme} <= set(schemes())
    verbs = {verb for entry in CLASSES.operators.values() for verb in entry.methods.values()}
    assert verbs == {Verb.PUT.value}
    assert len(CLASSES.drivers) == 4
    assert len(CLASSES.generators) == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[drivers.", "[driver.", "drivers: expected one table per class"),
        (
            'scheme = "dropbox"',
            "",
            "drivers.'benchcloud.drivers.dropbox_driver.DropboxDriver': 'expected a scheme",
        ),
        ("local = true", "local = 1", "drivers.'benchcloud.drivers.localfs_driver.LocalFSDriver': "),
        ("local = true", "locale = true", "drivers.'benchcloud.drivers.localfs_driver.LocalFSDriver': "),
        ('methods = { upload = "put" }', "methods = 3", "operators.'benchcloud.operators.uploader.Uploader': "),
        ('methods = { upload = "put" }', "verbs = {}", "operators.'benchcloud.operators.uploader.Uploader': "),
        (
            'generator = "random"',
            "",
            "generators.'benchcloud.file_generators.random_file_generator.RandomFileGenerator",
        ),
        ('generator = "random"', "generator = 1", "generators.'benchcloud.file_generators.random_file_generator.Ra"),
        ('params = { text = " " }', "params = 1", "generators.'benchcloud.file_generators.sparse_file_generator.S"),
        ("# BenchCloud's", "=", "is not valid TOML: "),
    ],
)
def test_wrong_table_of_classes_is_refused_in_one_line(old: str, new: str, message: str) -> None:
    assert old in CLASSES_TEXT
    with pytest.raises(ConfigError) as caught:
        parse_classes(CLASSES_TEXT.replace(old, new), "c.toml")
    assert str(caught.value).startswith(f"c.toml: {message}")
    assert "\n" not in str(caught.value)
