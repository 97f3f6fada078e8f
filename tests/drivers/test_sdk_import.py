"""The lazy import: modules that it leaves out stay reachable, and no thread sees half a module."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from pytest_cloudbench.drivers.sdk_import import import_lazily, import_parts, is_loaded
from pytest_cloudbench.emulators import EmulatorService
from tests.limits import HANG_S

SOURCE = str(Path(__file__).parents[2] / "src")


def run(code: str) -> str:
    """Run code in a fresh interpreter, because this one may have imported everything."""
    code = f"import sys; sys.path.insert(0, {SOURCE!r})\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CONNECT = """
from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.sdk_import import is_loaded
from pytest_cloudbench.model import Endpoint, ProviderSpec
urls = dict.fromkeys(("api", "content", "notify"), "https://127.0.0.1:9")
endpoint = Endpoint(urls, {"access_token": "token"}, "/nowhere.pem")
"""


def test_driver_runs_no_heavy_namespace_and_all_stay_usable(emulator: EmulatorService) -> None:
    code = f"""
    {textwrap.indent(CONNECT, "    ").strip()}
    from pytest_cloudbench.workload.payload import RandomContent
    driver = drivers.connect(ProviderSpec.parse("dropbox"), Endpoint.from_plain({emulator.endpoint.plain()!r}))
    assert driver.put("/lazy", RandomContent("lazy", 5000)).size_bytes == 5000
    assert b"".join(driver.get("/lazy")) and list(driver.list("/"))
    driver.close()
    import dropbox, dropbox.team_log, charset_normalizer
    names = ("dropbox.team_log", "dropbox.team", "charset_normalizer")
    print([is_loaded(name) for name in names])
    print(dropbox.team_log.EventType.__name__, "EventDetails" in dir(dropbox.team_log))
    print(dropbox.team.ActiveWebSession.__name__)
    print(charset_normalizer.from_bytes("äöü ist".encode()).best() is not None)
    print([is_loaded(name) for name in names], type(dropbox.team_log).__name__)
    """
    assert run(code).splitlines() == [
        "[False, False, False]",
        "EventType True",
        "ActiveWebSession",
        "True",
        "[True, True, True] module",
    ]


def test_sdk_imported_before_is_left_alone() -> None:
    code = f"""
    import dropbox
    team_log = dropbox.team_log
    {textwrap.indent(CONNECT, "    ").strip()}
    driver = drivers.connect(ProviderSpec.parse("dropbox"), endpoint)
    import dropbox as again
    print(again.team_log is team_log, type(team_log).__name__, isinstance(driver._client, dropbox.Dropbox))
    """
    assert run(code) == "True module True"


def test_sixteen_threads_connect_first_at_the_same_time() -> None:
    code = f"""
    {textwrap.indent(CONNECT, "    ").strip()}
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier
    start = Barrier(16)
    def connect(_):
        start.wait()
        drivers.connect(ProviderSpec.parse("dropbox"), endpoint)
        import dropbox
        return dropbox.team.ActiveWebSession, dropbox.team_log.EventType
    with ThreadPoolExecutor(16) as pool:
        print(len(set(pool.map(connect, range(16)))))
    """
    assert run(code) == "1"


def test_unreadable_version_falls_back_to_an_ordinary_import(package: str, tmp_path: Path) -> None:
    other = f"{package}_other"
    (tmp_path / other).mkdir()
    (tmp_path / other / "__init__.py").write_text("__version__ = '1'\n")
    import_lazily(package, [], {other: f"{other}.not_there"})
    assert other not in sys.modules


def test_version_is_known_without_running_the_package(package: str, tmp_path: Path) -> None:
    other = f"{package}_other"
    (tmp_path / other).mkdir()
    (tmp_path / other / "__init__.py").write_text("from .version import __version__\nVALUE = 1\n")
    (tmp_path / other / "version.py").write_text("__version__ = '3.1'\n")
    import_lazily(package, [], {other: f"{other}.version"})
    module = sys.modules[other]
    assert module.__version__ == "3.1"
    assert not is_loaded(other)
    assert module.VALUE == 1
    assert is_loaded(other)


def test_registry_and_driver_modules_import_no_sdk() -> None:
    code = """
    from pytest_cloudbench import drivers
    for scheme in drivers.schemes():
        drivers.driver_class(scheme)
    print([name for name in ("dropbox", "requests", "urllib3", "stone") if name in sys.modules])
    """
    assert run(code) == "[]"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A package of its own for each test, since modules live as long as the process."""
    name = f"lazy_{abs(hash(request.node.name))}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text(f"from {name} import heavy, light\n")
    (folder / "light.py").write_text("VALUE = 1\n")
    (folder / "heavy.py").write_text(
        f"import threading\nfrom {name} import light, other\nFIRST = 1\n"
        "started = threading.Event()\n"
        "import sys\ngate = getattr(sys, 'lazy_gate', None)\n"
        "gate and gate()\n"
        "LAST = FIRST + light.VALUE + other.VALUE\n"
    )
    (folder / "other.py").write_text(
        f"from {name} import heavy\nVALUE = heavy.FIRST if hasattr(heavy, 'FIRST') else 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_lazy_modules_may_import_each_other(package: str) -> None:
    root = import_lazily(package, ["heavy", "other", "not_there"])
    assert is_loaded(f"{package}.light")
    assert not is_loaded(f"{package}.heavy")
    assert root.heavy.LAST == 3
    assert is_loaded(f"{package}.heavy")


def test_inspecting_a_lazy_module_does_not_run_it(package: str) -> None:
    module = import_lazily(package, ["heavy"]).heavy
    assert module.__name__ == f"{package}.heavy"
    assert module.__file__.endswith("heavy.py")
    assert not hasattr(module, "__warningregistry__")
    assert not is_loaded(f"{package}.heavy")


def test_second_thread_waits_for_the_whole_module(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def gate() -> None:
        inside.set()
        assert go_on.wait(HANG_S)

    monkeypatch.setattr(sys, "lazy_gate", gate, raising=False)
    module = import_lazily(package, ["heavy"]).heavy
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(hasattr(module, "LAST"))) for _ in range(16)]
    threads[0].start()
    assert inside.wait(HANG_S)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert results == [True] * 16


def test_failing_import_leaves_nothing_behind(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "__init__.py").write_text("raise RuntimeError('broken')\n")
    with pytest.raises(RuntimeError, match="broken"):
        import_lazily(package, ["heavy"])
    assert not [name for name in sys.modules if name.startswith(package)]


def test_module_that_fails_stays_lazy_and_fails_again(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "heavy.py").write_text("raise RuntimeError('broken')\n")
    module = import_lazily(package, ["heavy"]).heavy
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            _ = module.LAST


def test_missing_package_is_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_lazily("no_such_package_here", ["anything"])


def test_parts_leave_the_rest_of_the_package_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "in_parts"
    for folder in (package, package / "large"):
        folder.mkdir()
    (package / "__init__.py").write_text("from in_parts.large import *\n")
    (package / "large" / "__init__.py").write_text(
        "from in_parts.large.one import One\nfrom in_parts.large.two import Two\n"
    )
    (package / "large" / "one.py").write_text("class One: ...\n")
    (package / "large" / "two.py").write_text("class Two: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("in_parts", "in_parts.large", "in_parts.large.two")
    parts = import_parts("in_parts", ["large"], {"large.one": ("One",)})
    assert [is_loaded(name) for name in names] == [False] * 3
    root = sys.modules["in_parts"]
    assert (root.One, root.Two.__name__) == (parts.One, "Two")
    assert [is_loaded(name) for name in names] == [True] * 3
    with pytest.raises(ImportError, match="not_there"):
        import_parts("not_there", ["large"], {"large": ()})
