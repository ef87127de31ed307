# Installs what the rows of .ci/run need, where this is Debian and we are root. It sources this; what cannot be
# installed is said here, and the rows that need it say SKIP.
install() { apt-get install -y --no-install-recommends "$@" > "$BUILD/apt.txt" 2>&1; }
say 'what is needed'
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    # where an earlier installation was interrupted, nothing else helps
    dpkg --configure -a > "$BUILD/apt.txt" 2>&1
    apt-get update > "$BUILD/apt.txt" 2>&1 || echo 'apt-get update failed; going on with what is there'
    install gcc libc6-dev make binutils || tail -n 3 "$BUILD/apt.txt"
    for package in g++ clang clang-format-14 musl-tools gcc-multilib openmpi-bin mpich libopenmpi-dev libmpich-dev \
        python3-torch python3-venv python3-pip cmake meson pkg-config nodejs curl libmimalloc2.0 libjemalloc2 gcc-mingw-w64-x86-64 tcc chromium node-d3; do
        install "$package" || echo "cannot install $package: $(tail -n 1 "$BUILD/apt.txt")"
    done
    install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm ||
        echo "nothing for boards: $(tail -n 1 "$BUILD/apt.txt")"
    # another kind of machine; with clang, since gcc for it and gcc -m32 cannot both be installed
    v=$(gcc -dumpversion | cut -d. -f1)
    install lld qemu-user libc6-dev-arm64-cross "libgcc-$v-dev-arm64-cross" ||
        echo "nothing for aarch64: $(tail -n 1 "$BUILD/apt.txt")"
    # the sanitizers of clang are a package of their own, named after its version
    v=$(clang --version 2> /dev/null | sed -n 's/.*clang version \([0-9]*\).*/\1/p')
    [ -z "$v" ] || install "libclang-rt-$v-dev" || echo "no libclang-rt-$v-dev"
else
    echo 'not root, or no apt-get: going on with what is there'
fi
for program in gcc g++ clang make musl-gcc; do
    printf '%-10s %s\n' $program "$($program --version 2>&1 | head -n 1)"
done
echo "cores $JOBS, $(uname -srm)"
