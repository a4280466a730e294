//! [`Workers`]: processes that do a VM's I/O on its behalf: vhost-user back ends, and the kernel's
//! threads of vhost.
//!
//! A back end is found by its socket: the kernel lists unix sockets with their names, an accepted
//! connection with the name of the listening socket, and the open files of a process include its
//! sockets. Source: proc_net_unix of proc(5), `unix_seq_show` of net/unix/af_unix.c; threads
//! `vhost-TID` of drivers/vhost/vhost.c, of kernels before 6.4.

use std::collections::HashMap;

use super::found::FoundVm;
use super::host::Host;
use super::process::Processes;

/// Maximum number of open files of a process that are examined.
const OPEN_FILES_MAX: usize = 1 << 14;

/// `SS_CONNECTED` of include/uapi/linux/net.h.
const CONNECTED: &str = "03";

/// The back ends found so far.
#[derive(Debug, Default)]
pub struct Workers {
    /// The processes that hold connections, cached while the connections are unchanged.
    holders: HashMap<Vec<u64>, Vec<(u32, u64)>>,
}

impl Workers {
    /// Adds to each VM the processes that work for it.
    pub fn assign<'a>(
        &mut self,
        host: &Host,
        processes: &Processes,
        vms: impl Iterator<Item = &'a mut FoundVm>,
    ) {
        let threads = vhost_threads(host, processes);
        let mut before = std::mem::take(&mut self.holders);
        for vm in vms {
            let Some(pid) = vm.pid else {
                continue;
            };
            let own = threads.iter().filter(|(_, owner)| *owner == pid);
            vm.workers.extend(own.map(|(thread, _)| *thread));
            if vm.backends.is_empty() {
                continue;
            }
            let table = host
                .text(format!("/proc/{pid}/net/unix"))
                .unwrap_or_default();
            let connections = connections(&table, &vm.backends);
            let alive = |(pid, start): &(u32, u64)| {
                processes.get(*pid).is_some_and(|p| p.start_ticks == *start)
            };
            let known = before
                .remove(&connections)
                .filter(|all| all.iter().all(alive));
            let holders = known.unwrap_or_else(|| holders(host, processes, &connections));
            // If the VM waits for the back end, the VM itself listens on the socket.
            vm.workers
                .extend(holders.iter().map(|(p, _)| *p).filter(|p| *p != pid));
            self.holders.insert(connections, holders);
        }
    }
}

/// The kernel's vhost threads, and the process of each.
fn vhost_threads(host: &Host, processes: &Processes) -> Vec<(u32, u32)> {
    let all = processes.all().into_iter().filter(|p| p.kernel);
    let owner = |comm: &str| {
        let thread: u32 = comm.strip_prefix("vhost-")?.parse().ok()?;
        if processes.get(thread).is_some() {
            return Some(thread);
        }
        // The thread is named after the thread that created it.
        let status = host.text(format!("/proc/{thread}/status"))?;
        let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
        group.trim().parse().ok()
    };
    all.filter_map(|p| Some((p.pid, owner(&p.comm)?))).collect()
}

/// The inodes of connections that were accepted on one of these sockets, in order. A line has
/// reference count, protocol, flags, type, state, inode and path.
fn connections(table: &str, sockets: &[String]) -> Vec<u64> {
    let inode = |line: &str| {
        let words: Vec<&str> = line.splitn(8, ' ').collect();
        // The inode is padded with spaces to five columns.
        let [_, _, _, _, _, state, rest @ ..] = &words[..] else {
            return None;
        };
        let rest = rest.join(" ");
        let (inode, path) = rest.trim_start().split_once(' ')?;
        let ours = *state == CONNECTED && sockets.iter().any(|s| s == path);
        ours.then(|| inode.parse().ok())?
    };
    let mut inodes: Vec<u64> = table.lines().filter_map(inode).collect();
    inodes.sort_unstable();
    inodes.dedup();
    inodes
}

/// The processes that have one of these sockets open, with their start times.
fn holders(host: &Host, processes: &Processes, inodes: &[u64]) -> Vec<(u32, u64)> {
    if inodes.is_empty() {
        return Vec::new();
    }
    let holds = |pid: u32| {
        let folder = format!("/proc/{pid}/fd");
        let files = host.names_of(&folder, "the open files of other users' processes");
        files.iter().take(OPEN_FILES_MAX).any(|file| {
            let link = host.link(format!("{folder}/{file}"));
            let inode = link
                .as_deref()
                .and_then(|path| path.to_str())
                .and_then(|path| {
                    let inode = path.strip_prefix("socket:[")?.strip_suffix(']')?;
                    inode.parse::<u64>().ok()
                });
            inode.is_some_and(|inode| inodes.contains(&inode))
        })
    };
    let all = processes.all().into_iter().filter(|p| !p.kernel);
    all.filter(|p| holds(p.pid))
        .map(|p| (p.pid, p.start_ticks))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &str = "Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 21001 /run/tap.sock
0000000000000000: 00000003 00000000 00000000 0001 03   903 /run/tap.sock
0000000000000000: 00000003 00000000 00000000 0001 03 21003 /run/other one.sock
0000000000000000: 00000003 00000000 00000000 0001 03 21004
";

    #[test]
    fn accepted_connections_have_the_name_of_their_socket() {
        let of = |path: &str| connections(TABLE, &[path.to_owned()]);
        assert_eq!(of("/run/tap.sock"), [903]);
        assert_eq!(of("/run/other one.sock"), [21003]);
        assert!(of("/run/none.sock").is_empty());
    }

    proptest! {
        #[test]
        fn no_table_is_too_strange(table in "[0-9a-f: /\\n]{0,200}") {
            connections(&table, &["/a".to_owned()]);
        }
    }
}
