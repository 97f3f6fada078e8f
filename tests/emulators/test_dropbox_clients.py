"""Tests of third-party clients of Dropbox: rclone through the proxy, and the JavaScript SDK.

rclone has no option for the address of the service. It uses the real host names through the emulator's own proxy. The
JavaScript SDK has an option for test servers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from tests.limits import HANG_S

RCLONE = Path(sys.executable).with_name("rclone")
NODE = shutil.which("node")
_CLEAN = {"PATH": os.environ.get("PATH", ""), "HOME": "/nonexistent"}


@pytest.fixture(scope="module")
def running() -> Iterator[EmulatorService]:
    with start_emulator("ideal") as emulator:
        yield emulator


Rclone = Callable[..., str]


@pytest.fixture
def rclone(running: EmulatorService, tmp_path: Path) -> Rclone:
    """A function that runs rclone with one remote, ``d:``, and returns its standard output."""
    running.control(reset=True)
    endpoint = running.endpoint
    token = {
        "access_token": endpoint.credentials["access_token"], "token_type": "bearer", "refresh_token": "r",
        "expiry": "2035-01-01T00:00:00Z",
    }  # fmt: skip
    config = tmp_path / "rclone.conf"
    config.write_text(f"[d]\ntype = dropbox\ntoken = {json.dumps(token)}\nbatch_mode = off\n")
    environment = {**_CLEAN, "HTTPS_PROXY": endpoint.proxy, "SSL_CERT_FILE": endpoint.ca_file, "HOME": str(tmp_path)}

    def run(*args: str, status: int = 0) -> str:
        command = [str(RCLONE), "--config", str(config), "--ca-cert", endpoint.ca_file, "--retries", "1", *args]
        completed = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
        )
        assert completed.returncode == status, f"{args}: {completed.stderr}"
        return completed.stdout

    return run


@pytest.mark.slow
@pytest.mark.skipif(not RCLONE.exists(), reason="rclone is not installed: pip install 'pytest-cloudbench[rclone]'")
def test_rclone_from_the_root(rclone: Rclone, tmp_path: Path) -> None:
    """The commands ``size``, ``lsf -R`` and ``sync`` list folders below the root with two slashes."""
    source = tmp_path / "source"
    for name in ("a.txt", "r3/b.txt", "r3/deep/ünï c.txt"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    rclone("copy", str(source), "d:")
    expected_paths = ["a.txt", "r3/", "r3/b.txt", "r3/deep/", "r3/deep/ünï c.txt"]
    assert sorted(rclone("lsf", "-R", "d:").splitlines()) == expected_paths
    assert sorted(rclone("lsf", "-R", "--fast-list", "d:").splitlines()) == expected_paths
    assert json.loads(rclone("size", "--json", "d:"))["count"] == 3
    rclone("check", str(source), "d:")
    rclone("sync", "d:", str(tmp_path / "back"))
    assert (tmp_path / "back/r3/deep/ünï c.txt").read_text() == "r3/deep/ünï c.txt"
    (source / "r3/b.txt").unlink()
    rclone("sync", str(source), "d:")
    assert "b.txt" not in rclone("lsf", "-R", "d:")
    rclone("moveto", "d:a.txt", "d:moved.txt")
    rclone("copyto", "d:moved.txt", "d:r3/copied.txt")
    rclone("deletefile", "d:moved.txt")
    link = rclone("link", "d:r3/copied.txt").strip()
    assert link.startswith("https://www.dropbox.com/")
    assert json.loads(rclone("about", "--json", "d:"))["used"] > 0
    rclone("purge", "d:r3")
    assert rclone("lsf", "-R", "d:") == ""


@pytest.mark.slow
@pytest.mark.skipif(not RCLONE.exists(), reason="rclone is not installed: pip install 'pytest-cloudbench[rclone]'")
def test_rclone_uploads_in_chunks(rclone: Rclone, tmp_path: Path) -> None:
    big = tmp_path / "big.bin"
    big.write_bytes(os.urandom(13 * 1024 * 1024 + 1))
    rclone("copyto", "--dropbox-chunk-size", "4M", str(big), "d:big.bin")
    rclone("copyto", "d:big.bin", str(tmp_path / "back.bin"))
    assert (tmp_path / "back.bin").read_bytes() == big.read_bytes()


SCRIPT = """
const { Dropbox, DropboxAuth } = require('dropbox');
const where = process.env.WHERE;
const auth = new DropboxAuth({ accessToken: process.env.TOKEN, domain: where, domainDelimiter: '' });
const box = new Dropbox({ auth });
const sure = (is, what) => { if (!is) throw new Error(what); };
(async () => {
  const made = (await box.filesUpload({ path: '/js/ünï.txt', contents: 'hello', mode: 'overwrite' })).result;
  sure(made.size === 5, 'upload');
  const listed = (await box.filesListFolder({ path: '', recursive: true })).result;
  sure(listed.entries.length === 2 && !listed.has_more, 'list');
  const got = (await box.filesDownload({ path: '/js/ünï.txt' })).result;
  sure(got.fileBinary.toString() === 'hello', 'download');
  const account = (await box.usersGetCurrentAccount()).result;
  const usage = (await box.usersGetSpaceUsage()).result;
  sure((account.account_type['.tag'] === 'business') === (usage.allocation['.tag'] === 'team'), 'account and space');
  const found = (await box.filesSearchV2({ query: 'ünï' })).result;
  sure(found.matches[0].metadata.metadata.id === made.id, 'search');
  const link = (await box.filesGetTemporaryLink({ path: '/js/ünï.txt' })).result.link;
  sure(await (await fetch(link)).text() === 'hello', 'temporary link');
  const upload = (await box.filesGetTemporaryUploadLink({ commit_info: { path: '/js/up.txt' } })).result.link;
  const headers = { 'Content-Type': 'application/octet-stream' };
  const answer = await fetch(upload, { method: 'POST', body: 'up', headers });
  sure((await answer.json())['content-hash'].length === 64, 'upload link');
  const zip = (await box.filesDownloadZip({ path: '/js' })).result;
  sure(zip.fileBinary.subarray(0, 2).toString() === 'PK', 'zip');
  const shared = (await box.sharingShareFolder({ path: '/js' })).result;
  sure(shared['.tag'] === 'complete', 'share folder');
  sure((await box.sharingListFolders({})).result.entries[0].path_lower === '/js', 'list folders');
  const url = (await box.sharingCreateSharedLinkWithSettings({ path: '/js/up.txt' })).result;
  sure(url.link_permissions.audience_options.length > 0 && url.created_timestamp, 'shared link');
  const values = (await box.usersFeaturesGetValues({ features: [{ '.tag': 'file_locking' }] })).result.values;
  sure(values[0]['.tag'] === 'file_locking', 'features');
  try { await box.filesGetMetadata({ path: '/nobody' }); sure(false, 'not found'); }
  catch (error) { sure(error.status === 409 && error.error.error_summary.startsWith('path/not_found'), String(error)); }
  console.log('well');
})().catch((error) => { console.error(error, error.error); process.exit(1); });
"""


def _has_sdk() -> bool:
    return NODE is not None and Path(_modules(), "dropbox").is_dir()


def _modules() -> str:
    return os.environ.get("NODE_PATH") or "/usr/lib/node_modules"


@pytest.mark.skipif(not _has_sdk(), reason="node and its package dropbox are not installed: npm install -g dropbox")
def test_the_javascript_sdk(running: EmulatorService, tmp_path: Path) -> None:
    running.control(reset=True)
    endpoint = running.endpoint
    script = tmp_path / "script.js"
    script.write_text(SCRIPT)
    assert NODE is not None
    environment = {
        **_CLEAN, "NODE_PATH": _modules(), "NODE_EXTRA_CA_CERTS": endpoint.ca_file,
        "WHERE": urlsplit(endpoint.url).netloc, "TOKEN": endpoint.credentials["access_token"],
    }  # fmt: skip
    completed = subprocess.run(
        [NODE, str(script)], env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (completed.returncode, completed.stdout.strip()) == (0, "well"), completed.stderr
