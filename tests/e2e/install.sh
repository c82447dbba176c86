#!/bin/sh
# usage: install.sh TREADLE
# The installed tree serves a program of someone else: found by pkg-config (shared and static) and by CMake, compiled
# from the public headers alone, moved to another place, and run.
. "$(dirname "$0")/common"
build=$(cd "$(dirname "$treadle")" && pwd)
root=$(dirname "$here")
for tool in cmake pkg-config cc; do
    command -v $tool > /dev/null || skip "no $tool here"
done
sanitize=$(sed -n 's/^TRD_SANITIZE:[A-Z]*=//p' "$build/CMakeCache.txt")
flags="-std=c17 -O1 -Wall -Wextra ${sanitize:+-fsanitize=$sanitize}"

cmake --install "$build" --prefix "$work/first" > "$work/log" || fail "cmake --install: $(cat "$work/log")"
mv "$work/first" "$work/prefix"
library=$(dirname "$(dirname "$(find "$work/prefix" -name treadle.pc)")")
PKG_CONFIG_PATH=$library/pkgconfig
export PKG_CONFIG_PATH
[ "$("$work/prefix/bin/treadle" --version)" = "$("$treadle" --version)" ] || fail "the installed program says another version"
[ -f "$work/prefix/share/doc/treadle/LICENSE" ] || fail "no LICENSE was installed"
ls "$library"/libtreadle.so.[0-9] > /dev/null || fail "no shared library with a soname"

small_run << END
steps: 20
END

learns() { # learns PROGRAM: trains, prints metrics, and leaves a checkpoint
    rm -rf "$work/runs"
    "$1" "$work/config.yml" > "$work/out" 2> "$work/err" || fail "$1: $(cat "$work/err")"
    awk '$1 == "loss" && $2 > 0 && $2 < 4.5 { found = 1 } END { exit !found }' "$work/out" ||
        fail "$1: expected a loss below 4.5 after 20 steps: $(cat "$work/out")"
    [ -d "$work/runs/run/checkpoints/step-20" ] || fail "$1: no checkpoint"
}

scores() { # scores PROGRAM: its text is likelier after training; says so itself by its exit code
    "$1" > "$work/out" 2> "$work/err" || fail "$1: $(cat "$work/out" "$work/err")"
    prints "model.norm.weight[0] = 1"
    prints "log-probability per token:"
}

# Each header stands alone, as C and as C++.
for header in "$work"/prefix/include/treadle/*.h; do
    name=${header##*/}
    cc -std=c17 -pedantic -Wall -Wextra -Werror -fsyntax-only -include "treadle/$name" -x c /dev/null \
        $(pkg-config --cflags treadle) || fail "$name alone is no C"
    grep -q "<treadle/$name>" "$root/include/treadle/treadle.h" || [ "$name" = treadle.h ] ||
        fail "treadle.h leaves $name out"
    command -v c++ > /dev/null || continue
    c++ -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -include "treadle/$name" -x c++ /dev/null \
        $(pkg-config --cflags treadle) || fail "$name alone is no C++"
done

cc $flags -c "$root/examples/own_loss.c" -o "$work/own_loss.o" $(pkg-config --cflags treadle)
cc $flags -c "$root/examples/forward.c" -o "$work/forward.o" $(pkg-config --cflags treadle)
cc $flags "$work/own_loss.o" -o "$work/shared" $(pkg-config --libs treadle) -Wl,-rpath,"$library"
learns "$work/shared"
cc $flags "$work/forward.o" -o "$work/forward" $(pkg-config --libs treadle) -Wl,-rpath,"$library"
scores "$work/forward"

mkdir "$work/project"
cat > "$work/project/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.22)
project(examples LANGUAGES C)
find_package(treadle 0.1 REQUIRED)
add_executable(by_shared "$root/examples/own_loss.c")
target_link_libraries(by_shared PRIVATE treadle::shared)
add_executable(by_static "$root/examples/own_loss.c")
target_link_libraries(by_static PRIVATE treadle::static)
add_executable(forward "$root/examples/forward.c")
target_link_libraries(forward PRIVATE treadle::static)
END
cmake -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_FLAGS="$flags" \
    > "$work/log" 2>&1 && cmake --build "$work/project/build" >> "$work/log" 2>&1 || fail "CMake: $(cat "$work/log")"
learns "$work/project/build/by_shared"
learns "$work/project/build/by_static"
scores "$work/project/build/forward"

rm "$library"/libtreadle.so*
cc $flags "$work/own_loss.o" -o "$work/static" $(pkg-config --static --libs treadle)
learns "$work/static"
echo "install: ok"
