# C's cmtime, ours and C's again in turn, over one device: each as the client of C's server.
# Prints one line a step and turn; everything else goes to standard error.
port=18900
c=/usr/bin/cmtime
ours=cmtime
# A separate folder, because two guests at a time share the host's.
log=/tmp/bench-cm
server=

# From rdma-core 52 on both sides synchronise over TCP, and the server ends with its client.
if $c -? 2>&1 | grep -q num_threads; then agrees=1; else agrees=; fi

# A TCP socket in state LISTEN (0A) on the port, looked up without disturbing it.
listening() {
    grep -qE ":$(printf %04X $port) 0+:0000 0A" /proc/net/tcp /proc/net/tcp6
}

serve() {
    port=$((port + 1))
    # On one device, the invented queue pair numbers of both sides must differ.
    timeout 120 $c -p $port -c $CONNECTIONS ${agrees:+-q 5000} >"$log.server" 2>&1 &
    server=$!
    if [ "$agrees" ]; then
        until listening; do
            kill -0 $server 2>/dev/null || return 1
            sleep 0.05
        done
    else
        # No call tells whether it listens.
        sleep 1
    fi
}

# A run of a client; its table as `STEP US`, for all connections together or for each.
client() {
    serve || return 1
    if ! timeout 120 "$@" -s "$SOFTROCE_ADDRESS" -b "$SOFTROCE_ADDRESS" -p $port -c $CONNECTIONS >"$log.client" 2>&1; then
        echo "failed: $*" >&2
        cat "$log.client" "$log.server" >&2
        kill $server 2>/dev/null
        return 1
    fi
    if [ "$agrees" ]; then
        wait $server
        awk -v n=$CONNECTIONS '
            /^cm_conn/ { exit }
            /^step/ { rows = 1; next }
            rows && NF > 6 {
                name = $1; for (i = 2; i <= NF - 6; i++) name = name "_" $i
                total = $(NF - 4); sum = $(NF - 2)
                us = total > 0 ? total : sum
                if (us > 0) printf "%s %.3f\n", name, us / n
            }' "$log.client"
    else
        kill $server
        wait $server 2>/dev/null
        awk '
            /^step/ { rows = 1; next }
            rows { sub(/ *:/, ":"); split($0, part, ":"); gsub(/ /, "_", part[1]); print part[1], $NF }' "$log.client"
    fi
}

turn=0
while [ $turn -lt $PAIRS ]; do
    case $((turn % 3)) in
    0) client $c >"$log.1" && client $ours >"$log.2" && client $c >"$log.3" ;;
    1) client $ours >"$log.2" && client $c >"$log.3" && client $c >"$log.1" ;;
    2) client $c >"$log.3" && client $c >"$log.1" && client $ours >"$log.2" ;;
    esac || exit 1
    # Steps that took one program no time are omitted.
    awk '
        FNR == 1 { file++ }
        { us[file, $1] = $2; if (file == 1) order[++count] = $1 }
        END {
            for (i = 1; i <= count; i++) {
                name = order[i]
                if (us[1, name] > 0 && us[2, name] > 0 && us[3, name] > 0)
                    print "sample", name, us[1, name], us[2, name], us[3, name]
            }
        }' "$log.1" "$log.2" "$log.3"
    turn=$((turn + 1))
done
