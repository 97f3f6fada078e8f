#!/bin/sh
# Run a suite with agents in the pods of a Job: sh kubernetes.sh [ARGUMENTS OF PYTEST ...]
set -eu
trap 'kubectl delete job cloudbench' EXIT

kubectl apply -f job.yaml
kubectl wait --for=condition=Ready pod -l app=cloudbench --timeout=180s
kubectl get pods -l app=cloudbench -o name | while read -r pod; do
  name=${pod#pod/}
  printf '[[host]]\nname = "%s"\nagents = 2\n' "$name"
  printf 'command = ["kubectl", "exec", "-i", "%s", "--", "python3"]\n\n' "$name"
done > hosts.toml

cloudbench hosts install hosts.toml
cloudbench hosts check hosts.toml
pytest --pyargs pytest_cloudbench.suites.iot --cloudbench-hosts hosts.toml "$@"
