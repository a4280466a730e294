//! Messages in the spool are read in order, each once; what is dropped or damaged is counted.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use weir_forward::spool::{ForwardSpool, ForwardSpoolReader};
use weir_forward::{TargetPartition, TopicMessage};

fn message(number: u64) -> TopicMessage {
    TopicMessage {
        topic: "t".into(),
        partition: TargetPartition::Of(0),
        key: number.to_string().into_bytes(),
        value: vec![b'x'; 1_000],
        requests: 2,
    }
}

/// The keys of all messages that wait, which are acknowledged.
fn read(reader: &mut ForwardSpoolReader) -> Vec<String> {
    let mut keys = Vec::new();
    while !reader.is_empty() {
        if let Some(chunk) = reader.next(Duration::ZERO).unwrap() {
            let text = |m: &TopicMessage| String::from_utf8(m.key.clone()).unwrap();
            keys.extend(chunk.messages.iter().map(text));
            reader.acknowledge(chunk);
        }
    }
    reader.save().unwrap();
    keys
}

fn names(numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

#[test]
fn a_full_spool_drops_the_oldest_messages_and_counts_them() {
    let home = tempfile::tempdir().unwrap();
    let (mut spool, mut reader) = ForwardSpool::open(home.path(), 200_000).unwrap();
    for number in 0..1_000 {
        spool.push(&message(number));
        spool.flush().unwrap();
    }
    assert!(spool.waiting_bytes() <= 200_000);
    let lost = spool.take_lost().remove("spool_full").unwrap();
    let keys = read(&mut reader);
    assert_eq!(lost % 2, 0);
    assert_eq!(keys, names(lost / 2..1_000));
    assert!(keys.len() > 150, "{}", keys.len());
    assert!(spool.take_lost().is_empty());
    // A message longer than the spool takes the place of all others.
    spool.push(&TopicMessage {
        value: vec![0; 300_000],
        ..message(1_000)
    });
    spool.flush().unwrap();
    spool.push(&message(1_001));
    spool.flush().unwrap();
    // It is then the oldest one.
    assert_eq!(spool.take_lost(), BTreeMap::from([("spool_full", 2)]));
    assert_eq!(read(&mut reader), ["1001"]);
}

#[test]
fn files_of_what_was_acknowledged_are_removed() {
    let home = tempfile::tempdir().unwrap();
    let (mut spool, mut reader) = ForwardSpool::open(home.path(), 1 << 30).unwrap();
    let files = || fs::read_dir(home.path()).unwrap().count();
    for round in 0..3 {
        for number in 0..20_000 {
            spool.push(&message(number));
            if number % 100 == 0 {
                spool.flush().unwrap();
            }
        }
        spool.flush().unwrap();
        assert!(files() > 4, "round {round}");
        assert_eq!(read(&mut reader).len(), 20_000);
        assert!(
            files() <= 2,
            "round {round}: the last one, and the position"
        );
    }
    let (_, mut again) = ForwardSpool::open(home.path(), 1 << 30).unwrap();
    assert_eq!(read(&mut again), Vec::<String>::new());
}

#[test]
fn torn_and_damaged_files_lose_only_what_they_must() {
    let home = tempfile::tempdir().unwrap();
    let (mut spool, _) = ForwardSpool::open(home.path(), 1 << 30).unwrap();
    (0..10).for_each(|number| spool.push(&message(number)));
    spool.flush().unwrap();
    let segment = || {
        let entries = fs::read_dir(home.path()).unwrap();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "messages"));
        paths.sort();
        paths.pop().unwrap()
    };
    let content = fs::read(segment()).unwrap();
    // The end of the last write is missing.
    fs::write(segment(), &content[..content.len() - 5]).unwrap();
    let (mut spool, mut reader) = ForwardSpool::open(home.path(), 1 << 30).unwrap();
    (20..25).for_each(|number| spool.push(&message(number)));
    spool.flush().unwrap();
    // The second file is damaged while it is read.
    let mut damaged = fs::read(segment()).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(segment(), damaged).unwrap();
    assert_eq!(read(&mut reader), [names(0..9), names(20..22)].concat());
    assert_eq!(
        spool.take_lost(),
        BTreeMap::from([("spool_damaged", 3 * 2)])
    );
}

#[test]
fn a_file_that_is_missing_is_counted_and_the_next_one_follows() {
    let home = tempfile::tempdir().unwrap();
    let (mut spool, mut reader) = ForwardSpool::open(home.path(), 1 << 30).unwrap();
    spool.push(&message(0));
    spool.flush().unwrap();
    for entry in fs::read_dir(home.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert!(reader.next(Duration::ZERO).unwrap().is_none());
    assert_eq!(spool.take_lost(), BTreeMap::from([("spool_damaged", 2)]));
    drop((spool, reader));
    let (mut spool, mut reader) = ForwardSpool::open(home.path(), 1 << 30).unwrap();
    spool.push(&message(1));
    spool.flush().unwrap();
    assert_eq!(read(&mut reader), ["1"]);
}

#[test]
fn messages_that_are_dropped_while_they_are_sent_hold_up_no_other() {
    let home = tempfile::tempdir().unwrap();
    let (mut spool, mut reader) = ForwardSpool::open(home.path(), 40_000).unwrap();
    spool.push(&message(0));
    spool.flush().unwrap();
    let sent = reader.next(Duration::ZERO).unwrap().unwrap();
    // All that was there is dropped, then more follows.
    for number in 1..200 {
        spool.push(&message(number));
        spool.flush().unwrap();
    }
    reader.acknowledge(sent);
    let keys = read(&mut reader);
    assert_eq!(*keys.last().unwrap(), "199");
    let lost: u64 = spool.take_lost().values().sum();
    assert_eq!(keys.len() as u64 + lost / 2, 200);
}

#[test]
fn writer_and_reader_work_at_the_same_time() {
    let home = tempfile::tempdir().unwrap();
    let (mut spool, mut reader) = ForwardSpool::open(home.path(), 100_000).unwrap();
    let writer = std::thread::spawn(move || {
        for number in 0..20_000 {
            spool.push(&message(number));
            spool.flush().unwrap();
        }
        spool
    });
    let mut keys: Vec<u64> = Vec::new();
    while !writer.is_finished() || !reader.is_empty() {
        let read = read(&mut reader);
        keys.extend(read.iter().map(|key| key.parse::<u64>().unwrap()));
    }
    let mut spool = writer.join().unwrap();
    assert!(keys.is_sorted_by(|a, b| a < b), "in order, each once");
    let lost: u64 = spool.take_lost().values().sum();
    // What is dropped while it is read is counted as lost and read.
    let read = keys.len() as u64;
    assert!(read + lost / 2 >= 20_000, "{read} read, {lost} lost");
    assert_eq!(keys.last(), Some(&19_999));
}

#[test]
fn what_cannot_be_written_is_counted() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("spool");
    let (mut spool, mut reader) = ForwardSpool::open(&directory, 1 << 30).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    spool.push(&message(0));
    assert!(spool.flush().is_err());
    assert_eq!(spool.take_unwritten(), 2);
    fs::create_dir(&directory).unwrap();
    spool.push(&message(1));
    spool.flush().unwrap();
    assert_eq!(read(&mut reader), ["1"]);
}
