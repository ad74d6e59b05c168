# Server and client as two processes, each measurement with its own pair.
port=18515
device="-d $SOFTROCE_DEVICE ${SOFTROCE_GID_INDEX:+-x $SOFTROCE_GID_INDEX} -p $port"
log=$SOFTROCE_OUT/demo-server.log

# A TCP socket in state LISTEN (0A) on the port, looked up without disturbing it.
listening() {
    grep -qE ":$(printf %04X $port) 0+:0000 0A" /proc/net/tcp /proc/net/tcp6
}

measure() {
    echo "\$ stride-perf $* $device          # the server"
    timeout 120 stride-perf "$@" $device >"$log" 2>&1 &
    server=$!
    until listening; do
        if ! kill -0 $server 2>/dev/null; then
            echo "the server ended before it listened; it said:" >&2
            cat "$log" >&2
            return 1
        fi
        sleep 0.1
    done
    echo "\$ stride-perf $* $device $SOFTROCE_ADDRESS"
    timeout 120 stride-perf "$@" $device "$SOFTROCE_ADDRESS"
    status=$?
    if [ $status != 0 ]; then
        kill $server 2>/dev/null
        echo "the client failed with exit code $status; the server said:" >&2
        cat "$log" >&2
        return $status
    fi
    wait $server
    echo
}

measure write bw -a --max-msg-size 1M -n 200 &&
    measure write lat -a --max-msg-size 64K -n 200
