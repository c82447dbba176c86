# Shared by ./check and ./demo (sourced, POSIX sh): moves to the project's folder, installs Debian packages, builds.
# Every failure is one clear line.

cd "$(dirname "$(readlink -f "$0")")" || exit 1 # also when called through a link

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# say TEXT: a step of the script.
say() { printf '\n== %s\n' "$*"; }

# setup_packages GROUP...: installs what is missing of the groups in tools/packages.
setup_packages() {
    missing=
    for group in "$@"; do
        for package in $(sed -n "s/^$group //p" tools/packages); do
            dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
        done
    done
    [ -z "$missing" ] && return 0
    command -v apt-get >/dev/null || fail "this system has no apt-get; install what matches these Debian packages:$missing"
    [ "$(id -u)" -eq 0 ] || fail "packages are missing; run: sudo apt-get install$missing"
    say "Installing$missing"
    log=$(mktemp) || fail "no temporary file can be written; is the disk full?"
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        rm -f "$log"
        fail "apt-get could not install$missing (no network, or no room on the disk; see above)"
    fi
    rm -f "$log"
}

# setup_build PRESET [TARGET]: configures build/PRESET and builds everything, or one target only. Everything includes the
# tests; for one target they are configured only where their library is there.
setup_build() {
    command -v cc >/dev/null || fail "no C compiler (cc) is installed"
    say "Building ($1)"
    mkdir -p build || fail "the folder build cannot be made; is the disk full?"
    tests=ON
    [ $# -eq 1 ] || pkg-config --exists cmocka || tests=OFF
    if ! cmake --preset "$1" -DTRD_BUILD_TESTS="$tests" >build/"$1".log 2>&1; then
        tail -n 20 build/"$1".log >&2
        fail "cmake could not configure the build (see above)"
    fi
    cmake --build --preset "$1" ${2:+--target "$2"} || fail "the build failed (see above)"
}
