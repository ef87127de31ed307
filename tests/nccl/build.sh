#!/usr/bin/env bash
# Makes the stand-in for CUDA and NCCL (standin.h says what that is) as shared libraries with the real ones' names:
#   build.sh DIR [FLAGS...]
# DIR has the newest NCCL that it knows; DIR/2.18, 2.26, 2.27 and 2.10 have older ones (the last one is too old for cdp),
# DIR/none has CUDA without NCCL. STANDIN_REAL=/usr/local/cuda/include compares every declaration with the real headers.
set -eu
dir=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
cc=${CC:-gcc}
real=${STANDIN_REAL:+-DSTANDIN_REAL_HEADERS -I$STANDIN_REAL}
lib() { # FILE NAME [FLAGS]
    local file=$1 name=$2
    shift 2
    mkdir -p "$(dirname "$dir/$name")"
    $cc -std=gnu11 -O1 -g -Wall -Wextra -Wno-format-truncation -fPIC -shared $real "$here/$file" -o "$dir/$name.tmp" -Wl,-soname,"$(basename "$name")" "$@" -pthread
    mv "$dir/$name.tmp" "$dir/$name"
}
lib standin_cuda.c libcudart.so.13 "$@"
lib standin_driver.c libcuda.so.1 "$@" -L"$dir" -l:libcudart.so.13 -ldl
lib standin_nvrtc.c libnvrtc.so.13 "$@" -L"$dir" -l:libcudart.so.13
for v in .:22907 2.18:21805 2.26:22605 2.27:22703 2.10:21003; do
    [ -n "$real" ] && [ ${v#*:} = 21003 ] && continue # lacks what today's headers declare
    lib standin_nccl.c "${v%:*}/libnccl.so.2" -DSTANDIN_NCCL="${v#*:}" "$@" -L"$dir" -l:libcudart.so.13
done
for d in 2.18 2.26 2.27 2.10 none; do
    mkdir -p "$dir/$d"
    for f in libcudart.so.13 libcuda.so.1 libnvrtc.so.13; do ln -sf "../$f" "$dir/$d/$f"; done
done
for f in libcudart.so.13:libcudart.so libnvrtc.so.13:libnvrtc.so libcuda.so.1:libcuda.so libnccl.so.2:libnccl.so; do ln -sf "${f%:*}" "$dir/${f#*:}"; done # for linking
touch "$dir/libnccl.so"
