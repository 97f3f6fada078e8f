"""The batch functions of ``files/`` and the checks of their jobs.

What may live here: lists of single actions. Every job is finished when its id is given out; its check
answers the result for as long as the emulator lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_cloudbench.emulators.dropbox.answers import ApiError
from pytest_cloudbench.emulators.dropbox.args import array, boolean, create_path, string, struct, write_path
from pytest_cloudbench.emulators.dropbox.files import delete, delete_arg, make_folder, relocate
from pytest_cloudbench.emulators.dropbox.state import Function, State
from pytest_cloudbench.emulators.skin import Call, Kind

__all__ = ["FUNCTIONS"]

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
_poll = struct(async_job_id=string(minimum=1))


def _create_folders(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    for path in arg["paths"]:
        try:
            made = make_folder(state, path, arg["autorename"], call.now_s)
            entries.append({".tag": "success", "metadata": made})
        except ApiError as error:
            entries.append({".tag": "failure", "failure": error.error})
    result = {"entries": entries}
    if arg["force_async"]:
        return state.start_job("create_folder_batch", result)
    return {".tag": "complete", **result}


def _delete_all(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    for entry in arg["entries"]:
        try:
            entries.append({".tag": "success", "metadata": delete(state, entry, call)})
        except ApiError as error:
            entries.append({".tag": "failure", "failure": error.error})
    return state.start_job("delete_batch", {"entries": entries})


def _relocate_all(verb: str) -> _Run:
    def run(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
        entries: list[dict[str, Any]] = []
        for pair in arg["entries"]:
            try:
                made = relocate(
                    state, verb, pair["from_path"], pair["to_path"], call.now_s, autorename=arg["autorename"]
                )
                entries.append({".tag": "success", "success": made})
            except ApiError as error:
                failure = {".tag": "relocation_error", "relocation_error": error.error}
                entries.append({".tag": "failure", "failure": failure})
        return state.start_job(f"{verb}_batch", {"entries": entries})

    return run


def _check(kind: str) -> _Run:
    def run(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
        job = state.jobs.get(arg["async_job_id"])
        if job is None or job.kind != kind:
            raise ApiError("invalid_async_job_id")
        return {".tag": "complete", **job.result}

    return run


FUNCTIONS: Mapping[str, Function] = {
    "files/create_folder_batch": Function(Kind.WRITE, "rpc", _folders, _create_folders),
    "files/create_folder_batch/check": Function(Kind.META, "rpc", _poll, _check("create_folder_batch")),
    "files/delete_batch": Function(Kind.WRITE, "rpc", _deletes, _delete_all),
    "files/delete_batch/check": Function(Kind.META, "rpc", _poll, _check("delete_batch")),
    "files/copy_batch_v2": Function(Kind.WRITE, "rpc", _relocations, _relocate_all("copy")),
    "files/copy_batch/check_v2": Function(Kind.META, "rpc", _poll, _check("copy_batch")),
    "files/move_batch_v2": Function(Kind.WRITE, "rpc", _relocations, _relocate_all("move")),
    "files/move_batch/check_v2": Function(Kind.META, "rpc", _poll, _check("move_batch")),
}
