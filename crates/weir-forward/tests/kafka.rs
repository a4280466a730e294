//! A real broker of Kafka, with TLS and a password: what is accepted, and what is reported.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use weir_forward::config::{ForwardSasl, ForwardTls, SaslMechanism};
use weir_forward::{ForwardConfig, Forwarder, RowOrigin, SenderStatus};
use weir_model::{Batch, Catalog, Column};
use weir_query::place::fleet::CutOptions;
use weir_query::place::fleet::published::cut_to_publish;
use weir_query::{CheckOptions, compile};
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

/// What becomes of a row that is forwarded with this configuration.
fn outcome(config: &ForwardConfig, directory: &Path) -> SenderStatus {
    let checked = compile(
        "select bytes from IO",
        &Catalog::builtin(),
        &CheckOptions::live(),
    );
    let cut = cut_to_publish(&checked.unwrap().plan, &CutOptions::default());
    let plan = cut.unwrap().fragments.swap_remove(0).plan;
    let mut forwarder = Forwarder::open(config, directory).unwrap().unwrap();
    let topic = forwarder.add("q", 0, &plan).unwrap();
    let origin = RowOrigin {
        host: "a",
        epoch: 1,
        sequence: 1,
        first: 0,
        counts: None,
    };
    forwarder.rows(
        &topic,
        &origin,
        &Batch::stream(vec![5], vec![Column::ints(vec![1])]),
    );
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
    for (name, config, reason) in [
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
        assert_eq!(wrong.sent, 0, "{name}: {failure}");
        assert!(failure.contains(reason), "{name}: {failure}");
        assert!(!failure.contains("right"), "{name}: {failure}");
        println!("{name}: {failure}");
    }
}
