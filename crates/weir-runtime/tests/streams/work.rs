//! Threads with a known name that switch contexts, and the kernel's own counts of that.

use std::collections::HashMap;
use std::fs;
use std::ops::RangeInclusive;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A thread that has slept a number of times and waits now, until it is dropped. Meanwhile its
/// counts do not change.
#[derive(Debug)]
pub struct Sleeper {
    /// Its number.
    pub tid: i64,
    /// How often it left its processor to wait; a few times perhaps before it had its name.
    pub waits: RangeInclusive<i64>,
    /// How often it was preempted; once or twice perhaps before it had its name.
    pub preemptions: RangeInclusive<i64>,
    /// The time it ran with its name, in nanoseconds.
    pub ran_ns: i64,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How long each thread is busy, after it has slept.
const BUSY: Duration = Duration::from_millis(50);

/// What the kernel counts of a thread (proc_pid_status(5), proc_pid_schedstat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    voluntary: i64,
    involuntary: i64,
    ran_ns: i64,
    sleeps: bool,
}

impl Sleeper {
    /// Runs a thread called `name` that sleeps `sleeps` times and then is busy for a while.
    pub fn run(name: &str, sleeps: u32) -> Sleeper {
        let (end, ended) = channel();
        let (begin, started) = channel();
        let run = move || {
            let tid = fs::read_link("/proc/thread-self").expect("a thread has its files");
            let tid = tid.file_name().and_then(|tid| tid.to_str()?.parse().ok());
            let tid = tid.expect("its number");
            begin.send((tid, counts(tid))).expect("it is received");
            sleep(sleeps, &ended);
        };
        let thread = thread::Builder::new().name(name.into()).spawn(run);
        let (tid, first) = started.recv().expect("the thread begins");
        let last = at_rest(tid);
        Sleeper {
            tid,
            waits: last.voluntary - first.voluntary..=last.voluntary,
            preemptions: last.involuntary - first.involuntary..=last.involuntary,
            ran_ns: last.ran_ns - first.ran_ns,
            end: Some(end),
            thread: Some(thread.expect("a thread starts")),
        }
    }

    /// How often it left its processor.
    pub fn switches(&self) -> RangeInclusive<i64> {
        self.waits.start() + self.preemptions.start()..=self.waits.end() + self.preemptions.end()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        drop(self.end.take());
        let thread = self.thread.take().expect("it runs until then");
        thread.join().expect("it ends");
    }
}

fn sleep(times: u32, ended: &Receiver<()>) {
    for _ in 0..times {
        thread::sleep(Duration::from_micros(10));
    }
    let until = Instant::now() + BUSY;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    // Nothing is sent: the channel is closed.
    let _ = ended.recv();
}

/// The counts of a thread once it waits for its end.
fn at_rest(tid: i64) -> Counts {
    let until = Instant::now() + Duration::from_secs(60);
    let mut before = counts(tid);
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(50));
        let now = counts(tid);
        if now.sleeps && now == before {
            return now;
        }
        before = now;
    }
    panic!("thread {tid} does not come to rest: {before:?}");
}

fn counts(tid: i64) -> Counts {
    let of = |name: &str| {
        let path = format!("/proc/self/task/{tid}/{name}");
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    let status = of("status");
    let status: HashMap<&str, &str> = status.lines().filter_map(|l| l.split_once(':')).collect();
    let number = |name: &str| status[name].trim().parse().expect("a number");
    let schedstat = of("schedstat");
    let ran = schedstat.split(' ').next().and_then(|n| n.parse().ok());
    Counts {
        voluntary: number("voluntary_ctxt_switches"),
        involuntary: number("nonvoluntary_ctxt_switches"),
        ran_ns: ran.expect("the kernel counts run times"),
        sleeps: status["State"].trim().starts_with('S'),
    }
}
