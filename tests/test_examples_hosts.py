"""The scripts of ``examples/hosts`` run as they are, with stand-ins for clusters' programs that open a namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.limits import HANG_S
from tests.test_docs import commands
from tests.test_examples import BIN, EXAMPLES, INSTALLS

NETWORK = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
NODES = ("n1", "n2", "n3")

KUBECTL = f"""#!/bin/sh
set -eu
cd "$CLUSTER"
echo "$@" >> calls
case "$1" in
  apply) cp "$OLDPWD/$3" manifest; for pod in a b c; do mkdir cloudbench-$pod; done ;;
  wait) [ -d cloudbench-a ] ;;
  get) for pod in cloudbench-*; do echo pod/$pod; done ;;
  exec) [ "$2 $4" = "-i --" ]; folder=$PWD/$3; shift 5  # the pod's own python3 is a bare one
    exec env -i HOME="$folder" TMPDIR="$folder" PATH=/usr/bin:/bin {" ".join(NETWORK)} \\
      sh -c 'ip link set lo up; exec "$@"' - {sys.base_prefix}/bin/python3 "$@" ;;
  delete) rm -r cloudbench-* ;;
esac
"""
SBATCH = """#!/bin/sh
SLURM_JOB_NODELIST='n[1-3]' exec sh "$@"
"""
SCONTROL = f"""#!/bin/sh
[ "$*" = "show hostnames n[1-3]" ] && printf '%s\\n' {" ".join(NODES)}
"""
SRUN = f"""#!/bin/sh
while case "$1" in --*) ;; *) false ;; esac; do echo "$1" >> "$CLUSTER/calls"; shift; done
exec {" ".join(NETWORK)} sh -c 'ip link set lo up; exec "$@"' - "$@"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A folder with the stand-ins and a file of the calls to them."""
    probe = subprocess.run([*NETWORK, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"cannot open a network namespace: {probe.stderr.strip()}")
    folder = tmp_path / "cluster"
    folder.mkdir()
    for name, text in {"kubectl": KUBECTL, "sbatch": SBATCH, "scontrol": SCONTROL, "srun": SRUN}.items():
        (folder / name).write_text(text, "utf-8")
        (folder / name).chmod(0o755)
    return folder


def run(script: str, cluster: Path, project: Path) -> tuple[str, dict[str, Any]]:
    """Run the command of the README that has this script. Returns its output and the entry's facts."""
    first, *others = commands((EXAMPLES / "hosts" / "README.md").read_text("utf-8"))
    assert first == INSTALLS
    [command] = [command for command in others if script in command]
    project.mkdir()
    for path in (EXAMPLES / "hosts").iterdir():
        (project / path.name).write_bytes(path.read_bytes())
    stored = project / "stored.json"
    done = subprocess.run(
        [*command.split(), f"--benchmark-json={stored}"], cwd=project, text=True,
        env={
            **os.environ, "PATH": f"{cluster}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}",
            "CLUSTER": str(cluster),
        },
        stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    info: dict[str, Any] = json.loads(stored.read_text("utf-8"))["benchmarks"][0]["extra_info"]
    return done.stdout, info


@pytest.mark.slow
def test_pods_of_a_job_carry_agents_and_are_deleted(cluster: Path, tmp_path: Path) -> None:
    output, info = run("kubernetes.sh", cluster, tmp_path / "project")
    assert output.count(": ready: Python ") == 3
    assert (info["agents"], info["missing_agents"], info["ok_rate"]) == (6, {}, 1.0)
    assert [host["name"] for host in info["hosts"]] == ["cloudbench-a", "cloudbench-b", "cloudbench-c"]
    assert not list(cluster.glob("cloudbench-*")), "the job was deleted"
    job = YAML(typ="safe").load(cluster / "manifest")
    assert (job["kind"], job["spec"]["parallelism"], job["spec"]["completions"]) == ("Job", 3, 3)
    selector = f"-l app={job['spec']['template']['metadata']['labels']['app']}"
    calls = (cluster / "calls").read_text("utf-8").splitlines()
    assert [call.split()[0] for call in calls if selector in call] == ["wait", "get"]


@pytest.mark.slow
def test_nodes_of_an_allocation_carry_agents(cluster: Path, tmp_path: Path) -> None:
    output, info = run("slurm.sh", cluster, tmp_path / "project")
    assert output.count(": ready: Python ") == 3
    assert (info["agents"], info["missing_agents"], info["ok_rate"]) == (6, {}, 1.0)
    assert [host["name"] for host in info["hosts"]] == list(NODES)
    options = (cluster / "calls").read_text("utf-8").splitlines()
    assert {option for option in options if option.startswith("--nodelist")} == {f"--nodelist={name}" for name in NODES}
