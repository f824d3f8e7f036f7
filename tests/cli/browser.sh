# Sourced by scripts that drive headless Chromium: a tab, controlled over a pipe (--remote-debugging-pipe:
# JSON messages that end with a NUL), so that nothing but Chromium is needed.
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[ -n "$chromium" ] || skip_all "Chromium is not installed (package chromium)"

browser_open() { # starts Chromium with one empty tab
    mkfifo to-browser from-browser
    HOME=$work "$chromium" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-extensions --disable-dev-shm-usage \
        --disable-background-networking --disable-component-update --user-data-dir="$work/profile" --remote-debugging-pipe about:blank \
        3<to-browser 4>from-browser >browser.log 2>&1 &
    browser_pid=$!
    exec {to_browser}>to-browser {from_browser}<from-browser
    call_number=0
    session=''
    : >browser.events
    # Only tabs: parts of Chromium's own window are targets, too. The tab may come a little later.
    local target limit=$((SECONDS + 60))
    call Target.getTargets '{"filter":[{"type":"page"}]}'
    until [[ $answer == *'"type":"page"'* ]]; do
        [ $SECONDS -lt $limit ] || { fail "Chromium opens no tab: ${answer:0:400}"; finish; }
        sleep 0.1
        call Target.getTargets '{"filter":[{"type":"page"}]}'
    done
    target=${answer#*\"targetId\":\"}
    call Target.attachToTarget "{\"targetId\":\"${target%%\"*}\",\"flatten\":true}"
    session=${answer#*\"sessionId\":\"}
    session=${session%%\"*}
    call Page.enable '{}'
    call Runtime.enable '{}'
    call Log.enable '{}'
    call Performance.enable '{"timeDomain":"threadTicks"}'
}
browser_close() { end_processes ${browser_pid:-}; }
# end_processes PID...: children of this script; what does not end within 10 seconds is killed. No
# `wait`: it has no limit.
end_processes() {
    local pid limit=$((SECONDS + 10))
    for pid in "$@"; do kill "$pid" 2>/dev/null || true; done
    for pid in "$@"; do
        until has_ended "$pid" || [ $SECONDS -ge $limit ]; do sleep 0.1; done
        has_ended "$pid" || kill -KILL "$pid" 2>/dev/null || true
    done
}

# call METHOD PARAMS: sends a command and waits for its answer, in $answer. Events go to
# browser.events.
call() {
    local id=$((++call_number)) to='' limit=$((SECONDS + 60))
    ! has_ended "$browser_pid" || { fail "Chromium has ended before $1: $(tail -n 3 browser.log)"; finish; }
    [ -z "$session" ] || to=",\"sessionId\":\"$session\""
    printf '{"id":%d,"method":"%s","params":%s%s}\0' "$id" "$1" "$2" "$to" >&"$to_browser"
    while [ $SECONDS -lt $limit ] && IFS= read -r -d '' -t 60 -u "$from_browser" answer; do
        case $answer in
        "{\"id\":$id,"*) return 0 ;;
        *) printf '%s\n' "$answer" >>browser.events ;;
        esac
    done
    fail "Chromium does not answer $1: $(tail -n 3 browser.log)"
    finish
}
# evaluate EXPRESSION: its value as text, in $value.
evaluate() {
    local expression=${1//\\/\\\\}
    call Runtime.evaluate "{\"returnByValue\":true,\"awaitPromise\":true,\"expression\":\"${expression//\"/\\\"}\"}"
    case $answer in *exceptionDetails*) fail "the page fails at: $1: ${answer:0:400}" ;; esac
    value=${answer#*\"value\":}
    value=${value%\}\}*}
    value=${value%,\"description\"*}
    value=${value#\"}
    value=${value%\"}
}
# browse URL WIDTH HEIGHT: opens it in a window of that size, and waits until a run is shown.
browse() {
    call Emulation.setDeviceMetricsOverride "{\"width\":$2,\"height\":$3,\"deviceScaleFactor\":1,\"mobile\":false}"
    call Page.navigate '{"url":"about:blank"}'
    call Page.navigate "{\"url\":\"$1\"}"
    until_true "innerWidth === $2 && document.querySelectorAll('.run').length > 0 && document.querySelector('main').childElementCount > 0"
}
# until_true EXPRESSION: waits for it. If that takes a minute, the script ends: what follows would
# only wait, too.
until_true() {
    local limit=$((SECONDS + 60))
    while :; do
        evaluate "!!($1)"
        [ "$value" != true ] || return 0
        [ $SECONDS -lt $limit ] || { fail "never true: $1"; finish; }
        sleep 0.2
    done
}
press() { # KEY
    call Input.dispatchKeyEvent "{\"type\":\"keyDown\",\"key\":\"$1\",\"text\":\"${1:0:1}\"}"
    call Input.dispatchKeyEvent "{\"type\":\"keyUp\",\"key\":\"$1\"}"
}
mouse() { # TYPE X Y [BUTTON [CLICKS]]
    call Input.dispatchMouseEvent "{\"type\":\"$1\",\"x\":$2,\"y\":$3,\"button\":\"${4:-none}\",\"clickCount\":${5:-0}}"
}
screenshot() { # FILE
    call Page.captureScreenshot '{"format":"png"}'
    sed 's/.*"data":"//; s/".*//' <<<"$answer" | base64 -d >"$1" # bash takes seconds to cut so long a string
    [ "$(head -c 4 "$1" | tail -c 3)" = PNG ] || fail "$1 is no picture"
}
# cpu_ms: CPU time of the page's main thread so far, in $value
cpu_ms() {
    call Performance.getMetrics '{}'
    value=$(sed 's/.*"TaskDuration","value":\([0-9.e-]*\).*/\1/' <<<"$answer" | awk '{ print int($1 * 1000) }')
}
# no_errors WHAT: no exception, no console error, nothing that a policy blocked, since the last call.
no_errors() {
    local found
    found=$(grep -aE '"Runtime.exceptionThrown"|"type":"(error|assert)"|"level":"error"' browser.events || true)
    [ -z "$found" ] || fail "$1: errors in the console: ${found:0:1200}"
    : >browser.events
}
