//! `weir query` in the background, as a user runs it, and its rows.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use weir_testing::run;

/// The selected columns of each finished request.
const COLUMNS: &str = "ts, vm, vdisk, vsector, op, sector, sectors, pdisk, pid, comm";

/// A finished request in the output of weir.
#[derive(Clone, Debug)]
pub struct Seen {
    pub ts: String,
    pub vm: Option<String>,
    pub vdisk: Option<String>,
    pub vsector: Option<u64>,
    pub op: String,
    pub sector: u64,
    pub sectors: u64,
    /// The device to which it was submitted, possibly a partition.
    pub pdisk: String,
    pub comm: Option<String>,
}

impl Seen {
    /// The whole device, of which `pdisk` may be a partition.
    pub fn device(&self) -> &str {
        let number = self.pdisk.trim_start_matches("/dev/loop");
        let digits = number.find(|c: char| !c.is_ascii_digit());
        digits.map_or(&self.pdisk, |end| {
            &self.pdisk[..self.pdisk.len() - number.len() + end]
        })
    }
}

/// The output of weir after its end.
pub struct Delivered {
    pub rows: Vec<Seen>,
    /// The summary on standard error.
    pub summary: String,
}

impl Delivered {
    /// Requests of a device that weir reports as missing.
    pub fn missed(&self, device: &str) -> i64 {
        // `weir: 6 requests on /dev/loop3: no completion event was received; ..`,
        // `weir: 2 events lost (ring full) of /dev/loop3`
        let of = format!(" of {device}");
        let on = format!(" on {device}: no completion event");
        let missed = self.summary.lines().filter_map(|line| {
            let (total, what) = line.strip_prefix("weir: ")?.split_once(' ')?;
            let lost = what.starts_with("events lost") && what.ends_with(&of);
            let unseen = what.starts_with("request") && what.contains(&on);
            (lost || unseen).then(|| total.parse::<i64>().unwrap())
        });
        missed.sum()
    }
}

/// A running weir process.
pub struct Watching {
    weir: Child,
    out: PathBuf,
    devices: Vec<String>,
}

/// The time limit of each operation here.
const TIMEOUT: Duration = Duration::from_secs(180);

impl Watching {
    /// Queries each request of these devices. On return the query runs, and the only requests
    /// observed so far are reads of [`Watching::mark`]. The output goes to file `out`.
    pub fn start(out: &str, devices: &[&str]) -> Watching {
        let query = format!("select {COLUMNS} from IO");
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.args(["query", "--verbose", "--format", "json", &query]);
        weir.args(devices.iter().flat_map(|device| ["--device", device]));
        let weir = weir
            .stdin(Stdio::null())
            .stdout(File::create(out).unwrap())
            .stderr(File::create(format!("{out}.err")).unwrap())
            .spawn()
            .unwrap();
        let mut watching = Watching {
            weir,
            out: out.into(),
            devices: devices.iter().map(|d| (*d).to_owned()).collect(),
        };
        watching.mark();
        watching
    }

    /// Reads a sector of the first device until one such read is reported; returns its time. All
    /// requests that completed earlier have been reported by then.
    pub fn mark(&mut self) -> String {
        let within = Instant::now() + TIMEOUT;
        let before = self.marks();
        loop {
            let from = format!("if={}", self.devices[0]);
            let args = [&from, "of=/dev/null", "bs=512", "count=1", "iflag=direct"];
            run("dd", &args).unwrap();
            let next = Instant::now() + Duration::from_secs(1);
            while Instant::now() < next {
                let marks = self.marks();
                if marks.len() > before.len() {
                    return marks.into_iter().next_back().unwrap();
                }
                thread::sleep(Duration::from_millis(20));
            }
            let ended = self.weir.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < within,
                "weir sees nothing: {ended:?} {}",
                self.summary()
            );
        }
    }

    fn marks(&self) -> Vec<String> {
        let marks = self
            .rows()
            .into_iter()
            .filter(|row| row.comm.as_deref() == Some("dd"));
        marks.map(|row| row.ts).collect()
    }

    /// The rows so far.
    pub fn rows(&self) -> Vec<Seen> {
        let text = fs::read_to_string(&self.out).unwrap();
        // The last line may be incomplete.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(row).collect()
    }

    fn summary(&self) -> String {
        fs::read_to_string(format!("{}.err", self.out.display())).unwrap()
    }

    /// Interrupts weir, as Ctrl-C does; returns its whole output.
    pub fn stop(mut self) -> Delivered {
        run("kill", &["-INT", &self.weir.id().to_string()]).unwrap();
        let within = Instant::now() + TIMEOUT;
        let status = loop {
            match self.weir.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < within, "weir does not stop"),
            }
            thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(status.code(), Some(130), "{}", self.summary());
        Delivered {
            rows: self.rows(),
            summary: self.summary(),
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.weir.kill();
        let _ = self.weir.wait();
    }
}

fn row(line: &str) -> Seen {
    let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    let number = |name: &str| value[name].as_u64();
    Seen {
        ts: text("ts").unwrap(),
        vm: text("vm"),
        vdisk: text("vdisk"),
        vsector: number("vsector"),
        op: text("op").unwrap(),
        sector: number("sector").unwrap_or(0),
        sectors: number("sectors").unwrap(),
        pdisk: text("pdisk").unwrap(),
        comm: text("comm"),
    }
}

/// `weir query` on a relation of the inventory.
pub struct Relation {
    weir: Child,
    out: PathBuf,
}

impl Relation {
    /// Starts the query; its output goes to file `out`.
    pub fn watch(out: &str, query: &str) -> Relation {
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        let weir = weir
            .args(["query", "--format", "json", query])
            .stdin(Stdio::null())
            .stdout(File::create(out).unwrap())
            .stderr(File::create(format!("{out}.err")).unwrap())
            .spawn()
            .unwrap();
        Relation {
            weir,
            out: out.into(),
        }
    }

    /// Waits until a row with these columns is inserted (`weight` 1) or retracted (-1).
    pub fn wait(&self, weight: i64, columns: &[(&str, &str)]) {
        let within = Instant::now() + TIMEOUT;
        loop {
            let text = fs::read_to_string(&self.out).unwrap();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            let mut rows = whole
                .lines()
                .map(|l| serde_json::from_str::<Value>(l).unwrap());
            let asked = |row: &Value| {
                row["weight"] == weight && columns.iter().all(|(name, value)| row[name] == *value)
            };
            if rows.any(|row| asked(&row)) {
                return;
            }
            let stderr = fs::read_to_string(format!("{}.err", self.out.display())).unwrap();
            assert!(
                Instant::now() < within,
                "no {weight} of {columns:?}: {whole}\n{stderr}"
            );
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Relation {
    fn drop(&mut self) {
        let _ = self.weir.kill();
        let _ = self.weir.wait();
    }
}
