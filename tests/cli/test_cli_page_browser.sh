#!/usr/bin/env bash
# The page in headless Chromium: a live run of 4 ranks at ZeRO stage 3, two runs, a window as wide as
# a phone, a run that was killed, a report from disk. Every view is opened; any error in the console
# fails. SIFR_PICTURES=FOLDER keeps screenshots.
. "$(dirname "$0")/common.sh" "$@"
. "$OLDPWD/tests/cli/browser.sh"
"$sifr" page --help >/dev/null
"$sifr" page no-such-run 2>err >out || true
! grep -q 'no page server' err || skip_all "sifr was built without libmicrohttpd"
pictures=${SIFR_PICTURES:-$work/pictures}
mkdir -p "$pictures"
make_text >text.txt
servers=()
trap 'end_processes ${browser_pid:-} "${servers[@]}"; rm -rf "$work"' EXIT

address_in() { sed -n 's|.*page: \(http://[^ ]*\)$|\1|p' "$1" 2>/dev/null | head -n 1; }
has_address() { [ -n "$(address_in "$1")" ]; }
serve() { # RUN...: sets $url
    rm -f served served.err # not the address of an earlier server
    "$sifr" page "$@" >served 2>&1 &
    servers+=($!)
    wait_for has_address served
    url=$(address_in served)
}
tabs='curves memory layout step samples config'
# look_at NAME: open every view; each must show something and raise no error.
look_at() {
    local tab
    for tab in $tabs; do
        evaluate "document.querySelector('[data-tab=$tab]').click()"
        until_true "document.querySelector('[data-tab=$tab]').getAttribute('aria-selected') === 'true' && document.querySelector('main').childElementCount > 0"
        sleep 0.1
        evaluate "document.documentElement.scrollWidth <= innerWidth"
        if [ "$value" != true ]; then
            evaluate "innerWidth + ': ' + [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.tagName + '.' + e.className + ' ' + Math.round(e.getBoundingClientRect().right)).join(', ')"
            fail "$1: the view $tab is wider than the window of $value"
        fi
        screenshot "$pictures/$1-$tab.png"
    done
    no_errors "$1"
    evaluate "document.querySelector('[data-tab=curves]').click()"
}
shown_step="Number(document.querySelector('.stat .value').firstChild.data.replace(/,/g, ''))"

browser_open

# --- a live run: 4 ranks, ZeRO stage 3; with delays, so that it leaves the CPUs to the browser ------
"$sifr" train "${small[@]}" --train.global_batch=16 --train.steps=100000 --train.eval_every=20 --train.sample_every=20 --train.sample_prompt='<img src=x>' \
    --checkpoint.every=20 --data.path=text.txt --out=runs/live -n 4 --zero.stage=3 --comm.delay=0.004 --trace 2:3 --page >live.out 2>live.err &
live_pid=$!
servers+=($live_pid)
wait_for has_address live.err
has_address live.err || fail "train --page prints no address: $(head -c 400 live.err)"
grep -q "page: http://127.0.0.1:[0-9]*/[0-9a-f]\{32\}/\$" live.err || fail "the address has no token: $(head -n 2 live.err)"
browse "$(address_in live.err)" 1280 900
until_true "document.querySelector('.state.running')"
until_true "$shown_step > 20"
evaluate "$shown_step"
before=$value
until_true "$shown_step > $before" # server-sent events move it
look_at live
evaluate "document.querySelector('[data-tab=layout]').click()"
until_true "document.querySelectorAll('.key button').length === 4"
evaluate "document.querySelector('main').innerText.includes('ZeRO stage 3')"
[ "$value" = true ] || fail "the layout does not name the stage"
evaluate "document.querySelector('.key button').click()" # highlight a rank
evaluate "document.querySelector('[data-tab=step]').click()"
until_true "document.querySelector('main').innerText.includes('step 2 as traced')"

evaluate "document.querySelector('[data-tab=samples]').click()"
until_true "document.querySelectorAll('.sample').length > 0"
evaluate "document.querySelector('.sample').innerText.includes('<img src=x>') && document.images.length === 0"
[ "$value" = true ] || fail "text of the run became markup"

# a tooltip with exact values, a zoom by dragging, the keys
evaluate "document.querySelector('[data-tab=curves]').click()"
until_true "document.querySelectorAll('.plot').length >= 5"
evaluate "(b => Math.round(b.left + b.width / 2) + ' ' + Math.round(b.top + b.height / 2))(document.querySelector('.plot').getBoundingClientRect())"
read -r x y <<<"$value"
limit=$((SECONDS + 60)) try=0
while [ $SECONDS -lt $limit ]; do # a new figure may have moved the plot
    mouse mouseMoved $((x + ++try % 2)) "$y"
    evaluate "!document.getElementById('tip').hidden && /step \\d/.test(document.getElementById('tip').innerText)"
    [ "$value" != true ] || break
    sleep 0.2
done
[ "$value" = true ] || { fail "no tooltip over the loss"; finish; }
mouse mousePressed "$x" "$y" left 1
mouse mouseMoved $((x + 200)) "$y" left
mouse mouseReleased $((x + 200)) "$y" left 1
for key in x s l d 2 3 4 5 6 1 + - d; do press $key; done
press Escape
evaluate "document.getElementById('help').click(); document.getElementById('keys').open"
[ "$value" = true ] || fail "the list of keys does not open"
evaluate "document.getElementById('keys').close()"
no_errors "a live run, with mouse and keys"

# --- the same run, killed ------------------------------------------------------------------------
kill -KILL $live_pid
wait $live_pid 2>/dev/null || true
has_no_processes() { [ -z "$(processes_in "$work")" ]; }
wait_for has_no_processes
until_true "document.getElementById('notice').innerText.includes('page server has ended')"
: >browser.events # the connection was lost: the browser says so
serve runs/live
browse "$url" 1280 900
until_true "document.querySelector('.state.died')"
evaluate "document.getElementById('notice').innerText"
[[ $value == *"live died after step "*"rerun the same command to resume from step "* ]] || fail "the page does not say that the run died: $value"
look_at killed

# --- two runs ------------------------------------------------------------------------------------
for run in a b; do
    ok "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=60 --train.eval_every=20 --train.seed=$([ $run = a ] && echo 1 || echo 2) --out=runs/$run --quiet
done
serve runs/a runs/b
browse "$url" 1280 900
until_true "document.querySelectorAll('.run').length === 2 && document.querySelectorAll('main table tr').length === 3"
look_at two
evaluate "document.querySelector('[data-tab=config]').click(); [...document.querySelectorAll('main td:first-child')].map(e => e.innerText).join()"
[[ $value == *train.seed* ]] || fail "the differences do not show train.seed: $value"
[[ $value != *model.layers* ]] || fail "equal keys are listed as differences: $value"
evaluate "document.querySelectorAll('.run')[0].click(); document.querySelectorAll('.run')[0].getAttribute('aria-pressed')"
[ "$value" = false ] || fail "a click does not hide a run"
no_errors "two runs"

# figures of speed are those of `sifr compare`; what is damaged or not comparable is said
mkdir runs/fast runs/short
awk 'BEGIN { for (i = 1; i <= 60; i++) printf "{\"step\":%d,\"loss\":%s,\"seconds\":1,\"tokens_per_second\":%d,\"val\":{\"loss\":2,\"tokens\":128}}\n", i, i == 30 ? "1e308" : 9 - i / 10, 100 * i }' >runs/fast/metrics.jsonl
awk 'BEGIN { for (i = 1; i <= 40; i++) printf "{\"step\":%d,\"loss\":3,\"seconds\":1,\"tokens_per_second\":%d,\"val\":{\"loss\":2,\"tokens\":256}}\nnot a record\n", i, 10 * i }' >runs/short/metrics.jsonl
ok "$sifr" compare runs/fast runs/short --json
speeds=$(grep -o '"tokens_per_second": [0-9.]*' out | sed 's/.*: //' | tr '\n' ' ')
[ "$speeds" = '2100 210 ' ] || fail "compare: $speeds tokens per second, not 2100 and 210"
serve runs/fast runs/short
browse "$url" 1280 900
until_true "document.querySelectorAll('main table tr').length === 3"
evaluate "(t => { const c = [...t.rows[0].cells].findIndex(e => e.innerText === 'tokens per second'); return [1, 2].map(r => t.rows[r].cells[c].innerText).join(' '); })(document.querySelector('main table'))"
[ "$value" = '2.1k 210' ] || fail "the page shows other speeds than compare: $value"
evaluate "document.querySelector('main').innerText"
[[ $value == *'different amounts of data: fast 128, short 256 tokens'* ]] || fail "the page does not say that held-out losses differ in their data"
evaluate "document.getElementById('notice').innerText"
[[ $value == *'short died after step 40'*'40 lines of its metrics.jsonl are no records of steps'* ]] || fail "the page does not say what was skipped: $value"
screenshot "$pictures/damaged.png"
evaluate "(c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0; for (let i = 0; i < d.length; i += 4) n += d[i + 3] > 200 && d[i + 2] - d[i] > 100; return n; })(document.querySelector('.plot canvas'))"
[ "$value" -gt 200 ] || fail "a huge loss blanks the curve: $value blue pixels"
no_errors "damaged runs"
mkdir many
for i in $(seq 1 18); do mkdir many/$i && cp runs/fast/metrics.jsonl many/$i; done
serve many
browse "$url" 1280 900
until_true "document.querySelectorAll('.run').length === 16"
evaluate "document.getElementById('notice').innerText"
[[ $value == *'The 16 newest runs are shown, 2 older are not.'* ]] || fail "the page does not say that runs are left out: $value"

# a folder that is deleted: the page keeps what it has
serve runs/short
browse "$url" 1280 900
until_true "$shown_step === 40"
rm -r runs/short
sleep 2
evaluate "$shown_step"
[ "$value" = 40 ] || fail "the page of a deleted run shows step $value"
no_errors "a deleted run"

# --- a phone ---------------------------------------------------------------------------------------
serve runs/a runs/b
browse "$url" 390 844
look_at phone

# --- a report, from disk -----------------------------------------------------------------------------
ok "$sifr" report runs/a -o report.html
browse "file://$work/report.html" 1280 900
look_at report

# --- 10,000 steps of 64 ranks: every view in less than 100 ms of CPU time ------------------------
mkdir -p runs/long
sed -e 's/steps: 60/steps: 10000/' -e 's/micro_batch: 4/micro_batch: 1/' -e 's/global_batch: .*/global_batch: 64/' -e 's/stage: .*/stage: "3"/' runs/a/config.yaml >runs/long/config.yaml
awk 'BEGIN { srand(1); for (i = 1; i <= 10000; i++)
    printf "{\"step\":%d,\"tokens\":%d,\"loss\":%.12f,\"grad_norm\":%.12f,\"lr\":%.12g,\"seconds\":%.9f,\"tokens_per_second\":%.6f,\"mfu\":%.9f,\"skipped\":false,\"noise_scale\":%.6f,\"mem\":{\"params\":843264,\"grads\":876288},\"mem_rank\":0,\"resident\":%d,\"comm\":{\"ranks\":64,\"gather\":4414464,\"reduce\":2628864,\"in_flight\":%.9f,\"waited\":%.9f}}\n",
    i, i * 8192, 3 + 8 / sqrt(i) + rand() / 5, 1 + rand(), 1e-3 * (1 - i / 10001), 0.5 + rand() / 50, 16000 + 400 * rand(), 0.4 + rand() / 50, 900 + 50 * rand(), 91348992 + 4096 * int(rand() * 40), 1 + rand() / 9, rand() / 9 }' >runs/long/metrics.jsonl
serve runs/long
browse "$url" 1280 900
until_true "$shown_step === 10000"
for tab in $tabs curves; do # CPU time: the machine may be busy
    cpu_ms
    before=$value
    evaluate "new Promise(done => { document.querySelector('[data-tab=$tab]').click(); requestAnimationFrame(() => requestAnimationFrame(() => done(1))); })"
    cpu_ms
    echo "10,000 steps, 64 ranks: $tab in $((value - before)) ms"
    [ $((value - before)) -lt 100 ] || fail "the view $tab of 10,000 steps takes $((value - before)) ms of CPU time"
done
evaluate "document.querySelector('[data-tab=config]').click()"
screenshot "$pictures/long-config.png"
no_errors "10,000 steps"
ok "$sifr" report runs/long -o long.html
[ "$(wc -c <long.html)" -lt 1000000 ] || fail "the report of 10,000 steps has $(wc -c <long.html) bytes"
echo "the report of 10,000 steps: $(wc -c <long.html) bytes"
finish
