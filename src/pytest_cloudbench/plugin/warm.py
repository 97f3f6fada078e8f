"""The warm worker's run of pytest, up to the fork of the other workers, and the adaptation of a forked one.

See ``fleet.start``. Everything that agents import before their first operation belongs into ``preload``, or each of
fifty agents would import it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest

from pytest_cloudbench import plugin
from pytest_cloudbench.fleet.start.warm import ForkServer, Identity

_FOR_EXPERIMENTS = (
    "pytest_cloudbench.fleet.protocol", "pytest_cloudbench.load.experiment", "pytest_cloudbench.load.item",
    "pytest_cloudbench.load.engine.engine", "pytest_cloudbench.load.gate.settings", "pytest_cloudbench.providers",
    "pytest_cloudbench.results.installed", "pytest_cloudbench.workload.payload", "ctypes", "encodings.idna",
)  # fmt: skip
"""Modules that an agent needs for any experiment."""


def run_warm_worker(config: Any, control: socket.socket, identity: Mapping[str, Any]) -> None:
    """Run pytest as ``xdist.remote`` does, up to its test loop, which runs in forked processes only.

    Args:
        config: pytest's configuration, prepared.
        control: a connection to the controller, for requests to fork.
        identity: fields of ``fleet.start.warm.Identity``.
    """
    import xdist.remote

    workerinput = identity["workerinput"]

    xdist.remote.setup_config(config, None)
    config._parser.prog = workerinput["mainargv"][0].rpartition("/")[2]
    config.workerinput, config.workeroutput = workerinput, {}
    interactor = xdist.remote.WorkerInteractor(config, identity["events"])
    xdist.remote.interactor = interactor

    def adapt(worker: str) -> None:
        if (session := config.stash.get(plugin._SESSION, None)) is not None:
            session.become(worker)
        if (benchmarks := getattr(config, "_benchmarksession", None)) is not None:
            benchmarks.xdist_worker = worker  # only gw0 warns

    server = ForkServer(control, Identity(config, adapt=adapt, **identity), interactor, preload)
    config.pluginmanager.register(server, "cloudbench-fork-server")
    try:
        with suppress(KeyboardInterrupt):  # execnet sends SIGINT to a worker that takes more than five seconds to end
            config.hook.pytest_cmdline_main(config=config)
    except pytest.UsageError as error:  # such as a test that does not exist: xdist's own workers say nothing of it
        server.refuse_all(" ".join(str(error).split()))
    server.end()


def preload(session: pytest.Session) -> None:
    """Import what the collected tests will need, without connecting to anything."""
    specs = {spec for item in session.items if (spec := _find_spec(item))}
    if not specs:
        return
    for name in _FOR_EXPERIMENTS:
        import_module(name)
    from pytest_cloudbench import providers

    for spec in specs:
        try:
            for part in providers.resolve(spec).parts():
                part.bound.load_libraries()
        except Exception:  # a driver's library may raise anything, and the test that uses it reports it
            continue


def _find_spec(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    spec = "" if callspec is None else callspec.params.get("provider", "")
    return spec if isinstance(spec, str) else ""
