# libvirtd in system mode for the script "$1" in folder "$2", in namespaces of its own: the
# directories of libvirt are empty ones, and the users that it requires exist there only.
set -e
mount --make-rprivate /
mkdir -p /var/lib/libvirt /var/cache/libvirt /etc/libvirt "$2/etc"
for directory in /var/lib/libvirt /var/cache/libvirt /run; do mount -t tmpfs tmpfs "$directory"; done
mkdir -p /run/libvirt
mount --bind "$2/etc" /etc/libvirt
cp /etc/passwd "$2/passwd"
cp /etc/group "$2/group"
grep -q '^libvirt-qemu:' "$2/passwd" ||
    echo 'libvirt-qemu:x:64055:65534::/var/lib/libvirt:/usr/sbin/nologin' >> "$2/passwd"
for group in kvm:x:64056: libvirt-qemu:x:64055:; do
    grep -q "^${group%%:*}:" "$2/group" || echo "$group" >> "$2/group"
done
mount --bind "$2/passwd" /etc/passwd
mount --bind "$2/group" /etc/group
cat > /etc/libvirt/qemu.conf << END
user = "root"
group = "root"
cgroup_controllers = []
security_driver = "none"
remember_owner = 0
namespaces = []
stdio_handler = "file"
END
libvirtd > "$2/libvirtd.log" 2>&1 &
tries=0
until virsh -c qemu:///system list > /dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || { cat "$2/libvirtd.log"; exit 1; }
    sleep 0.1
done
sh -ec "$1"
