#!/bin/sh
# The guest's first process: loads the drivers, then runs each line that comes by the serial port
# `port` of the kernel's command line, and ends its output with a line `@@:STATUS`.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod "/modules/$module.ko"; done
# Loads a module with its options; fails if the kernel does not have it.
load_module() {
    [ -e "/modules/$1.order" ] || return 1
    for module in $(cat "/modules/$1.order"); do
        [ -d "/sys/module/$module" ] && continue
        if [ "$module" = "$1" ]; then shift; insmod "/modules/$module.ko" "$@"; return; fi
        insmod "/modules/$module.ko"
    done
}
# Without an echo, and line ends as they are.
port=${port:-/dev/ttyS1}
stty raw -echo < $port
exec < $port > $port 2>&1
echo READY
# The shell's own `read` is not used: it discards a partial line when a job ends in the meantime.
while line=$(head -n 1) && [ -n "$line" ]; do
    eval "$line" < /dev/null
    echo "@@:$?"
done
poweroff -f
