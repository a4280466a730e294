//! The measured cases: back ends of a disk, each with its peers, and the consumers of ours.

use std::path::Path;
use std::process::Command;

use super::medium::Medium;
use crate::root;

/// The interface between load and disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// vhost-user-blk, by the client of `weir_testing::vhost`.
    Vhost,
    /// NBD, by fio.
    Nbd,
}

/// The consumer of our back end's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    None,
    /// Receives every request and every completion.
    Everything,
    /// Receives number, bytes and quantiles of latency each second, by disk and operation.
    Groups,
    /// Receives the requests and completions of a hundredth of the disk.
    Hundredth,
    /// Polls the histograms.
    Histograms,
}

/// The requests of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
}

/// A back end under a load.
pub struct Case {
    pub name: &'static str,
    pub front: Front,
    pub consumer: Consumer,
    /// The required program.
    program: Option<&'static str>,
    command: fn(&Medium, &Path) -> Command,
}

/// Every case, the base of the comparison first.
pub const CASES: &[Case] = &[
    ours("weir, no consumer", Front::Vhost, Consumer::None),
    ours(
        "weir, every request sent",
        Front::Vhost,
        Consumer::Everything,
    ),
    ours(
        "weir, 1 % of the disk sent",
        Front::Vhost,
        Consumer::Hundredth,
    ),
    ours("weir, groups", Front::Vhost, Consumer::Groups),
    ours("weir, histograms", Front::Vhost, Consumer::Histograms),
    Case {
        name: "qemu-storage-daemon, io_uring",
        front: Front::Vhost,
        consumer: Consumer::None,
        program: Some("qemu-storage-daemon"),
        command: |medium, socket| storage_daemon(medium, socket, "io_uring"),
    },
    Case {
        name: "qemu-storage-daemon, threads",
        front: Front::Vhost,
        consumer: Consumer::None,
        program: Some("qemu-storage-daemon"),
        command: |medium, socket| storage_daemon(medium, socket, "threads"),
    },
    ours("weir, no consumer", Front::Nbd, Consumer::None),
    ours("weir, every request sent", Front::Nbd, Consumer::Everything),
    ours("weir, groups", Front::Nbd, Consumer::Groups),
    Case {
        name: "nbdkit file",
        front: Front::Nbd,
        consumer: Consumer::None,
        program: Some("nbdkit"),
        command: |medium, socket| {
            let mut command = nbdkit(socket);
            command.arg("file").arg(&medium.image);
            command
        },
    },
    Case {
        name: "nbdkit memory",
        front: Front::Nbd,
        consumer: Consumer::None,
        program: Some("nbdkit"),
        command: |medium, socket| {
            let mut command = nbdkit(socket);
            command.args(["memory", &format!("{}", medium.bytes)]);
            command
        },
    },
    Case {
        name: "qemu-nbd, io_uring",
        front: Front::Nbd,
        consumer: Consumer::None,
        program: Some("qemu-nbd"),
        command: |medium, socket| {
            let cache = if medium.is_direct {
                "none"
            } else {
                "writeback"
            };
            let mut command = Command::new("qemu-nbd");
            command.args([
                "--persistent",
                "--shared=8",
                "--format=raw",
                "--aio=io_uring",
            ]);
            command
                .arg(format!("--cache={cache}"))
                .arg("--socket")
                .arg(socket);
            command.arg(&medium.image);
            command
        },
    },
];

const fn ours(name: &'static str, front: Front, consumer: Consumer) -> Case {
    Case {
        name,
        front,
        consumer,
        program: None,
        command: match front {
            Front::Vhost => |medium, socket| weir(medium, "socket", socket),
            Front::Nbd => |medium, socket| weir(medium, "nbd", socket),
        },
    }
}

impl Case {
    /// The required program if it is missing.
    pub fn missing(&self) -> Option<&'static str> {
        self.program
            .filter(|program| !crate::packages::exists(program))
    }

    /// Whether it can serve the medium as others do: nbdkit does not support O_DIRECT, and its
    /// memory is not a disk.
    pub fn serves(&self, medium: &Medium) -> bool {
        !medium.is_direct || self.program != Some("nbdkit")
    }

    /// Whether it is measured with this operation: consumers are compared for reads only.
    pub fn has(&self, operation: Operation) -> bool {
        operation == Operation::Read || self.consumer == Consumer::None
    }

    /// Whether it is our back end.
    pub fn is_ours(&self) -> bool {
        self.program.is_none()
    }

    /// Serves the medium at a socket.
    pub fn command(&self, medium: &Medium, socket: &Path) -> Command {
        (self.command)(medium, socket)
    }
}

/// A program that was built for the measurement.
pub fn example(name: &str) -> Command {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    Command::new(target.join("release/examples").join(name))
}

/// Our back end, which sends its events at `SOCKET.tap`.
fn weir(medium: &Medium, front: &str, socket: &Path) -> Command {
    let mut command = example("serve");
    let (image, socket) = (medium.image.display(), socket.display());
    command
        .arg(format!("image={image}"))
        .arg(format!("{front}={socket}"));
    command.arg(format!("tap={socket}.tap"));
    command.arg(format!(
        "cache={}",
        if medium.is_direct { "direct" } else { "page" }
    ));
    command
}

/// QEMU's back end with a thread of its own for the disk, whose polling is QEMU's default.
fn storage_daemon(medium: &Medium, socket: &Path, aio: &str) -> Command {
    let (image, direct) = (
        medium.image.display(),
        if medium.is_direct { "on" } else { "off" },
    );
    let mut command = Command::new("qemu-storage-daemon");
    command.args(["--object", "iothread,id=io0"]);
    command.arg("--blockdev").arg(format!(
        "driver=file,node-name=disk,filename={image},aio={aio},cache.direct={direct}"
    ));
    command.arg("--export").arg(format!(
        "type=vhost-user-blk,id=disk,node-name=disk,writable=on,iothread=io0,addr.type=unix,addr.path={}",
        socket.display()
    ));
    command
}

fn nbdkit(socket: &Path) -> Command {
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--unix"]).arg(socket);
    command
}
