//! An agent and a monitor of the previous minor version of the protocol, for the test
//! `previous_version`: their whole implementation of the protocol is generated from
//! `weir-wire/proto/previous`.
//!
//! ```text
//! previous_version agent ADDRESS ROWS     send ROWS rows of each channel, in two connections
//! previous_version monitor FRAGMENT       let an agent run the fragment in this file
//! ```
//!
//! `WEIR_TEST_VERSION=5.0` states another version. Prints what it received as one line of JSON.

mod agent;
mod monitor;
// Generated code: not every message is needed here.
#[allow(dead_code)]
mod proto;

use arrow_flight::FlightData;
use prost::Message;

/// How long to wait for the other side.
const WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["agent", address, rows] => agent::run(address, rows.parse().expect("a number")).await,
        ["monitor", fragment] => monitor::run(std::fs::read(fragment).expect("a fragment")).await,
        _ => panic!("usage: previous_version agent ADDRESS ROWS | monitor FRAGMENT"),
    };
    match outcome {
        Ok(summary) => println!("{summary}"),
        Err(why) => {
            eprintln!("{why}");
            std::process::exit(1);
        }
    }
}

/// The version that this side states.
fn version() -> (u32, u32) {
    let text = std::env::var("WEIR_TEST_VERSION").unwrap_or_else(|_| "4.1".into());
    let (major, minor) = text.split_once('.').expect("MAJOR.MINOR");
    let number = |text: &str| text.parse().expect("a number");
    (number(major), number(minor))
}

/// A message for the other side.
fn data(message: &impl Message) -> FlightData {
    FlightData {
        app_metadata: message.encode_to_vec().into(),
        ..FlightData::default()
    }
}

/// This host's clock, in nanoseconds since 1970.
fn now() -> i64 {
    let since = std::time::UNIX_EPOCH
        .elapsed()
        .expect("it is later than 1970");
    since.as_nanos() as i64
}
