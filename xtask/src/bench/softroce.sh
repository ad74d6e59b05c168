# stride-perf and perftest in turn over one device, server and client as two processes.
# Prints one line a pair; everything else goes to standard error.
port=18600
device="-d $SOFTROCE_DEVICE ${SOFTROCE_GID_INDEX:+-x $SOFTROCE_GID_INDEX}"
server_log=$SOFTROCE_OUT/bench-server.log
client_log=$SOFTROCE_OUT/bench-client.log

# A TCP socket in state LISTEN (0A) on the port, looked up without disturbing it.
listening() {
    grep -qE ":$(printf %04X $port) 0+:0000 0A" /proc/net/tcp /proc/net/tcp6
}

# One run: the column of the client's row that begins with the message size, times a factor.
measure() {
    column=$1 size=$2 factor=$3
    shift 3
    port=$((port + 1))
    timeout 120 "$@" $device -p $port -s $size >"$server_log" 2>&1 &
    server=$!
    until listening; do
        kill -0 $server 2>/dev/null || break
        sleep 0.05
    done
    if ! timeout 120 "$@" $device -p $port -s $size "$SOFTROCE_ADDRESS" >"$client_log" 2>&1; then
        kill $server 2>/dev/null
        echo "failed: $* -s $size" >&2
        cat "$client_log" "$server_log" >&2
        return 1
    fi
    wait $server
    awk -v column="$column" -v size="$size" -v factor="$factor" \
        '$1 == size { printf "%.6f\n", $column * factor }' "$client_log"
}

# Bandwidth is taken from the message rate, which perftest prints with more digits than the bandwidth itself.
# perftest goes without its peak column, which costs a clock reading a message that stride-perf does not make.
perftest() {
    case $1 in
    bw) measure 5 "$2" "$(gigabits "$2")" ib_write_bw -F -N --report_gbits -n "$3" ;;
    lat) measure 5 "$2" 1 ib_write_lat -F -n "$3" ;;
    esac
}

stride() {
    case $1 in
    bw) measure 4 "$2" "$(gigabits "$2")" stride-perf write bw -n "$3" ;;
    lat) measure 5 "$2" 1 stride-perf write lat -n "$3" ;;
    esac
}

# Gb/s for each million messages a second of a size.
gigabits() {
    awk -v size="$1" 'BEGIN { print size * 8 / 1000 }'
}

# The pairs of one row. Which of the three goes first changes with the pair.
row() {
    pair=0
    while [ $pair -lt $PAIRS ]; do
        case $((pair % 3)) in
        0) a=$(perftest "$@") && s=$(stride "$@") && b=$(perftest "$@") ;;
        1) s=$(stride "$@") && a=$(perftest "$@") && b=$(perftest "$@") ;;
        2) b=$(perftest "$@") && a=$(perftest "$@") && s=$(stride "$@") ;;
        esac || return 1
        echo "sample $1 $2 $a $s $b"
        pair=$((pair + 1))
    done
}

# Whether perftest differs from itself by more than a tenth in the middle.
noisy() {
    awk '{ d = $6 / $4 - 1; print d < 0 ? -d : d }' "$1" | sort -n |
        awk '{ v[NR] = $1 } END { exit !(v[int((NR + 1) / 2)] > 0.1) }'
}

# A row that is too noisy is measured again, three times at the most.
steady_row() {
    lines=$SOFTROCE_OUT/bench-row.txt
    for attempt in 1 2 3; do
        row "$@" >"$lines" || return 1
        noisy "$lines" || break
        echo "$1 $2: perftest differs from itself by more than 10 %, measured again" >&2
    done
    cat "$lines"
}

echo "perftest $(ib_write_bw --version 2>&1 | awk '/Version/ { print $NF }')"
steady_row bw 64 20000 &&
    steady_row bw 4096 5000 &&
    steady_row bw 65536 600 &&
    steady_row bw 1048576 50 &&
    steady_row lat 2 5000 &&
    steady_row lat 4096 2000
