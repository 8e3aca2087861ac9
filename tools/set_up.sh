#!/bin/sh
# Builds the environment .venv, or brings it up to date: everything the course, its tests and benchmarks need.
#   sh tools/set_up.sh            what `make .venv` runs; works without make
# PYTHON       the Python to build with. Default: python3, or a newer python3.x where python3 is too old.
# TORCH_INDEX  an extra package index to take torch from. Default: PyTorch's CPU builds, on Linux without an NVIDIA GPU
#              (the default Linux build brings 4 GB of CUDA). Empty: no extra index.
set -eu
cd "$(dirname "$0")/.."

ENVIRONMENT=.venv
STAMP=$ENVIRONMENT/built # written last: an environment without it is half built

fail() {
    echo "set-up: $*" >&2
    exit 1
}

is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON-}" ]; then
        set -- "$PYTHON"
    else
        set -- python3 python3.14 python3.13 python3.12 python3.11
    fi
    for name; do
        if is_recent "$name"; then
            echo "$name"
            return
        fi
    done
    found=$("$1" --version 2>&1) || found="no $1"
    fail "Python 3.11 or newer is needed, found: $found. Install one, then name it: make .venv PYTHON=python3.12"
}

has_nvidia_gpu() {
    nvidia-smi -L >/dev/null 2>&1 || [ -e /dev/nvidia0 ]
}

torch_index() {
    if [ "$(uname -s)" = Linux ] && ! has_nvidia_gpu; then
        echo https://download.pytorch.org/whl/cpu
    fi
}

create() {
    python=$(find_python)
    echo "set-up: building $ENVIRONMENT with $("$python" --version), about 1.5 GB"
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --seed --clear --python "$python" $ENVIRONMENT
    else
        "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
            fail "$python has no venv module. On Debian and Ubuntu: apt install python3-venv"
        "$python" -m venv --clear $ENVIRONMENT
    fi
}

install() {
    if command -v uv >/dev/null 2>&1; then
        uv pip install --python $ENVIRONMENT/bin/python "$@"
    else
        $ENVIRONMENT/bin/python -m pip install --disable-pip-version-check "$@"
    fi
}

# torch alone, first, so that no other package is looked for on the extra index. One try with a short wait: where the
# index cannot be reached the set-up goes on, and the next step takes torch from the usual place.
install_torch() {
    torch=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.txt)
    if command -v uv >/dev/null 2>&1; then
        UV_HTTP_RETRIES=0 UV_HTTP_TIMEOUT=15 install --no-deps --extra-index-url "$1" "$torch"
    else
        install --retries 0 --timeout 15 --no-deps --extra-index-url "$1" "$torch"
    fi || echo "set-up: no torch from $1, taking it from the usual index"
}

rm -f $STAMP
if ! is_recent $ENVIRONMENT/bin/python || ! $ENVIRONMENT/bin/python -m pip --version >/dev/null 2>&1; then
    create
fi
index=${TORCH_INDEX-$(torch_index)}
if [ -n "$index" ]; then
    install_torch "$index"
fi
install -r requirements.txt ||
    fail "not every package could be installed, the reason stands above; the next try goes on from here"
# setuptools is in requirements.txt: building kvlab itself needs no network.
install --no-deps --no-build-isolation -e .
# Pages that nbconvert and JupyterLab export keep the alt text of pictures.
ln -sfn "$PWD/tools/nbconvert/kvlab" $ENVIRONMENT/share/jupyter/nbconvert/templates/kvlab
mkdir -p $ENVIRONMENT/etc/jupyter
echo '{"HTMLExporter": {"template_name": "kvlab"}}' >$ENVIRONMENT/etc/jupyter/jupyter_config.json
touch $STAMP
