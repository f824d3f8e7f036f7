# To be sourced. check_runpath FOLDER checks every program and shared library below FOLDER and
# reports those whose RUNPATH (or RPATH) has an empty or relative element. The loader resolves these
# against the current folder, so anybody who can write there could inject code.
check_runpath() {
    local file list element found=0 bad=0
    while IFS= read -r -d '' file; do
        [ "$(head -c 4 "$file" | tr -d '\0')" = $'\x7fELF' ] || continue
        list=$(readelf -dW "$file" 2>/dev/null | sed -nE 's/.*\((RUNPATH|RPATH)\).*\[(.*)\]$/\2/p')
        found=$((found + 1))
        [ -n "$list" ] || continue
        while IFS= read -r element; do
            case $element in
            /* | '$ORIGIN' | '$ORIGIN'/*) ;;
            *) echo "$file: '$element' in its RUNPATH $list" >&2; bad=$((bad + 1)) ;;
            esac
        done < <(tr ':' '\n' <<<"$list")
    done < <(find "$1" -name CMakeFiles -prune -o -type f \( -perm -u+x -o -name '*.so*' \) -print0)
    [ "$found" -gt 0 ] || { echo "$1: no programs or shared libraries found" >&2; bad=1; }
    [ "$bad" = 0 ]
}
