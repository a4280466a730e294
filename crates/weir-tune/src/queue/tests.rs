//! Tests of the settings on a folder that behaves like sysfs, and on loop devices.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::path::Path;

use weir_testing::{LoopDisk, is_root, skipped};

use super::*;

/// A temporary folder, in memory if possible: these tests wait for the disk often.
fn memory_folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// A folder whose settings depend on each other as those of the kernel do.
struct FakeQueue {
    files: SysfsQueue,
    _folder: tempfile::TempDir,
}

/// The schedulers with their tunables.
const TUNABLES: [(&str, &[(&str, &str)]); 4] = [
    ("none", &[]),
    (
        "mq-deadline",
        &[("fifo_batch", "16"), ("async_depth", "192")],
    ),
    ("kyber", &[("read_lat_nsec", "2000000")]),
    ("bfq", &[("slice_idle", "8000"), ("low_latency", "1")]),
];

impl FakeQueue {
    fn new() -> FakeQueue {
        let folder = memory_folder();
        let queue = FakeQueue {
            files: SysfsQueue::new(folder.path()),
            _folder: folder,
        };
        for (name, value) in [
            ("nr_requests", "128"),
            ("read_ahead_kb", "128"),
            ("rotational", "0"),
            ("rq_affinity", "1"),
            ("wbt_lat_usec", "2000"),
            ("write_cache", "write through"),
        ] {
            queue.put(name, value);
        }
        queue.put_schedulers("none");
        queue
    }

    fn put(&self, name: &str, value: &str) {
        fs::write(self.files.folder().join(name), format!("{value}\n")).unwrap();
    }

    fn put_schedulers(&self, chosen: &str) {
        let names = TUNABLES.map(|(name, _)| match name == chosen {
            true => format!("[{name}]"),
            false => name.to_owned(),
        });
        self.put("scheduler", &names.join(" "));
        let tunables = self.files.folder().join("iosched");
        let _ = fs::remove_dir_all(&tunables);
        let (_, values) = TUNABLES.iter().find(|(name, _)| *name == chosen).unwrap();
        if !values.is_empty() {
            fs::create_dir(&tunables).unwrap();
        }
        for (name, value) in *values {
            self.put(&format!("iosched/{name}"), value);
        }
    }

    /// Makes the folder that of a moment in a run.
    fn become_state(&self, state: &QueueState) {
        self.put_schedulers(&state[SCHEDULER]);
        for (name, value) in state.iter().filter(|(name, _)| *name != SCHEDULER) {
            self.put(name, value);
        }
    }
}

impl Queue for FakeQueue {
    fn settings(&self) -> io::Result<Vec<String>> {
        self.files.settings()
    }

    fn read(&self, setting: &str) -> io::Result<String> {
        self.files.read(setting)
    }

    fn write(&self, setting: &str, value: &str) -> io::Result<()> {
        let old = self.read(setting)?;
        let rejected = || Err(io::Error::from(io::ErrorKind::InvalidInput));
        match setting {
            SCHEDULER if !TUNABLES.iter().any(|(name, _)| *name == value) => return rejected(),
            SCHEDULER if old == value => {}
            SCHEDULER => {
                self.put_schedulers(value);
                let requests = if value == "none" { "128" } else { "256" };
                self.put(NR_REQUESTS, requests);
                match (value, &*old) {
                    ("bfq", _) => self.put(WBT, "0"),
                    (_, "bfq") => self.put(WBT, "2000"),
                    _ => {}
                }
            }
            NR_REQUESTS => {
                let number: u32 = value.parse().map_err(io::Error::other)?;
                self.put(setting, &number.max(4).to_string());
                if self.read(SCHEDULER)? == "mq-deadline" {
                    self.put("iosched/async_depth", value);
                }
            }
            _ if value.is_empty() => return rejected(),
            _ => self.put(setting, value),
        }
        Ok(())
    }
}

/// Records the journal and the settings around each write.
struct Recorder<'a> {
    queue: &'a FakeQueue,
    journal: &'a Path,
    /// The length of the journal at the start.
    length: usize,
    moments: RefCell<Vec<(Vec<u8>, QueueState)>>,
}

impl<'a> Recorder<'a> {
    fn new(queue: &'a FakeQueue, journal: &'a Path) -> Recorder<'a> {
        Recorder {
            queue,
            journal,
            length: fs::metadata(journal).map_or(0, |meta| meta.len() as usize),
            moments: RefCell::default(),
        }
    }

    fn record(&self) {
        let text = fs::read(self.journal).unwrap_or_default();
        let state = read_state(self.queue).unwrap();
        self.moments.borrow_mut().push((text, state));
    }

    /// Every journal and state that a crash can leave: between two moments either the journal has
    /// grown, by any part of what was written, or the settings have changed. `parts` includes
    /// incomplete lines.
    fn crashes(&self, parts: bool) -> Vec<(Vec<u8>, QueueState)> {
        let mut found = Vec::new();
        let mut before = self.length;
        for (text, state) in self.moments.borrow().iter() {
            let is_end = |end: usize| end == text.len() || end == 0 || text[end - 1] == b'\n';
            // All parts of short lines, and some of the long ones with all settings.
            let is_part = |end: usize| {
                let line = text[..end].iter().rposition(|&byte| byte == b'\n');
                let column = end - line.map_or(0, |at| at + 1);
                parts && (column < 70 || column.is_multiple_of(29))
            };
            let ends = (before..=text.len()).filter(|&end| is_end(end) || is_part(end));
            found.extend(ends.map(|end| (text[..end].to_vec(), state.clone())));
            before = text.len();
        }
        found
    }
}

impl Queue for Recorder<'_> {
    fn settings(&self) -> io::Result<Vec<String>> {
        self.queue.settings()
    }

    fn read(&self, setting: &str) -> io::Result<String> {
        self.queue.read(setting)
    }

    fn write(&self, setting: &str, value: &str) -> io::Result<()> {
        self.record();
        let written = self.queue.write(setting, value);
        self.record();
        written
    }
}

fn changes(settings: &[(&str, &str)]) -> QueueState {
    let settings = settings.iter();
    let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    settings.collect()
}

/// Settings that differ from the kernel's defaults: all of them are lost by a change of scheduler.
fn unusual(queue: &impl Queue) -> QueueState {
    for (name, value) in [
        ("scheduler", "mq-deadline"),
        ("nr_requests", "64"),
        ("iosched/fifo_batch", "7"),
        ("read_ahead_kb", "256"),
        ("wbt_lat_usec", "5000"),
    ] {
        queue.write(name, value).unwrap();
    }
    read_state(queue).unwrap()
}

/// The settings of a trial, one after the other.
fn trial() -> Vec<QueueState> {
    vec![
        changes(&[("scheduler", "bfq")]),
        changes(&[("scheduler", "none")]),
        changes(&[("scheduler", "none"), ("nr_requests", "32")]),
        changes(&[]),
        changes(&[("scheduler", "kyber"), ("read_ahead_kb", "512")]),
        changes(&[("wbt_lat_usec", "0"), ("iosched/fifo_batch", "1")]),
    ]
}

#[test]
fn a_trial_leaves_all_settings_as_it_found_them() {
    let (queue, folder) = (FakeQueue::new(), memory_folder());
    let journal = folder.path().join("journal");
    let before = unusual(&queue);
    assert!(before.len() > 8, "{before:?}");
    let mut session = QueueSession::begin(&queue, &journal).unwrap();
    for target in trial() {
        session.set(&target).unwrap();
        for (name, value) in &target {
            assert_eq!(queue.read(name).unwrap(), *value, "{target:?}");
        }
        if target.is_empty() {
            assert_eq!(read_state(&queue).unwrap(), before);
        }
    }
    let recovery = session.restore().unwrap();
    assert_eq!(recovery.foreign, []);
    assert_eq!(recovery.restored.len(), 2, "{recovery:?}");
    assert_eq!(read_state(&queue).unwrap(), before);
    assert!(!journal.exists());
    assert_eq!(recover(&queue, &journal).unwrap(), None);
}

#[test]
fn settings_of_an_earlier_candidate_do_not_remain_in_the_next_one() {
    let (queue, folder) = (FakeQueue::new(), memory_folder());
    unusual(&queue);
    let mut session = QueueSession::begin(&queue, &folder.path().join("journal")).unwrap();
    session.set(&trial()[2]).unwrap();
    assert_eq!(queue.read(NR_REQUESTS).unwrap(), "32");
    session.set(&trial()[1]).unwrap();
    assert_eq!(queue.read(NR_REQUESTS).unwrap(), "128");
    session.restore().unwrap();
}

/// Every moment of a trial and of its end at which the process can be killed.
fn crashes_of_a_trial(queue: &FakeQueue, journal: &Path) -> Vec<(Vec<u8>, QueueState)> {
    let recorder = Recorder::new(queue, journal);
    let mut session = QueueSession::begin(&recorder, journal).unwrap();
    recorder.record();
    for target in trial() {
        session.set(&target).unwrap();
    }
    session.restore().unwrap();
    recorder.record();
    recorder.crashes(true)
}

#[test]
fn a_kill_between_any_two_steps_is_undone() {
    let (queue, folder) = (FakeQueue::new(), memory_folder());
    let journal = folder.path().join("journal");
    let before = unusual(&queue);
    let crashes = crashes_of_a_trial(&queue, &journal);
    assert!(crashes.len() > 1_000, "{}", crashes.len());
    for (text, state) in crashes {
        fs::write(&journal, &text).unwrap();
        queue.become_state(&state);
        let recovery = recover(&queue, &journal).unwrap().unwrap_or_default();
        assert_eq!(recovery.foreign, [], "{state:?}");
        assert_eq!(read_state(&queue).unwrap(), before);
        assert!(!journal.exists());
    }
}

#[test]
fn a_kill_during_the_restoration_is_undone_too() {
    let (queue, folder) = (FakeQueue::new(), memory_folder());
    let journal = folder.path().join("journal");
    let before = unusual(&queue);
    let mut crashes = crashes_of_a_trial(&queue, &journal);
    // Those with a complete last line: the others are tried above.
    crashes.retain(|(text, _)| text.last() == Some(&b'\n'));
    let mut again = 0;
    for (text, state) in crashes {
        fs::write(&journal, &text).unwrap();
        queue.become_state(&state);
        let recorder = Recorder::new(&queue, &journal);
        recover(&recorder, &journal).unwrap();
        for (text, state) in recorder.crashes(false) {
            fs::write(&journal, &text).unwrap();
            queue.become_state(&state);
            let recovery = recover(&queue, &journal).unwrap().unwrap_or_default();
            assert_eq!(recovery.foreign, [], "{state:?}");
            assert_eq!(read_state(&queue).unwrap(), before);
            again += 1;
        }
    }
    assert!(again > 100, "{again}");
}

/// A journal of a killed trial, which has left bfq.
fn killed(queue: &FakeQueue, journal: &Path) -> QueueState {
    let before = unusual(queue);
    let mut session = QueueSession::begin(queue, journal).unwrap();
    session.set(&changes(&[("scheduler", "bfq")])).unwrap();
    drop(session);
    before
}

#[test]
fn what_another_program_has_changed_is_reported_and_left() {
    let (queue, folder) = (FakeQueue::new(), memory_folder());
    let journal = folder.path().join("journal");
    let before = killed(&queue, &journal);
    queue.write(READ_AHEAD, "999").unwrap();
    queue.write(NR_REQUESTS, "77").unwrap();
    let recovery = recover(&queue, &journal).unwrap().unwrap();
    let foreign: Vec<&str> = recovery.foreign.iter().map(|c| &*c.setting).collect();
    assert_eq!(foreign, [NR_REQUESTS, READ_AHEAD]);
    let now = read_state(&queue).unwrap();
    assert_eq!((&*now[READ_AHEAD], &*now[NR_REQUESTS]), ("999", "77"));
    for name in [SCHEDULER, WBT, "iosched/fifo_batch"] {
        assert_eq!(now[name], before[name], "{name}");
    }

    killed(&queue, &journal);
    queue.write(SCHEDULER, "kyber").unwrap();
    let found = read_state(&queue).unwrap();
    let recovery = recover(&queue, &journal).unwrap().unwrap();
    let [change] = &recovery.foreign[..] else {
        panic!("{recovery:?}");
    };
    let values = (change.expected.as_deref(), change.found.as_deref());
    assert_eq!(values, (Some("bfq"), Some("kyber")));
    assert_eq!(read_state(&queue).unwrap(), found);
}

#[test]
fn a_kill_while_other_changes_are_left_leaves_them_too() {
    let (queue, folder) = (FakeQueue::new(), memory_folder());
    let journal = folder.path().join("journal");
    let before = killed(&queue, &journal);
    queue.write(READ_AHEAD, "999").unwrap();
    let recorder = Recorder::new(&queue, &journal);
    recover(&recorder, &journal).unwrap();
    let crashes = recorder.crashes(false);
    assert!(crashes.len() > 8, "{}", crashes.len());
    for (text, state) in crashes {
        fs::write(&journal, &text).unwrap();
        queue.become_state(&state);
        let recovery = recover(&queue, &journal).unwrap().unwrap();
        assert_eq!(recovery.foreign.len(), 1, "{recovery:?}");
        let mut expected = before.clone();
        expected.insert(READ_AHEAD.to_owned(), "999".to_owned());
        assert_eq!(read_state(&queue).unwrap(), expected);
    }
}

#[test]
fn a_session_ends_when_another_program_changes_a_setting() {
    let (queue, folder) = (FakeQueue::new(), memory_folder());
    let mut session = QueueSession::begin(&queue, &folder.path().join("journal")).unwrap();
    session.set(&trial()[0]).unwrap();
    queue.write(READ_AHEAD, "999").unwrap();
    let error = session.set(&trial()[1]).unwrap_err().to_string();
    assert_eq!(
        error,
        "changed by another program: read_ahead_kb was 128 and is 999"
    );
    let recovery = session.restore().unwrap();
    assert_eq!(recovery.foreign.len(), 1);
    assert_eq!(queue.read(SCHEDULER).unwrap(), "none");
    assert_eq!(queue.read(READ_AHEAD).unwrap(), "999");
}

#[test]
fn values_that_the_kernel_rejects_or_adjusts_are_errors() {
    let (queue, folder) = (FakeQueue::new(), memory_folder());
    let before = read_state(&queue).unwrap();
    let mut session = QueueSession::begin(&queue, &folder.path().join("journal")).unwrap();
    let error = session.set(&changes(&[("nr_requests", "1")])).unwrap_err();
    assert!(matches!(error, QueueError::Adjusted { .. }), "{error}");
    let error = session.set(&changes(&[("scheduler", "cfq")])).unwrap_err();
    assert!(error.to_string().starts_with("cannot write cfq"), "{error}");
    session.restore().unwrap();
    assert_eq!(read_state(&queue).unwrap(), before);
}

#[test]
fn settings_that_are_kept_can_be_restored_later() {
    let (queue, folder) = (FakeQueue::new(), memory_folder());
    let path = |name: &str| folder.path().join(name);
    let before = unusual(&queue);
    for target in [trial()[0].clone(), trial()[4].clone()] {
        let mut session = QueueSession::begin(&queue, &path("journal")).unwrap();
        session.set(&target).unwrap();
        session.keep(&path("applied")).unwrap();
        assert!(!path("journal").exists());
    }
    assert_eq!(queue.read(SCHEDULER).unwrap(), "kyber");
    recover(&queue, &path("applied")).unwrap().unwrap();
    assert_eq!(read_state(&queue).unwrap(), before);
}

#[test]
fn a_journal_that_cannot_be_read_is_an_error_and_remains() {
    let (queue, folder) = (FakeQueue::new(), memory_folder());
    let journal = folder.path().join("journal");
    for text in ["{}\n", "{\"state\":{}}\n", "nonsense\n"] {
        fs::write(&journal, text).unwrap();
        let error = recover(&queue, &journal).unwrap_err();
        assert!(matches!(error, QueueError::Unreadable { .. }), "{error}");
        assert!(journal.exists());
    }
    let version = r#"{"begin":{"version":99,"boot":"","before":{}}}"#;
    fs::write(&journal, format!("{version}\n")).unwrap();
    assert!(recover(&queue, &journal).is_err());
    let earlier = r#"{"begin":{"version":1,"boot":"earlier","before":{"scheduler":"bfq"}}}"#;
    fs::write(&journal, format!("{earlier}\n")).unwrap();
    assert_eq!(recover(&queue, &journal).unwrap(), None);
    assert_eq!(queue.read(SCHEDULER).unwrap(), "none");
}

/// Ends the process, as far as the queue is concerned, at one of its writes: before or after it.
struct KilledQueue {
    queue: SysfsQueue,
    writes: Cell<usize>,
    kill_at: usize,
    before: bool,
}

impl Queue for KilledQueue {
    fn settings(&self) -> io::Result<Vec<String>> {
        if self.writes.get() > self.kill_at {
            return Err(io::Error::other("killed"));
        }
        self.queue.settings()
    }

    fn read(&self, setting: &str) -> io::Result<String> {
        self.queue.read(setting)
    }

    fn write(&self, setting: &str, value: &str) -> io::Result<()> {
        let number = self.writes.replace(self.writes.get() + 1);
        if number > self.kill_at || (number == self.kill_at && self.before) {
            return Err(io::Error::other("killed"));
        }
        self.queue.write(setting, value)
    }
}

#[test]
fn a_kill_at_any_write_to_a_loop_device_is_undone() {
    let test = "a_kill_at_any_write_to_a_loop_device_is_undone";
    if !is_root() {
        return skipped(test, "needs root");
    }
    let disk = match LoopDisk::new(16) {
        Ok(disk) => disk,
        Err(why) => return skipped(test, format!("{why:#}")),
    };
    let folder = memory_folder();
    let journal = folder.path().join("journal");
    let queue = SysfsQueue::new(&disk.sysfs().join("queue"));
    let original = read_state(&queue).unwrap();
    let names = schedulers(queue.folder()).unwrap();
    let mut targets: Vec<QueueState> = names
        .iter()
        .map(|name| changes(&[("scheduler", name)]))
        .collect();
    targets.push(changes(&[("nr_requests", "32"), ("read_ahead_kb", "512")]));
    if names.iter().any(|name| name == "mq-deadline") {
        unusual(&queue);
    }
    let before = read_state(&queue).unwrap();
    let mut kills = 0;
    'writes: for kill_at in 0.. {
        for is_before in [true, false] {
            let writes = Cell::new(0);
            let killed = KilledQueue {
                queue: queue.clone(),
                writes,
                kill_at,
                before: is_before,
            };
            let mut session = QueueSession::begin(&killed, &journal).unwrap();
            let run = targets.iter().try_for_each(|target| session.set(target));
            let run = run.and_then(|()| session.restore().map(drop));
            if run.is_ok() {
                break 'writes;
            }
            recover(&queue, &journal).unwrap();
            assert_eq!(read_state(&queue).unwrap(), before, "{kill_at}");
            kills += 1;
        }
    }
    assert!(kills > 2 * targets.len(), "{kills}");
    assert!(!journal.exists());
    for (setting, value) in in_order(&original) {
        if queue.read(setting).is_ok_and(|now| now != *value) {
            queue.write(setting, value).unwrap();
        }
    }
    assert_eq!(read_state(&queue).unwrap(), original);
}
