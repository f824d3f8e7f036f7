#!/usr/bin/env bash
# sifr page over HTTP: what is served, and what is refused or bounded: other tokens, hosts, origins,
# paths and methods, malformed requests, slow clients, floods. sifr train --page, sifr report.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
ok "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=6 --train.eval_every=3 --train.sample_every=3 --train.sample_prompt='<b>&</b> ' \
    --train.sample_tokens=8 --checkpoint.every=3 --trace 2:2 --out=runs/a --quiet

# the layout that a page shows is the run's own: its planned bytes are those that the run allocated
ok "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=2 --train.global_batch=8 -n 2 --zero.stage=3 --out=runs/two --quiet
ok "$sifr" report runs/two -o two.html
for category in params:0 grads:1 optimizer:2; do
    run=$(sed -n "s/.*\"${category%:*}\":\([0-9]*\).*/\1/p" runs/two/metrics.jsonl | tail -n 1)
    page=$(grep -o '"rank":0,"worker":true,"bytes":\[[0-9,]*' two.html | sed 's/.*\[//' | cut -d, -f$((${category#*:} + 1)))
    [ -n "$run" ] && [ "$run" = "$page" ] || fail "${category%:*}: the run has $run bytes, its page $page"
done
whole=$(grep -o '"name":"[^"]*","count":[0-9]*' two.html | sed 's/.*://' | awk '{ sum += $1 } END { print sum * 4 / 2 }')
run=$(sed -n 's/.*"params":\([0-9]*\).*/\1/p' runs/two/metrics.jsonl | tail -n 1)
[ "$whole" = "$run" ] || fail "the shards of the page have $whole bytes on each of 2 ranks, those of the run $run"
rm -r runs/two

# --- a report needs no server ----------------------------------------------------------------------
ok "$sifr" report runs/a -o a.html
ok "$sifr" report runs/a -o a.html # its own page is replaced
has '^wrote a.html: .*, 1 run$'
cp runs/a/config.yaml kept.yaml
expect 2 "'runs/a/config.yaml' exists and is not a page of .sifr report.: it is not overwritten" "$sifr" report runs/a -o runs/a/config.yaml
cmp kept.yaml runs/a/config.yaml || fail "a report has replaced another file"
! grep -qiE 'src="|href="(http|//|page)|@import|url\(' a.html || fail "the report loads something: $(grep -oiE '.{40}src=".{20}' a.html | head -n 2)"
[ "$(grep -c '</script>' a.html)" = 2 ] || fail "text of the run ends a script element"
! grep -q '<b>&' a.html || fail "text of the run is markup in the report"
expect 2 "'text.txt'|not a run folder" "$sifr" report text.txt -o x.html
mkdir -p empty
expect 2 "'empty' is not a run folder: .*name the folder that .sifr train. wrote" "$sifr" report empty -o x.html
expect 2 "no-such" "$sifr" report no-such -o x.html
[ ! -e x.html ] || fail "a report without a run was written"
expect 2 "missing argument; usage: sifr report" "$sifr" report
ok "$sifr" report runs -o all.html # a folder of runs

ok "$sifr" report runs/a -o -
cmp -s out a.html || fail "-o - writes another page"
[ ! -e ./- ] || fail "-o - makes a file"

# of many runs, the newest
mkdir many
for i in $(seq 10 29); do
    mkdir many/run-$i
    cp runs/a/metrics.jsonl many/run-$i
    touch -d "2020-01-01 00:00:$((60 - i))" many/run-$i/metrics.jsonl # run-10 is the newest
done
ok "$sifr" report runs/a many -o many.html
grep -q 'the 16 newest runs are shown, 5 older are not; to choose, name the runs' err || fail "no word about runs that are left out: $(cat err)"
has '^wrote many.html: .*, 16 runs$'
for run in runs/a many/run-10 many/run-24; do grep -q "\"folder\":\"$run\"" many.html || fail "$run is left out"; done
for run in many/run-25 many/run-29; do ! grep -q "\"folder\":\"$run\"" many.html || fail "$run is shown"; done
grep -q '"left_out":5}' many.html || fail "the page does not say what is left out"

"$sifr" page no-such >out 2>err || true
if grep -q 'has no page server' err; then
    expect 2 "install libmicrohttpd-dev" "$sifr" page runs/a
    expect 2 "install libmicrohttpd-dev" "$sifr" train --page --data.path=text.txt
    skip_part "the server: sifr was built without libmicrohttpd"
    finish
    exit
fi
command -v curl >/dev/null || { skip_part "the server: curl is not installed"; finish; exit; }

# --- the command -----------------------------------------------------------------------------------
expect 2 "no-such" "$sifr" page no-such
expect 2 "'empty' is not a run folder" "$sifr" page empty
expect 2 "--listen=here is not an address" "$sifr" page runs/a --listen=here
expect 2 "--page=99999 is not an address" "$sifr" train "${small[@]}" --data.path=text.txt --out=runs/never --page=99999
expect 2 "--page=300.1.1.1:80 is not an address; .*HOST is an IP address" "$sifr" train "${small[@]}" --data.path=text.txt --out=runs/never --page=300.1.1.1:80
expect 2 "--page= is not an address" "$sifr" train "${small[@]}" --data.path=text.txt --out=runs/never --page=
expect 2 "--listen= is not an address" "$sifr" page runs/a --listen=
expect 1 "cannot listen on 192.0.2.1: this machine does not have that address" "$sifr" page runs/a --listen=192.0.2.1:8080
[ ! -e runs/never ] || fail "a wrong --page has created the run folder"

address_in() { sed -n 's|.*page: \(http://[^ ]*\)$|\1|p' "$1" 2>/dev/null | head -n 1; }
has_address() { [ -n "$(address_in "$1")" ]; }
pids=()
trap 'for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done; wait; rm -rf "$work"' EXIT
serve() { # ARGUMENT...: sets $url, $base, $port
    rm -f served served.err # not the address of an earlier server
    "$sifr" page "$@" >served 2>served.err &
    pids+=($!)
    wait_for has_address served
    url=$(address_in served)
    base=${url%/*/}
    port=${base##*:}
}
cp -r runs/a before
SSH_CONNECTION='192.0.2.9 4000 192.0.2.1 2222' USER=me serve runs/a
server=${pids[0]}
grep -q "ssh -p 2222 -N -L $port:127.0.0.1:$port me@192.0.2.1" served || fail "no ssh line: $(cat served)"
[[ $url =~ ^http://127\.0\.0\.1:[0-9]+/[0-9a-f]{32}/$ ]] || fail "the address is '$url'"

# code EXPECTED ARGUMENT...: the HTTP status of a request; the body goes to `body`
code() {
    local expected=$1 got
    shift
    got=$(curl -s --path-as-is --max-time 20 -o body -D head -w '%{http_code}' "$@" || true)
    [ "$got" = "$expected" ] || fail "status $got, not $expected: curl $*"
}

# --- what is served ----------------------------------------------------------------------------------
code 200 "$url"
grep -q '<title>sifr</title>' body || fail "no page"
for header in "Content-Security-Policy: default-src 'none'; script-src 'self'" 'X-Content-Type-Options: nosniff' 'Referrer-Policy: no-referrer' 'Cache-Control: no-store'; do
    grep -qiF "$header" head || fail "the header '$header' is missing"
done
for name in page.js page.css; do code 200 "$url$name"; done
for name in runs 'series?run=0' 'about?run=0' 'layout?run=0' 'trace?run=0'; do
    code 200 "$url$name"
    tr -d '\n' <body >flat
    echo >>flat
    is_json flat
done
code 200 "${url}layout?run=0"
grep -q '"ranks":1,.*wte.weight' body || fail "no layout: $(head -c 300 body)"
code 200 "${url}trace?run=0"
grep -q '"step":2,' body || fail "no trace: $(head -c 300 body)"
code 200 -I "$url"

# --- what is refused -----------------------------------------------------------------------------------
code 403 "$base/"
code 403 "$base/page.js"
code 403 "$base/00000000000000000000000000000000/"
code 403 "$base/$(basename "$url" | tr '0-9a-f' 'a-f0-9')/"
code 403 -H 'Host: evil.example' "$url"
code 403 -H "Host: evil.example:$port" "$url"
code 403 -H 'Host: localhost.evil.example' "$url"
code 200 -H "Host: localhost:$port" "$url"
code 200 -H 'Host: 127.0.0.1:9999' "$url" # ssh -L may use another port
code 403 -H 'Origin: http://evil.example' "${url}series?run=0"
code 403 -H 'Origin: null' "${url}series?run=0"
code 200 -H "Origin: $base" "${url}series?run=0"
for path in ../ ../../etc/passwd %2e%2e/%2e%2e/etc/passwd ..%2f..%2fetc/passwd config.yaml metrics.jsonl runs/a/config.yaml page.js/ /page.js; do
    code 404 "$url$path"
done
code 404 "${url}series"
for run in 1 -1 99 '' 0x0 '0;' ../0 18446744073709551616; do code 404 "${url}series?run=$run"; done
for method in POST PUT DELETE OPTIONS; do code 405 -X $method "$url"; done
code 410 "${url}live?since=999999"
code 410 "${url}live"

trap '' PIPE # the server may close a connection while this script writes to it
# raw TEXT: a request by hand; the status line goes to $status, "" if the connection was closed
raw() {
    exec {socket}<>"/dev/tcp/127.0.0.1/$port"
    printf '%b' "$1" >&"$socket" 2>/dev/null || true
    status=''
    IFS= read -r -t 20 status <&"$socket" 2>/dev/null || true
    exec {socket}>&-
}
raw 'GET / HTTP/1.1\r\n\r\n' # no Host
[[ $status != *' 200 '* ]] || fail "a request without Host is answered: $status"
long=$(head -c 100000 /dev/zero | tr '\0' a)
for request in 'nonsense\r\n\r\n' '\r\n\r\n' '\x00\x01\x02\x03\r\n\r\n' 'GET\r\n\r\n' "GET /$long HTTP/1.1\r\nHost: localhost\r\n\r\n" "GET / HTTP/1.1\r\nHost: localhost\r\nX: $long\r\n\r\n" \
    'GET http://127.0.0.1/ HTTP/9.9\r\nHost: localhost\r\n\r\n' 'GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: -5\r\n\r\n'; do
    raw "$request"
    [[ $status != *' 200 '* ]] || fail "a malformed request is answered: ${request:0:60}: $status"
done
kill -0 "$server" || fail "a malformed request has ended the server"
code 200 "$url"

# --- nothing listens beyond loopback -----------------------------------------------------------------
hex=$(printf ':%04X' "$port")
! grep -i "$hex " /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep " 0A " | grep -qvi "0100007F$hex" || fail "the server listens beyond 127.0.0.1"

# --- slow clients and floods are bounded --------------------------------------------------------------
slow=()
for i in 1 2 3; do
    exec {socket}<>"/dev/tcp/127.0.0.1/$port"
    printf 'GET / HTTP/1.1\r\nHost' >&"$socket"
    slow+=("$socket")
done
began=$SECONDS
drip() { # the clients send a byte a second: never idle, never done
    local open=0 socket
    for socket in "${slow[@]}"; do
        printf 'x' >&"$socket" 2>/dev/null && IFS= read -r -t 0.01 -n 1 -u "$socket" _
        [ $? -le 128 ] || open=$((open + 1))
    done
    sleep 1
    [ $open = 0 ]
}
wait_for drip
[ $((SECONDS - began)) -lt 100 ] || fail "a client that sends a byte a second is kept for $((SECONDS - began)) s"
for socket in "${slow[@]}"; do exec {socket}>&-; done
flood=()
for i in $(seq 1 220); do # more than the server takes
    exec {socket}<>"/dev/tcp/127.0.0.1/$port" && flood+=("$socket")
done 2>/dev/null
kill -0 "$server" || fail "a flood of connections has ended the server"
for socket in "${flood[@]}"; do exec {socket}>&-; done
wait_for curl -s -o body --max-time 5 "$url"
code 200 "$url"
memory=$(awk '/VmRSS/ { print $2 }' "/proc/$server/status")
[ "$memory" -lt 200000 ] || fail "the server holds $memory kB"

# --- many pages listen; a new step reaches all of them ---------------------------------------------------
event=$(curl -s "${url}runs" | sed 's/.*"event":\([0-9]*\).*/\1/')
listeners=()
for i in $(seq 1 50); do
    curl -sN --max-time 60 "${url}live?since=$event" >"live-$i" 2>/dev/null &
    listeners+=($!)
done
wait_for curl -s -o body --max-time 5 "$url"
sleep 1
tail -n 1 runs/a/metrics.jsonl | sed 's/"step":6/"step":7/' >>runs/a/metrics.jsonl
have_all() { [ "$(cat live-* | grep -c '"rows":7')" = 50 ]; }
wait_for have_all
have_all || fail "only $(cat live-* | grep -c '"rows":7') of 50 pages were told about a new step"
kill "${listeners[@]}" 2>/dev/null || true
wait "${listeners[@]}" 2>/dev/null || true
sed -i '$d' runs/a/metrics.jsonl
diff -r before runs/a >diff.out || fail "the server has changed the run folder: $(head -n 3 diff.out)"

# --- the end -----------------------------------------------------------------------------------------------
kill -INT "$server"
wait_for has_ended "$server"
status=0
wait "$server" || status=$?
[ $status = 0 ] || fail "Ctrl-C: exit $status: $(cat served.err)"
grep -q 'the page ends; no run is affected' served.err || fail "Ctrl-C is not answered: $(cat served.err)"

# a port that is taken: another one is chosen, unless it was named
serve runs/a
expect 1 "cannot listen on 127.0.0.1 port $port: .*in use; choose another port" "$sifr" page runs/a --listen="$port"
ok "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=2 --out=runs/deaf --page="$port"
said_so() { grep -q 'the run goes on without a page; .sifr page runs/deaf. shows it' err; }
wait_for said_so # the server is a process of its own
said_so || fail "a run without its page does not say so: $(cat err)"
first=$port
serve runs/a
[ "$port" != "$first" ] || fail "two servers have the same port"

# with the address of every interface, there is a warning, and the name of the machine is accepted
serve runs/a --listen=0.0.0.0
wait_for grep -q 'other machines can reach it' served.err
grep -q 'not encrypted, and other machines can reach it' served.err || fail "no warning: $(cat served.err)"
code 200 -H "Host: $(uname -n):$port" "http://127.0.0.1:$port/$(basename "$url")/"

# --- train --page --------------------------------------------------------------------------------------------
"$sifr" train "${small[@]}" --data.path=text.txt --train.steps=100000 --out=runs/live --page >live.out 2>live.err &
run=$!
pids+=($run)
wait_for has_address live.err
url=$(address_in live.err)
wait_for test -s runs/live/metrics.jsonl
is_running() { curl -s "${url}about?run=0" | grep -q '"state":"running"'; }
wait_for is_running
is_running || fail "the page does not say that the run is running"
child=$(pgrep -P $run -f ' page --child' || true)
[ -n "$child" ] || fail "the server is no child of the run"
kill -STOP "$child" # a server that hangs does not delay the run
before=$(wc -l <runs/live/metrics.jsonl)
goes_on() { [ "$(wc -l <runs/live/metrics.jsonl)" -gt $((before + 5)) ]; }
wait_for goes_on
goes_on || fail "a stopped server stops the run"
kill -CONT "$child"
kill -KILL "$child" # a server that dies does not end the run
before=$(wc -l <runs/live/metrics.jsonl)
wait_for goes_on
goes_on || fail "a dead server ends the run"
kill -INT $run
status=0
wait $run || status=$?
[ $status = 75 ] || fail "train --page, Ctrl-C: exit $status: $(tail -n 2 live.err)"
ok "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=2 --out=runs/short --page=0
has_no_child() { ! pgrep -f "page --child --listen=0 -- runs/short" >/dev/null; }
wait_for has_no_child
has_no_child || fail "the server outlives its run"
finish
