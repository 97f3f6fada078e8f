"""The batch functions of ``files/`` and the checks of their jobs.

A job is done entry by entry, as slowly as the profile says. Until it is complete, its check answers ``in_progress``.
Afterwards, it answers the result for as long as the emulator runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pytest_cloudbench.emulators.dropbox.answers import ApiError
from pytest_cloudbench.emulators.dropbox.args import array, boolean, create_path, string, struct, write_path
from pytest_cloudbench.emulators.dropbox.blocks import BlockBlob
from pytest_cloudbench.emulators.dropbox.files import delete_arg, delete_entry, make_folder, relocate
from pytest_cloudbench.emulators.dropbox.state import Function, State
from pytest_cloudbench.emulators.dropbox.uploads import commit_session, finish_arg
from pytest_cloudbench.emulators.jobs import Step
from pytest_cloudbench.emulators.skin import Call, Kind

_MAX_SYNC_FOLDERS = 20
"""Larger batches of folders become jobs, unless the profile has a limit. A choice: no number is published."""
_Run = Callable[[State, dict[str, Any], Call], dict[str, Any]]

_folders = struct(paths=array(create_path, maximum=10_000), autorename=(boolean, False), force_async=(boolean, False))
_deletes = struct(entries=array(delete_arg, maximum=1000))
_pairs = array(struct(from_path=write_path, to_path=write_path), minimum=1, maximum=1000)
_relocations = struct(
    entries=_pairs,
    autorename=(boolean, False),
    allow_shared_folder=(boolean, False),
    allow_ownership_transfer=(boolean, False),
)
_finishes = struct(entries=array(finish_arg, maximum=1000))
_poll = struct(async_job_id=string(minimum=1))


def _make_steps(
    state: State, process: Callable[[State, Any, float], dict[str, Any]], entries: Sequence[Any]
) -> list[Step]:
    """Return one step for each entry. An error becomes the entry's result."""

    def step(entry: Any, now_s: float) -> dict[str, Any]:
        try:
            return {".tag": "success", **process(state, entry, now_s)}
        except ApiError as error:
            return {".tag": "failure", "failure": error.error}

    return [partial(step, entry) for entry in entries]


def _create_folders(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    def create(state: State, path: str, now_s: float) -> dict[str, Any]:
        return {"metadata": make_folder(state, path, arg["autorename"], now_s)}

    steps, max_sync = _make_steps(state, create, arg["paths"]), state.job_times.sync_entries or _MAX_SYNC_FOLDERS
    if arg["force_async"] or len(steps) > max_sync:
        return state.start_job("create_folder_batch", steps, call.now_s)
    return {".tag": "complete", "entries": [step(call.now_s) for step in steps]}


def _delete_batch(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    def run(state: State, entry: dict[str, Any], now_s: float) -> dict[str, Any]:
        return {"metadata": delete_entry(state, entry, now_s)}

    return state.start_job("delete_batch", _make_steps(state, run, arg["entries"]), call.now_s)


def _relocation_batch(verb: str) -> _Run:
    def run(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
        def step(pair: dict[str, Any], now_s: float) -> dict[str, Any]:
            source, target = pair["from_path"], pair["to_path"]
            try:
                relocated = relocate(state, verb, source, target, now_s, autorename=arg["autorename"])
            except ApiError as error:
                failure = {".tag": "relocation_error", "relocation_error": error.error}
                return {".tag": "failure", "failure": failure}
            return {".tag": "success", "success": relocated}

        return state.start_job(f"{verb}_batch", [partial(step, pair) for pair in arg["entries"]], call.now_s)

    return run


def _finish_steps(state: State, arg: dict[str, Any], call: Call) -> list[Step]:
    def finish(state: State, entry: dict[str, Any], now_s: float) -> dict[str, Any]:
        return commit_session(state, entry, BlockBlob.from_content(b""), now_s, call.damage)

    return _make_steps(state, finish, arg["entries"])


def _finish_batch(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return state.start_job("finish_batch", _finish_steps(state, arg, call), call.now_s)


def _finish_batch_v2(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return {"entries": [step(call.now_s) for step in _finish_steps(state, arg, call)]}


def _job_check(kind: str) -> _Run:
    def run(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
        job = state.jobs.find(arg["async_job_id"], kind)
        if job is None:
            raise ApiError("invalid_async_job_id")
        return {".tag": "complete", "entries": job.results} if job.is_complete else {".tag": "in_progress"}

    return run


FUNCTIONS: Mapping[str, Function] = {
    "files/create_folder_batch": Function(Kind.WRITE, "rpc", _folders, _create_folders),
    "files/create_folder_batch/check": Function(Kind.META, "rpc", _poll, _job_check("create_folder_batch")),
    "files/delete_batch": Function(Kind.WRITE, "rpc", _deletes, _delete_batch),
    "files/delete_batch/check": Function(Kind.META, "rpc", _poll, _job_check("delete_batch")),
    "files/copy_batch_v2": Function(Kind.WRITE, "rpc", _relocations, _relocation_batch("copy")),
    "files/copy_batch/check_v2": Function(Kind.META, "rpc", _poll, _job_check("copy_batch")),
    "files/move_batch_v2": Function(Kind.WRITE, "rpc", _relocations, _relocation_batch("move")),
    "files/move_batch/check_v2": Function(Kind.META, "rpc", _poll, _job_check("move_batch")),
    "files/upload_session/finish_batch": Function(Kind.WRITE, "rpc", _finishes, _finish_batch),
    "files/upload_session/finish_batch_v2": Function(Kind.WRITE, "rpc", _finishes, _finish_batch_v2),
    "files/upload_session/finish_batch/check": Function(Kind.META, "rpc", _poll, _job_check("finish_batch")),
}
