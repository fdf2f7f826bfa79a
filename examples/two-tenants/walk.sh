#!/bin/sh
# Two tenants on one pool: each has a Redis user and an HTTP token of its own, and neither reaches the other's streams.
#
#   examples/two-tenants/walk.sh
#
# Needs a Redis whose user you are may change ACLs, a router and a pod, redis-cli and curl. It makes the tenants acme and
# globex with their Redis users, and removes both at its end; if one of them is there already it does nothing. While there
# are named tenants the tenant `default` is served only if it is added too.
# Environment: REDIS_URL (redis://127.0.0.1:6379), REDISCLI_AUTH (your password, if there is one),
# POOL (default/default), HTTP_URL (http://127.0.0.1:8080), STREAM2LLM (stream2llm).
set -eu
redis_url=${REDIS_URL:-redis://127.0.0.1:6379}
pool=${POOL:-default/default}
http_url=${HTTP_URL:-http://127.0.0.1:8080}
prefix="s2l:{$pool}"
# Redis names users of ours NAMESPACE_POOL_TENANT.
users=$(printf '%s' "$pool" | tr / _)
address=${redis_url#*://}
server="${redis_url%%://*}://${address##*@}"
folder=$(mktemp -d)
made=
tidy() {
    for tenant in $made; do
        ours tenant remove "$tenant" >/dev/null 2>&1 || true
        admin ACL DELUSER "${users}_$tenant" >/dev/null || true
    done
    rm -rf "$folder"
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { printf '\n== %s\n' "$*"; }
ours() { "${STREAM2LLM:-stream2llm}" "$@" --pool "$pool" --redis "$redis_url"; }
admin() { redis-cli -u "$redis_url" -e "$@"; }
as() { # as TENANT COMMAND...: with the tenant's own user, its password by the environment
    tenant=$1
    shift
    REDISCLI_AUTH=$(cat "$folder/$tenant.password") \
        redis-cli -u "$server" --user "${users}_$tenant" --no-auth-warning -e "$@"
}
http() { # http TENANT METHOD PATH [CURL ARGUMENTS]: with the tenant's token, which stays out of the arguments
    tenant=$1 method=$2 path=$3
    shift 3
    curl -sS -K "$folder/$tenant.curl" -X "$method" "$http_url$path" "$@"
}

say "The administrator makes two tenants, each with a Redis user and a token"
if [ -n "${REDISCLI_AUTH:-}" ]; then export STREAM2LLM_REDIS_PASSWORD="$REDISCLI_AUTH"; fi
for tenant in acme globex; do
    if ours tenant list | grep -qx "$tenant" || [ -n "$(admin ACL GETUSER "${users}_$tenant")" ]; then
        echo "$tenant is there already, as a tenant or as the Redis user ${users}_$tenant: it would be changed" >&2
        exit 1
    fi
done
made='acme globex'
for tenant in $made; do
    ours tenant add "$tenant"
    ours tenant acl "$tenant" --setuser --user-password-file "$folder/$tenant.password" | admin
    printf 'header = "Authorization: Bearer %s"\n' "$(ours tenant token "$tenant")" >"$folder/$tenant.curl"
done

stream="walk-$$-$(date +%s)"
say "acme streams with its own user"
send() { as acme XADD "$prefix:ingress:acme" '*' stream "$stream" "$@" >/dev/null; }
send op open prompt 'Context: {context}' params '{"max_tokens": 16, "temperature": 0}'
send op append text "What only acme knows." chunk c1
send op finish
last=0
while :; do
    event=$(as acme XREAD COUNT 1 BLOCK 60000 STREAMS "$prefix:reply:acme:$stream" "$last")
    [ -n "$event" ] || { echo "no event for 60 s: are a router and a pod running?" >&2; exit 1; }
    last=$(printf '%s\n' "$event" | sed -n 2p)
    kind=$(printf '%s\n' "$event" | sed -n 4p)
    echo "acme reads: $kind"
    case $kind in
        done) break ;;
        error) printf '%s\n' "$event" | sed -n 6p >&2; exit 1 ;;
    esac
done

say "globex can neither read it, nor replay it, nor add to it, nor finish it"
refused() { # refused WHAT COMMAND...
    what=$1
    shift
    if answer=$(as globex "$@" 2>&1); then echo "globex could $what!" >&2; exit 1; fi
    case $answer in *NOPERM*) echo "globex may not $what" ;; *) printf '%s\n' "$answer" >&2; exit 1 ;; esac
}
refused "read the reply" XREAD STREAMS "$prefix:reply:acme:$stream" 0
refused "replay the reply" XRANGE "$prefix:reply:acme:$stream" - +
refused "append" XADD "$prefix:ingress:acme" '*' stream "$stream" op append text "Forged."
refused "finish" XADD "$prefix:ingress:acme" '*' stream "$stream" op finish
refused "see the entries" XRANGE "$prefix:entries:acme:$stream" - +

say "The same over HTTP: one call, one token"
printf '%s\n' '{"op": "open", "prompt": "Context: {context}", "params": {"max_tokens": 16}}' \
    '{"op": "append", "text": "What only globex knows."}' '{"op": "finish"}' |
    http globex POST /v1/streams:run -N --data-binary @- | grep '^event: ' | sort | uniq -c | sed 's/^ *[0-9]* /globex reads: /'
echo "acme reads its stream again: $(http acme GET "/v1/streams/$stream/events" -o "$folder/reply" -w '%{http_code}')"
echo "globex asks for it: $(http globex GET "/v1/streams/$stream/events" -o "$folder/none" -w '%{http_code}')"
echo "globex appends to it: $(http globex POST "/v1/streams/$stream/chunks" -H 'Content-Type: application/json' \
    -d '{"text": "Forged."}' -o "$folder/none" -w '%{http_code}')"
