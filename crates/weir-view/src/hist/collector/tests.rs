//! Tests of a collector and its clients, in one process and without kernel programs.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;
use weir_workload::{Class, Histograms, Metric, Subject};

use super::client::CollectorClient;
use super::folder::CollectorFolder;
use super::messages::CollectionRequest;
use super::server;
use crate::hist::choice::HistogramChoice;
use crate::hist::counted::{CountedHistograms, HistogramKey};
use crate::hist::gauge::Gauge;
use weir_runtime::failure::Failure;

/// Has counted one request of its selection.
struct One {
    subject: Subject,
    attached: Arc<AtomicUsize>,
}

impl Gauge for One {
    fn snapshot(&mut self) -> Result<CountedHistograms, Failure> {
        let mut histograms = Histograms::default();
        histograms.of_mut(Metric::Length, Class::All).add(512);
        Ok(CountedHistograms {
            since: 1,
            at: 2,
            closest_of: 16,
            subjects: vec![(self.subject, histograms)],
            lost: Vec::new(),
            unreliable: Vec::new(),
        })
    }

    fn reset(&mut self) -> Result<(), Failure> {
        Err(Failure::world("it cannot forget"))
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.attached.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Collector {
    folder: PathBuf,
    client: CollectorClient,
    attached: Arc<AtomicUsize>,
    words: Receiver<String>,
    thread: Option<JoinHandle<()>>,
    /// Written to in place of a signal.
    signal: UnixStream,
    scratch: Option<TempDir>,
}

impl Collector {
    fn at(folder: &std::path::Path) -> Collector {
        let place = CollectorFolder::at(folder);
        let attached = Arc::new(AtomicUsize::new(0));
        let (signals, signal) = UnixStream::pair().unwrap();
        let (messages, words) = channel();
        let (counted, own) = (attached.clone(), place.clone());
        let serve = move || {
            let open = move |order: &CollectionRequest| {
                if order.stacked {
                    return Err(Failure::world("the kernel is too old"));
                }
                counted.fetch_add(1, Ordering::SeqCst);
                let symbol = |text: &Option<String>| text.as_deref().map(Into::into);
                let subject = Subject {
                    vm: symbol(&order.choice.vm),
                    vdisk: symbol(&order.choice.disk),
                    ..Subject::default()
                };
                let attached = counted.clone();
                Ok(One { subject, attached })
            };
            let log = |word: &str| messages.send(word.to_owned()).unwrap();
            server::serve(&own, signals, Box::new(open), log).unwrap();
        };
        Collector {
            folder: folder.to_owned(),
            client: CollectorClient::new(place),
            attached,
            words,
            thread: Some(std::thread::spawn(serve)),
            signal,
            scratch: None,
        }
    }

    fn new() -> Collector {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("collector");
        let mut collector = Collector::at(&folder);
        collector.scratch = Some(scratch);
        assert_eq!(collector.words.recv().unwrap(), server::READY);
        collector
    }

    fn start(&self, disk: &str, stacked: bool) -> Result<(), Failure> {
        let order = CollectionRequest {
            choice: HistogramChoice::of_text(disk),
            stacked,
            span: Some(Duration::from_secs(600)),
            ..CollectionRequest::default()
        };
        self.client.start(&order, "unused").map(|_| ())
    }

    fn attached(&self) -> usize {
        self.attached.load(Ordering::SeqCst)
    }

    /// Waits until it has ended, and checks what is left.
    fn ended(mut self) -> Option<TempDir> {
        self.thread.take().unwrap().join().unwrap();
        assert_eq!(self.attached(), 0);
        assert!(!self.folder.join("socket").exists());
        self.scratch
    }
}

#[test]
fn it_counts_until_the_last_is_stopped() {
    let collector = Collector::new();
    let mode = std::fs::metadata(&collector.folder).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o700, "nobody else may ask");
    collector.start("web:vda", false).unwrap();
    collector.start("db:vda", false).unwrap();
    let running = collector.client.status().unwrap();
    assert_eq!(running.len(), 2);
    assert!(running[0].until.unwrap() > running[0].since);
    let all = HistogramChoice::default();
    let counted = collector
        .client
        .snapshot(&all, HistogramKey::Disk)
        .unwrap()
        .unwrap();
    assert_eq!(counted.subjects.len(), 2);
    let none = collector
        .client
        .snapshot(&all, HistogramKey::Process)
        .unwrap();
    assert_eq!(none, None, "nobody counts by process");
    let web = HistogramChoice::of_text("web:vda");
    assert_eq!(collector.client.stop(&web).unwrap()[0].choice, web);
    assert_eq!(collector.attached(), 1);
    assert_eq!(collector.client.stop(&all).unwrap().len(), 1);
    assert_eq!(collector.attached(), 0, "when -x says so, it is so");
    assert!(collector.client.status().unwrap().is_empty());
    let kept =
        std::fs::read_to_string(CollectorFolder::at(&collector.folder).stopped(HistogramKey::Disk));
    assert_eq!(kept.unwrap().lines().count(), 4);
    collector.ended();
}

#[test]
fn failures_are_reported_and_other_collections_continue() {
    let collector = Collector::new();
    collector.start("web:vda", false).unwrap();
    let Err(Failure::World(why)) = collector.start("db:vda", true) else {
        panic!("the gauge cannot be opened");
    };
    assert!(why.to_string().contains("too old"), "{why}");
    let twice = collector.start("web:", false);
    assert!(matches!(twice, Err(Failure::Words(_))));
    let reset = collector.client.reset(&HistogramChoice::default());
    assert!(matches!(reset, Err(Failure::World(_))));
    assert_eq!(collector.client.status().unwrap().len(), 1);
    (&collector.signal).write_all(b"x").unwrap();
    collector.ended();
}

#[test]
fn invalid_messages_do_not_affect_other_clients() {
    let collector = Collector::new();
    let socket = CollectorFolder::at(&collector.folder).socket();
    collector.start("web:vda", false).unwrap();
    let ask = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        // It may close the connection before all bytes are sent.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let frame = |text: &str| {
        let length = (text.len() as u32).to_le_bytes();
        ask(&[&length, text.as_bytes()].concat())
    };
    let later = r#"{"service":"collector","version":2,"body":{"request":"status"}}"#;
    assert!(frame(later).contains("version 2 of the collector protocol"));
    let dance = r#"{"service":"collector","version":1,"body":{"request":"dance"}}"#;
    assert!(frame(dance).contains("malformed"));
    assert!(ask(b"{\"do\":\"status\"}\n").contains("too_long"), "lines");
    assert_eq!(ask(b""), "");
    assert_eq!(ask(b"\x08\0\0\0{"), "", "half a request");
    assert!(ask(&[b'x'; 100_000]).contains("too_long"));
    assert!(frame("\u{fffd}").contains("malformed"));
    assert_eq!(collector.client.status().unwrap().len(), 1);
    (&collector.signal).write_all(b"x").unwrap();
    collector.ended();
}

#[test]
fn there_is_one_at_a_time_and_a_dead_one_is_none() {
    let first = Collector::new();
    first.start("web:vda", false).unwrap();
    let mut second = Collector::at(&first.folder);
    assert_eq!(second.words.recv().unwrap(), server::RUNNING);
    second.thread.take().unwrap().join().unwrap();
    assert_eq!(first.client.status().unwrap().len(), 1);
    (&first.signal).write_all(b"x").unwrap();
    let folder = first.folder.clone();
    let _scratch = first.ended();
    // The remains of a killed collector: a socket without a listener.
    let place = CollectorFolder::at(&folder);
    place.make().unwrap();
    let dead = || drop(std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap());
    dead();
    assert_eq!(CollectorClient::new(place).status().unwrap().len(), 0);
    dead();
    let third = Collector::at(&folder);
    assert_eq!(third.words.recv().unwrap(), server::READY);
    third.start("web:vda", false).unwrap();
    third.client.stop(&HistogramChoice::default()).unwrap();
    third.ended();
}
