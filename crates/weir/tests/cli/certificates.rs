//! `weir certificates`: its certificates admit the intended clients only, and no file is
//! overwritten without a request for it.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType, date_time_ymd};
use serde_json::Value;
use weir_wire::{
    Client, ClientReply, ClientRequest, Dial, EventQueue, NextEvent, Refusal, Server, ServerEvent,
    ServerOptions, ServerTls,
};

use crate::support::{CommandOutput, Scratch, run};

/// `weir certificates` in a directory.
fn certificates(directory: &Path, words: &[&str]) -> CommandOutput {
    let directory = directory.to_str().unwrap();
    run(&[&["certificates"], words, &["-d", directory]].concat())
}

/// A fleet: an authority, a monitor, two clients and an agent.
fn fleet() -> Scratch {
    let scratch = Scratch::new();
    certificates(scratch.path(), &["authority"]).fine();
    certificates(scratch.path(), &["monitor", "localhost", "127.0.0.1"]).fine();
    certificates(scratch.path(), &["client", "grafana"]).fine();
    certificates(scratch.path(), &["client", "alice", "--role", "place"]).fine();
    certificates(scratch.path(), &["agent", "web1"]).fine();
    scratch
}

/// A server with the certificates in `directory`. It requires client certificates and has no
/// queries.
struct Monitor {
    server: Server,
    thread: Option<std::thread::JoinHandle<()>>,
    stop: std::sync::mpsc::Sender<()>,
}

impl Monitor {
    fn start(directory: &Path) -> Monitor {
        let options = ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
            tls: Some(ServerTls {
                certificate: directory.join("monitor.crt"),
                key: directory.join("monitor.key"),
                authority: Some(directory.join("authority.crt")),
            }),
            ..ServerOptions::default()
        };
        let (server, events) = Server::bind(options).unwrap();
        let (stop, stopped) = std::sync::mpsc::channel();
        Monitor {
            server,
            thread: Some(std::thread::spawn(move || answer(events, &stopped))),
            stop,
        }
    }

    /// A client with the certificate `name` of `own`, which trusts the authority of `trusted`.
    fn client(&self, trusted: &Path, own: &Path, name: &str) -> Result<Client, String> {
        let address: SocketAddr = self.server.address().to_string().parse().unwrap();
        let port = address.port();
        // The client connects by address, which is in the server's certificate as well.
        let mut dial = Dial::new(format!("https://127.0.0.1:{port}").parse().unwrap());
        dial.authority = Some(trusted.join("authority.crt"));
        let file = |ending: &str| own.join(format!("{name}.{ending}"));
        dial.identity = Some((file("crt"), file("key")));
        Client::connect(dial).map_err(|e| e.to_string())
    }

    /// The result of listing the queries.
    fn lists(&self, trusted: &Path, own: &Path, name: &str) -> Result<Value, String> {
        let mut client = self.client(trusted, own, name)?;
        client.queries().map_err(|e| e.to_string())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop.send(()).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn answer(mut events: EventQueue, stopped: &std::sync::mpsc::Receiver<()>) {
    while stopped.try_recv().is_err() {
        let NextEvent::Event(ServerEvent::Request {
            who,
            request,
            reply,
        }) = events.next(Duration::from_millis(20))
        else {
            continue;
        };
        let answer = match request {
            ClientRequest::Queries => Ok(ClientReply::Json(
                serde_json::json!([{ "asked_by": who.name }]),
            )),
            ClientRequest::Cancel { query } => {
                Err(Refusal::NotFound(format!("there is no `{query}`")))
            }
            other => panic!("{other:?}"),
        };
        let _ = reply.0.send(answer);
    }
}

fn assert_output(answer: &Result<Value, String>, part: &str) {
    let error = answer.as_ref().expect_err(part);
    assert!(error.contains(part), "{part}: {error}");
}

#[test]
fn what_is_made_lets_in_for_its_role() {
    let fleet = fleet();
    let here = fleet.path();
    let monitor = Monitor::start(here);
    let answer = monitor.lists(here, here, "client-grafana").unwrap();
    assert_eq!(answer[0]["asked_by"], "grafana");
    let mut grafana = monitor.client(here, here, "client-grafana").unwrap();
    let error = grafana.cancel("q").unwrap_err().to_string();
    assert!(
        error.contains("`grafana` is not permitted to place"),
        "{error}"
    );
    let mut alice = monitor.client(here, here, "client-alice").unwrap();
    let error = alice.cancel("q").unwrap_err().to_string();
    assert!(error.contains("there is no `q`"), "{error}");
    let answer = monitor.lists(here, here, "agent-web1");
    assert_output(&answer, "`web1` is not permitted to read queries");
}

#[test]
fn another_authority_and_the_wrong_purpose_are_refused_with_the_reason() {
    let (fleet, others) = (fleet(), fleet());
    let (here, there) = (fleet.path(), others.path());
    let monitor = Monitor::start(here);
    assert_output(
        &monitor.lists(there, here, "client-alice"),
        "not signed by the given authority",
    );
    let strange = monitor.lists(here, there, "client-alice");
    assert!(strange.is_err(), "{strange:?}");
    // The certificate of a monitor is not valid for a client.
    let monitors = monitor.lists(here, here, "monitor");
    assert!(monitors.is_err(), "{monitors:?}");
    monitor.lists(here, here, "client-alice").unwrap();
}

/// Signs a certificate that was valid in the year 2020, for the existing key.
fn expired(directory: &Path, stem: &str, names: Vec<SanType>, usage: ExtendedKeyUsagePurpose) {
    let read = |name: String| fs::read_to_string(directory.join(name)).unwrap();
    let key = |stem: &str| KeyPair::from_pem(&read(format!("{stem}.key"))).unwrap();
    let authority = Issuer::from_ca_cert_pem(&read("authority.crt".into()), key("authority"));
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.subject_alt_names = names;
    params.extended_key_usages = vec![usage];
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let signed = params.signed_by(&key(stem), &authority.unwrap()).unwrap();
    fs::write(directory.join(format!("{stem}.crt")), signed.pem()).unwrap();
}

#[test]
fn what_has_expired_is_refused_with_the_reason_and_good_again_when_renewed() {
    let fleet = fleet();
    let here = fleet.path();
    let names = vec![
        SanType::DnsName("alice".try_into().unwrap()),
        SanType::URI("weir:place".try_into().unwrap()),
    ];
    expired(
        here,
        "client-alice",
        names,
        ExtendedKeyUsagePurpose::ClientAuth,
    );
    let monitor = Monitor::start(here);
    let answer = monitor.lists(here, here, "client-alice");
    assert!(answer.is_err(), "{answer:?}");
    let renewed = certificates(here, &["renew"]).fine();
    assert_eq!(renewed.lines().count(), 1, "{renewed}");
    let answer = monitor.lists(here, here, "client-alice").unwrap();
    assert_eq!(answer[0]["asked_by"], "alice");
    drop(monitor);

    let names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
    expired(here, "monitor", names, ExtendedKeyUsagePurpose::ServerAuth);
    let monitor = Monitor::start(here);
    let answer = monitor.lists(here, here, "client-alice");
    assert_output(&answer, "its certificate is not valid now");
    drop(monitor);
    certificates(here, &["renew"]).fine();
    let monitor = Monitor::start(here);
    monitor.lists(here, here, "client-alice").unwrap();
}

#[test]
fn nothing_is_overwritten_unasked_and_keys_are_their_owners() {
    let fleet = fleet();
    let here = fleet.path();
    let before = fleet.read("client-alice.key");
    for words in [
        &["authority"][..],
        &["monitor", "localhost"],
        &["client", "alice"],
        &["agent", "web1"],
    ] {
        let output = certificates(here, words);
        assert_eq!(output.code, 1);
        assert!(
            output.err.contains("the file exists and is kept"),
            "{}",
            output.err
        );
        assert!(output.err.contains("--force"), "{}", output.err);
    }
    assert_eq!(fleet.read("client-alice.key"), before);
    // A key without its certificate is not overwritten either.
    fs::remove_file(here.join("client-alice.crt")).unwrap();
    assert_eq!(certificates(here, &["client", "alice"]).code, 1);
    assert_eq!(fleet.read("client-alice.key"), before);
    certificates(here, &["client", "alice", "--replace"]).fine();
    assert_ne!(fleet.read("client-alice.key"), before);

    for entry in fs::read_dir(here).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let expected = match path.extension().unwrap().to_str().unwrap() {
            "key" => 0o600,
            "crt" => 0o644,
            other => panic!("a file that ends in {other}"),
        };
        assert_eq!(mode, expected, "{}", path.display());
    }
    fs::set_permissions(
        here.join("authority.key"),
        fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    let output = certificates(here, &["client", "bob"]);
    assert!(
        output.err.contains("others can read this key"),
        "{}",
        output.err
    );
    assert!(!here.join("client-bob.crt").exists());
}

#[test]
fn what_is_there_is_shown_and_renewed_when_it_is_due() {
    let fleet = fleet();
    let here = fleet.path();
    let shown: Value =
        serde_json::from_str(&certificates(here, &["show", "--json"]).fine()).unwrap();
    let shown = shown.as_array().unwrap();
    assert_eq!(shown.len(), 5);
    assert_eq!(shown[0]["authority"], true);
    let find = |end: &str| {
        let ends = |one: &&Value| one["file"].as_str().unwrap().ends_with(end);
        shown.iter().find(ends).unwrap()
    };
    assert_eq!(find("agent-web1.crt")["roles"][0], "agent:web1");
    assert_eq!(find("monitor.crt")["names"][1], "127.0.0.1");
    assert_eq!(find("monitor.crt")["days_left"], 364);
    assert!(certificates(here, &["show"]).fine().contains(" authority "));

    let output = certificates(here, &["renew"]);
    assert_eq!((output.out.as_str(), output.code), ("", 0));
    assert!(
        output.err.contains("valid for 30 days or longer"),
        "{}",
        output.err
    );
    let key = fleet.read("monitor.key");
    let renewed = certificates(here, &["renew", "--within", "400", "--days", "700"]).fine();
    assert_eq!(renewed.lines().count(), 4, "{renewed}");
    assert_eq!(fleet.read("monitor.key"), key);
    let monitor = Monitor::start(here);
    monitor.lists(here, here, "client-grafana").unwrap();
}

#[test]
fn invalid_options_are_refused_before_anything_is_made() {
    let scratch = Scratch::new();
    let output = certificates(scratch.path(), &["agent", "../web1"]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("a name has letters"), "{}", output.err);
    let output = certificates(scratch.path(), &["agent", "web1"]);
    assert_eq!(output.code, 1);
    assert!(
        output.err.contains("there is no authority"),
        "{}",
        output.err
    );
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
}
