#!/bin/sh
# Installs what the programs of `farpage bench program --suite` need and this machine lacks (Debian 12 or newer, as root
# or with sudo): Debian's packages, and a virtual environment for what only PyPI has, in target/suite-venv or
# $SUITE_VENV. Not a part of make setup: nothing but that bench needs it. Says nothing when everything is there.
set -eu

. "$(dirname "$0")/packages.sh"

need sort coreutils
need perl perl
need sqlite3 sqlite3
need gcc gcc
need node nodejs
need javac default-jdk-headless
need redis-check-rdb redis-tools
need Rscript r-base-core
[ -x /usr/bin/python3 ] || missing="$missing python3"
need_module ensurepip python3-venv
need_module numpy python3-numpy
need_module pandas python3-pandas
need_module networkx python3-networkx
need_module osgeo.gdal_array python3-gdal
[ -e /usr/share/proj/proj.db ] || missing="$missing proj-data"
install_missing || exit 1

root=$(cd "$(dirname "$0")/.." && pwd)
venv=${SUITE_VENV:-$root/target/suite-venv}
if ! "$venv/bin/python3" -c 'import duckdb, numpy, polars' >/dev/null 2>&1; then
    echo "setup: installing duckdb and polars into $venv" >&2
    # With Debian's modules: the same Python then has everything.
    /usr/bin/python3 -m venv --clear --system-site-packages "$venv"
    "$venv/bin/python3" -m pip install --quiet --disable-pip-version-check 'duckdb>=1.1,<2' 'polars>=1.10,<2'
fi
