//! A real broker of Kafka, with TLS and a password: what is accepted, and what is reported.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// An authority, and a certificate of `localhost` with its key: the paths of `ca`, `cert`, `key`.
fn certificates(home: &Scratch, name: &str) -> [PathBuf; 3] {
    let [ca, ca_key, cert, key, request] =
        ["ca", "ca.key", "cert", "key", "csr"].map(|end| home.file(&format!("{name}.{end}")));
    let subject = home.write("ext", "subjectAltName=DNS:localhost\n");
    let openssl = |args: &[&str]| {
        let output = Command::new("openssl").args(args).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{err}");
    };
    let new = [
        "req",
        "-nodes",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
    ];
    let authority = ["-x509", "-days", "2", "-subj", "/CN=authority"];
    openssl(&[&new[..], &authority, &["-keyout", &ca_key, "-out", &ca]].concat());
    let own = ["-subj", "/CN=localhost", "-keyout", &key, "-out", &request];
    openssl(&[&new[..], &own].concat());
    let sign = [
        "x509", "-req", "-days", "2", "-in", &request, "-extfile", &subject,
    ];
    let by = [
        "-CA",
        &ca,
        "-CAkey",
        &ca_key,
        "-CAcreateserial",
        "-out",
        &cert,
    ];
    openssl(&[&sign[..], &by].concat());
    [ca, cert, key].map(PathBuf::from)
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
