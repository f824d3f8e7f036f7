#!/usr/bin/env bash
# A model directory that is lost while it is read: the weights are truncated, cannot be opened, or
# the directory is renamed. sample, eval, train and export end in time with exit code 1 and the name of the file
# (or with 0, if everything had been opened by then; of two ranks also with 2, if one had opened nothing), and leave
# nothing behind.
. "$(dirname "$0")/common.sh" "$@"
command -v strace >/dev/null && strace -o /dev/null true 2>/dev/null || skip_all "no strace that may trace, to stop between two calls"
make_text >text.txt
mkdir far
ok "$sifr" train "${small[@]}" --model.width=128 --data.path=text.txt --train.steps=1 --quiet --out=trained
ok "$sifr" export trained whole
bytes=$(stat -c %s whole/model.safetensors)
[ "$bytes" -gt 1000000 ] || fail "the model has only $bytes bytes: pages that are lost would have been read already"

commands=("sample model The --tokens=2" "sample model The --tokens=2 --offload.params=disk" "sample model The --tokens=2 -n 2 --comm.backend=threads --zero.stage=3"
    "eval model --data.path=text.txt --batches=1" "eval model --data.path=text.txt --batches=1 -n 2 --comm.backend=threads --zero.stage=3 --offload.params=disk"
    "train --model.path=model --data.path=text.txt --train.steps=1 --train.micro_batch=2 --train.global_batch=4 --quiet --out=run"
    "train --model.path=model --data.path=text.txt --train.steps=1 --train.micro_batch=2 --train.global_batch=4 --quiet --out=run -n 2 --comm.backend=threads --zero.stage=2 --offload.params=disk"
    "export model exported")
traced() { # INJECTION COMMAND...: the first map of the weights takes a second, or opening them fails
    timeout -s KILL 120 strace -f -o trace -e trace=mmap,openat -P model/model.safetensors -e inject="$1" "${@:2}"
}
is_mapped() { grep -q mmap trace 2>/dev/null || has_ended $pid; }
lost() { # CODES PATTERN INJECTION HOW COMMAND: HOW is evaluated once the file is being mapped
    local code=0
    rm -rf model moved run exported trace
    cp -r whole model
    SIFR_OFFLOAD_FOLDER=far traced "$3" "$sifr" $5 >out 2>err &
    pid=$!
    [ -z "$4" ] || wait_for is_mapped
    eval "$4"
    wait $pid || code=$?
    [[ $code =~ ^($1)$ ]] || fail "exit $code, not $1: $4, $5: $(cat err)"
    if [ $code != 0 ]; then
        grep -qE "^sifr: error: (rank [0-9]: )?$2" err || fail "no '$2': $4, $5: $(cat err)"
        [ ! -e run ] && [ ! -e exported ] || fail "files are left: $4, $5: $(ls)"
    fi
    [ -z "$(ls -A far)" ] || fail "files are left in the folder of offload: $4, $5: $(ls -A far)"
}
slow=mmap:delay_exit=1000000
for command in "${commands[@]}"; do
    # another rank may open the file afterwards
    lost 1 "(cannot read 'model/model.safetensors': it was truncated from $bytes to 200000 bytes while in use; restore it and rerun the same command|'model/model.safetensors': the tensors need [0-9]+ bytes but [0-9]+ follow)" \
        $slow 'truncate -s 200000 model/model.safetensors' "$command"
    moved='0|1'
    [[ $command != *' -n 2 '* ]] || moved='0|1|2'
    lost "$moved" "(cannot open 'model/[a-z.]*'|'model/config.json' is missing)" $slow 'mv model moved' "$command"
    lost 1 "cannot open 'model/model.safetensors': Input/output error" openat:error=EIO '' "$command"
done
finish
