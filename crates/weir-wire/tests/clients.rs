//! Clients submit, watch, list and cancel queries over Flight, and get the reason of a rejection.

mod support;

use std::time::Duration;

use arrow_array::StringArray;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampNanosecondType};
use support::{Monitor, WAIT_MAX};
use weir_wire::event::{ResultUpdate, Submit};
use weir_wire::{Client, Dial, Refusal, WatchEvent, WireError};

fn client(monitor: &Monitor) -> Client {
    Client::connect(dial(monitor)).unwrap()
}

fn dial(monitor: &Monitor) -> Dial {
    Dial::new(monitor.server.address().to_string().parse().unwrap())
}

fn cql(query: &str) -> Submit {
    Submit {
        query: query.to_owned(),
        ..Submit::default()
    }
}

fn shown(seen: WatchEvent) -> ResultUpdate {
    match seen {
        WatchEvent::Update(shown) => shown,
        other => panic!("{other:?}"),
    }
}

#[test]
fn results_arrive_as_rows_with_notes() {
    let monitor = Monitor::local(|_| {});
    let mut client = client(&monitor);
    let placed = client.submit(&cql("select vm from IO")).unwrap();
    assert_eq!(
        (placed.name.as_str(), &placed.schema),
        ("q", &support::schema())
    );
    let mut watch = client.watch("q").unwrap();
    let mut rows = Vec::new();
    loop {
        let shown = shown(watch.next(WAIT_MAX).unwrap());
        let columns = shown.batch.columns();
        let vms = columns[2].as_dictionary::<Int32Type>();
        let vms = vms.downcast_dict::<StringArray>().unwrap();
        for (row, vm) in vms.into_iter().enumerate() {
            let instant = columns[0]
                .as_primitive::<TimestampNanosecondType>()
                .value(row);
            let weight = columns[1].as_primitive::<Int64Type>().value(row);
            let requests = columns[3].as_primitive::<Int64Type>().value(row);
            rows.push((instant, weight, vm.unwrap().to_owned(), requests));
        }
        if shown.note.get("ended").is_some() {
            break;
        }
    }
    let row = |at, weight, vm: &str, requests| (at, weight, vm.to_owned(), requests);
    let expected = [
        row(1_000, 1, "web1", 0),
        row(1_000, 1, "db1", 1),
        row(2_000, -1, "db1", 0),
        row(2_000, 2, "new1", 1),
    ];
    assert_eq!(rows, expected);
    assert!(matches!(watch.next(WAIT_MAX).unwrap(), WatchEvent::Ended));
}

#[test]
fn queries_and_hosts_are_listed_explained_and_cancelled() {
    let monitor = Monitor::local(|_| {});
    let mut client = client(&monitor);
    assert_eq!(client.queries().unwrap()[0]["asked_by"], "127.0.0.1");
    assert_eq!(client.hosts().unwrap()[0]["host"], "web1");
    assert_eq!(client.explain(&cql("x")).unwrap()["explained"], "x");
    assert_eq!(client.cancel("q").unwrap()["cancelled"], "q");
    assert_eq!(client.describe("q").unwrap().schema, support::schema());
}

#[test]
fn a_rejection_of_the_monitor_arrives_complete() {
    let monitor = Monitor::local(|_| {});
    let mut client = client(&monitor);
    let refused = client.submit(&cql("oops")).unwrap_err();
    let words = "error[W0001]: `oops`\n 1 | oops".to_owned();
    match refused {
        WireError::Refused(refusal) => assert_eq!(refusal, Refusal::Invalid(words)),
        other => panic!("{other}"),
    }
    let unknown = client.watch("nothing").unwrap_err().to_string();
    assert_eq!(unknown, "there is no query `nothing`");
    let empty = client.submit(&cql("")).unwrap_err().to_string();
    assert_eq!(empty, "the query is empty");
}

#[test]
fn an_unreachable_monitor_is_reported_with_a_remedy() {
    let address = {
        let monitor = Monitor::local(|_| {});
        monitor.server.address().to_string()
    };
    let error = Client::connect(Dial::new(address.to_string().parse().unwrap())).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("check that it is running"), "{text}");
}

#[test]
fn the_watch_limit_of_a_principal_is_enforced() {
    let monitor = Monitor::local(|o| o.limits.watches_per_principal_max = 1);
    let mut client = client(&monitor);
    let mut first = client.watch("endless").unwrap();
    shown(first.next(WAIT_MAX).unwrap());
    let error = client.watch("endless").unwrap_err().to_string();
    assert!(error.contains("the limit is 1"), "{error}");
    assert_eq!(monitor.counted("requests_refused", Some("watches_max")), 1);
    drop(first);
    support::until("the place is free", || client.watch("q").is_ok());
}

#[test]
fn the_request_rate_is_limited() {
    let monitor = Monitor::local(|o| o.limits.requests_per_second = 2);
    let mut client = client(&monitor);
    let refused = (0..100)
        .find_map(|_| client.queries().err())
        .expect("a refusal");
    assert!(
        refused.to_string().contains("more than 2 requests"),
        "{refused}"
    );
    support::until("it may ask again", || client.queries().is_ok());
}

#[test]
fn a_dropped_server_ends_its_watchers_and_frees_its_port() {
    let monitor = Monitor::local(|_| {});
    let address = monitor.server.address().to_string();
    let mut client = client(&monitor);
    let mut watch = client.watch("endless").unwrap();
    shown(watch.next(WAIT_MAX).unwrap());
    support::within(move || drop(monitor));
    // Updates sent before still arrive; then the end, or an error about the lost connection.
    while let Ok(WatchEvent::Update(_)) = watch.next(WAIT_MAX) {}
    assert!(client.queries().is_err());
    drop(std::net::TcpListener::bind(address).unwrap());
}

#[test]
fn waiting_without_results_times_out() {
    let monitor = Monitor::local(|_| {});
    let mut client = client(&monitor);
    let mut watch = client.watch("endless").unwrap();
    for _ in 0..3 {
        shown(watch.next(WAIT_MAX).unwrap());
    }
    assert!(matches!(
        watch.next(Duration::from_millis(1)).unwrap(),
        WatchEvent::Timeout
    ));
}
