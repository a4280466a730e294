//! A back end on a small image in a scratch folder.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::SocketType;
use weir_tapdisk::disk::{DiskOptions, ServedDisk};
use weir_tapdisk::vhost::{self, VhostError, VhostOptions};
use weir_tapdisk::{ServerSocket, SocketAccess, StopEvent};
use weir_testing::Scratch;

use crate::front_end::TIMEOUT;

pub const SECTORS: u64 = 8192;

/// A folder with an image and a socket.
pub struct Folder(Scratch);

impl Folder {
    pub fn new() -> Folder {
        Folder(Scratch::new())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn image(&self) -> PathBuf {
        self.0.path().join("disk.raw")
    }

    pub fn socket(&self) -> PathBuf {
        self.0.path().join("s")
    }

    pub fn make_image(&self) {
        let image = File::create(self.image()).unwrap();
        image.set_len(SECTORS * 512).unwrap();
    }

    pub fn read_image(&self, sector: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        let image = File::open(self.image()).unwrap();
        image.read_exact_at(&mut data, sector * 512).unwrap();
        data
    }
}

/// A back end in threads of the test.
pub struct Server {
    pub folder: Folder,
    pub disk: Arc<ServedDisk>,
    log: Arc<Mutex<Vec<String>>>,
    stop: StopEvent,
    thread: Option<JoinHandle<Result<(), VhostError>>>,
}

impl Server {
    pub fn new() -> Server {
        Server::with(|_| {}, |_| {})
    }

    pub fn with(
        disk: impl FnOnce(&mut DiskOptions),
        serve: impl FnOnce(&mut VhostOptions),
    ) -> Server {
        let folder = Folder::new();
        folder.make_image();
        let mut options = disk_options(&folder.image());
        disk(&mut options);
        let disk = ServedDisk::open(options).unwrap();
        let socket = listen(&folder.socket());
        let log = Arc::new(Mutex::new(Vec::new()));
        let messages = Arc::clone(&log);
        let send = move |message: &str| messages.lock().unwrap().push(message.to_owned());
        let mut options = VhostOptions::new(Arc::new(send));
        options.queues = 4;
        serve(&mut options);
        let stop = StopEvent::new().unwrap();
        let (served, stopped) = (Arc::clone(&disk), stop.clone());
        let thread = std::thread::spawn(move || vhost::serve(&served, &socket, &options, &stopped));
        Server {
            folder,
            disk,
            log,
            stop,
            thread: Some(thread),
        }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.socket()
    }

    /// Waits for a message that contains `words`.
    pub fn wait_for_message(&self, words: &str) {
        let until = Instant::now() + TIMEOUT;
        while !self.log.lock().unwrap().iter().any(|r| r.contains(words)) {
            let messages = self.log.lock().unwrap().join("\n");
            assert!(
                Instant::now() < until,
                "no message has `{words}`:\n{messages}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn stop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

pub fn disk_options(image: &Path) -> DiskOptions {
    let mut options = DiskOptions::new(image);
    // The same on every file system.
    options.block_size = Some(512);
    options.serial = Some("serial-of-a-test".into());
    options
}

pub fn listen(path: &Path) -> ServerSocket {
    ServerSocket::bind(path, SocketType::STREAM, SocketAccess::default()).unwrap()
}
