//! The client of vhost-user disks, tested with QEMU's back end: it detects wrong data, a disk that
//! disconnects and reconnects, and one that does not.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use weir_testing::vhost::{
    BlockRequest, ClientShape, Contents, RequestKind, RequestStatus, VhostClient, VhostLoad,
};
use weir_testing::{Scratch, skip, wait_until};

const DISK_BYTES: u64 = 8 << 20;

/// QEMU's storage daemon on an image of zeroes, in a folder of the test.
struct Storage {
    folder: Scratch,
    daemon: Child,
}

impl Storage {
    /// `None`, with a message, when QEMU is not installed.
    fn new(test: &str) -> Option<Storage> {
        let there = Command::new("qemu-storage-daemon")
            .arg("--version")
            .output();
        if there.is_err() {
            return skip(test, "qemu-storage-daemon is not installed");
        }
        let folder = Scratch::new();
        File::create(folder.path().join("disk.raw"))
            .unwrap()
            .set_len(DISK_BYTES)
            .unwrap();
        let daemon = Storage::start(folder.path());
        Some(Storage { folder, daemon })
    }

    fn start(folder: &std::path::Path) -> Child {
        let socket = folder.join("s");
        drop(fs::remove_file(&socket));
        let shown = folder.display();
        let daemon = Command::new("qemu-storage-daemon")
            .args(["--object", "iothread,id=io0", "--blockdev"])
            .arg(format!(
                "driver=file,node-name=disk,filename={shown}/disk.raw,discard=unmap"
            ))
            .arg("--export")
            .arg(format!(
                "type=vhost-user-blk,id=disk,node-name=disk,writable=on,iothread=io0,num-queues=2,\
                 addr.type=unix,addr.path={shown}/s"
            ))
            .spawn()
            .unwrap();
        wait_until("the storage daemon listens", || socket.exists());
        daemon
    }

    fn kill(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("disk.raw")
    }

    fn client(&self, shape: ClientShape) -> VhostClient {
        VhostClient::connect(&self.folder.path().join("s"), shape).unwrap()
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        drop(self.daemon.kill());
        drop(self.daemon.wait());
    }
}

fn mixed() -> VhostLoad {
    VhostLoad {
        read: 40,
        write: 40,
        flush: 4,
        discard: 8,
        write_zeroes: 8,
        bytes_min: 512,
        bytes_max: 16 << 10,
        requests: 3000,
        ..VhostLoad::default()
    }
}

const TWO_QUEUES: ClientShape = ClientShape {
    queues: 2,
    depth: 16,
    bytes_max: 16 << 10,
    segments: 3,
    skew_bytes: 512,
};

#[test]
fn written_data_are_read_back_and_are_in_the_image() {
    let Some(storage) = Storage::new("client-mix") else {
        return;
    };
    let mut client = storage.client(TWO_QUEUES);
    assert_eq!(client.disk().sectors, DISK_BYTES / 512);
    let mut contents = Contents::zeroes(DISK_BYTES / 512, 512);
    for seed in 1..4 {
        let load = VhostLoad { seed, ..mixed() };
        let report = client.run(&load, Some(&mut contents)).unwrap();
        assert_eq!(
            (report.requests, report.failed, report.unsupported),
            (6000, 0, 0)
        );
        let logged: usize = report.log.iter().map(Vec::len).sum();
        assert_eq!(logged, 6000);
        let ended =
            |asked: &&weir_testing::vhost::LoggedRequest| asked.status == Some(RequestStatus::Done);
        assert_eq!(report.log.iter().flatten().filter(ended).count(), 6000);
    }
    assert!(contents.written() > 1000);
    contents.check_image(&storage.image()).unwrap();
}

#[test]
fn a_block_of_another_writer_is_detected() {
    let Some(storage) = Storage::new("client-wrong") else {
        return;
    };
    let mut client = storage.client(ClientShape::default());
    let mut contents = Contents::zeroes(DISK_BYTES / 512, 4096);
    let writes = VhostLoad {
        read: 0,
        write: 1,
        ..VhostLoad::default()
    };
    client.run(&writes, Some(&mut contents)).unwrap();
    let image = File::options().write(true).open(storage.image()).unwrap();
    image.write_all_at(&vec![3; 1 << 20], 0).unwrap();
    let reads = VhostLoad {
        seed: 2,
        ..VhostLoad::default()
    };
    let error = client.run(&reads, Some(&mut contents)).unwrap_err();
    assert!(format!("{error:#}").contains("never written"), "{error:#}");
    contents.check_image(&storage.image()).unwrap_err();
}

#[test]
fn single_requests_return_their_status() {
    let Some(storage) = Storage::new("client-single") else {
        return;
    };
    let mut client = storage.client(TWO_QUEUES);
    let data: Vec<u8> = (0..8192).map(|i| (i / 7) as u8).collect();
    client.write(100, &data).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(100, 8192).unwrap(), data);
    client.write_zeroes(101, 512, false).unwrap();
    assert_eq!(client.read(100, 1536).unwrap()[512..1024], [0; 512]);
    client.discard(100, 8192).unwrap();
    client.id().unwrap();
    let unknown = BlockRequest {
        kind: RequestKind::Other(77),
        sector: 0,
        bytes: 512,
    };
    assert_eq!(
        client.ask(1, &unknown, &mut [0; 512]).unwrap(),
        RequestStatus::Unsupported
    );
    let outside = BlockRequest {
        kind: RequestKind::Read,
        sector: DISK_BYTES / 512,
        bytes: 512,
    };
    assert_eq!(
        client.ask(1, &outside, &mut [0; 512]).unwrap(),
        RequestStatus::Failed
    );
}

#[test]
fn no_write_is_lost_when_a_back_end_is_killed_and_restarted() {
    let Some(mut storage) = Storage::new("client-killed") else {
        return;
    };
    let mut client = storage.client(TWO_QUEUES);
    let mut contents = Contents::zeroes(DISK_BYTES / 512, 512);
    let load = VhostLoad {
        requests: u64::MAX,
        time: Some(Duration::from_secs(2)),
        reconnect: Some(Duration::from_secs(30)),
        ..mixed()
    };
    let report = thread::scope(|scope| {
        let run = scope.spawn(|| client.run(&load, Some(&mut contents)));
        thread::sleep(Duration::from_millis(300));
        storage.kill();
        storage.daemon = Storage::start(storage.folder.path());
        run.join().unwrap()
    });
    let report = report.unwrap();
    assert_eq!(report.reconnects, 1);
    let unanswered = report
        .log
        .iter()
        .flatten()
        .filter(|asked| asked.status.is_none());
    assert!((1..=32).contains(&unanswered.count()));
    contents.check_image(&storage.image()).unwrap();
}

#[test]
fn a_back_end_that_does_not_return_ends_the_load_with_an_error() {
    let Some(mut storage) = Storage::new("client-gone") else {
        return;
    };
    let mut client = storage.client(ClientShape::default());
    let load = VhostLoad {
        requests: u64::MAX,
        time: Some(Duration::from_secs(600)),
        ..mixed()
    };
    let ended = thread::scope(|scope| {
        let run = scope.spawn(|| client.run(&load, None));
        thread::sleep(Duration::from_millis(200));
        storage.kill();
        run.join().unwrap()
    });
    let error = format!("{:#}", ended.unwrap_err());
    assert!(error.contains("the back end has disconnected"), "{error}");
    let error = format!("{:#}", client.read(0, 512).unwrap_err());
    assert!(error.contains("the back end has disconnected"), "{error}");
    assert!(
        VhostClient::connect(
            &storage.folder.path().join("nothing"),
            ClientShape::default()
        )
        .is_err()
    );
}
