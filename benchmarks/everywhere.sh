#!/usr/bin/env bash
# The gate's tests on several versions of Python, each with the oldest and the newest JAX that pip can install for it.
# Usage: benchmarks/everywhere.sh [pytest arguments]; PYTHONS="python3.12 python3.13" chooses the interpreters.
set -uo pipefail
cd "$(dirname "$0")/.."
pythons=${PYTHONS:-python3.11 python3.12 python3.13}
failed=0 ran=0
# An interpreter by its name: one on the path that runs (a shim of pyenv may not), or the newest of its version in pyenv's folder.
find_python() {
  if "$1" -c 'import venv' > /dev/null 2>&1; then
    command -v "$1"
  else
    compgen -G "${PYENV_ROOT:-$HOME/.pyenv}/versions/${1#python}.*/bin/$1" | sort -V | tail -n 1
  fi
}
for name in $pythons; do
  python=$(find_python "$name")
  [ -n "$python" ] || { echo "$name: not here, left out"; continue; }
  for jax in "jax==0.8.0 jaxlib==0.8.0" "jax!=0.10.2 jaxlib!=0.10.2"; do
    folder=$(mktemp -d)
    # shellcheck disable=SC2086
    if "$python" -m venv "$folder" && "$folder/bin/pip" install -q --disable-pip-version-check --editable '.[dev]' $jax; then
      version=$("$folder/bin/python" -c 'import jax; print(jax.__version__)')
      echo "--- $("$folder/bin/python" -V), jax $version"
      ran=$((ran + 1))
      "$folder/bin/python" -m pytest -n 2 -m "not slow" "$@" || failed=1
    else
      echo "--- $name with $jax cannot be installed"
    fi
    rm -rf "$folder"
  done
done
[ "$ran" -gt 0 ] || { echo "nothing was run"; failed=1; }
exit $failed
