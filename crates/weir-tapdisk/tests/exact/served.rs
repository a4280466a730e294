//! A disk that is served for one test, and a consumer of its tap's records.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::net::SocketType;
use weir_model::event::io_schema;
use weir_model::{Batch, Demand, Predicate};
use weir_tap::tapdisk::{TapdiskOptions, TapdiskTap, open};
use weir_tap::{Tap, TapEvent};
use weir_tapdisk::{
    ControlServer, DiskOptions, Hub, ServedDisk, ServerSocket, SocketAccess, StopEvent, vhost,
};
use weir_testing::Scratch;
use weir_testing::vhost::{ClientShape, Contents, VhostClient};

use crate::records::{Row, rows};

/// The disk's sectors.
pub const SECTORS: u64 = 16 << 11;

/// A disk of zeroes at a socket, its tap at another.
pub struct Served {
    folder: Scratch,
    stop: StopEvent,
    disk: Arc<ServedDisk>,
    threads: Vec<JoinHandle<()>>,
    tap: Option<ControlServer>,
}

impl Served {
    /// With changed options.
    pub fn new(change: impl FnOnce(&mut DiskOptions)) -> Served {
        let folder = Scratch::new();
        let image = folder.path().join("disk.raw");
        File::create(&image)
            .unwrap()
            .set_len(SECTORS * 512)
            .unwrap();
        let mut options = DiskOptions::new(&image);
        // All lengths are possible wherever the tests run.
        options.block_size = Some(512);
        (options.vm, options.vdisk) = (Some("web".into()), Some("/dev/vda".into()));
        change(&mut options);
        let disk = ServedDisk::open(options).unwrap();
        let (stop, hub) = (StopEvent::new().unwrap(), Arc::new(Hub::default()));
        disk.attach(&hub, Arc::new(Default::default)).unwrap();
        let tap = folder.path().join("tap");
        let tap = ControlServer::start(&hub, &tap, SocketAccess::default(), &stop).unwrap();
        let socket = ServerSocket::bind(
            &folder.path().join("s"),
            SocketType::STREAM,
            SocketAccess::default(),
        );
        let (socket, served, ended) = (socket.unwrap(), disk.clone(), stop.clone());
        let options = vhost::VhostOptions::new(Arc::new(|_| {}));
        let serve = move || vhost::serve(&served, &socket, &options, &ended).unwrap();
        Served {
            folder,
            stop,
            disk,
            threads: vec![thread::spawn(serve)],
            tap: Some(tap),
        }
    }

    pub fn client(&self, shape: ClientShape) -> VhostClient {
        VhostClient::connect(&self.folder.path().join("s"), shape).unwrap()
    }

    /// The disk's image.
    pub fn image(&self) -> PathBuf {
        self.folder.path().join("disk.raw")
    }

    pub fn disk(&self) -> &ServedDisk {
        &self.disk
    }

    /// The contents of a disk of zeroes.
    pub fn contents() -> Contents {
        Contents::zeroes(SECTORS, 512)
    }

    /// A consumer of rows of `IOstream`.
    pub fn consumer(&self, predicate: Predicate, options: TapdiskOptions) -> Consumer {
        let demand = Demand {
            stream: "IOstream".into(),
            columns: (0..io_schema().len()).collect(),
            predicate,
            fold: None,
        };
        Consumer {
            tap: open(&self.folder.path().join("tap"), &[demand], options).unwrap(),
            rows: Vec::new(),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.raise();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
        drop(self.tap.take());
    }
}

/// A consumer of rows.
pub struct Consumer {
    pub tap: TapdiskTap,
    rows: Vec<Row>,
}

impl Consumer {
    /// All rows since the last call.
    pub fn rows(&mut self) -> Vec<Row> {
        let until = now_ns();
        loop {
            match self.tap.next(Duration::from_secs(60)).unwrap() {
                TapEvent::Rows { batch, .. } => self.take(&batch),
                TapEvent::Heartbeat(ts) if ts > until => return std::mem::take(&mut self.rows),
                TapEvent::Heartbeat(_) => {}
                other => panic!("unexpected event {other:?}"),
            }
        }
    }

    fn take(&mut self, batch: &Batch) {
        self.rows.extend(rows(batch));
    }

    /// A counter of the tap, over all causes.
    pub fn count(&mut self, counter: &str) -> i64 {
        let counts = self.tap.counts();
        let of = counts.iter().filter(|count| count.counter == counter);
        of.map(|count| count.total).sum()
    }
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_nanos()).unwrap()
}
