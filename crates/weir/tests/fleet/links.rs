//! Network links that are cut, slow, lossy or of high latency: afterwards the rows delivered plus
//! those counted equal the rows produced, and no row is duplicated.

use std::thread::sleep;
use std::time::Duration;

use weir_testing::{Cable, Relay};

use crate::field::{Field, REQUESTS, ended_well};

/// The duration of a cut. The monitor waits for a silent agent for a third of it.
fn partition() -> Duration {
    let seconds = std::env::var("WEIR_TEST_PARTITION_SECONDS");
    Duration::from_secs(seconds.map_or(3, |s| s.parse().expect("a number of seconds")))
}

#[test]
fn a_partition_delays_or_is_counted() {
    const TEST: &str = "a_partition_delays_or_is_counted";
    let settings = format!("idle = \"{} ms\"", partition().as_millis() / 3);
    let Some(field) = Field::new(TEST, &["cut", "whole"], &settings) else {
        return;
    };
    let agents = ["cut", "whole"].map(|name| field.replaying(name));
    field.until_delivered("cut", 1_000);
    field.host("cut").cut().unwrap();
    sleep(partition());
    field.host("cut").mend().unwrap();
    agents.into_iter().for_each(ended_well);
    let books = field.balanced(&[("cut", REQUESTS), ("whole", REQUESTS)]);
    eprintln!("after a partition of {:?}: {books:?}", partition());
}

#[test]
fn a_slow_and_lossy_cable_costs_time_and_no_row() {
    const TEST: &str = "a_slow_and_lossy_cable_costs_time_and_no_row";
    // The monitor waits for both agents throughout this test.
    let Some(field) = Field::new(TEST, &["a", "b"], "idle = \"10 s\"") else {
        return;
    };
    field
        .host("a")
        .shape(Cable {
            bytes_per_second: 100_000,
            queue_bytes: 4_000,
        })
        .unwrap();
    let agents = ["a", "b"].map(|name| field.replaying(name));
    agents.into_iter().for_each(ended_well);
    let books = field.balanced(&[("a", REQUESTS), ("b", REQUESTS)]);
    for host in ["a", "b"] {
        assert_eq!(books[host].delivered, REQUESTS, "{books:?}");
    }
}

#[test]
fn a_long_way_that_breaks_off_and_stalls_costs_time_and_no_row() {
    const TEST: &str = "a_long_way_that_breaks_off_and_stalls_costs_time_and_no_row";
    let Some(field) = Field::new(TEST, &["a", "b"], "idle = \"10 s\"") else {
        return;
    };
    let relay = Relay::new(field.host("a").gateway(), field.address()).unwrap();
    relay.delay(Duration::from_millis(150));
    let a = field.replaying_through("a", relay.address());
    let b = field.replaying("b");
    field.until_delivered("a", 500);
    relay.close_connections();
    field.until_delivered("a", 1_500);
    relay.stall(true);
    sleep(Duration::from_secs(1));
    relay.stall(false);
    ended_well(a);
    ended_well(b);
    let books = field.balanced(&[("a", REQUESTS), ("b", REQUESTS)]);
    for host in ["a", "b"] {
        assert_eq!(books[host].delivered, REQUESTS, "{books:?}");
    }
}
