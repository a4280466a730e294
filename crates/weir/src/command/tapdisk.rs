//! `weir tapdisk`: serves virtual disks to VMs and reports each request.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use weir_tap::tapdisk::words::DiskLimits;
use weir_tapdisk::SocketAccess;
use weir_tapdisk::disk::{Identity, ImageFormat};
use weir_tapdisk::engine::{CacheOption, EngineOption};
use weir_tapdisk::inject::{DelayRule, ErrorRule, Injections};
use weir_tapdisk::nbd::NbdAddress;

use super::tapdisk_insert::{self, InsertArgs};
use super::tapdisk_remove::{self, RemoveArgs};
use super::tapdisk_status::{self, StatusArgs};
use crate::args::LogArgs;
use weir_runtime::config::load;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::run_loop::Stop;
use weir_tapdisk::insertion::{self, InsertionError};
use weir_tapdisk::service::{self, Companion, DiskEntry, NbdEntry, Owner, Setup, TapdiskConfig};

/// Serve virtual disks to VMs and report each request of the guests
///
/// The back end of a virtual disk over vhost-user-blk (QEMU, libvirt, Cloud Hypervisor,
/// Firecracker) or NBD. The image is a raw file or a block device. `weir query --from tapdisk:PATH`
/// receives each request with the times at which it was read from the queue, submitted and
/// completed; events that no client needs are not created. Root is not required: the user must be
/// able to read and write the image.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    weir tapdisk --image web.raw --socket /run/user/1000/web.sock --vm web --vdisk /dev/vda\n  \
    weir tapdisk --disk image=a.raw,socket=a.sock,vm=web,vdisk=/dev/vda \\\n               \
    --disk image=b.raw,socket=b.sock,vm=web,vdisk=/dev/vdb,read-only\n  \
    weir tapdisk --config /etc/weir/tapdisk/web.toml\n  \
    weir tapdisk --image web.raw --nbd unix:web.nbd --vm web --vdisk /dev/vda\n  \
    weir tapdisk --image web.raw --socket web.sock --delay 20ms,op=r,rate=1%\n  \
    weir tapdisk status web.sock\n  \
    weir query --from tapdisk:web.sock \"select op, count(*), avg(latency) from IO [range 1 s slide 1 s] group by op\"\n\n\
    At SIGTERM or SIGINT the tapdisk ends after the requests in flight have completed. A VM that \
    reconnects continues with the next request. docs/tapdisk.md describes how VMs are connected, and \
    the guarantees."
)]
pub struct TapdiskArgs {
    #[command(subcommand)]
    command: Option<TapdiskCommand>,
    #[command(flatten)]
    disk: DiskArgs,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// The other operations on tapdisks.
#[derive(Subcommand, Debug)]
enum TapdiskCommand {
    Status(StatusArgs),
    Insert(InsertArgs),
    Remove(RemoveArgs),
}

/// One disk.
#[derive(Args, Debug)]
#[command(next_help_heading = "Disk")]
struct DiskArgs {
    /// Image of the disk: a raw file or a block device
    #[arg(long, value_name = "FILE", conflicts_with_all = ["disks", "config"])]
    image: Option<PathBuf>,
    /// Format of the image: raw, the only one that is served. With this option the content is not
    /// checked [default: raw; an image with the header of qcow2, vmdk, vhd, vhdx, vdi, qed or
    /// parallels is rejected, because the first write would destroy it]
    #[arg(long, value_name = "FORMAT", requires = "image", value_parser = service::format)]
    format: Option<ImageFormat>,
    /// Serve the disk over vhost-user-blk at this unix socket
    #[arg(long, value_name = "PATH", requires = "image")]
    socket: Option<PathBuf>,
    /// Name of the VM, for column vm
    #[arg(long, value_name = "NAME", requires = "image", value_parser = service::name)]
    vm: Option<String>,
    /// Name of the disk in the VM, for column vdisk, such as /dev/vda
    #[arg(long, value_name = "NAME", requires = "image", value_parser = service::name)]
    vdisk: Option<String>,
    /// Serial number for the guest, up to 20 characters [default: derived from the image's name]
    #[arg(long, value_name = "TEXT", requires = "image", value_parser = service::serial)]
    serial: Option<String>,
    /// Serve the disk read-only
    #[arg(long, requires = "image")]
    read_only: bool,
    /// Maximum number of queues of the guest; each queue has its own thread [default: 64]
    #[arg(long, value_name = "COUNT", requires = "image", value_parser = service::queues)]
    queues: Option<u16>,
    /// Logical block size for the guest: 512, 1024, 2048 or 4096 bytes [default: that of the image]
    #[arg(long, value_name = "BYTES", requires = "image", value_parser = service::block_size)]
    block_size: Option<u32>,
    /// Engine that executes requests: uring (io_uring), sync (system calls), or auto (uring where
    /// the kernel permits it)
    #[arg(long, value_name = "ENGINE", default_value = "auto", hide_possible_values = true, value_parser = service::engine)]
    engine: EngineOption,
    /// Use of the host's page cache: direct (O_DIRECT), page (page cache), or auto (direct where
    /// the file system supports it)
    #[arg(long, value_name = "CACHE", default_value = "auto", value_parser = service::cache)]
    cache: CacheOption,
    /// Time to poll a queue or an NBD connection before its thread sleeps, at most 10ms; 0
    /// disables polling [default: 50us]
    #[arg(long, value_name = "DURATION", requires = "image", value_parser = service::poll)]
    poll: Option<Duration>,
    /// Limit of requests per second; `weir act limit` sets another one for some time [default:
    /// none]
    #[arg(long, value_name = "COUNT", requires = "image", value_parser = service::iops)]
    iops: Option<u64>,
    /// Limit of bytes of reads and writes per second [default: none]
    #[arg(long, value_name = "SIZE", requires = "image", value_parser = service::bytes_per_second)]
    bytes_per_second: Option<u64>,
    /// Time for which a disk that was idle may exceed its limits by as much again, at most 60s
    /// [default: 100ms]
    #[arg(long, value_name = "DURATION", requires = "image", value_parser = service::burst_ms)]
    burst: Option<u64>,
    /// Delay requests, for tests, such as 20ms,op=r,rate=1%; may be repeated
    #[arg(long, value_name = "RULE", requires = "image")]
    delay: Vec<DelayRule>,
    /// Fail requests, for tests, such as EIO,op=w,sectors=0..2048,times=3; may be repeated
    #[arg(long, value_name = "RULE", requires = "image")]
    error: Vec<ErrorRule>,
    /// Do not lock the image; for an image that a running VM has open itself
    #[arg(long, requires = "image")]
    no_lock: bool,
    /// Reject the image unless it is this file: a tap under a running VM must serve the file that
    /// the VM has open
    #[arg(long, value_name = "ID", requires = "image", hide = true)]
    identity: Option<Identity>,
}

/// The process.
#[derive(Args, Debug)]
#[command(next_help_heading = "Service")]
struct ServeArgs {
    /// A disk: the names and values of the options above, such as
    /// image=FILE,socket=PATH,vm=NAME,vdisk=NAME; may be repeated
    #[arg(long = "disk", id = "disks", value_name = "OPTIONS", value_parser = DiskEntry::of_words)]
    disks: Vec<DiskEntry>,
    /// Configuration file with the disks and these settings (TOML)
    #[arg(long, value_name = "FILE", conflicts_with = "disks")]
    config: Option<PathBuf>,
    /// Also serve the disks over NBD, at unix:PATH or 127.0.0.1:PORT
    #[arg(long, value_name = "ADDRESS")]
    nbd: Option<NbdAddress>,
    /// Maximum number of NBD clients; at the maximum, a new client replaces an idle one [default:
    /// 32]
    #[arg(long, value_name = "COUNT", value_parser = service::nbd_clients)]
    nbd_clients: Option<u16>,
    /// Time without requests after which an NBD client can be replaced [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = service::nbd_idle)]
    nbd_idle: Option<Duration>,
    /// Unix socket at which requests are reported [default: the socket of the first disk, or of
    /// --nbd, with .tap appended; for a port, weir-tapdisk/port-PORT.tap in /run or
    /// $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    tap: Option<PathBuf>,
    /// Access mode of the sockets in octal, as for chmod [default: 600]
    #[arg(long, value_name = "MODE", value_parser = service::mode)]
    socket_mode: Option<u32>,
    /// Group of the sockets, for a QEMU that runs as another user [default: that of the process]
    #[arg(long, value_name = "GROUP", value_parser = service::group)]
    socket_group: Option<u32>,
    /// Exit when this process exits, such as the QEMU that uses the disk
    #[arg(long, value_name = "PID")]
    until_exit: Option<u32>,
    /// Directory of an inserted tap, which is removed when that process has exited
    #[arg(long, value_name = "PATH", requires = "until_exit", hide = true)]
    run_folder: Option<PathBuf>,
}

pub fn run(args: &TapdiskArgs, verbose: bool) -> Result<Ending, Failure> {
    match &args.command {
        Some(TapdiskCommand::Status(status)) => tapdisk_status::run(status),
        Some(TapdiskCommand::Insert(insert)) => tapdisk_insert::run(insert),
        Some(TapdiskCommand::Remove(remove)) => tapdisk_remove::run(remove),
        None => {
            let setup = args.setup()?;
            args.log.open(verbose)?;
            let companion = Companion::new(args.serve.until_exit)?;
            let owner = Owner {
                process: args.serve.until_exit,
                inserted: args.serve.run_folder.is_some(),
            };
            // Before any thread starts.
            let signals = Stop::on_signals()?;
            let ending = service::serve(&setup, owner, &companion, &signals)?;
            if let Some(folder) = &args.serve.run_folder
                && companion.wait_for_end(Duration::ZERO)
            {
                insertion::remove_folder(folder, std::process::id());
            }
            Ok(ending)
        }
    }
}

impl TapdiskArgs {
    /// The disks and settings. Options on the command line override the configuration file.
    fn setup(&self) -> Result<Setup, Failure> {
        let serve = &self.serve;
        let file: TapdiskConfig = load(serve.config.as_deref(), "")?.config;
        let mut disks = file.disks;
        disks.extend(self.disk.entry());
        disks.extend(serve.disks.iter().cloned());
        let usual = SocketAccess::default();
        let access = SocketAccess {
            mode: serve.socket_mode.or(file.socket_mode).unwrap_or(usual.mode),
            group: serve.socket_group.or(file.socket_group),
        };
        let nbd = serve.nbd.clone().or(file.nbd);
        let nbd = nbd.map(|address| NbdEntry {
            address,
            clients_max: serve.nbd_clients.or(file.nbd_clients),
            idle: serve.nbd_idle.or(file.nbd_idle),
        });
        Setup::new(disks, nbd, serve.tap.clone().or(file.tap), access)
    }
}

impl DiskArgs {
    /// The disk of the options, if they describe one.
    fn entry(&self) -> Option<DiskEntry> {
        Some(DiskEntry {
            image: self.image.clone()?,
            format: self.format.unwrap_or_default(),
            identity: self.identity,
            socket: self.socket.clone(),
            vm: self.vm.clone(),
            vdisk: self.vdisk.clone(),
            serial: self.serial.clone(),
            read_only: self.read_only,
            queues: self.queues,
            block_size: self.block_size,
            engine: self.engine,
            cache: self.cache,
            poll: self.poll,
            limits: DiskLimits {
                iops: self.iops.unwrap_or(0),
                bytes_per_second: self.bytes_per_second.unwrap_or(0),
                burst_ms: self.burst.unwrap_or(DiskLimits::default().burst_ms),
            },
            injections: Injections {
                delays: self.delay.clone(),
                errors: self.error.clone(),
            },
            unlocked: self.no_lock,
        })
    }
}

/// Why a tap was not inserted or removed, with its exit code.
pub fn failure(error: InsertionError) -> Failure {
    match error {
        InsertionError::Usage(text) => Failure::words(text),
        InsertionError::Failed(text) => Failure::world(text),
        InsertionError::Io(error) => error.into(),
        InsertionError::Tap(error) => error.into(),
    }
}
