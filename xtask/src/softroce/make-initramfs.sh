#!/bin/sh
# Runs inside a guest's new user space (`cargo xtask softroce` pipes it into a shell) and
# creates /boot/kernel and /boot/initramfs, which mount the disk and the shared folder
# and start guest.sh.
set -eu
kernel=$(cd /lib/modules && ls | sort -V | tail -n 1)
tree=$(mktemp -d)
mkdir -p "$tree/bin" "$tree/modules" "$tree/proc" "$tree/sys" "$tree/dev" "$tree/disk"
cp /bin/busybox "$tree/bin/busybox"

# ext4 requests crc32c by name, so its module does not list it as a dependency. Newer kernels have
# no module for it.
for module in virtio_pci virtio_blk virtio_console crc32c_generic ext4 9p 9pnet_virtio; do
    modprobe --set-version "$kernel" --show-depends "$module" || [ "$module" = crc32c_generic ]
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r file; do
    name=$(basename "$file")
    case $file in
    *-intel.ko*) continue ;; # the generic one does on every CPU
    *.xz) name=${name%.xz}; xz --decompress --stdout "$file" >"$tree/modules/$name" ;;
    *) cp "$file" "$tree/modules/$name" ;;
    esac
    echo "$name" >>"$tree/modules/order"
done

cat >"$tree/init" <<'INIT'
#!/bin/busybox sh
busybox=/bin/busybox
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sys /sys
$busybox mount -t devtmpfs dev /dev
while read -r module; do $busybox insmod "/modules/$module"; done </modules/order
$busybox mount -t ext4 -o noatime /dev/vda /disk || exec $busybox reboot -f
$busybox mount -t tmpfs run /disk/run
$busybox mkdir /disk/run/softroce
$busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 control /disk/run/softroce ||
    exec $busybox reboot -f
for folder in proc sys dev; do $busybox mount --move "/$folder" "/disk/$folder"; done
exec $busybox switch_root /disk /bin/sh /run/softroce/guest.sh
INIT
chmod 755 "$tree/init"
(cd "$tree" && find . | cpio --quiet --create --format=newc) >/boot/initramfs
rm -rf "$tree"
cp "/boot/vmlinuz-$kernel" /boot/kernel
