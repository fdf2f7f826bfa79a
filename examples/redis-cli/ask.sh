#!/bin/sh
# A question whose context arrives in pieces, with nothing but redis-cli.
#
#   examples/redis-cli/ask.sh "What is a KV block?" page1.txt page2.txt
#
# Environment: REDIS_URL (redis://127.0.0.1:6379, or redis://USER@HOST), REDISCLI_AUTH (the password, if there is one),
# POOL (default/default), TENANT (default), REDIS_CLI (redis-cli; valkey-cli will do).
set -euf
[ $# -ge 1 ] || { echo "usage: ask.sh QUESTION [PAGE...]" >&2; exit 2; }

url=${REDIS_URL:-redis://127.0.0.1:6379}
user=
case ${url#*://} in
    *:*@*) ;;
    # redis-cli would take a lone user in the URL for a password.
    *@*) user=${url#*://} user=${user%@*} url="${url%%://*}://${url##*@}" ;;
esac
# -e: an error of the server is an error of the command.
redis() { "${REDIS_CLI:-redis-cli}" -u "$url" ${user:+--user "$user"} --no-auth-warning -e "$@"; }
send() { answer=$(redis "$@") || { printf '%s\n' "$answer" >&2; exit 1; }; }

# The text in the JSON of a token event, with JSON's escapes undone.
text() {
    awk '{
        match($0, /"text":"([^"\\]|\\.)*"/)
        rest = substr($0, RSTART + 8, RLENGTH - 9)
        while (match(rest, /\\./)) {
            char = substr(rest, RSTART + 1, 1)
            printf "%s", substr(rest, 1, RSTART - 1)
            if (char == "n") printf "\n"
            else if (char == "t") printf "\t"
            else if (char !~ /[bfru]/) printf "%s", char
            rest = substr(rest, RSTART + (char == "u" ? 6 : 2))
        }
        printf "%s", rest
    }'
}

prefix="s2l:{${POOL:-default/default}}"
stream="shell-$$-$(date +%s)"
ingress="$prefix:ingress:${TENANT:-default}"
reply="$prefix:reply:${TENANT:-default}:$stream"

# `messages` is JSON, so a question with quotes would need escaping; `prompt` is plain text and needs none.
prompt=$(printf 'Answer from the context.\n\n{context}\n\nQuestion: %s\nAnswer:' "$1")
shift
send XADD "$ingress" '*' stream "$stream" op open prompt "$prompt" params '{"max_tokens": 64, "temperature": 0}'
number=0
for page in "$@"; do
    # -x reads the last argument from standard input, so a page may hold anything.
    send -x XADD "$ingress" '*' stream "$stream" op append chunk "page-$number" text <"$page"
    number=$((number + 1))
done
send XADD "$ingress" '*' stream "$stream" op finish

# Read events, each from where the last one was, up to the terminal one.
last=0
newline='
'
while :; do
    event=$(redis XREAD COUNT 1 BLOCK 60000 STREAMS "$reply" "$last")
    [ -n "$event" ] || { echo "no event for 60 s: are a router and a pod running?" >&2; exit 1; }
    # redis-cli prints a value a line: the key, the event's id, "event", its kind, "data", its JSON.
    IFS=$newline
    # shellcheck disable=SC2086
    set -- $event
    unset IFS
    last=$2
    case $4 in
        token) printf '%s\n' "$6" | text ;;
        done) printf '\n'; printf '%s\n' "$6" >&2; exit 0 ;;
        error)
            printf '%s\n' "$6" >&2
            case $6 in *'"terminal":true'* | *'"terminal": true'*) exit 1 ;; esac ;;
    esac
done
