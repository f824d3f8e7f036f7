#!/usr/bin/env bash
# The kernels of products on a CPU: doctor and the head of a run name them, threads and the plain
# kernel do not change a bit, a resume with another kernel says so, ranks with different ones refuse.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
run=(train --data.path=text.txt --data.split=0 --model.layers=2 --model.width=96 --model.heads=4 --model.context=64
    --train.micro_batch=4 --train.global_batch=8 --train.steps=2)
weights() { # RUN RUN: both have the same
    cmp -s "$1/checkpoints/step-2/model.safetensors" "$2/checkpoints/step-2/model.safetensors"
}

ok "$sifr" doctor
has '^ *products +fp32 by .*; bf16 '
own=$(sed -n 's/^ *products *fp32 by \(.*\); bf16 .*/\1/p' out)
bf16=$(sed -n 's/^ *products *fp32 by .*; bf16 by \(.*\)/\1/p' out)

ok "$sifr" "${run[@]}" --run.threads=1 --out=one
grep -q "products in fp32 by $own, 1 thread" out err || fail "the head of the run does not name the kernel: $(cat out err)"
ok "$sifr" "${run[@]}" --run.threads=5 --out=five
weights one five || fail "fp32: five threads have other bits"
if [ "$own" != OpenBLAS ]; then
    ok env SIFR_CPU_KERNEL=plain "$sifr" "${run[@]}" --out=plain
    weights one plain || fail "the kernel $own has other bits than plain C"
fi
expect 2 'SIFR_CPU_KERNEL=MMX: this machine has no such kernel; use one of ' env SIFR_CPU_KERNEL=MMX "$sifr" "${run[@]}" --out=mmx
expect 2 'run.kernels=mmx: this machine has no such kernels; use .*openblas, plain, or auto' "$sifr" "${run[@]}" --run.kernels=mmx --out=mmx
ok "$sifr" "${run[@]}" --run.kernels=plain --run.threads=1 --out=forced
grep -q "products in fp32 by plain, 1 thread" out err || fail "run.kernels=plain is not used: $(cat out err)"
ok "$sifr" "${run[@]}" --run.kernels=plain --run.threads=2 --out=two-forced
weights forced two-forced || fail "run.kernels=plain: two threads have other bits"
ok "$sifr" "${run[@]}" --run.kernels=openblas --train.steps=3 --out=forced
grep -q "bits of the run may differ from now on: cpu: .*products plain' -> .*products OpenBLAS'" err || fail "the resume does not name the change: $(cat err)"

# eval and sample: by their own key, not by that of the run, which may have been on another machine
for command in "eval forced --data.val=text.txt --batches=1" "sample forced The --tokens=2 --temperature=0"; do
    expect 2 'run.kernels=mmx: this machine has no such kernels; use .*openblas, plain, or auto' "$sifr" $command --run.kernels=mmx
    ok "$sifr" $command --run.kernels=plain
done
sed -i 's/^  kernels: .*/  kernels: mmx/' forced/config.yaml
grep -q 'kernels: mmx' forced/config.yaml || fail "config.yaml has no kernels"
ok "$sifr" eval forced --data.val=text.txt --batches=1
if [ "$own" != OpenBLAS ]; then
    ok "$sifr" eval forced --data.val=text.txt --json
    loss=$(grep -o '"loss": [^,]*' out)
    ok "$sifr" eval forced --data.val=text.txt --json --run.kernels=openblas
    [ "$(grep -o '"loss": [^,]*' out)" != "$loss" ] || fail "run.kernels changes nothing in eval: $loss"
fi

[ -n "$bf16" ] || { skip_part "products in bf16: this CPU has no instructions for them"; finish; exit; }
ok "$sifr" "${run[@]}" --precision.mode=bf16 --run.threads=1 --out=short
grep -q "products in bf16 by $bf16, 1 thread" out err || fail "the head of the run does not name the kernel: $(cat out err)"
ok "$sifr" "${run[@]}" --precision.mode=bf16 --run.threads=3 --out=three
weights short three || fail "bf16: three threads have other bits"
ok env SIFR_CPU_KERNEL_BF16=none "$sifr" "${run[@]}" --precision.mode=bf16 --out=none
! weights short none || fail "SIFR_CPU_KERNEL_BF16=none changes nothing"
ok env SIFR_CPU_KERNEL_BF16=none "$sifr" "${run[@]}" --precision.mode=bf16 --train.steps=3 --out=short
grep -q "bits of the run may differ from now on: cpu: .*bf16 $bf16' -> " err || fail "the resume does not name the change: $(cat err)"

case $(ldd "$sifr" | grep -oE 'libmpi(ch)?\.so' | head -n 1) in
    libmpich.so) mine=mpirun.mpich ;;
    *) mine='mpirun.openmpi --oversubscribe' ;;
esac
if has_program "${mine%% *}" 'ranks with different kernels'; then
    expect 2 'rank 1 has another configuration than rank 0: .*run.kernels.*products' $mine -n 1 "$sifr" "${run[@]}" --run.threads=1 --out=two : \
        -n 1 "$sifr" "${run[@]}" --run.threads=1 --run.kernels=plain --out=two
fi
finish
