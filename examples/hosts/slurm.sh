#!/bin/sh
#SBATCH --job-name=cloudbench
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --time=01:00:00
# Run a suite with agents on the nodes of an allocation: sbatch slurm.sh [ARGUMENTS OF PYTEST ...]
set -eu

# Home is the same file system on all nodes here, so an environment that has the package is there already.
python=$(command -v python3)
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  printf '[[host]]\nname = "%s"\nagents = 2\n' "$node"
  printf 'command = ["srun", "--overlap", "--unbuffered", "--nodes=1", "--ntasks=1", "--nodelist=%s", "%s"]\n\n' "$node" "$python"
done > hosts.toml

cloudbench hosts check hosts.toml
pytest --pyargs pytest_cloudbench.suites.iot --cloudbench-hosts hosts.toml "$@"
