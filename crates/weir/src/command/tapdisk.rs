//! `weir tapdisk`: serves virtual disks to VMs and tells each request.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use weir_tapdisk::SocketAccess;
use weir_tapdisk::disk::{Identity, ImageFormat};
use weir_tapdisk::engine::{CacheOption, EngineOption};
use weir_tapdisk::inject::{DelayRule, ErrorRule, Injections};
use weir_tapdisk::nbd::NbdAddress;

use super::tapdisk_insert::{self, InsertArgs};
use super::tapdisk_remove::{self, RemoveArgs};
use super::tapdisk_status::{self, StatusArgs};
use crate::args::LogArgs;
use crate::tapdisk::{self, Companion, DiskEntry, NbdEntry, Owner, Setup, TapdiskConfig};
use weir_runtime::config::load;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::run_loop::Stop;
use weir_tapdisk::insertion::{self, InsertionError};

/// Serve virtual disks to VMs, and tell every request as the guest made it
///
/// A back end for any VM that speaks vhost-user-blk (QEMU, libvirt, Cloud Hypervisor, Firecracker)
/// or NBD. The image is a raw file or a block device. Who asks, as `weir query --from
/// tapdisk:PATH`, sees each request when it was taken from the ring, submitted and done; events
/// that nobody asks for are never made. It takes no root: who may read and write the image may
/// serve it.
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
    SIGTERM and SIGINT end it when the requests under way are done; a VM that reconnects goes on with the next\n\
    one. docs/tapdisk.md tells how VMs are attached, and what is guaranteed."
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

/// What else can be done with tapdisks.
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
    /// The image: a raw file or a block device
    #[arg(long, value_name = "FILE", conflicts_with_all = ["disks", "config"])]
    image: Option<PathBuf>,
    /// Serve the image as raw, whatever its content looks like: raw. Otherwise an image that begins
    /// like qcow2, vmdk, vhd, vhdx, vdi, qed or parallels is refused, since the first write would
    /// destroy it
    #[arg(long, value_name = "FORMAT", requires = "image", value_parser = tapdisk::format)]
    format: Option<ImageFormat>,
    /// Serve it over vhost-user-blk at this unix socket
    #[arg(long, value_name = "PATH", requires = "image")]
    socket: Option<PathBuf>,
    /// What its VM is called, in column vm
    #[arg(long, value_name = "NAME", requires = "image", value_parser = tapdisk::name)]
    vm: Option<String>,
    /// What the VM calls the disk, in column vdisk, as /dev/vda
    #[arg(long, value_name = "NAME", requires = "image", value_parser = tapdisk::name)]
    vdisk: Option<String>,
    /// The serial number that the guest sees, up to 20 characters [default: of the image's name]
    #[arg(long, value_name = "TEXT", requires = "image", value_parser = tapdisk::serial)]
    serial: Option<String>,
    /// Let the guest read only
    #[arg(long, requires = "image")]
    read_only: bool,
    /// Most queues that the guest may use, each with a thread of its own
    #[arg(long, value_name = "N", requires = "image", value_parser = tapdisk::queues)]
    queues: Option<u16>,
    /// The logical block size that the guest sees: 512, 1024, 2048, 4096 [default: what the image
    /// can do]
    #[arg(long, value_name = "BYTES", requires = "image", value_parser = tapdisk::block_size)]
    block_size: Option<u32>,
    /// Who carries requests out: uring, sync, or auto
    #[arg(long, default_value = "auto", hide_possible_values = true, value_parser = tapdisk::engine)]
    engine: EngineOption,
    /// Whether the host's page cache is used: direct (past it), page, or auto
    #[arg(long, default_value = "auto", value_parser = tapdisk::cache)]
    cache: CacheOption,
    /// How long to look for the next request before sleeping; 0 for not at all
    #[arg(long, value_name = "TIME", requires = "image", value_parser = tapdisk::poll)]
    poll: Option<Duration>,
    /// Let requests take longer, as 20ms,op=r,rate=1%; may be repeated
    #[arg(long, value_name = "RULE", requires = "image")]
    delay: Vec<DelayRule>,
    /// Let requests fail, as EIO,op=w,sectors=0..2048,times=3; may be repeated
    #[arg(long, value_name = "RULE", requires = "image")]
    error: Vec<ErrorRule>,
    /// Let others write the image meanwhile: for an image that a running VM has open itself
    #[arg(long, requires = "image")]
    no_lock: bool,
    /// Refuse the image unless it is this very file: one that is put under a running VM is the one
    /// that the VM has open
    #[arg(long, value_name = "ID", requires = "image", hide = true)]
    identity: Option<Identity>,
}

/// The process.
#[derive(Args, Debug)]
#[command(next_help_heading = "Service")]
struct ServeArgs {
    /// A disk, as image=FILE,socket=PATH,vm=NAME,vdisk=NAME with the words of the options above;
    /// may be repeated
    #[arg(long = "disk", id = "disks", value_name = "WORDS", value_parser = DiskEntry::of_words)]
    disks: Vec<DiskEntry>,
    /// A file with all of it
    #[arg(long, value_name = "FILE", conflicts_with = "disks")]
    config: Option<PathBuf>,
    /// Serve the disks over NBD as well, at unix:PATH or 127.0.0.1:PORT
    #[arg(long, value_name = "ADDRESS")]
    nbd: Option<NbdAddress>,
    /// NBD clients at a time; when all places are used, a new client gets that of one that is idle
    /// [default: 32]
    #[arg(long, value_name = "N", value_parser = tapdisk::nbd_clients)]
    nbd_clients: Option<u16>,
    /// How long an NBD client must have been idle to lose its place [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = tapdisk::nbd_idle)]
    nbd_idle: Option<Duration>,
    /// Report requests at this unix socket [default: that of the first disk, or of --nbd, with .tap
    /// appended; for a port, weir-tapdisk/port-PORT.tap in /run or $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    tap: Option<PathBuf>,
    /// The rights of the sockets, as chmod takes them [default: 600]
    #[arg(long, value_name = "MODE", value_parser = tapdisk::mode)]
    socket_mode: Option<u32>,
    /// The group of the sockets, for a QEMU that runs as another user
    #[arg(long, value_name = "GROUP", value_parser = tapdisk::group)]
    socket_group: Option<u32>,
    /// End with this process, as the QEMU under whose disk it was put
    #[arg(long, value_name = "PID")]
    until_exit: Option<u32>,
    /// The folder of a tap that was inserted, which is removed when that process has ended
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
            let ending = tapdisk::serve(&setup, owner, &companion, &signals)?;
            if let Some(folder) = &args.serve.run_folder
                && companion.nap(Duration::ZERO)
            {
                insertion::remove_folder(folder, std::process::id());
            }
            Ok(ending)
        }
    }
}

impl TapdiskArgs {
    /// What is to be served: what the command line says goes before what the file says.
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
    /// The disk that the options describe, if they do.
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
