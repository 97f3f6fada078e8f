"""BenchCloud's own files (thesis 2014, 4.1 and appendix A): INI text into one frozen description of the experiment.

What may live here: what the sections and keys mean, and what of it no longer applies, as notes for the reader. Which
class of BenchCloud is which driver or generator here is data (``data/benchcloud.toml``), read by the caller.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_cloudbench.model import ConfigError
from pytest_cloudbench.plugin.configs.benchcloud_classes import Classes, DriverClass
from pytest_cloudbench.plugin.configs.ini import Ini, parse_ini, shown

_GENERATED = "<generated_file.name>"
_PARAMS = "operator.operation_method_params"
_UPLOAD_ONLY = ("operator", "file_generator")
_SLASHES = re.compile(r"[/\\]")  # a file may have been written on any system
_NO_NAMES = frozenset({"", ".", ".."})
_TEST = ("description", "sleep", "sleep_seconds", "random_start_sleep_min", "random_start_sleep_max")
_KEYS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "upload": {
        "test": (*_TEST, "times"),
        "operator": ("class", "operation_method", "operation_method_params"),
        "file_generator": ("class", "size", "prefix", "suffix", "directory", "delete"),
    },
    "download": {"test": (*_TEST, "remote_dir", "local_dir")},
    "both": {
        "logging": ("enabled", "log_file"),
        "driver": ("class",),
        "concurrent": ("threads",),
        "capture": ("device", "snaplen", "promisc", "to_ms", "filename", "filter"),
    },
}


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """What ``[capture]`` says, as libpcap takes it.

    Attributes:
        device: the network interface (``device``).
        snap_bytes: how much of each packet is kept (``snaplen``).
        promiscuous: packets of others too (``promisc``).
        read_timeout_ms: how long libpcap may gather packets before it hands them over (``to_ms``).
        file: where the packets go (``filename``), as the file says it.
        filter: in libpcap's language, or None.
    """

    device: str
    snap_bytes: int
    promiscuous: bool
    read_timeout_ms: int
    file: str
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class BenchCloudTest:
    """One file of BenchCloud, in this package's terms.

    BenchCloud (``runners/``) starts all threads at once. Each sleeps its random start sleep, then takes operation
    numbers from one queue that all share (no thread owns a part of ``times``), generates the file, does the operation,
    and sleeps ``sleep_s`` after it. It ends when the last operation has ended, without waiting for later sleeps.

    Attributes:
        source: where the text came from.
        description: ``test.description`` in one line.
        kind: ``upload`` with ``[operator]`` or ``[file_generator]``, else ``download``: every file of ``remote_dir``
            once, but none of the folders in it.
        driver_class: the class path as the file names it.
        scheme: of ``--provider``; None when the file's class has no driver, which is an error unless one is given.
        local: the file's remote paths are paths of the machine that it was written on.
        times: operations in all; None for a download, where the folder says it.
        threads: that really work, as BenchCloud counted: 1 or more, and at most ``times``.
        sleep_s: seconds that a thread sleeps after each operation; 0 without.
        random_start_sleep_s: least and most whole seconds, both included, that each thread sleeps once before its first
            operation; None without.
        generator: a name of the payload registry; None for a download.
        generator_params: its parameters; numbers are numbers.
        prefix: what a generated file's name begins with.
        suffix: what it ends with.
        remote_dir: the folder of the uploads (each under its generated name) or of the downloads.
        remote_filename: the one remote file that every upload overwrites; None when ``remote_dir`` says the place.
        local_dir: of a download.
        log_file: as the file says it; None when no log is to be written.
        delete: of ``[file_generator]``, read as the boolean that it looks like.
        capture: what a ``[capture]`` section says, or None.
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
        """The last part of ``log_file``: its name wherever logs may be written."""
        return None if self.log_file is None else _leaf(self.log_file)

    @property
    def folder(self) -> str:
        """The folder of the files, below the run's own: ``remote_dir`` without its first slash; empty for the top.

        A folder on the machine that the file was written on is the top as well: the provider says where that is.
        """
        if self.remote_dir is not None:
            return "" if self.local else "/".join(_parts(self.remote_dir))
        return "" if self.local else "/".join(_parts(self.remote_filename or "")[:-1])

    def file_name(self, middle: str) -> str:
        """The name of a generated file: ``prefix``, something that no other file has, ``suffix``."""
        return f"{self.prefix}{middle}{self.suffix}"

    def path(self, middle: str) -> str:
        """Where the file goes that is generated with this ``middle``, below the run's own folder."""
        name = self.file_name(middle) if self.remote_filename is None else _leaf(self.remote_filename)
        return f"{self.folder}/{name}".lstrip("/")


def is_benchcloud(text: str) -> bool:
    """Whether this may be a file of BenchCloud: it has the sections ``[test]`` and ``[driver]``. Never raises."""
    return all(re.search(rf"^\ufeff?\[{name}\]", text, re.MULTILINE) for name in ("test", "driver"))


# --- a file ---


def parse_capture(text: str, source: str) -> CaptureSettings:
    """Read the file that BenchCloud took with ``-c``: a section ``[capture]``. Raises ConfigError, nothing else."""
    return _capture(parse_ini(text, source))


def parse_benchcloud(text: str, source: str, classes: Classes, provider: str | None = None) -> BenchCloudTest:
    """Read a file of BenchCloud. Raises ConfigError naming file, ``section.key`` and what was expected; nothing else.

    Args:
        text: of the file.
        source: its name, for errors.
        classes: what stands for BenchCloud's classes.
        provider: the spec of ``--provider`` when the user gave one: it is used in place of the file's driver.
    """
    ini = parse_ini(text, source)
    for section in ("test", "driver"):
        if section not in ini.sections:
            raise ConfigError(source, section, "the section is missing; expected [test] and [driver]")
    return _Reader(ini, classes, provider).read()


@dataclass(slots=True)
class _Reader:
    """Reads one file from top to bottom and gathers the notes."""

    ini: Ini
    classes: Classes
    provider: str | None
    notes: list[str] = field(default_factory=list)

    def read(self) -> BenchCloudTest:
        kind = self._kind()
        driver_class, driver = self._driver()
        common: dict[str, Any] = {
            "source": self.ini.source,
            "description": " ".join(self.ini.text("test", "description", "a text").split()),
            "driver_class": driver_class,
            "scheme": driver.scheme,
            "local": driver.local,
            "sleep_s": self._sleep(),
            "random_start_sleep_s": self._random_start_sleep(),
        }
        if kind == "upload":
            times = self.ini.whole("test", "times", 1)
            common |= self._operator() | self._file_generator() | {"times": times, "threads": self._threads(times)}
        else:
            common |= self._folders() | {"times": None, "threads": self._threads(None)}
        common |= {"log_file": self._log_file(), "capture": self._capture()}
        self._place(driver, common)
        self._unknown(kind)
        return BenchCloudTest(kind=kind, notes=tuple(self.notes), **common)

    def note(self, place: str, said: str) -> None:
        self.notes.append(f"{place}: {said}")

    def _kind(self) -> Literal["upload", "download"]:
        """BenchCloud was told on the command line; a file has the sections of one of its two runners."""
        if any(section in self.ini.sections for section in _UPLOAD_ONLY):
            return "upload"
        if any(self.ini.has("test", key) for key in ("remote_dir", "local_dir")):
            return "download"
        expected = "[operator] and [file_generator] (upload), or test.remote_dir and test.local_dir (download)"
        raise ConfigError(self.ini.source, "", f"expected {expected}")

    def _driver(self) -> tuple[str, DriverClass]:
        path = self._class("driver")
        driver = self.classes.drivers.get(path)
        if self.provider is not None:
            self.note("driver.class", f"{_quoted(path)} is overridden by --provider {_quoted(self.provider)}")
            return path, driver or DriverClass()
        if driver is None:
            known = ", ".join(self.classes.drivers)
            raise self.ini.wrong("driver", "class", f"one of {known}, or a --provider in its place")
        if driver.note:
            self.note("driver.class", driver.note)
        return path, driver

    def _class(self, section: str) -> str:
        """A class path; the thesis breaks long ones in two, so white space in it does not count."""
        return "".join(self.ini.text(section, "class", "the path of a class").split())

    def _sleep(self) -> int:
        if not self.ini.boolean("test", "sleep"):
            return 0
        return self.ini.whole("test", "sleep_seconds", 0)

    def _random_start_sleep(self) -> tuple[int, int] | None:
        keys = ("random_start_sleep_min", "random_start_sleep_max")
        given = [key for key in keys if self.ini.has("test", key)]
        if len(given) == 1:
            self.note(f"test.{given[0]}", "is ignored, as by BenchCloud, without its other half")
        if len(given) < 2:
            return None
        least = self.ini.whole("test", keys[0], 0)
        return least, self.ini.whole("test", keys[1], least)

    def _threads(self, times: int | None) -> int:
        if not self.ini.has("concurrent", "threads"):
            return 1
        asked = self.ini.whole("concurrent", "threads")
        threads = max(1, asked if times is None else min(asked, times))
        if threads != asked:
            why = "at least one" if asked < 1 else "no more threads than operations"
            self.note("concurrent.threads", f"{asked} becomes {threads}, as in BenchCloud: {why}")
        return threads

    def _operator(self) -> dict[str, Any]:
        path = self._class("operator")
        operator = self.classes.operators.get(path)
        known = [each for each, found in self.classes.operators.items() if found.methods]
        if operator is None or not (operator.methods or operator.missing):
            raise self.ini.wrong("operator", "class", f"one of {', '.join(known)}")
        method = self.ini.text("operator", "operation_method", "the name of a method")
        if method not in operator.methods:
            running = " or ".join(f"{m} of {each}" for each in known for m in self.classes.operators[each].methods)
            said = f", which is not run here ({_quoted(path)})" if method in operator.missing else ""
            raise ConfigError(
                self.ini.source, "operator.operation_method", f"expected {running}, found {shown(method)}{said}"
            )
        return self._method_params()

    def _method_params(self) -> dict[str, Any]:
        key = "operation_method_params"
        example = '{"local_filename": "<generated_file.name>", "remote_dir": "/folder"}'
        text = self.ini.text("operator", key, f"JSON such as {example}")
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise self.ini.wrong("operator", key, f"JSON such as {example} ({reason})") from error
        if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
            raise self.ini.wrong("operator", key, f"a JSON object of texts such as {example}")
        if unknown := given.keys() - {"local_filename", "remote_dir", "remote_filename"}:
            expected = "no such parameter; expected local_filename, remote_dir or remote_filename"
            raise self._wrong_param(min(unknown), expected)
        if given.get("local_filename", "").lower() != _GENERATED:
            raise self._wrong_param("local_filename", f"expected {_GENERATED}: only generated files are uploaded here")
        return self._remote_place(given)

    def _remote_place(self, given: Mapping[str, str]) -> dict[str, Any]:
        """``remote_dir`` wins over ``remote_filename`` unless it is empty; without both it is the top folder."""
        place = f"{_PARAMS}: remote_filename"
        remote_dir, remote_filename = given.get("remote_dir") or None, given.get("remote_filename")
        if remote_dir is not None:
            if remote_filename is not None:
                self.note(place, f"{_quoted(remote_filename)} is ignored, as by BenchCloud: remote_dir is given too")
            return {"remote_dir": self._checked("remote_dir", remote_dir), "remote_filename": None}
        if remote_filename is not None and remote_filename.lower() == _GENERATED:
            self.note(place, "files go into the top folder under their names; there is no local folder to repeat")
            remote_filename = None
        if remote_filename is None:
            return {"remote_dir": "/", "remote_filename": None}
        if _leaf(self._checked("remote_filename", remote_filename)) in _NO_NAMES:
            raise self._wrong_param("remote_filename", f"expected the path of a file, found {shown(remote_filename)}")
        return {"remote_dir": None, "remote_filename": remote_filename}

    def _wrong_param(self, param: str, said: str) -> ConfigError:
        return ConfigError(self.ini.source, _PARAMS, f"{_quoted(param)}: {said}")

    def _checked(self, param: str, path: str) -> str:
        if not path.isprintable() or ".." in _SLASHES.split(path) or _GENERATED in path.lower():
            raise self._wrong_param(param, f"expected a path without .. and control characters, found {shown(path)}")
        return path

    def _file_generator(self) -> dict[str, Any]:
        path = self._class("file_generator")
        found = self.classes.generators.get(path)
        if found is None:
            raise self.ini.wrong("file_generator", "class", f"one of {', '.join(self.classes.generators)}")
        params = {"size_bytes": self.ini.whole("file_generator", "size", found.least_bytes), **found.params}
        params |= {param: self.ini.share("file_generator", key) for key, param in found.keys.items()}
        elsewhere = {key for each in self.classes.generators.values() for key in each.keys}
        for key in sorted(elsewhere - found.keys.keys()):
            if self.ini.has("file_generator", key):
                self.note(f"file_generator.{key}", f"is ignored, as by BenchCloud: {found.generator} does not take it")
        if self.ini.has("file_generator", "directory"):
            directory = self.ini.line("file_generator", "directory")
            self.note("file_generator.directory", f"{_quoted(directory)} is not used: files are made in memory")
        return {
            "generator": found.generator,
            "generator_params": params,
            "prefix": self._name_part("prefix"),
            "suffix": self._name_part("suffix"),
            "delete": self._delete(),
        }

    def _name_part(self, key: str) -> str:
        if not self.ini.has("file_generator", key):
            return ""
        text = self.ini.text("file_generator", key)
        if not text.isprintable() or "/" in text or "\\" in text:
            raise self.ini.wrong("file_generator", key, "a part of a file's name, in one line and without slashes")
        return text

    def _delete(self) -> bool:
        """BenchCloud took the text itself for a boolean, so that ``False`` deleted as well."""
        if not self.ini.has("file_generator", "delete"):
            return True
        if self.ini.text("file_generator", "delete") and self.ini.boolean("file_generator", "delete"):
            return True
        self.note("file_generator.delete", "files are made in memory, so there is none to keep")
        return False

    def _folders(self) -> dict[str, Any]:
        """Of a download."""
        remote_dir = self.ini.line("test", "remote_dir", "the path of a folder")
        local_dir = self.ini.line("test", "local_dir", "the path of a folder")
        if not remote_dir.isprintable() or not remote_dir or ".." in _SLASHES.split(remote_dir):
            raise self.ini.wrong("test", "remote_dir", "a path without .. and control characters")
        self.note("test.local_dir", f"{_quoted(local_dir)} is not used: downloads are checked and not kept")
        return {"remote_dir": remote_dir, "local_dir": local_dir}

    def _log_file(self) -> str | None:
        if "logging" not in self.ini.sections:
            self.note("logging", "the section is missing: no log is written")
            return None
        if not self.ini.boolean("logging", "enabled"):
            return None
        path = self.ini.line("logging", "log_file", "the path of a file")
        name = _leaf(path)
        if not path.isprintable() or name in _NO_NAMES:
            raise self.ini.wrong("logging", "log_file", "the path of a file")
        if name != path:
            self.note("logging.log_file", f"{_quoted(path)} becomes {_quoted(name)} beside this run's results")
        return path

    def _capture(self) -> CaptureSettings | None:
        if "capture" not in self.ini.sections:
            return None
        self.note("[capture]", "is read here; BenchCloud read it from the file of its option -c")
        return _capture(self.ini)

    def _place(self, driver: DriverClass, found: Mapping[str, Any]) -> None:
        """Note where remote files go: never to the exact place that the file names."""
        section = "test" if found["times"] is None else _PARAMS
        for key in ("remote_dir", "remote_filename"):
            path = found.get(key)
            place = f"{section}.{key}" if section == "test" else f"{section}: {key}"
            if path is not None and driver.local:
                self.note(place, f"{_quoted(path)} is a place of another machine: the provider's folder is used")
            elif path is not None and (section == "test" or _parts(path)):
                filled = ", and is filled first" if section == "test" else ""
                self.note(place, f"{_quoted(path)} is below this run's own folder{filled}")

    def _unknown(self, kind: Literal["upload", "download"]) -> None:
        """Sections and keys that BenchCloud did not read either."""
        known = {**_KEYS["both"], **_KEYS[kind]}
        also = {key for each in self.classes.generators.values() for key in each.keys}
        other = _KEYS["download" if kind == "upload" else "upload"]
        for section, keys in self.ini.sections.items():
            if section not in known:
                self.note(f"[{_plain(section)}]", "is ignored, as by BenchCloud: no such section")
                continue
            for key in keys:
                if key in known[section] or (section == "file_generator" and key in also):
                    continue
                if key in other.get(section, ()):
                    why = f"it is for {'a download' if kind == 'upload' else 'an upload'}"
                else:
                    why = "no such key"
                self.note(f"{section}.{_plain(key)}", f"is ignored, as by BenchCloud: {why}")


def _capture(ini: Ini) -> CaptureSettings:
    if "capture" not in ini.sections:
        raise ConfigError(ini.source, "capture", "the section is missing; expected [capture]")
    return CaptureSettings(
        device=ini.line("capture", "device", "the name of a network interface"),
        snap_bytes=ini.whole("capture", "snaplen", 1),
        promiscuous=ini.boolean("capture", "promisc"),
        read_timeout_ms=ini.whole("capture", "to_ms", 0),
        file=ini.line("capture", "filename", "the path of a file"),
        filter=ini.line("capture", "filter") if ini.has("capture", "filter") else None,
    )


# --- texts ---


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def _leaf(path: str) -> str:
    """The last part of a path of any operating system."""
    return _SLASHES.split(path.rstrip("/\\"))[-1]


def _quoted(text: str) -> str:
    """A whole path or name, formatted for one line."""
    return text if text.isprintable() and text and " " not in text else shown(text, 200)


def _plain(name: str) -> str:
    """A section's or a key's name, formatted for one line."""
    return name if name.isprintable() and len(name) <= 60 else shown(name)
