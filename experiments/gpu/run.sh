#!/usr/bin/env bash
# Everything that is measured on a GPU, in steps: `run.sh --help`. What is carried as wheels is installed into a temporary folder first.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
python="${PYTHON:-python3}"
wheels="${AUTOSCHED_WHEELS:-$root/.whl}"
site="${AUTOSCHED_SITE:-${TMPDIR:-/tmp}/autosched-site-$(id -u)}"

missing() { ! "$python" -c "import sys, importlib.util as u; sys.exit(u.find_spec('$1') is None)"; }

export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
if compgen -G "$wheels/*.whl" >/dev/null; then
  [ -d "$site" ] || "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$wheels"/*.whl
  export PYTHONPATH="$PYTHONPATH:$site"
fi
export AUTOSCHED_CUDA_DRIVER="${AUTOSCHED_CUDA_DRIVER:-cuda-core}" # pycuda would be preferred where it is importable
if [ "$AUTOSCHED_CUDA_DRIVER" = pycuda ] && missing pycuda; then
  timeout 400 "$python" -m pip install -q --no-index --no-deps --no-build-isolation --no-compile --target "$site" \
    "$wheels"/pycuda-*.tar.gz
fi
for name in numpy llvmlite networkx xgboost rich; do
  if missing "$name"; then # some steps go without it
    echo "run.sh: the package $name is missing; carry its wheel in $wheels (see run.sh --help)" >&2
  fi
done
cd "$root"
exec "$python" -m experiments.gpu "$@"
