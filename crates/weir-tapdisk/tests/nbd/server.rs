//! A disk in a scratch folder, served until the end of the test.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use fastrand::Rng;
use weir_tapdisk::nbd::{self, Export, Listener, NbdAddress, NbdError, NbdOptions};
use weir_tapdisk::{DiskOptions, ServedDisk, SocketAccess, StopEvent};
use weir_testing::{Scratch, skipped};

/// Disks served at a socket, in a folder that is removed with this.
pub struct TestServer {
    pub folder: Scratch,
    pub disks: Vec<Arc<ServedDisk>>,
    address: NbdAddress,
    stop: StopEvent,
    server: Option<JoinHandle<Result<(), NbdError>>>,
}

/// Pseudo-random bytes, the same for the same seed.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; bytes];
    Rng::with_seed(seed).fill(&mut out);
    out
}

impl TestServer {
    /// One disk of `mebibytes` MiB, with changed options.
    pub fn with(mebibytes: usize, change: impl Fn(DiskOptions) -> DiskOptions) -> TestServer {
        TestServer::of(&["disk"], mebibytes, change, NbdOptions::default(), None)
    }

    /// One disk of `mebibytes` MiB.
    pub fn new(mebibytes: usize) -> TestServer {
        TestServer::with(mebibytes, |options| options)
    }

    /// Several disks, by name; at a loopback port instead of a socket if one is given.
    pub fn of(
        names: &[&str],
        mebibytes: usize,
        change: impl Fn(DiskOptions) -> DiskOptions,
        options: NbdOptions,
        port: Option<u16>,
    ) -> TestServer {
        let folder = Scratch::new();
        let open = |name: &&str| {
            let image = folder.path().join(format!("{name}.raw"));
            fs::write(&image, vec![0; mebibytes << 20]).unwrap();
            ServedDisk::open(change(DiskOptions::new(image))).unwrap()
        };
        let disks: Vec<Arc<ServedDisk>> = names.iter().map(open).collect();
        let exports = names
            .iter()
            .zip(&disks)
            .map(|(n, d)| Export::new(*n, d.clone()));
        let exports: Vec<Export> = exports.collect();
        let address = match port {
            Some(port) => format!("127.0.0.1:{port}").parse().unwrap(),
            None => NbdAddress::Unix(folder.path().join("s")),
        };
        let listener = Listener::bind(&address, SocketAccess::default()).unwrap();
        let address = listener.address().clone();
        let stop = StopEvent::new().unwrap();
        let until = stop.clone();
        let server = thread::spawn(move || nbd::serve(&exports, &[listener], &options, &until));
        TestServer {
            folder,
            disks,
            address,
            stop,
            server: Some(server),
        }
    }

    /// The URI of an export.
    pub fn uri(&self, export: &str) -> String {
        match &self.address {
            NbdAddress::Unix(path) => format!("nbd+unix:///{export}?socket={}", path.display()),
            NbdAddress::Loopback(address) => format!("nbd://{address}/{export}"),
        }
    }

    pub fn socket(&self) -> &Path {
        match &self.address {
            NbdAddress::Unix(path) => path,
            NbdAddress::Loopback(address) => panic!("{address} is no path"),
        }
    }

    pub fn connect(&self) -> UnixStream {
        UnixStream::connect(self.socket()).unwrap()
    }

    /// The image of an export.
    pub fn image(&self, export: &str) -> PathBuf {
        self.folder.path().join(format!("{export}.raw"))
    }

    /// Its content.
    pub fn content(&self, export: &str) -> Vec<u8> {
        fs::read(self.image(export)).unwrap()
    }

    /// Raises the stop, without waiting.
    pub fn stop(&self) {
        self.stop.raise();
    }

    /// Waits until the server has ended, without an error.
    pub fn join(&mut self) {
        let server = self.server.take().expect("it runs");
        server.join().unwrap().unwrap();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Whether a program is installed; if not, prints that `test` is skipped.
pub fn has(test: &str, program: &str, package: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !found {
        skipped(test, format_args!("no {program} here (package {package})"));
    }
    found
}

/// Runs a program, which must succeed; returns its output.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {out}{err}");
    out
}
