#!/usr/bin/env bash
# `sifr plan --html`: a page without script and network that has the figures of the plan, replaces
# only its own kind, and opens in a browser without complaint.
. "$(dirname "$0")/common.sh" "$@"

page=(--model.layers=8 --model.width=64 --model.heads=4 --model.context=64 --model.vocab=512 --train.micro_batch=1 --train.global_batch=16)

page_has() { grep -qE -- "$2" "$1" || fail "$1: no '$2'"; }
page_lacks() { ! grep -qiE -- "$2" "$1" || fail "$1: has '$2'"; }
is_page() { # FILE: complete, and nothing that could load or run anything
    page_has "$1" "^<!doctype html>"
    page_has "$1" "^</html>$"
    page_has "$1" "Content-Security-Policy\" content=\"default-src 'none'; style-src 'nonce-[0-9a-f]{16}'"
    page_has "$1" 'name="viewport" content="width=device-width'
    page_has "$1" 'prefers-color-scheme:dark'
    page_lacks "$1" '<script|javascript:|https?:|<link|<img|<iframe|@import|url\(| style=| on[a-z]+='
    if command -v python3 >/dev/null && python3 -c '' 2>/dev/null; then
        python3 - "$1" <<'P' || fail "$1: tags do not match"
import html.parser, sys
class Page(html.parser.HTMLParser):
    open = []
    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)
    def handle_startendtag(self, tag, attributes):
        pass
    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            sys.exit(f"</{tag}> at {self.getpos()}")
page = Page()
page.feed(open(sys.argv[1]).read())
sys.exit(f"open: {page.open}" if page.open else 0)
P
    fi
}

# memory of every stage, the same figures as in the table
ok "$sifr" plan "${page[@]}" -n 4 --zero.stage=2 --html=layout.html
grep -q "the page is in 'layout.html'" err || fail "no word about the page: $(cat err)"
is_page layout.html
for stage in 'stage 0' 'stage 1' 'stage 2 \(chosen\)' 'stage 3'; do
    page_has layout.html "<span>$stage</span>"
done
page_has layout.html '<title>optimizer: [0-9.]+ [KM]iB</title>'
page_lacks layout.html 'PP stage'
for word in $(sed -n 's/^  optimizer *//p' out | grep -oE '[0-9.]+ [KM]iB' | tr ' ' '_'); do
    page_has layout.html "<td>${word/_/ }</td>"
done

# a pipeline: a lane for each stage, every pass once
ok "$sifr" plan "${page[@]}" -n 4 --parallel.pp=4 --parallel.schedule=1f1b --html=pipe.html --quiet
[ ! -s err ] || fail "--quiet: $(cat err)"
is_page pipe.html
[ "$(grep -c '<div class="lane">' pipe.html)" = 4 ] || fail "not 4 lanes"
[ "$(grep -oE '<title>forward of micro-batch [0-9]+' pipe.html | wc -l)" = 64 ] || fail "not 4 x 16 forward passes"
[ "$(grep -oE '<title>backward of micro-batch [0-9]+' pipe.html | wc -l)" = 64 ] || fail "not 4 x 16 backward passes"
page_has pipe.html 'PP stage 3, [0-9]+ in flight'
ok "$sifr" plan "${page[@]}" -n 4 --parallel.pp=4 --parallel.schedule=zero-bubble --html=pipe.html --json
is_json out
page_has pipe.html 'backward, weights of micro-batch 15'

# a search: a dot for each layout, and the command without the page
ok "$sifr" plan "${page[@]}" --gpus 8 --machine h100 --html search.html --top 3
is_page search.html
[ "$(grep -oE '<circle class="best"' search.html | wc -l)" = 1 ] || fail "not one best layout"
[ "$(grep -oE '<circle class="listed"' search.html | wc -l)" = 2 ] || fail "not two more layouts"
[ "$(grep -oE '<circle class="dot"' search.html | wc -l)" -ge 3 ] || fail "too few dots"
page_has search.html '<title>tp [0-9]+, pp [0-9]+, dp [0-9]+, stage [0-9], .*: [0-9.]+ m?s, (at least )?[0-9.]+ [KMG]iB</title>'
page_has search.html 'sifr train -n 8 '
! grep 'sifr train' out search.html | grep -q -- --html || fail "the command to run has --html"

# what does not fit is drawn, and still an error
expect 4 'ZeRO stage 0 needs' "$sifr" plan "${page[@]}" -n 2 --memory=1M --html=small.html
is_page small.html
page_has small.html 'class="over">.*: does not fit'
expect 4 'no layout of 2 ranks fits' "$sifr" plan "${page[@]}" --gpus 2 --memory=1M --html=none.html
is_page none.html
page_has none.html 'No layout fits in memory'

# names are text
mkdir 'a<b>&"x'
printf 'model:\n  layers: 2\n' >'a<b>&"x/<script>.yaml'
ok "$sifr" plan 'a<b>&"x/<script>.yaml' "${page[@]}" --html=names.html
is_page names.html
page_has names.html 'a&lt;b&gt;&amp;&quot;x/&lt;script&gt;.yaml'

# only such pages are replaced
cp layout.html before.html
ok "$sifr" plan "${page[@]}" -n 2 --html=layout.html
cmp -s layout.html before.html && fail "the page was not replaced"
echo 'my notes' >notes.html
expect 2 "'notes.html' exists and is not a page of .sifr plan.: it is not overwritten; choose another name" "$sifr" plan "${page[@]}" --html=notes.html
[ "$(cat notes.html)" = 'my notes' ] || fail "notes.html was changed"
: >empty.html
expect 2 "'empty.html' exists and is not a page" "$sifr" plan "${page[@]}" --html=empty.html
ln -s notes.html link.html
expect 2 "'link.html' exists and is not a page" "$sifr" plan "${page[@]}" --html=link.html
ln -s gone dangling.html
expect '1|2' 'dangling.html' "$sifr" plan "${page[@]}" --html=dangling.html
expect 2 "'a<b>&\"x' is a folder; name a file in it" "$sifr" plan "${page[@]}" --html='a<b>&"x'
expect 2 '^sifr: error: --html is empty' "$sifr" plan "${page[@]}" --html=
expect '1|2' 'no/such/folder' "$sifr" plan "${page[@]}" --html=no/such/folder/page.html
expect 2 'omit the noise scale' "$sifr" plan "${page[@]}" --noise-scale=10 --html=noise.html
[ ! -e noise.html ] || fail "a page was written for a noise scale"

# in a browser: no complaint, at the width of a phone, too
browser=$(command -v chromium || command -v chromium-browser || true)
if [ -n "$browser" ] && timeout 60 "$browser" --headless --no-sandbox --disable-gpu --dump-dom about:blank >/dev/null 2>&1; then
    for file in layout pipe search names; do
        timeout 60 "$browser" --headless --no-sandbox --disable-gpu --enable-logging=stderr --window-size=400,800 --dump-dom "file://$PWD/$file.html" >dom 2>log || fail "$file.html: the browser failed"
        ! grep -q 'CONSOLE' log || fail "$file.html: $(grep CONSOLE log | head -3)"
        grep -q '<svg' dom || fail "$file.html: nothing is drawn"
    done
    # the layouts of a search are read without scrolling sideways
    ok "$sifr" plan --model.preset=llama-1b --model.vocab=32000 --precision.mode=bf16 --train.global_batch=256 --gpus 8 --machine h100 --html long.html
    . "$OLDPWD/tests/cli/browser.sh"
    trap 'browser_close; rm -rf "$work"' EXIT
    browser_open
    call Emulation.setDeviceMetricsOverride '{"width":1300,"height":900,"deviceScaleFactor":1,"mobile":false}'
    call Page.navigate "{\"url\":\"file://$work/long.html\"}"
    until_true "document.querySelectorAll('.wide td.why').length > 1"
    evaluate "[...document.querySelectorAll('.wide')].every(e => e.scrollWidth <= e.clientWidth)"
    [ "$value" = true ] || fail "a table of the search is wider than its page"
else
    skip_part "pages in a browser: chromium does not work here"
fi
finish
