//! [`Served`]: histograms in a tap in the disk path.

use std::path::{Path, PathBuf};

use weir_model::Symbol;
use weir_tap::tapdisk::words::{Answer, Ask, DiskWord, HistogramsWord};
use weir_tap::tapdisk::{ClientError, TapdiskClient};
use weir_workload::{Subject, json};

use super::choice::HistogramChoice;
use super::counted::{CountedHistograms, HistogramKey};
use super::gauge::Gauge;
use weir_runtime::failure::Failure;

/// Counts in the tap until it is dropped.
pub struct Served {
    path: PathBuf,
    client: TapdiskClient,
    choice: HistogramChoice,
    by: HistogramKey,
}

impl Served {
    /// Starts a count in the tap at `path`.
    ///
    /// # Errors
    /// When the tap cannot be reached, or cannot count by this key.
    pub fn open(path: &Path, choice: HistogramChoice, by: HistogramKey) -> Result<Served, Failure> {
        if matches!(by, HistogramKey::Process | HistogramKey::Cgroup) {
            return Err(Failure::words(format_args!(
                "--by {by} is unknown to a tapdisk; omit it, or use --from live"
            )));
        }
        let client = TapdiskClient::connect(path).map_err(|error| error.at(path))?;
        let mut served = Served {
            path: path.to_owned(),
            client,
            choice,
            by,
        };
        served.ask(Ask::Histograms)?;
        Ok(served)
    }

    fn ask(&mut self, ask: Ask) -> Result<HistogramsWord, Failure> {
        let answer = self.client.ask(ask);
        match answer.map_err(|error| error.at(&self.path))? {
            Answer::Histograms(word) => Ok(word),
            _ => Err(self.odd()),
        }
    }

    fn odd(&self) -> Failure {
        let odd = ClientError::Garbled("it contains no histograms".into());
        odd.at(&self.path).into()
    }

    /// The subject of the histograms of a disk.
    fn subject(&self, disk: &DiskWord) -> Subject {
        let symbol = |text: &Option<String>| Symbol::try_new(text.as_deref()?).ok();
        let subject = Subject {
            vm: symbol(&disk.vm),
            vdisk: symbol(&disk.vdisk),
            pdisk: symbol(&disk.pdisk),
            ..Subject::default()
        };
        match self.by {
            HistogramKey::Disk => subject,
            by => by.of(subject),
        }
    }
}

impl Gauge for Served {
    fn snapshot(&mut self) -> Result<CountedHistograms, Failure> {
        let word = self.ask(Ask::Histograms)?;
        let mut counted = CountedHistograms {
            since: word.since_ns,
            at: word.until_ns,
            closest_of: word.closest_of,
            subjects: Vec::new(),
            lost: Vec::new(),
            unreliable: Vec::new(),
        };
        for (disk, histograms_json) in &word.disks {
            let histograms = json::to_histograms(histograms_json).ok_or_else(|| self.odd())?;
            let subject = self.subject(disk);
            if self.choice.has(&subject) {
                counted.add(subject, histograms);
            }
        }
        if word.lost > 0 {
            counted.lost.push(("ring_full".into(), word.lost));
        }
        counted.sort();
        Ok(counted)
    }

    fn reset(&mut self) -> Result<(), Failure> {
        self.ask(Ask::Reset).map(drop)
    }
}
