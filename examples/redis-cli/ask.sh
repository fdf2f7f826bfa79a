#!/bin/sh
# A question whose context arrives in pieces, with nothing but redis-cli.
#
#   examples/redis-cli/ask.sh "What is a KV block?" page1.txt page2.txt
#
# Environment: REDIS_CLI (redis-cli), REDIS_ARGS ("-h HOST -p PORT"), POOL (default/default), TENANT (default).
set -eu
cli="${REDIS_CLI:-redis-cli} ${REDIS_ARGS:-}"
prefix="s2l:{${POOL:-default/default}}"
tenant=${TENANT:-default}
stream="shell-$$-$(date +%s)"
ingress="$prefix:ingress:$tenant"
reply="$prefix:reply:$tenant:$stream"

question=$1
shift
# A question with quotes or backslashes would need JSON escaping; `prompt` is plain text and needs none.
prompt=$(printf 'Answer from the context.\n\n{context}\n\nQuestion: %s\nAnswer:' "$question")

$cli XADD "$ingress" '*' stream "$stream" op open prompt "$prompt" params '{"max_tokens": 64, "temperature": 0}' >/dev/null
number=0
for page in "$@"; do
    # -x reads the last argument from standard input, so a page may hold anything.
    $cli -x XADD "$ingress" '*' stream "$stream" op append chunk "page-$number" text <"$page" >/dev/null
    number=$((number + 1))
done
$cli XADD "$ingress" '*' stream "$stream" op finish >/dev/null

# Read the reply from where the last answer stopped, until its terminal event.
last=0
while :; do
    $cli --json XREAD COUNT 1 BLOCK 10000 STREAMS "$reply" "$last" >"${TMPDIR:-/tmp}/$stream.json"
    id=$(sed -n 's/.*\[\["\([0-9]*-[0-9]*\)".*/\1/p' "${TMPDIR:-/tmp}/$stream.json")
    if [ -z "$id" ]; then
        echo "nothing came back for 10 s" >&2
        rm -f "${TMPDIR:-/tmp}/$stream.json"
        exit 1
    fi
    cat "${TMPDIR:-/tmp}/$stream.json"
    last=$id
    if grep -q -e '"event","done"' -e '\\"terminal\\":true' "${TMPDIR:-/tmp}/$stream.json"; then
        break
    fi
done
grep -q '"event","done"' "${TMPDIR:-/tmp}/$stream.json" && status=0 || status=1
rm -f "${TMPDIR:-/tmp}/$stream.json"
exit $status
