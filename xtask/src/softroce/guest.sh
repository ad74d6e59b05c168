#!/bin/sh
# The first process of the guest. `cargo xtask softroce` writes the job to the control
# folder /run/softroce and reads the result there:
#   shares          lines `TAG MODE FOLDER`: mount the folder at the same path
#   command         the shell script to run
#   versions        of rdma-core and the kernel, written here,
#   ready           written when the command starts,
#   exit            its exit code,
#   failure         or the reason why it did not run
# The command's output leaves by two virtio ports, so that the kernel's own
# messages on the console never mix with it.
control=/run/softroce
exec >/dev/console 2>&1

stop() {
    sync
    busybox poweroff -f
}

fail() {
    echo "$*" >"$control/failure"
    stop
}

mount -t tmpfs tmp /tmp
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts devpts /dev/pts
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr

while read -r tag mode folder; do
    mkdir -p "$folder"
    options=trans=virtio,version=9p2000.L,msize=262144
    [ "$mode" = rw ] || options=$options,ro,cache=loose
    mount -t 9p -o "$options" "$tag" "$folder" || fail "the guest cannot mount $folder"
done <"$control/shares"

# Two devices that reach each other through a veth pair: 10.77.0.1 is rxe0's
# and 10.77.0.2 is rxe1's. Both addresses are local, so without the routing
# rules the kernel would use loopback.
modprobe rdma_rxe && modprobe rdma_ucm && modprobe ib_umad || fail "the guest's kernel has no rdma_rxe"
ip link set lo up
ip link add veth0 type veth peer name veth1 || fail "the guest cannot make a veth pair"
for folder in all veth0 veth1; do
    echo 1 >/proc/sys/net/ipv4/conf/$folder/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$folder/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/$folder/arp_ignore
done
ip addr add 10.77.0.1/24 dev veth0
ip addr add 10.77.0.2/24 dev veth1
ip link set veth0 up
ip link set veth1 up
ip rule add pref 1 iif lo from 10.77.0.1 to 10.77.0.2 lookup 100
ip rule add pref 2 iif lo from 10.77.0.2 to 10.77.0.1 lookup 101
ip route add 10.77.0.2 dev veth0 src 10.77.0.1 table 100
ip route add 10.77.0.1 dev veth1 src 10.77.0.2 table 101
ip rule add pref 10 lookup local
ip rule del pref 0
rdma link add rxe0 type rxe netdev veth0 && rdma link add rxe1 type rxe netdev veth1 ||
    fail "the guest cannot make its RDMA devices"

# The kernel brings the port and its GIDs up later.
await() {
    for _ in $(seq 100); do
        ! grep -q "$1" "/sys/class/infiniband/$2" || return 0
        sleep 0.1
    done
    fail "$2 of the guest did not become $1"
}
for device in rxe0 rxe1; do
    await ACTIVE $device/ports/1/state
    await :ffff:0a4d: $device/ports/1/gids/1
done

# On one CPU two programs that poll for each other's message take turns. A turn normally lasts until
# the next tick, 4 ms, which an emulator takes for a long time. The first names are those of Linux 6.1.
if [ "$(nproc)" = 1 ]; then
    scheduler=/sys/kernel/debug/sched
    mount -t debugfs debug /sys/kernel/debug && echo HRTICK >$scheduler/features ||
        fail "the guest's scheduler has no short turns"
    for turn in latency_ns min_granularity_ns base_slice_ns; do
        [ ! -e $scheduler/$turn ] || echo 100000 >$scheduler/$turn
    done
fi

{
    dpkg-query --show --showformat '${source:Upstream-Version}\n' rdma-core
    uname -r
} >"$control/versions"

ulimit -l unlimited
ulimit -n 65536
port() {
    for folder in /sys/class/virtio-ports/*; do
        [ "$(cat "$folder/name")" != "softroce.$1" ] || echo "/dev/${folder##*/}"
    done
}
# Through pipes, because a port can be opened only once, and /dev/stdout many times.
mkfifo /run/stdout /run/stderr
cat /run/stdout >"$(port stdout)" &
output=$!
cat /run/stderr >"$(port stderr)" &
errors=$!
echo >"$control/ready"
sh "$control/command" </dev/null >/run/stdout 2>/run/stderr
status=$?
# A process that the command left behind may keep its output open.
(sleep 5; kill "$output" "$errors") 2>/dev/null &
wait "$output" "$errors"
echo "$status" >"$control/exit.part"
mv "$control/exit.part" "$control/exit"
stop
