# Clones one source, as the commands' user. Whatever is named comes in as a word of its
# own. It works beside its place and moves there at the end, so the place has all of it
# or nothing, and a clone that was cut off is begun anew.
set -u
mark=$1 place=$2 url=$3 ref=$4 sha=$5 depth=$6 origin=$7 parts=$8
stage=$(dirname -- "$place")/.$mark
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_NAMESPACE

# Whether the disk has less than two megabytes free.
full() {
    local free size
    read -r free size < <(stat --file-system --format='%a %S' -- /workspace)
    [ $((free * size)) -lt 2000000 ]
}

end() {
    local code=$1
    # git does not say why a file could not be written.
    if [ "$code" = 6 ] && full; then code=7; fi
    rm -rf -- "$stage" "$stage.bundle" "/workspace/.$mark.parts"
    exit "$code"
}

# The one before moved it here and could not say so.
if [ -f "$place/.git/$mark" ]; then
    git -C "$place" rev-parse --quiet --verify HEAD || true
    end 0
fi
if [ -e "$place" ] || [ -L "$place" ]; then
    rmdir -- "$place" 2>/dev/null || { echo "$place is there already" >&2; end 3; }
fi
rm -rf -- "$stage" "$stage.bundle"
mkdir -p -- "$stage" || end 6
if [ -n "$parts" ]; then
    url=$stage.bundle
    cat -- "$parts"/* > "$url" || end 6
fi

options=(--quiet --no-checkout --template= --no-recurse-submodules)
[ -z "$depth" ] || options+=(--depth="$depth")
other=
case $ref in
    '') ;;
    refs/heads/*) options+=(--branch="${ref#refs/heads/}") ;;
    refs/tags/*) options+=(--branch="${ref#refs/tags/}") ;;
    refs/*) other=refs/remotes/origin/${ref#refs/} ;;
    *) options+=(--branch="$ref") ;;
esac
if [ -n "$ref" ]; then
    case $ref in refs/*) wanted=("$ref") ;; *) wanted=("refs/heads/$ref" "refs/tags/$ref") ;; esac
    git ls-remote --quiet --exit-code -- "$url" "${wanted[@]}" > /dev/null
    case $? in 0) ;; 2) echo "there is no $ref" >&2; end 4 ;; *) end 1 ;; esac
fi
git clone "${options[@]}" -- "$url" "$stage" || end 1
cd -- "$stage" || end 6
fetch=(git fetch --quiet --no-tags --no-recurse-submodules ${depth:+--depth="$depth"} origin)
[ -z "$other" ] || "${fetch[@]}" "+$ref:$other" || end 1
if [ -n "$sha" ]; then
    git cat-file -e "$sha^{commit}" 2>/dev/null || "${fetch[@]}" "$sha" || end 5
    git checkout --quiet --detach "$sha" -- || end 6
elif [ -n "$other" ]; then
    git checkout --quiet --detach "$other" -- || end 6
elif git rev-parse --quiet --verify HEAD > /dev/null; then
    git reset --quiet --hard HEAD -- || end 6
fi
git remote set-url origin "$origin" || end 6
: > ".git/$mark" || end 6
head=$(git rev-parse --quiet --verify HEAD || true)
cd / && mv -T -- "$stage" "$place" || end 6
echo "$head"
end 0
