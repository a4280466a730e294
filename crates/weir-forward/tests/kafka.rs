//! A real broker of Kafka, with TLS and a password: what is accepted, and what is reported.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use weir_forward::config::{ForwardSasl, ForwardTls, SaslMechanism};
use weir_forward::{ForwardConfig, Forwarder, RowOrigin, SenderStatus};
use weir_model::{Batch, Catalog, Column};
use weir_query::place::fleet::published::cut_to_publish;
use weir_query::place::fleet::{Cut, CutOptions};
use weir_query::{CheckOptions, compile};
use weir_runtime::config::Time;
use weir_testing::{Kafka, KafkaUser, Scratch, skipped, wait_until};

/// A file that only its owner can read.
fn secret(home: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = home.write(name, text);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.into()
}

/// An authority, and a certificate of `localhost` with its key: the paths of PEM files.
fn certificates(home: &Scratch, name: &str) -> [PathBuf; 3] {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let [ca_key, key] = [(); 2].map(|()| KeyPair::generate().unwrap());
    let ca = authority.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(authority, ca_key);
    let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = own.signed_by(&key, &issuer).unwrap();
    [
        ("ca", ca.pem()),
        ("certificate", certificate.pem()),
        ("key", key.serialize_pem()),
    ]
    .map(|(end, text)| home.write(&format!("{name}.{end}"), &text).into())
}

/// The query whose rows are forwarded.
fn query() -> Cut {
    let checked = compile(
        "select bytes from IO",
        &Catalog::builtin(),
        &CheckOptions::live(),
    );
    cut_to_publish(&checked.unwrap().plan, &CutOptions::default()).unwrap()
}

/// Forwards rows of a host with these instants.
fn forward(forwarder: &mut Forwarder, topic: &str, sequence: u64, instants: &[i64]) {
    let origin = RowOrigin {
        host: "a",
        epoch: 1,
        sequence,
        first: 0,
        counts: None,
    };
    let bytes = Column::ints(instants.to_vec());
    let rows = Batch::stream(instants.to_vec(), vec![bytes]);
    forwarder.rows(topic, &origin, &rows);
}

/// What becomes of a row that is forwarded with this configuration.
fn outcome(config: &ForwardConfig, directory: &Path) -> SenderStatus {
    let mut forwarder = Forwarder::open(config, directory).unwrap().unwrap();
    let topic = forwarder.add("q", &query(), 0).unwrap();
    forward(&mut forwarder, &topic, 1, &[5]);
    forwarder.advance(10);
    let mut status = forwarder.status().0;
    wait_until("it arrives or fails", || {
        status = forwarder.status().0;
        status.sent >= 3 || status.failure.is_some()
    });
    status
}

#[test]
fn brokers_with_tls_and_a_password_are_reached_with_both_only() {
    let test = "brokers_with_tls_and_a_password_are_reached_with_both_only";
    let home = Scratch::new();
    let ([ca, certificate, key], [other, ..]) =
        (certificates(&home, "broker"), certificates(&home, "other"));
    let user = KafkaUser {
        name: "weir",
        password: "right",
        certificate: &certificate,
        key: &key,
    };
    let kafka = match Kafka::start(Some(user)) {
        Ok(kafka) => kafka,
        Err(why) => return skipped(test, format!("{why:#}")),
    };
    let tls = |ca: &Path| {
        Some(ForwardTls {
            ca: ca.to_owned(),
            certificate: None,
            key: None,
        })
    };
    let sasl = |password: &str| {
        Some(ForwardSasl {
            mechanism: SaslMechanism::Plain,
            user: "weir".into(),
            password_file: secret(&home, password, &format!("{password}\n")),
        })
    };
    let config = |tls, sasl| ForwardConfig {
        to: Some(format!("kafka://{}/secure", kafka.secure_address())),
        replication: Some(1),
        tls,
        sasl,
        ..ForwardConfig::default()
    };
    let spool = |name: &str| PathBuf::from(home.file(&format!("{name} spool")));
    let right = outcome(&config(tls(&ca), sasl("right")), &spool("right"));
    assert_eq!((right.failure, right.sent), (None, 3));
    let settings = |name: &str, value: &str| ForwardConfig {
        settings: [(name.to_owned(), value.to_owned())].into(),
        to: Some(format!("kafka://{}/{name}", kafka.secure_address())),
        ..config(tls(&ca), sasl("right"))
    };
    // The settings are those of the topics that are created.
    let kept = ForwardConfig {
        retention: Some(Time(Duration::from_secs(3_600))),
        ..settings("compression.type", "zstd")
    };
    let kept = outcome(&kept, &spool("kept"));
    assert_eq!((kept.failure, kept.sent), (None, 3));
    for (name, config, reason) in [
        (
            "setting",
            settings("no.such.setting", "1"),
            "no.such.setting",
        ),
        (
            "value",
            settings("retention.bytes", "many"),
            "retention.bytes",
        ),
        ("password", config(tls(&ca), sasl("wrong")), "uthentication"),
        (
            "authority",
            config(tls(&other), sasl("right")),
            "certificate",
        ),
        ("plain", config(None, sasl("right")), ""),
    ] {
        let wrong = outcome(&config, &spool(name));
        let failure = wrong.failure.expect("it is reported");
        assert!(wrong.sent <= 1, "{name}: {failure}");
        assert!(failure.contains(reason), "{name}: {failure}");
        assert!(!failure.contains("right"), "{name}: {failure}");
        println!("{name}: {failure}");
    }
}

/// The messages of a topic by key, each with its values; the order of each partition is checked.
fn messages(config: &ForwardConfig, topic: &str) -> BTreeMap<String, Vec<Vec<u8>>> {
    let url = config.url().unwrap().unwrap();
    let mut reader = config.broker(&url).unwrap();
    let mut found: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for partition in 0..reader.existing(topic).unwrap().unwrap() {
        let (mut at, end) = reader.offsets(topic, partition).unwrap();
        let mut last = 0;
        while at < end {
            let read = reader.read(topic, partition, at, Duration::from_secs(5));
            for record in read.unwrap() {
                at = record.offset + 1;
                let key = String::from_utf8(record.record.key).unwrap();
                if let Some(sequence) = key.split('/').nth(2) {
                    let sequence: u64 = sequence.parse().unwrap();
                    let is_known = found.contains_key(&key);
                    assert!(is_known || sequence >= last, "{sequence} after {last}");
                    last = last.max(sequence);
                }
                found.entry(key).or_default().push(record.record.value);
            }
        }
    }
    found
}

#[test]
fn each_message_arrives_while_brokers_are_killed() {
    let test = "each_message_arrives_while_brokers_are_killed";
    let mut brokers = match Kafka::start_three() {
        Ok(brokers) => brokers,
        Err(why) => return skipped(test, format!("{why:#}")),
    };
    let home = Scratch::new();
    let addresses = brokers.each_ref().map(Kafka::address).join(",");
    let config = ForwardConfig {
        to: Some(format!("kafka://{addresses}/three")),
        replication: Some(3),
        partitions: Some(2),
        ..ForwardConfig::default()
    };
    let directory = PathBuf::from(home.file("spool"));
    let mut forwarder = Forwarder::open(&config, &directory).unwrap().unwrap();
    let topic = forwarder.add("q", &query(), 0).unwrap();
    let second = 1_000_000_000;
    let mut sequence = 0;
    let mut send = |forwarder: &mut Forwarder, count: u64| {
        for _ in 0..count {
            sequence += 1;
            let at = sequence as i64 * second;
            forward(forwarder, &topic, sequence, &[at, at + 1]);
            forwarder.advance(at + 2);
        }
    };
    let until_sent = |forwarder: &Forwarder| {
        wait_until("all is sent", || forwarder.status().1 == 0);
    };
    send(&mut forwarder, 20);
    until_sent(&forwarder);
    // Each of them leads some partition, and was the one that answered first.
    for broker in &mut brokers {
        broker.kill();
        send(&mut forwarder, 20);
        until_sent(&forwarder);
        broker.restart().unwrap();
    }
    // All of them, for longer than any request is repeated.
    brokers.iter_mut().for_each(Kafka::kill);
    send(&mut forwarder, 20);
    std::thread::sleep(Duration::from_secs(15));
    let (status, waiting) = forwarder.status();
    assert!(waiting > 0 && status.failure.is_some(), "{status:?}");
    for broker in &mut brokers {
        broker.begin().unwrap();
    }
    for broker in &mut brokers {
        broker.wait().unwrap();
    }
    send(&mut forwarder, 20);
    until_sent(&forwarder);
    assert_eq!(forwarder.lost(), 0);
    forwarder.close();
    let found = messages(&config, &topic);
    let rows = found.iter().filter(|(key, _)| *key != "watermark");
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len() as u64, 2 * sequence);
    for (key, values) in rows {
        assert!(values.iter().all(|value| value == &values[0]), "{key}");
    }
}
