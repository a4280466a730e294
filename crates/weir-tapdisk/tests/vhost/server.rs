//! A back end on a small image in a scratch folder.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::SocketType;
use weir_tapdisk::disk::{DiskOptions, ServedDisk};
use weir_tapdisk::vhost::{self, VhostError, VhostOptions};
use weir_tapdisk::{ServerSocket, SocketAccess, StopEvent};

use crate::front_end::TIMEOUT;

pub const SECTORS: u64 = 8192;

/// A folder that is removed with the test. Its name is short, since a socket's path must be.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-vh-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn image(&self) -> PathBuf {
        self.0.join("disk.raw")
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("s")
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

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
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
        let heard = Arc::clone(&log);
        let send = move |message: &str| heard.lock().unwrap().push(message.to_owned());
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
            let said = self.log.lock().unwrap().join("\n");
            assert!(
                Instant::now() < until,
                "nobody says `{words}`, but:\n{said}"
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
