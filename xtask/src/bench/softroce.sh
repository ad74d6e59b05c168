# stride-perf and perftest in turn over one device, server and client as two processes.
# Prints one line a turn; everything else goes to standard error.
port=18600
device="-d $SOFTROCE_DEVICE ${SOFTROCE_GID_INDEX:+-x $SOFTROCE_GID_INDEX}"
server_log=$SOFTROCE_OUT/bench-server.log
client_log=$SOFTROCE_OUT/bench-client.log

# A TCP socket in state LISTEN (0A) on the port, looked up without disturbing it.
listening() {
    grep -qE ":$(printf %04X $port) 0+:0000 0A" /proc/net/tcp /proc/net/tcp6
}

# One run: the column of the client's row that begins with the message size and the count (live lines begin with the size, too).
measure() {
    column=$1 size=$2
    shift 2
    port=$((port + 1))
    timeout 120 "$@" $device -p $port >"$server_log" 2>&1 &
    server=$!
    until listening; do
        kill -0 $server 2>/dev/null || break
        sleep 0.05
    done
    if ! timeout 120 "$@" $device -p $port "$SOFTROCE_ADDRESS" >"$client_log" 2>&1; then
        kill $server 2>/dev/null
        echo "failed: $*" >&2
        cat "$client_log" "$server_log" >&2
        return 1
    fi
    wait $server
    awk -v column="$column" -v size="$size" '$1 == size && $2 ~ /^[0-9]+$/ { print $column }' "$client_log"
}

# perftest's atomics have one size and no flag for it.
size_flag() {
    [ "$1" = atomic ] || echo "-s $2"
}

# Millions of messages per second, or the median in microseconds. perftest runs without its peak
# column, which costs a clock reading per message that stride-perf does not make.
perftest() {
    verb=$1 what=$2 size=$3 count=$4
    shift 4
    case $what in
    bw) measure 5 "$size" "ib_${verb}_bw" -F -N $(size_flag "$verb" "$size") -n "$count" "$@" ;;
    lat) measure 5 "$size" "ib_${verb}_lat" -F $(size_flag "$verb" "$size") -n "$count" "$@" ;;
    esac
}

stride() {
    verb=$1 what=$2 size=$3 count=$4
    shift 4
    case $what in
    bw) measure 4 "$size" stride-perf "$verb" bw $(size_flag "$verb" "$size") -n "$count" "$@" ;;
    lat) measure 5 "$size" stride-perf "$verb" lat $(size_flag "$verb" "$size") -n "$count" "$@" ;;
    esac
}

# A turn of one row: the operation, bw or lat, bytes, messages, more flags of both. The first of the
# three changes with the round.
row() {
    [ "${ONLY:-$2}" = "$2" ] || return 0
    if [ "$2" = lat ] && [ "$(nproc)" = 1 ]; then
        [ "$round" != 0 ] ||
            echo "SKIPPED $1 lat, $3 bytes: two sides that poll for each other on one processor measure its slices of time" >&2
        return 0
    fi
    case $((round % 3)) in
    0) a=$(perftest "$@") && s=$(stride "$@") && b=$(perftest "$@") ;;
    1) s=$(stride "$@") && a=$(perftest "$@") && b=$(perftest "$@") ;;
    2) b=$(perftest "$@") && a=$(perftest "$@") && s=$(stride "$@") ;;
    esac || return 1
    name="$1_$2_$3"
    shift 4
    for flag in "$@"; do name="${name}_$flag"; done
    echo "sample $name $a $s $b"
}

# For each operation, from the shortest messages to the longest.
rows() {
    for verb in write read send; do
        row $verb bw 2 2000 && row $verb bw 64 2000 && row $verb bw 4096 1000 && row $verb bw 65536 100 &&
            row $verb bw 1048576 10 && row $verb bw 8388608 5 &&
            row $verb lat 2 1000 && row $verb lat 4096 500 && row $verb lat 65536 50 || return 1
    done
    row write bw 2 6400 -l 64 -t 4096 && row write bw 4096 1280 -l 64 -t 4096 &&
        row atomic bw 8 2000 && row atomic lat 8 1000
}

echo "perftest $(ib_write_bw --version 2>&1 | awk '/Version/ { print $NF }')"
round=0
while [ $round -lt $PAIRS ]; do
    rows || exit 1
    round=$((round + 1))
done
