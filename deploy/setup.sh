#!/bin/sh
# Makes what a trial with ten clients needs: keys, a certificate, a list of clients, a catalogue, data.
# For a trial only: here one machine has the authority's key, the server's and the clients' identities. In a
# deployment each is made where it stays (docs/guide/deployment.md).
set -eu
ETC=${SFSL_ETC:-/etc/sfsl}
CLIENTS=${SFSL_CLIENTS:-/clients}
HOST=${SFSL_HOST:-sfsl.example.org}
COUNT=${SFSL_COUNT:-10}
if [ -f "$ETC/done" ]; then
    echo "everything is there"
    exit 0
fi
sfsl keys authority "$ETC/tls"
sfsl keys server "$ETC/tls" --host "$HOST" --host localhost
{
    echo item,category
    i=0
    while [ "$i" -lt 300 ]; do
        echo "$i,$((i % 7))"
        i=$((i + 1))
    done
} > "$ETC/items.csv"
sfsl catalogue make "csv:$ETC/items.csv" -o "$ETC/catalogue.json"
n=1
while [ "$n" -le "$COUNT" ]; do
    home="$CLIENTS/client-$n"
    mkdir -p "$home"
    sfsl keys client "$home/client-$n.key" | tail -n 1 >> "$ETC/clients.txt"
    {
        echo item,label,time
        t=0
        while [ "$t" -lt 40 ]; do
            echo "$(((t * 7 + n * 3) % 20)),$(((t + n) % 2)),$t"
            t=$((t + 1))
        done
    } > "$home/my.csv"
    cp "$ETC/tls/authority.pem" "$home/authority.pem"
    n=$((n + 1))
done
if [ "$(id -u)" = 0 ]; then
    chown -R 10001:10001 "$ETC" "$CLIENTS" "${SFSL_STATE:-/var/lib/sfsl}" # the user of the image
fi
touch "$ETC/done"
