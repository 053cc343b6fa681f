#!/usr/bin/env bash
# The gate's tests on several versions of Python, each with the oldest and the newest JAX that pip can install for it.
# Usage: benchmarks/everywhere.sh [pytest arguments]; PYTHONS="python3.12 python3.13" chooses the interpreters.
set -uo pipefail
cd "$(dirname "$0")/.."
pythons=${PYTHONS:-python3.11 python3.12 python3.13}
failed=0
for python in $pythons; do
  command -v "$python" > /dev/null || { echo "$python: not here, left out"; continue; }
  for jax in "jax==0.8.0 jaxlib==0.8.0" "jax!=0.10.2 jaxlib!=0.10.2"; do
    folder=$(mktemp -d)
    # shellcheck disable=SC2086
    if "$python" -m venv "$folder" && "$folder/bin/pip" install -q --disable-pip-version-check --editable '.[dev]' $jax; then
      version=$("$folder/bin/python" -c 'import jax; print(jax.__version__)')
      echo "--- $("$folder/bin/python" -V), jax $version"
      "$folder/bin/python" -m pytest -n 2 -m "not slow" "$@" || failed=1
    else
      echo "--- $python with $jax cannot be installed"
    fi
    rm -rf "$folder"
  done
done
exit $failed
