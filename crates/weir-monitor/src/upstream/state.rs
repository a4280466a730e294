//! [`UpstreamState`]: what the monitor of a site has on disk for the other monitor.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tracing::warn;
use weir_runtime::failure::Failure;
use weir_runtime::leader_file::LeaderFile;
use weir_runtime::private;
use weir_runtime::tally_file::TallyFile;
use weir_wire::{ChannelTally, EarlierProcess, LeaderTerm, random};

/// The file of the hosts.
const HOSTS: &str = "hosts.json";

/// Files of this process in the directory `upstream` of the state:
///
/// ```text
/// upstream/tally-INSTANCE   requests received, by channel, one file per process
/// upstream/leader.json      the highest term of the other monitor
/// upstream/hosts.json       the names of the site's hosts
/// upstream/TERM/            messages that wait, of the process that leads in this term
/// ```
///
/// A leader that is stopped keeps the directory of its term; the next one has another.
pub(super) struct UpstreamState {
    instance: u64,
    tallies: TallyFile,
    /// The tallies can no longer be written.
    has_failed: bool,
    /// The processes whose tallies are part of the hello.
    earlier: Vec<u64>,
    leader: LeaderFile,
    hosts: PathBuf,
    /// The hosts on disk.
    hosts_stored: BTreeSet<String>,
    spool: PathBuf,
}

impl UpstreamState {
    /// Opens the directory for a process that leads in this term, and returns the tallies of
    /// earlier ones. Messages of earlier terms are removed: their rows are part of these tallies.
    ///
    /// # Errors
    /// If the directory cannot be read or written.
    pub(super) fn open(
        directory: &Path,
        term: u64,
    ) -> Result<(UpstreamState, Vec<EarlierProcess>), Failure> {
        let failed =
            |error: io::Error| Failure::world(format_args!("{}: {error}", directory.display()));
        private::directory(directory).map_err(failed)?;
        let instance = u64::from_le_bytes(random::bytes()?);
        let tallies = TallyFile::begin(directory, instance).map_err(failed)?;
        let earlier = tallies.earlier().map_err(failed)?;
        if earlier.omitted > 0 {
            warn!(
                channels = earlier.omitted,
                "the oldest tallies of earlier processes are not sent: the limit is reached"
            );
        }
        for entry in fs::read_dir(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let of_term = name.to_str().and_then(|name| name.parse::<u64>().ok());
            if of_term.is_some_and(|of_term| of_term < term) {
                let path = entry.path();
                if let Err(error) = fs::remove_dir_all(&path) {
                    warn!(directory = %path.display(), %error, "not removed");
                }
            }
        }
        let hosts = directory.join(HOSTS);
        let hosts_stored = match fs::read(&hosts) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                warn!(file = %hosts.display(), %error, "the hosts of the site are not known");
                BTreeSet::new()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(failed(error)),
        };
        let state = UpstreamState {
            instance,
            hosts,
            hosts_stored,
            tallies,
            has_failed: false,
            earlier: earlier.processes,
            leader: LeaderFile::open(directory).map_err(failed)?,
            spool: directory.join(format!("{term}")),
        };
        Ok((state, earlier.reported))
    }

    /// A random number of this process.
    pub(super) fn instance(&self) -> u64 {
        self.instance
    }

    /// The directory of messages that wait.
    pub(super) fn spool(&self) -> PathBuf {
        self.spool.clone()
    }

    /// The highest term of the other monitor.
    pub(super) fn leader(&self) -> LeaderTerm {
        self.leader.stored()
    }

    /// The other monitor leads in this term.
    pub(super) fn welcomed(&mut self, leader: LeaderTerm) {
        self.leader.store(leader);
    }

    /// The other monitor does not need the tallies of earlier processes again.
    pub(super) fn acknowledged(&mut self) {
        self.tallies.forget(&std::mem::take(&mut self.earlier));
    }

    /// The hosts on disk: at first, those of the site when the earlier process ended.
    pub(super) fn hosts(&self) -> &BTreeSet<String> {
        &self.hosts_stored
    }

    /// Stores the names of the hosts, where they differ.
    pub(super) fn write_hosts(&mut self, hosts: BTreeSet<String>) {
        if hosts == self.hosts_stored {
            return;
        }
        let bytes = serde_json::to_vec(&hosts).expect("texts are JSON");
        if let Err(error) = private::replace(&self.hosts, &bytes) {
            warn!(file = %self.hosts.display(), %error, "the hosts of the site are not stored");
        }
        // It is tried again when they change.
        self.hosts_stored = hosts;
    }

    /// Writes the tallies of this process.
    pub(super) fn write(&mut self, tallies: Vec<ChannelTally>) {
        if self.has_failed {
            return;
        }
        if let Err(error) = self.tallies.write(tallies.into_iter()) {
            warn!(
                %error,
                "tallies are no longer written: rows that are lost when this monitor is killed are \
                 not counted upstream"
            );
            self.has_failed = true;
        }
    }
}
