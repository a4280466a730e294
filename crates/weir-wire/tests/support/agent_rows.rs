//! What a test agent sends: rows that count up, from a host whose clock is an hour behind.
#![allow(dead_code)] // Each test file uses its own part of this.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_model::{Batch, Column};
use weir_wire::{Dial, Hello, UplinkOptions};

/// How far the agent's clock is behind.
pub const BEHIND: i64 = 3_600_000_000_000;

/// The monitor's clock.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_nanos() as i64
}

/// Options of an uplink with short pauses between attempts.
pub fn options(dial: Dial, instance: u64) -> UplinkOptions {
    let hello = Hello {
        host: "web1".to_owned(),
        instance,
        program: "weir 0.1.0".to_owned(),
        ..Hello::default()
    };
    UplinkOptions {
        retry_min: Duration::from_millis(5),
        retry_max: Duration::from_millis(50),
        ..UplinkOptions::new(dial, hello, Arc::new(|| now() - BEHIND))
    }
}

/// `count` rows with the values from `first` on; each instant equals its value.
pub fn rows(first: i64, count: i64) -> Batch {
    let values: Vec<i64> = (first..first + count).collect();
    let texts: Vec<String> = values.iter().map(|v| format!("text {}", v % 100)).collect();
    let texts = Column::texts(texts.iter().map(String::as_str));
    Batch::stream(values.clone(), vec![Column::ints(values), texts])
}
