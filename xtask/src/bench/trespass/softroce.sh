# trespass, rstream, UCX and perftest in turn over one device, server and client as two processes.
# Prints `sample ROW REFERENCE OURS REFERENCE`, and `rnr ROW COUNT` for each run of trespass; all else
# goes to standard error.
port=18600
device="-d $SOFTROCE_DEVICE ${SOFTROCE_GID_INDEX:+-x $SOFTROCE_GID_INDEX}"
address=$SOFTROCE_ADDRESS
log=$SOFTROCE_OUT/bench-trespass
notes=$log.rnr
counters=/sys/class/infiniband/$SOFTROCE_DEVICE/ports/1/hw_counters
: >"$notes"

# A TCP socket in state LISTEN (0A) on the port, looked up without disturbing it.
listens_tcp() {
    grep -qE ":$(printf %04X $port) 0+:0000 0A" /proc/net/tcp /proc/net/tcp6
}

# The same for the connection manager.
listens_cm() {
    rdma resource show cm_id 2>/dev/null | grep LISTEN | grep -q ":$port "
}

# converse LISTENS SERVER -- CLIENT: runs both; $log.client has the client's output.
converse() {
    listens=$1
    shift
    server=
    while [ "$1" != -- ]; do
        server="$server $1"
        shift
    done
    shift
    timeout "${LIMIT:-120}" $server >"$log.server" 2>&1 &
    pid=$!
    until $listens; do
        if ! kill -0 $pid 2>/dev/null; then
            echo "ended before it listened: $server" >&2
            cat "$log.server" >&2
            return 1
        fi
        sleep 0.02
    done
    if ! timeout "${LIMIT:-120}" "$@" >"$log.client" 2>&1; then
        kill $pid 2>/dev/null
        echo "failed: $*" >&2
        cat "$log.client" "$log.server" >&2
        return 1
    fi
    wait $pid
}

# The kernel's counters of RNR NAKs on both sides.
for counter in rcvd_rnr_err send_rnr_err; do
    if [ ! -r "$counters/$counter" ]; then
        echo "this kernel does not count receivers that are not ready: there is no $counters/$counter" >&2
        exit 1
    fi
done
not_ready() {
    cat "$counters/rcvd_rnr_err" "$counters/send_rnr_err" | awk '{ n += $1 } END { print n }'
}

# trespass ROW COLUMNS ARGUMENTS...
trespass() {
    row=$1 columns=$2
    shift 2
    port=$((port + 1))
    before=$(not_ready)
    # A run over TCP has no device.
    case "$*" in *"--transport tcp"*) where= ;; *) where=$device ;; esac
    converse listens_tcp stride-perf msg "$@" $where -p $port -- stride-perf msg "$@" $where -p $port $address || return 1
    echo "rnr $row $(($(not_ready) - before))" >>"$notes"
    columns $columns $size $n
}

# Microseconds per transfer, for both directions. It polls unless an argument makes it wait.
rstream_us() {
    port=$((port + 1))
    converse listens_cm rstream -b $address -p $port -B 524288 "$@" -- rstream -s $address -p $port -B 524288 "$@" || return 1
    awk 'NF > 6 && $NF > 0 { us = $NF } END { print us }' "$log.client"
}

# ucx COLUMN ARGUMENTS...: that column of the final row, which has commas and a count of four digits.
ucx() {
    column=$1
    shift
    port=$((port + 1))
    converse listens_tcp env $UCX ucx_perftest -p $port -- env $UCX ucx_perftest $address -p $port -v -f -w 10 "$@" || return 1
    awk -F, -v column="$column" '$1 ~ /^ *[0-9]+$/ { value = $column } END { print value }' "$log.client"
}
# rc_verbs, and the datagrams by which it connects. UCX before 1.19 treats a datagram as IPv4 only if
# its completion has service level 2, as mlx5's do, and drops others unless the check is off.
UCX="UCX_TLS=rc_v UCX_UD_VERBS_ETH_DGID_CHECK=n ${SOFTROCE_GID_INDEX:+UCX_IB_GID_INDEX=$SOFTROCE_GID_INDEX} \
UCX_NET_DEVICES=$SOFTROCE_DEVICE:1 UCX_WARN_UNUSED_ENV_VARS=n"

# columns WHICH SIZE [COUNT]: those columns of the client's row that begins with them (live lines begin
# with the size, too).
columns() {
    awk -v columns="$1" -v size="$2" -v count="$3" '
        $1 == size && (count == "" || $2 == count) {
            n = split(columns, c, ",")
            for (i = 1; i <= n; i++) printf "%s ", $c[i]
            print ""
        }' "$log.client"
}

# perftest COLUMNS PROGRAM ARGUMENTS...
perftest() {
    columns=$1 program=$2
    shift 2
    port=$((port + 1))
    set -- "$program" $device -F -p $port -s $size -n $n "$@"
    converse listens_tcp "$@" -- "$@" $address || return 1
    columns $columns $size
}

calculate() {
    awk "BEGIN { printf \"%.6f\", $1 }"
}

# The number of messages with which a run takes $RUN microseconds in an emulated guest, at this time
# for each and 12 ns per byte.
count() {
    awk -v run="$RUN" -v us="$1" -v bytes="$2" 'BEGIN { n = int(run / (us + bytes * 0.012)); print n < 10 ? 10 : n }'
}

# The programs that take turns: functions without arguments, which use $size, $n and $row. All poll,
# also trespass over RDMA.
lat_ours() { trespass $row 4,5 lat --transport rdma --poll -s $size -n $n; }
lat_pool() { trespass $row 5 lat --transport rdma --poll --api pool -s $size -n $n; }
lat_tcp() { trespass $row 4 lat --transport tcp -s $size -n $n; }
lat_rstream() { rstream_us -S $size -C 1 -I $n; }
lat_ucx() { ucx 2 -t tag_lat -s $size -n $n; }
lat_perftest() { perftest 5 ib_send_lat; }
# The mean and the median, like `lat_ours`.
lat_bare() { perftest '6,5' ib_send_lat; }
bw_ours() { trespass $row 3 bw --transport rdma --poll -s $size -n $n; }
bw_corked() { trespass $row 3 bw --transport rdma --poll --cork -s $size -n $n; }
bw_pool() { trespass $row 3 bw --transport rdma --poll --api pool -s $size -n $n; }
bw_tcp() { trespass $row 3 bw --transport tcp -s $size -n $n; }
bw_rstream() { us=$(rstream_us -S $size -C $n -I 1) && calculate "$size * 8 / 1000 / $us"; }
# In units of 2^20 bytes. perftest runs without its peak column, which reads the clock per message.
bw_ucx() { mib=$(ucx 6 -t tag_bw -s $size -n $n) && calculate "$mib * 1.048576 * 8 / 1000"; }
bw_bare() { mib=$(perftest 4 ib_send_bw -N) && calculate "$mib * 1.048576 * 8 / 1000"; }
bw_perftest() { mib=$(perftest 4 ib_write_bw -N) && calculate "$mib * 1.048576 * 8 / 1000"; }
# Messages per second with 64 in flight: for rstream 64 to the peer and 64 back, for ours a request and
# its answer.
rate_rstream() { us=$(rstream_us -S $size -C 64 -I $((n / 64))) && calculate "1000000 / $us"; }
rate_ours() { qps=$(trespass $row 7 grid --transport rdma --poll -s $size -t 64 -n $n) && calculate "2 * $qps"; }
# Requests per second.
in_flight() { trespass $row 7 grid --transport rdma --poll -s $size -t "$1" -n $n; }

# together FUNCTION...: runs each; the first one changes with the turn. $log.N has the output of the Nth.
together() {
    step=0
    while [ $step -lt $# ]; do
        which=$(((step + turn) % $# + 1))
        eval "\${$which}" >"$log.$which" || return 1
        step=$((step + 1))
    done
}

# sample AGAINST REFERENCE OURS AGAIN
sample() {
    for figure in "$2" "$3" "$4"; do
        if [ -z "$figure" ]; then
            echo "$row against $1: not three figures: $*" >&2
            return 1
        fi
    done
    echo "sample ${row}_$1 $2 $3 $4"
}

said() {
    cat "$log.$1"
}

# Mean and median of a latency (rstream has the mean alone): a sample of the Nth's output against each.
beside() {
    read -r first last <"$log.$1"
    sample rstream "$(said 1)" "$first" "$(said 2)" || return 1
    [ ! "$with_ucx" ] || sample ucx "$(said 3)" "${last:-$first}" "$(said 4)"
}

# The references.
others() {
    echo "$1_rstream $1_rstream ${with_ucx:+$1_ucx $1_ucx}"
}

# against KIND: all programs of a size and kind in turn, a sample against each, and one against bare
# verbs, which no library above them can exceed.
against() {
    set -- $1 $(others $1)
    kind=$1 count=$#
    shift
    together "$@" ${kind}_ours ${kind}_tcp ${kind}_bare || return 1
    beside $count || return 1
    tcp=$(said $((count + 1)))
    sample tcp "$tcp" "$first" "$tcp" || return 1
    row=bare$row
    beside $((count + 2))
}

# Short messages: many in a frame.
corked() {
    [ $size -le 4096 ] || return 0
    row=cork_$size
    together $(others bw) bw_corked && beside $(($(others bw | wc -w) + 1))
}

# uncopied KIND: messages that UCX does not copy, against the pool's buffers of up to 1 MiB, which are
# not copied either.
uncopied() {
    [ "$with_ucx" ] && [ $size -ge 65536 ] && [ $size -le 1048576 ] || return 0
    row=pool$1_$size
    together $1_ucx $1_pool $1_ucx && sample ucx "$(said 1)" "$(said 2)" "$(said 3)"
}

latency() {
    size=$1 row=lat_$1 n=$(count 40 $((2 * $1)))
    against lat && uncopied lat
}

bandwidth() {
    size=$1 row=bw_$1 n=$(count 20 $1)
    against bw && corked && uncopied bw
}

# hardware NAME SIZE COUNT REFERENCE OURS
hardware() {
    size=$2 row=$1_$2 n=$3
    together $4 $5 $4 || return 1
    # The second column of a latency is its median.
    sample perftest "$(said 1)" "$(awk '{ print $NF }' "$log.2")" "$(said 3)"
}

rate() {
    size=64 row=rate_64 n=$(count 26 64)
    together rate_rstream rate_ours rate_rstream && sample rstream "$(said 1)" "$(said 2)" "$(said 3)"
}

# Up and down, so that each step follows each of its neighbours.
steps() {
    size=64 n=$(count 25 64)
    up= down=
    for count in $STEPS; do
        row=step_$count
        figure=$(in_flight $count) || return 1
        up="$up $figure"
    done
    for count in $(echo $STEPS | awk '{ for (i = NF; i; i--) print $i }'); do
        row=step_$count
        figure=$(in_flight $count) || return 1
        down="$figure $down"
    done
    echo "$STEPS $up $down" | awk '{
        n = NF / 3
        for (i = 2; i <= n; i++) {
            ours = sqrt($(n + i) * $(2 * n + i))
            print "sample", "step_" $i "_" $(i - 1), $(n + i - 1), ours, $(2 * n + i - 1)
        }
    }'
}
STEPS="1 4 16 64 256 512"

# The measured ones of these sizes.
chosen() {
    for size in "$@"; do
        case " $SIZES " in *" $size "*) echo "$size" ;; esac
    done
}

# UCX connects rc_verbs by datagrams, which not every device delivers.
size=64 n=100 with_ucx=1
if ! figure=$(LIMIT=30 && lat_ucx 2>"$log.ucx") || [ -z "$figure" ]; then
    with_ucx=
    # Without an error, print its output in place of a figure.
    grep -m 3 -E 'Fatal|ERROR|failed' "$log.ucx" >&2 || tail -n 3 "$log.ucx" "$log.client" >&2
    echo "without UCX's tag_lat and tag_bw: they do not work here, for the reason that the run prints above its table"
fi

port=$((port + 1))

turn=0
while [ $turn -lt $PAIRS ]; do
    hardware send 64 "$(count 40 128)" lat_perftest lat_ours || exit 1
    for size in $(chosen 65536 262144 1048576); do
        hardware pool $size "$(count 20 $size)" bw_perftest bw_pool || exit 1
    done
    for size in $(chosen 65536 262144 1048576 4194304); do
        hardware copy $size "$(count 20 $size)" bw_perftest bw_ours || exit 1
    done
    rate && steps || exit 1
    for size in $SIZES; do
        latency $size && bandwidth $size || exit 1
    done
    turn=$((turn + 1))
done
cat "$notes"
echo "versions perftest $(ib_write_bw --version 2>&1 | awk '/Version/ { print $NF }'), UCX $(ucx_info -v | awk '/Version/ { print $NF }')"
