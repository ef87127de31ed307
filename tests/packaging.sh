#!/usr/bin/env bash
# The library as a dependency: `make dist` makes an archive whose sums are right, and from that archive each way of
# packaging/README.md installs the headers, one of which nobody wrote into a list, and builds a program of two files in a
# folder of its own. Nothing is written outside a temporary folder. A way that is not installed here is a SKIP.
#
# packaging.sh [WAY...]. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
good() { passed=$((passed + 1)); echo "ok $1"; }
bad() { failed=$((failed + 1)); echo "not ok $1: $2"; tail -n 20 "$work/out" | sed 's/^/    /'; }

# The program: one file has the implementation, the other one calls it, and sees the planted header.
program() { # FOLDER
    mkdir -p "$1"
    printf '#define CDP_IMPLEMENTATION\n#include "cdp_tcp.h"\n' > "$1/implementation.c"
    cat > "$1/main.c" <<'C'
#include "cdp_planted.h"
#include "cdp_tcp.h"
#include <stdio.h>
int main(void) {
    float x[2] = {1, CDP_PLANTED};
    cdp_tcp_desc desc = {0};
    cdp_group *world;
    desc.group.world_size = 1;
    if (cdp_init(&desc, &world) != CDP_OK) return cdp_print_error(stderr);
    if (cdp_allreduce(world, NULL, x, 2, CDP_DTYPE_F32, CDP_REDUCE_SUM) != CDP_OK)
        return cdp_print_error(stderr);
    printf("rank %u of %u: %g\n", cdp_rank(world), cdp_size(world), x[1]);
    cdp_group_destroy(world);
    return 0;
}
C
}
runs() { # PROGRAM
    [ "$("$1")" = 'rank 0 of 1: 42' ] || { echo "$1 does not say what it should"; return 1; }
}
# All headers of the source, the planted one among them, byte for byte, and what finds them.
installed() { # PREFIX
    local header file
    for header in "$work/source"/cdp*.h; do
        cmp "$header" "$1/include/$(basename "$header")" || return
    done
    for file in share/pkgconfig/cdp.pc share/cmake/cdp/cdp-config.cmake share/cmake/cdp/cdp-config-version.cmake share/licenses/cdp/LICENSE; do
        [ -s "$1/$file" ] || { echo "$1/$file is missing"; return 1; }
    done
    grep -qx "Version: $version" "$1/share/pkgconfig/cdp.pc" || { echo "cdp.pc does not say $version"; return 1; }
}
cmake_program() { # FOLDER LINE...: how it comes by cdp::cdp
    program "$1"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.14)' 'project(adopts C)' "${@:2}" \
        'add_executable(adopts main.c implementation.c)' 'target_link_libraries(adopts PRIVATE cdp::cdp)' > "$1/CMakeLists.txt"
}
cmake_builds() { # FOLDER OPTION...
    cmake -S "$1" -B "$1/build" "${@:2}" && cmake --build "$1/build" && runs "$1/build/adopts"
}

# ---- the ways, in the order of packaging/README.md; each prints what it does, and fails if one of its commands does ----

way_dist() {
    (cd "$work/sums" && sha256sum --quiet -c SHA256SUMS && ! find . -type f | sed 's,^\./,,' | grep -vxF SHA256SUMS |
        grep -vxFf <(cut -c 67- SHA256SUMS)) && cmp "$work/dist.tar.gz" "$work/dist_again.tar.gz"
}
way_make() {
    local prefix="$work/a prefix"
    make -s -C "$work/source" install PREFIX=/opt/cdp DESTDIR="$work/staged" && installed "$work/staged/opt/cdp" &&
        make -s -C "$work/source" install PREFIX="$prefix" && installed "$prefix" && program "$work/make" && cd "$work/make" &&
        gcc -O0 main.c implementation.c -I"$prefix/include" -o adopts -pthread -lm && runs ./adopts
}
way_pkg_config() {
    make -s -C "$work/source" install PREFIX="$work/pkg" && export PKG_CONFIG_PATH="$work/pkg/share/pkgconfig" &&
        [ "$(pkg-config --modversion cdp)" = "$version" ] && program "$work/pc" && cd "$work/pc" &&
        gcc -O0 main.c implementation.c $(pkg-config --cflags --libs cdp) -o adopts && runs ./adopts
}
way_cmake_installed() {
    cmake -S "$work/source" -B "$work/cmake_build" -DCMAKE_INSTALL_PREFIX="$work/cmake" &&
        cmake --build "$work/cmake_build" --target install && installed "$work/cmake" &&
        cmake_program "$work/finds" "find_package(cdp $version REQUIRED)" &&
        cmake_builds "$work/finds" -DCMAKE_PREFIX_PATH="$work/cmake" &&
        cmake_program "$work/too_new" "find_package(cdp ${version%%.*}.99 REQUIRED)" &&
        ! cmake -S "$work/too_new" -B "$work/too_new/build" -DCMAKE_PREFIX_PATH="$work/cmake"
}
way_cmake_fetched() {
    cmake_program "$work/fetches" 'include(FetchContent)' "FetchContent_Declare(cdp URL $work/planted.tar.gz)" \
        'FetchContent_MakeAvailable(cdp)' && cmake_builds "$work/fetches"
}
# Two of them are compiled; the others are there.
way_cmake_programs() {
    local file
    cmake -S "$work/source" -B "$work/programs" -DCDP_EXAMPLES=ON -DCDP_TOOLS=ON &&
        cmake --build "$work/programs" --target help > "$work/targets" &&
        for file in examples/*.c examples/*.cpp tools/*.c; do
            case $file in tools/join.c) continue ;; esac
            file=$(basename "$file")
            grep -qw "cdp_${file%.*}" "$work/targets" || { echo "no target for $file"; return 1; }
        done && cmake --build "$work/programs" --target cdp_01_hello cdp_cdprun &&
        "$work/programs/cdprun" -n 2 "$work/programs/01_hello"
}
way_meson() {
    meson setup "$work/meson_build" "$work/source" --prefix "$work/meson" && meson install -C "$work/meson_build" &&
        installed "$work/meson" && program "$work/wraps" && mkdir "$work/wraps/subprojects" &&
        cp -r "$work/source" "$work/wraps/subprojects/cdp" &&
        printf '%s\n' "project('adopts', 'c')" \
            "executable('adopts', 'main.c', 'implementation.c', dependencies: dependency('cdp', version: '$version', fallback: ['cdp', 'cdp_dep']))" \
            > "$work/wraps/meson.build" &&
        meson setup "$work/wraps/build" "$work/wraps" && meson compile -C "$work/wraps/build" adopts && runs "$work/wraps/build/adopts"
}
way_vcpkg() {
    vcpkg install cdp --overlay-ports="$work/source/packaging/vcpkg" --x-install-root="$work/vcpkg" &&
        cmake_program "$work/vcpkg_program" 'find_package(cdp REQUIRED)' &&
        cmake_builds "$work/vcpkg_program" -DCMAKE_PREFIX_PATH="$(echo "$work/vcpkg"/*-*)"
}
# The recipe for vcpkg on functions that stand in for vcpkg's: its paths are right, and what it moves is found.
way_vcpkg_recipe() {
    cat > "$work/stand_in.cmake" <<'CMAKE'
function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 a "" SOURCE_PATH "")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${a_SOURCE_PATH} -B ${WORK}/b -DCMAKE_INSTALL_PREFIX=${WORK}/p COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(vcpkg_cmake_install)
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${WORK}/b COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 a "" CONFIG_PATH "")
  file(GLOB files ${WORK}/p/${a_CONFIG_PATH}/*)
  file(COPY ${files} DESTINATION ${WORK}/p/share/cdp)
  file(REMOVE_RECURSE ${WORK}/p/${a_CONFIG_PATH})
endfunction()
function(vcpkg_fixup_pkgconfig)
endfunction()
function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 a "" "" FILE_LIST)
  file(COPY ${a_FILE_LIST} DESTINATION ${WORK}/p/share/cdp)
endfunction()
set(CURRENT_PORT_DIR ${PORT})
include(${PORT}/portfile.cmake)
CMAKE
    mkdir "$work/port" && cmake -DWORK="$work/port" -DPORT="$work/source/packaging/vcpkg/cdp" -P "$work/stand_in.cmake" &&
        cmake_program "$work/port/program" 'find_package(cdp REQUIRED)' &&
        cmake_builds "$work/port/program" -DCMAKE_PREFIX_PATH="$work/port/p"
}
way_conan() {
    export CONAN_HOME="$work/conan_home"
    conan profile detect && conan create "$work/source/packaging/conan" && program "$work/conan" && cd "$work/conan" &&
        conan install --requires="cdp/$version" -g PkgConfigDeps --output-folder=. &&
        PKG_CONFIG_PATH=. pkg-config --exists cdp &&
        gcc -O0 main.c implementation.c $(PKG_CONFIG_PATH=. pkg-config --cflags --libs cdp) -o adopts && runs ./adopts
}

WAYS='
dist            tar      the archive has the sums of all its files, and is the same when it is made again
make            make     make install PREFIX=
pkg_config      pkg-config cdp.pc
cmake_installed cmake    CMake, find_package
cmake_fetched   cmake    CMake, FetchContent
cmake_programs  cmake    CMake, examples and tools
meson           meson    Meson, installed and as a subproject
vcpkg           vcpkg    vcpkg, overlay port
vcpkg_recipe    cmake    the recipe for vcpkg, on a stand-in
conan           conan    Conan, and pkg-config'

make -s dist BUILD="$work/build" > "$work/out" 2>&1 && cp "$work/build"/dist/*.tar.gz "$work/dist.tar.gz" &&
    make -s dist BUILD="$work/build" > "$work/out" 2>&1 && cp "$work/build"/dist/*.tar.gz "$work/dist_again.tar.gz" || {
    bad dist 'make dist fails (it needs a git checkout)'
    echo "$passed passed, $failed failed"
    exit 1
}
mkdir "$work/source" "$work/sums" && tar -xzf "$work/dist.tar.gz" --strip-components=1 -C "$work/sums" && cp -r "$work/sums/." "$work/source"
printf '#define CDP_PLANTED 42\n' > "$work/source/cdp_planted.h"
tar -czf "$work/planted.tar.gz" -C "$work" source
version=$(sed -nE 's/^#define CDP_VERSION_(MAJOR|MINOR|PATCH) //p' cdp.h | paste -sd .)

while read -r way needs says; do
    [ -n "$way" ] && { [ $# = 0 ] || [[ " $* " == *" $way "* ]]; } || continue
    if ! command -v "$needs" > /dev/null; then echo "SKIP $says: $needs is not installed"; continue; fi
    if (set -e; "way_$way") > "$work/out" 2>&1 < /dev/null; then good "$says"; else bad "$says" "way_$way"; fi
done <<< "$WAYS"
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
