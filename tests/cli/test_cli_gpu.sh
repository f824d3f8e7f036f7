#!/usr/bin/env bash
# Plans for a GPU, on a fake one made of threads (tests/device/fake_gpu.c): GPU and host memory are
# separate, the runtime is counted, and a run that is too large for the CPU is advised to use the
# GPU.
. "$(dirname "$0")/common.sh" "$@"

fake=${sifr%/sifr}/fake
[ -e "$fake/libsifr-cuda.so" ] || skip_all "this build has no CUDA back ends"
export SIFR_PLUGIN_FOLDER=$fake LD_LIBRARY_PATH=$fake/nvml${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
keys=("${small[@]}" --model.vocab=256 --train.global_batch=8 --train.micro_batch=2)

ok "$sifr" plan "${keys[@]}" -n 2 --run.device=cuda --lines
has '^machine  cuda \(a GPU made of threads\)'
has '^memory   15.7 GiB per rank' # of 16, minus what other processes hold
has '^  runtime \(estimate\) +541.0 MiB +541.0 MiB'
has '^  on the host +[0-9.]+ MiB'
has "^the table shows GPU memory; runtime as measured on an H200: CUDA's context, cuBLASLt and cuDNN 541.0 MiB"
has '^  other +[0-9.]+ MiB  on the host: stream stage$'
has '^  comm +[0-9.]+ MiB  on the host: bounce$'
! grep -q '^  params .*on the host' out || fail "parameters are on the host"
ok "$sifr" plan "${keys[@]}" -n 2 --run.device=cuda --json
has '"runtime_estimate_bytes": ?567279616'
has '"host_bytes": ?[1-9][0-9]{6}'
ok "$sifr" plan "${keys[@]}" -n 2 --run.device=cpu --json
has '"host_bytes": ?0[,}]'

# Fast mode works only on GPUs: one message, the same memory and traffic.
ok "$sifr" plan "${keys[@]}" -n 2 --run.device=cuda --json
mv out exact
ok "$sifr" plan "${keys[@]}" -n 2 --run.device=cuda --run.deterministic=false --json
cmp -s out exact || fail "the plan differs in fast mode"
[ "$(grep -c 'run.deterministic: false: the same run may give other bits: products take .*NCCL' err)" = 1 ] ||
    fail "no message about fast mode: $(cat err)"
expect 2 'run.deterministic: false changes nothing here' \
    "$sifr" plan "${keys[@]}" -n 2 --run.device=cpu --run.deterministic=false
ok "$sifr" plan "${keys[@]}" -n 2 --run.device=cuda --zero.accumulate=local
! grep -q bits err || fail "local sums need no warning: a resume on other workers gives it: $(cat err)"

# The runtime counts: 500 MiB are not enough for the smallest model.
expect 4 'ZeRO stage 0 needs 54[0-9]\.[0-9] MiB per rank, and only 500.0 MiB' \
    "$sifr" plan "${keys[@]}" --run.device=cuda --memory=524288000
expect 4 'the GPU of this machine, a GPU made of threads, has enough memory: set run.device=cuda; on the CPU ' \
    "$sifr" plan "${keys[@]}" --run.device=cpu --memory=100k
unset SIFR_PLUGIN_FOLDER
SIFR_PLUGIN_FOLDER=$work/no-plugin expect 4 'only 97\.7 KiB.*; (try|no ZeRO stage)' \
    "$sifr" plan "${keys[@]}" --run.device=cpu --memory=100k

finish
