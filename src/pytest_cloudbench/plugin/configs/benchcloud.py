"""Parse BenchCloud's own files (thesis 2014, 4.1 and appendix A): INI text into a frozen description of the experiment.

This module knows what the sections and keys mean, and notes for the reader which of them no longer apply. Which class
of BenchCloud corresponds to which driver or generator is data (``data/benchcloud.toml``), which the caller reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_cloudbench.model import ConfigError
from pytest_cloudbench.plugin.configs.benchcloud_classes import Classes, DriverClass
from pytest_cloudbench.plugin.configs.ini import Ini, parse_ini, quote_value

_GENERATED_NAME = "<generated_file.name>"
_PARAMS_KEY = "operator.operation_method_params"
_UPLOAD_ONLY = ("operator", "file_generator")
_SLASHES = re.compile(r"[/\\]")  # of any operating system that a file was written on
_INVALID_NAMES = frozenset({"", ".", ".."})
_TEST_KEYS = ("description", "sleep", "sleep_seconds", "random_start_sleep_min", "random_start_sleep_max")
_KEYS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "upload": {
        "test": (*_TEST_KEYS, "times"),
        "operator": ("class", "operation_method", "operation_method_params"),
        "file_generator": ("class", "size", "prefix", "suffix", "directory", "delete"),
    },
    "download": {"test": (*_TEST_KEYS, "remote_dir", "local_dir")},
    "both": {
        "logging": ("enabled", "log_file"),
        "driver": ("class",),
        "concurrent": ("threads",),
        "capture": ("device", "snaplen", "promisc", "to_ms", "filename", "filter"),
    },
}


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """The settings of ``[capture]``, as libpcap takes them.

    Attributes:
        device: the network interface (``device``).
        snap_bytes: how much of each packet is kept (``snaplen``).
        promiscuous: whether packets of other machines are captured too (``promisc``).
        read_timeout_ms: how long libpcap may gather packets before it hands them over (``to_ms``).
        file: the path of the capture (``filename``), as written in the file.
        filter: a filter in libpcap's language, or None.
    """

    device: str
    snap_bytes: int
    promiscuous: bool
    read_timeout_ms: int
    file: str
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class BenchCloudTest:
    """The experiment of one BenchCloud file, in this package's terms.

    BenchCloud (``runners/``) starts all threads at once. Each sleeps its random start sleep. Then it takes operation
    numbers from one queue that all threads share, so no thread owns a part of ``times``. It generates the file, does
    the operation, and sleeps ``sleep_s`` after it. The run ends with the last operation, without waiting for the sleeps
    after it.

    Attributes:
        source: the name of the file, for messages.
        description: ``test.description`` in one line.
        kind: ``upload`` with ``[operator]`` or ``[file_generator]``, else ``download``: every file of ``remote_dir``
            once, but none of the folders in it.
        driver_class: the class path as the file names it.
        scheme: the scheme of the provider. None if the file's class has no driver, which needs a ``--provider``.
        local: whether the file's remote paths are paths of the machine that it was written on.
        times: the number of operations. None for a download, where the folder decides it.
        threads: the threads that really work, as BenchCloud counted: 1 or more, and at most ``times``.
        sleep_s: seconds that a thread sleeps after each operation. 0 for no sleep.
        random_start_sleep_s: minimum and maximum of the whole seconds, both included, that each thread sleeps once
            before its first operation. None for no sleep.
        generator: a name of the payload registry. None for a download.
        generator_params: its parameters, converted to numbers.
        prefix: the beginning of a generated file's name.
        suffix: the end of a generated file's name.
        remote_dir: the folder of the uploads (each under its generated name) or of the downloads.
        remote_filename: the one remote file that every upload overwrites. None if there is a ``remote_dir``.
        local_dir: the local folder of a download.
        log_file: as written in the file. None if no log is to be written.
        delete: ``delete`` of ``[file_generator]``, read as the boolean that it looks like.
        capture: the settings of a ``[capture]`` section, or None.
        notes: ``section.key: ...``, one line for each thing that no longer applies, is overridden or is ignored.
    """

    source: str
    description: str
    kind: Literal["upload", "download"]
    driver_class: str
    scheme: str | None
    local: bool
    times: int | None
    threads: int
    sleep_s: int = 0
    random_start_sleep_s: tuple[int, int] | None = None
    generator: str | None = None
    generator_params: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    suffix: str = ""
    remote_dir: str | None = None
    remote_filename: str | None = None
    local_dir: str | None = None
    log_file: str | None = None
    delete: bool = True
    capture: CaptureSettings | None = None
    notes: tuple[str, ...] = ()

    @property
    def log_name(self) -> str | None:
        """The last part of ``log_file``: the name of the log, in any folder."""
        return None if self.log_file is None else _last_part(self.log_file)

    @property
    def folder(self) -> str:
        """The folder of the files below the run's own: ``remote_dir`` without its first slash. Empty for the top.

        A folder on the machine that the file was written on becomes the top as well, which is the provider's folder.
        """
        if self.remote_dir is not None:
            return "" if self.local else "/".join(_path_parts(self.remote_dir))
        return "" if self.local else "/".join(_path_parts(self.remote_filename or "")[:-1])

    def file_name(self, middle: str) -> str:
        """Return the name of a generated file: ``prefix``, a ``middle`` that no other file has, ``suffix``."""
        return f"{self.prefix}{middle}{self.suffix}"

    def path(self, middle: str) -> str:
        """Return the path below the run's folder of the file that is generated with this ``middle``."""
        name = self.file_name(middle) if self.remote_filename is None else _last_part(self.remote_filename)
        return f"{self.folder}/{name}".lstrip("/")


def is_benchcloud(text: str) -> bool:
    """Return whether a text has sections ``[test]`` and ``[driver]``, as BenchCloud's files have. Never raises."""
    return all(re.search(rf"^\ufeff?\[{name}\]", text, re.MULTILINE) for name in ("test", "driver"))


# --- a file ---


def parse_capture(text: str, source: str) -> CaptureSettings:
    """Read the file that BenchCloud took with ``-c``: a section ``[capture]``. Raises only ConfigError."""
    return _parse_capture_section(parse_ini(text, source))


def parse_benchcloud(text: str, source: str, classes: Classes, provider: str | None = None) -> BenchCloudTest:
    """Read a file of BenchCloud. Raises only ConfigError, which names file, ``section.key`` and what was expected.

    Args:
        text: the text of the file.
        source: the name of the file, for errors.
        classes: the replacements of BenchCloud's classes.
        provider: the spec of ``--provider`` if the user gave one, which replaces the file's driver.
    """
    ini = parse_ini(text, source)
    for section in ("test", "driver"):
        if section not in ini.sections:
            raise ConfigError(source, section, "the section is missing; expected [test] and [driver]")
    return _TestReader(ini, classes, provider).read_test()


@dataclass(slots=True)
class _TestReader:
    """Reads one file from top to bottom, and collects the notes."""

    ini: Ini
    classes: Classes
    provider: str | None
    notes: list[str] = field(default_factory=list)

    def read_test(self) -> BenchCloudTest:
        """Return the test that the file describes, with a note for each key that means nothing here."""
        kind = self._find_kind()
        driver_class, driver = self._read_driver()
        common: dict[str, Any] = {
            "source": self.ini.source,
            "description": " ".join(self.ini.text("test", "description", "a text").split()),
            "driver_class": driver_class,
            "scheme": driver.scheme,
            "local": driver.local,
            "sleep_s": self._read_sleep_s(),
            "random_start_sleep_s": self._read_start_sleep_s(),
        }
        if kind == "upload":
            times = self.ini.whole_number("test", "times", 1)
            common |= (
                self._read_operator()
                | self._read_file_generator()
                | {"times": times, "threads": self._count_threads(times)}
            )
        else:
            common |= self._read_download_folders() | {"times": None, "threads": self._count_threads(None)}
        common |= {"log_file": self._read_log_file(), "capture": self._read_capture()}
        self._note_remote_paths(driver, common)
        self._note_unknown_keys(kind)
        return BenchCloudTest(kind=kind, notes=tuple(self.notes), **common)

    def add_note(self, key: str, text: str) -> None:
        self.notes.append(f"{key}: {text}")

    def _find_kind(self) -> Literal["upload", "download"]:
        """Tell uploads from downloads by the sections. BenchCloud had an option for it."""
        if any(section in self.ini.sections for section in _UPLOAD_ONLY):
            return "upload"
        if any(self.ini.has("test", key) for key in ("remote_dir", "local_dir")):
            return "download"
        expected = "[operator] and [file_generator] (upload), or test.remote_dir and test.local_dir (download)"
        raise ConfigError(self.ini.source, "", f"expected {expected}")

    def _read_driver(self) -> tuple[str, DriverClass]:
        path = self._read_class_path("driver")
        driver = self.classes.drivers.get(path)
        if self.provider is not None:
            self.add_note(
                "driver.class", f"{_quote_path(path)} is overridden by --provider {_quote_path(self.provider)}"
            )
            return path, driver or DriverClass()
        if driver is None:
            class_paths = ", ".join(self.classes.drivers)
            raise self.ini.wrong_value("driver", "class", f"one of {class_paths}, or a --provider in its place")
        if driver.note:
            self.add_note("driver.class", driver.note)
        return path, driver

    def _read_class_path(self, section: str) -> str:
        """Return a class path. White space in it is removed, because the thesis breaks long ones in two."""
        return "".join(self.ini.text(section, "class", "the path of a class").split())

    def _read_sleep_s(self) -> int:
        if not self.ini.boolean("test", "sleep"):
            return 0
        return self.ini.whole_number("test", "sleep_seconds", 0)

    def _read_start_sleep_s(self) -> tuple[int, int] | None:
        keys = ("random_start_sleep_min", "random_start_sleep_max")
        present_keys = [key for key in keys if self.ini.has("test", key)]
        if len(present_keys) == 1:
            self.add_note(f"test.{present_keys[0]}", "is ignored, as by BenchCloud, without its other half")
        if len(present_keys) < 2:
            return None
        min_s = self.ini.whole_number("test", keys[0], 0)
        return min_s, self.ini.whole_number("test", keys[1], min_s)

    def _count_threads(self, times: int | None) -> int:
        if not self.ini.has("concurrent", "threads"):
            return 1
        requested = self.ini.whole_number("concurrent", "threads")
        threads = max(1, requested if times is None else min(requested, times))
        if threads != requested:
            reason = "at least one" if requested < 1 else "no more threads than operations"
            self.add_note("concurrent.threads", f"{requested} becomes {threads}, as in BenchCloud: {reason}")
        return threads

    def _read_operator(self) -> dict[str, Any]:
        path = self._read_class_path("operator")
        operator = self.classes.operators.get(path)
        runnable = [name for name, candidate in self.classes.operators.items() if candidate.methods]
        if operator is None or not (operator.methods or operator.missing):
            raise self.ini.wrong_value("operator", "class", f"one of {', '.join(runnable)}")
        method = self.ini.text("operator", "operation_method", "the name of a method")
        if method not in operator.methods:
            expected = " or ".join(f"{m} of {name}" for name in runnable for m in self.classes.operators[name].methods)
            remark = f", which is not run here ({_quote_path(path)})" if method in operator.missing else ""
            raise ConfigError(
                self.ini.source,
                "operator.operation_method",
                f"expected {expected}, found {quote_value(method)}{remark}",
            )
        return self._read_method_params()

    def _read_method_params(self) -> dict[str, Any]:
        key = "operation_method_params"
        example = '{"local_filename": "<generated_file.name>", "remote_dir": "/folder"}'
        text = self.ini.text("operator", key, f"JSON such as {example}")
        try:
            params = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise self.ini.wrong_value("operator", key, f"JSON such as {example} ({reason})") from error
        if not isinstance(params, dict) or not all(isinstance(value, str) for value in params.values()):
            raise self.ini.wrong_value("operator", key, f"a JSON object of texts such as {example}")
        if unknown := params.keys() - {"local_filename", "remote_dir", "remote_filename"}:
            expected = "no such parameter; expected local_filename, remote_dir or remote_filename"
            raise self._param_error(min(unknown), expected)
        if params.get("local_filename", "").lower() != _GENERATED_NAME:
            raise self._param_error(
                "local_filename", f"expected {_GENERATED_NAME}: only generated files are uploaded here"
            )
        return self._choose_remote_path(params)

    def _choose_remote_path(self, params: Mapping[str, str]) -> dict[str, Any]:
        """Return the remote path: ``remote_dir``, else ``remote_filename``, else the top folder."""
        key = f"{_PARAMS_KEY}: remote_filename"
        remote_dir, remote_filename = params.get("remote_dir") or None, params.get("remote_filename")
        if remote_dir is not None:
            if remote_filename is not None:
                self.add_note(
                    key, f"{_quote_path(remote_filename)} is ignored, as by BenchCloud: remote_dir is given too"
                )
            return {"remote_dir": self._check_path("remote_dir", remote_dir), "remote_filename": None}
        if remote_filename is not None and remote_filename.lower() == _GENERATED_NAME:
            self.add_note(key, "files go into the top folder under their names; there is no local folder to repeat")
            remote_filename = None
        if remote_filename is None:
            return {"remote_dir": "/", "remote_filename": None}
        if _last_part(self._check_path("remote_filename", remote_filename)) in _INVALID_NAMES:
            raise self._param_error(
                "remote_filename", f"expected the path of a file, found {quote_value(remote_filename)}"
            )
        return {"remote_dir": None, "remote_filename": remote_filename}

    def _param_error(self, param: str, problem: str) -> ConfigError:
        return ConfigError(self.ini.source, _PARAMS_KEY, f"{_quote_path(param)}: {problem}")

    def _check_path(self, param: str, path: str) -> str:
        if not path.isprintable() or ".." in _SLASHES.split(path) or _GENERATED_NAME in path.lower():
            raise self._param_error(
                param, f"expected a path without .. and control characters, found {quote_value(path)}"
            )
        return path

    def _read_file_generator(self) -> dict[str, Any]:
        """Return what the section about files says, and note what has no meaning here."""
        path = self._read_class_path("file_generator")
        generator_class = self.classes.generators.get(path)
        if generator_class is None:
            raise self.ini.wrong_value("file_generator", "class", f"one of {', '.join(self.classes.generators)}")
        params = {
            "size_bytes": self.ini.whole_number("file_generator", "size", generator_class.least_bytes),
            **generator_class.params,
        }
        params |= {param: self.ini.share("file_generator", key) for key, param in generator_class.keys.items()}
        all_keys = {key for other in self.classes.generators.values() for key in other.keys}
        for key in sorted(all_keys - generator_class.keys.keys()):
            if self.ini.has("file_generator", key):
                self.add_note(
                    f"file_generator.{key}",
                    f"is ignored, as by BenchCloud: {generator_class.generator} does not take it",
                )
        if self.ini.has("file_generator", "directory"):
            directory = self.ini.line("file_generator", "directory")
            self.add_note("file_generator.directory", f"{_quote_path(directory)} is not used: files are made in memory")
        return {
            "generator": generator_class.generator,
            "generator_params": params,
            "prefix": self._read_name_part("prefix"),
            "suffix": self._read_name_part("suffix"),
            "delete": self._read_delete(),
        }

    def _read_name_part(self, key: str) -> str:
        if not self.ini.has("file_generator", key):
            return ""
        text = self.ini.text("file_generator", key)
        if not text.isprintable() or "/" in text or "\\" in text:
            raise self.ini.wrong_value(
                "file_generator", key, "a part of a file's name, in one line and without slashes"
            )
        return text

    def _read_delete(self) -> bool:
        """Return ``delete`` as a boolean. BenchCloud took its text as one, so that ``False`` deleted as well."""
        if not self.ini.has("file_generator", "delete"):
            return True
        if self.ini.text("file_generator", "delete") and self.ini.boolean("file_generator", "delete"):
            return True
        self.add_note("file_generator.delete", "files are made in memory, so there is none to keep")
        return False

    def _read_download_folders(self) -> dict[str, Any]:
        """Return the two folders of a download."""
        remote_dir = self.ini.line("test", "remote_dir", "the path of a folder")
        local_dir = self.ini.line("test", "local_dir", "the path of a folder")
        if not remote_dir.isprintable() or not remote_dir or ".." in _SLASHES.split(remote_dir):
            raise self.ini.wrong_value("test", "remote_dir", "a path without .. and control characters")
        self.add_note("test.local_dir", f"{_quote_path(local_dir)} is not used: downloads are checked and not kept")
        return {"remote_dir": remote_dir, "local_dir": local_dir}

    def _read_log_file(self) -> str | None:
        if "logging" not in self.ini.sections:
            self.add_note("logging", "the section is missing: no log is written")
            return None
        if not self.ini.boolean("logging", "enabled"):
            return None
        path = self.ini.line("logging", "log_file", "the path of a file")
        name = _last_part(path)
        if not path.isprintable() or name in _INVALID_NAMES:
            raise self.ini.wrong_value("logging", "log_file", "the path of a file")
        if name != path:
            self.add_note(
                "logging.log_file", f"{_quote_path(path)} becomes {_quote_path(name)} beside this run's results"
            )
        return path

    def _read_capture(self) -> CaptureSettings | None:
        if "capture" not in self.ini.sections:
            return None
        self.add_note("[capture]", "is read here; BenchCloud read it from the file of its option -c")
        return _parse_capture_section(self.ini)

    def _note_remote_paths(self, driver: DriverClass, values: Mapping[str, Any]) -> None:
        """Note where remote files go, which is never exactly the path in the file."""
        section = "test" if values["times"] is None else _PARAMS_KEY
        for key in ("remote_dir", "remote_filename"):
            path = values.get(key)
            location = f"{section}.{key}" if section == "test" else f"{section}: {key}"
            if path is not None and driver.local:
                self.add_note(
                    location, f"{_quote_path(path)} is a place of another machine: the provider's folder is used"
                )
            elif path is not None and (section == "test" or _path_parts(path)):
                fill_remark = ", and is filled first" if section == "test" else ""
                self.add_note(location, f"{_quote_path(path)} is below this run's own folder{fill_remark}")

    def _note_unknown_keys(self, kind: Literal["upload", "download"]) -> None:
        """Note sections and keys that are ignored, as BenchCloud ignored them."""
        known_keys = {**_KEYS["both"], **_KEYS[kind]}
        generator_keys = {key for generator in self.classes.generators.values() for key in generator.keys}
        other_keys = _KEYS["download" if kind == "upload" else "upload"]
        for section, keys in self.ini.sections.items():
            if section not in known_keys:
                self.add_note(f"[{_format_name(section)}]", "is ignored, as by BenchCloud: no such section")
                continue
            for key in keys:
                if key in known_keys[section] or (section == "file_generator" and key in generator_keys):
                    continue
                if key in other_keys.get(section, ()):
                    reason = f"it is for {'a download' if kind == 'upload' else 'an upload'}"
                else:
                    reason = "no such key"
                self.add_note(f"{section}.{_format_name(key)}", f"is ignored, as by BenchCloud: {reason}")


def _parse_capture_section(ini: Ini) -> CaptureSettings:
    if "capture" not in ini.sections:
        raise ConfigError(ini.source, "capture", "the section is missing; expected [capture]")
    return CaptureSettings(
        device=ini.line("capture", "device", "the name of a network interface"),
        snap_bytes=ini.whole_number("capture", "snaplen", 1),
        promiscuous=ini.boolean("capture", "promisc"),
        read_timeout_ms=ini.whole_number("capture", "to_ms", 0),
        file=ini.line("capture", "filename", "the path of a file"),
        filter=ini.line("capture", "filter") if ini.has("capture", "filter") else None,
    )


# --- texts ---


def _path_parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def _last_part(path: str) -> str:
    """Return the last part of a path of any operating system."""
    return _SLASHES.split(path.rstrip("/\\"))[-1]


def _quote_path(text: str) -> str:
    """Format a whole path or name for one line."""
    return text if text.isprintable() and text and " " not in text else quote_value(text, 200)


def _format_name(name: str) -> str:
    """Format the name of a section or a key for one line."""
    return name if name.isprintable() and len(name) <= 60 else quote_value(name)
