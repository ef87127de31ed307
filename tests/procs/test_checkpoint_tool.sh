#!/usr/bin/env bash
# test_checkpoint_tool.sh - tools/checkpoint.c merges what a job saved into one file, and touches nothing that it must not
#
#   bash tests/procs/test_checkpoint_tool.sh      BUILD=DIR (default: build)
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/procs/launchers.sh
if [ -n "${JOB:-}" ]; then # JOB, CHECKPOINT: programs that are built already
    without_job
else
    programs 22_checkpoint checkpoint
    JOB=$B/22_checkpoint CHECKPOINT=$B/checkpoint
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
RANK=0 WORLD_SIZE=1 "$JOB" save "$work/run" > "$work/out" 2>&1 || bad "a job saves: $(tail -n 1 "$work/out")"
one=$work/one.safetensors
"$CHECKPOINT" merge "$work/run" "$one" > "$work/out" 2> "$work/err"
check "all tensors are merged into one file" $? 0
check "bytes of the program are named as left out" "$(cat "$work/out")" 'left out: note'
"$CHECKPOINT" compare "$work/run" "$one" > "$work/out" 2> "$work/err"
check "nothing else is different" "$(cat "$work/out")" $'only in the first: note\n1 differences'
check "the header has a length that 8 divides" $(($(od -An -tu8 -N8 "$one") % 8)) 0
before=$(cksum < "$one")
"$CHECKPOINT" merge "$work/run" "$one" > "$work/out" 2> "$work/err"
check "a file that exists is refused" $? 1
check "and not touched" "$(cksum < "$one")" "$before"
ln -s loop "$work/loop" # as a file that may not be read
"$CHECKPOINT" merge "$work/run" "$work/loop" > "$work/out" 2> "$work/err"
check "a file that cannot be looked at is refused" $? 1
check "and stays what it is" "$(readlink "$work/loop")" loop
"$CHECKPOINT" merge "$one" "$work/again.safetensors" > "$work/out" 2> "$work/err"
check "files without sums are merged" $? 0
check "into the same bytes" "$(cksum < "$work/again.safetensors")" "$before"
echo other > "$work/two.safetensors.part" # of another merge
"$CHECKPOINT" merge "$work/run" "$work/two.safetensors" > "$work/out" 2> "$work/err"
check "a file of another merge is refused" $? 1
has "with what to do" "$work/err" 'two.safetensors.part exists, of a merge that runs or was ended: remove it'
check "and not touched, either" "$(cat "$work/two.safetensors.part")" other
if command -v strace > /dev/null; then
    strace -f -e trace=fsync,rename -o "$work/calls" "$CHECKPOINT" merge "$one" "$work/three.safetensors" > "$work/out" 2> "$work/err"
    check "the file is on the disk before it has its name" "$(grep -oE 'fsync|rename' "$work/calls" | tr '\n' ' ')" 'fsync rename '
fi
"$CHECKPOINT" convert "$work/run" "$work/half.safetensors" --dtype bf16 > "$work/out" 2> "$work/err"
check "all tensors are converted" $? 0
"$CHECKPOINT" list "$work/half.safetensors" > "$work/out" 2> "$work/err"
check "no float is left that is wider" "$(grep -c 'f32\[' "$work/out")" 0
has "they are bf16" "$work/out" 'bf16['
"$CHECKPOINT" convert "$work/half.safetensors" "$work/wide.safetensors" --dtype f32 > "$work/out" 2> "$work/err"
"$CHECKPOINT" convert "$work/wide.safetensors" "$work/narrow.safetensors" --dtype bf16 > "$work/out" 2> "$work/err"
check "and back, and again: what was rounded once stays" "$(cksum < "$work/narrow.safetensors")" "$(cksum < "$work/half.safetensors")"
"$CHECKPOINT" convert "$one" "$work/same.safetensors" --dtype f32 > "$work/out" 2> "$work/err"
check "what has the dtype already is not changed" "$(cksum < "$work/same.safetensors")" "$before"
"$CHECKPOINT" convert "$one" "$work/no.safetensors" --dtype int8 > "$work/out" 2> "$work/err"
check "a dtype that is none of floats is refused" $? 2
check "and nothing is written" "$(find "$work" -name 'no.safe*')" ''
"$CHECKPOINT" convert "$work/run" "$work/all.pt" > "$work/out" 2> "$work/err"
check "all tensors are converted for torch.load()" $? 0
check "bytes of the program are named here, too" "$(cat "$work/out")" 'left out: note'
check "it is a zip archive" "$(head -c 2 "$work/all.pt")" PK
[ -z "$(command -v unzip)" ] || { unzip -tqq "$work/all.pt" > "$work/out" 2>&1; check "whose sums are right" $? 0; }
"$CHECKPOINT" merge "$one" "$work/again.pth" > "$work/out" 2> "$work/err"
check "the same tensors make the same bytes" "$(cksum < "$work/again.pth")" "$(cksum < "$work/all.pt")"
"$CHECKPOINT" convert "$work/run" "$work/all.pt" > "$work/out" 2> "$work/err"
check "a file that exists is refused here, too" $? 1
"$CHECKPOINT" show "$work/run" > "$work/page.svg" 2> "$work/err"
check "a picture is drawn" $? 0
has "for dark pages, too" "$work/page.svg" 'prefers-color-scheme:dark'
check "each tensor has its text" "$(grep -c 'safetensors</tspan>' "$work/page.svg")" "$("$CHECKPOINT" list "$one" | grep -c safetensors)"
"$CHECKPOINT" merge "$work/run" "$work/no/such.safetensors" > "$work/out" 2> "$work/err"
check "a folder that is not there is an error" $? 1

# What PyTorch has written: a tensor z of complex numbers, without elements
mkdir "$work/torch"
printf '%b' '\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}(U\x13state_dict_metadata}(U\x01z' \
    'ctorch.distributed.checkpoint.metadata\nTensorStorageMetadata\n)\x81}(U\x0aproperties' \
    'ctorch.distributed.checkpoint.metadata\nTensorProperties\n)\x81(ctorch\ncomplex64\ntbU\x04size(K\x00tU\x06chunks]ubu' \
    'U\x0cstorage_data}ub.' > "$work/torch/.metadata"
"$CHECKPOINT" merge "$work/torch" "$work/complex.safetensors" > "$work/out" 2> "$work/err"
check "complex numbers, which the format lacks, are refused" $? 1
has "by name" "$work/err" "'z' is cf32, which files of safetensors cannot have"
check "and nothing is written" "$(find "$work" -name 'complex*')" ''

model=$(find "$work/run" -name 'model-*.safetensors')
printf 'x' | dd of="$model" bs=1 seek=4200 conv=notrunc 2> "$work/err"
"$CHECKPOINT" merge "$work/run" "$work/bad.safetensors" > "$work/out" 2> "$work/err"
check "a damaged tensor is not merged" $? 1
has "it is named" "$work/err" "'w'"
check "and nothing is left behind" "$(find "$work" -name 'bad*')" ''
finish
