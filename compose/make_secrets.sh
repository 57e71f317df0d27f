#!/bin/sh
# Make the secrets that are missing, each at random, in compose/secrets. What is there stays.
set -eu
folder="${1:-$(dirname "$0")/secrets}"

mkdir -p "$folder"
chmod 700 "$folder" # keeps others out; the containers read the files by another user's number
random() { # 48 hexadecimal digits
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}
keep() { # keep NAME: what comes by standard input, unless NAME is there
    [ -s "$folder/$1" ] || { cat >"$folder/.$1" && chmod 444 "$folder/.$1" && mv "$folder/.$1" "$folder/$1"; }
}
for name in database_password database_writer_password database_reader_password grafana_admin_password otlp_token; do
    { random && echo; } | keep "$name"
done
keep object_store <<JSON
{"identities": [{"name": "stepwell",
  "credentials": [{"accessKey": "stepwell", "secretKey": "$(random)"}],
  "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
JSON
