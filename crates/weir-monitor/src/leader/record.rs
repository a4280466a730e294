//! [`LeaderRecord`]: the file in which a monitor claims a term, and renews it.
//!
//! ```text
//! {"term":7,"host":"m1","address":"10.0.0.1:7733","pid":4711,"boot":"..","staging":"h-..",..}
//! leading  00000000000000000042
//! ```
//!
//! The first line never changes. The second has the same length at all times and is overwritten
//! in place: its number grows with each renewal.

use serde::{Deserialize, Serialize};

/// The second line of a monitor that leads, and of one that has ended.
const STATES: [&str; 2] = ["leading ", "released"];

/// A monitor that claims a term.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderRecord {
    /// The term.
    pub term: u64,
    /// The name of its host.
    pub host: String,
    /// Where it accepts agents and clients.
    pub address: String,
    /// Its process.
    pub pid: u32,
    /// The boot of its host's kernel.
    pub boot: String,
    /// The directory of the files that it prepares.
    pub staging: String,
    /// It was started with `--standby`: its lease expires. Otherwise its lock shows that it runs.
    pub expires: bool,
    /// The file is locked while its process runs.
    pub locked: bool,
}

/// What the second line states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Renewed this often.
    Leading(u64),
    /// Given back.
    Released,
}

impl LeaseState {
    /// The line.
    pub fn line(self, renewals: u64) -> String {
        let state = match self {
            LeaseState::Leading(_) => STATES[0],
            LeaseState::Released => STATES[1],
        };
        format!("{state} {renewals:020}\n")
    }
}

impl LeaderRecord {
    /// The first line.
    pub fn line(&self) -> String {
        format!(
            "{}\n",
            serde_json::to_string(self).expect("texts and numbers are JSON")
        )
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The defect of the file.
    pub fn parse(bytes: &[u8]) -> Result<(LeaderRecord, LeaseState), String> {
        let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let (first, second) = text
            .split_once('\n')
            .ok_or("its first line is incomplete")?;
        let record = serde_json::from_str(first).map_err(|error| error.to_string())?;
        let state = match second.split_once(' ') {
            Some(("released", _)) => LeaseState::Released,
            Some(("leading", number)) => {
                let number = number.trim().parse();
                LeaseState::Leading(number.map_err(|_| "its second line has no number")?)
            }
            _ => return Err("its second line is neither `leading` nor `released`".to_owned()),
        };
        Ok((record, state))
    }

    /// For messages: `m1 (10.0.0.1:7733)`.
    pub fn name(&self) -> String {
        format!("{} ({})", self.host, self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_a_damaged_one_is_described() {
        let record = LeaderRecord {
            term: 7,
            host: "m1".to_owned(),
            ..LeaderRecord::default()
        };
        for (state, renewals) in [(LeaseState::Leading(42), 42), (LeaseState::Released, 43)] {
            let text = record.line() + &state.line(renewals);
            let read = LeaderRecord::parse(text.as_bytes());
            assert_eq!(read, Ok((record.clone(), state)));
            // No prefix is mistaken for a record, except one that lacks digits of the number.
            let digits = text.len() - 21;
            for length in 0..digits {
                let read = LeaderRecord::parse(&text.as_bytes()[..length]);
                let is_released = matches!(read, Ok((_, LeaseState::Released)));
                assert!(read.is_err() || is_released, "{length}: {read:?}");
            }
        }
        let lengths: Vec<usize> = [LeaseState::Leading(0), LeaseState::Released]
            .map(|state| state.line(u64::MAX).len())
            .to_vec();
        assert_eq!(lengths[0], lengths[1], "it is overwritten in place");
    }
}
