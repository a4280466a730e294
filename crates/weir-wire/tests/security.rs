//! Authentication and authorization, and the reported reasons.

mod support;

use std::net::SocketAddr;
use std::path::PathBuf;

use support::agent::{Agent, hello};
use support::authority::{Authority, Directory};
use support::{Monitor, WAIT_MAX, until};
use weir_wire::event::Submit;
use weir_wire::{Client, Dial, Listen, Server, ServerOptions, WireError};

const ALICE: &str = "a11ce0a11ce0a11ce0a11ce0";
const GRAFANA: &str = "9rafana9rafana9rafana000";
const WEB1: &str = "web1web1web1web1web1web1";

fn tokens(directory: &Directory) -> PathBuf {
    let lines =
        format!("# who\n{ALICE} alice place\n{GRAFANA} grafana read\n{WEB1} w agent:web1\n");
    directory.secret("tokens", &lines)
}

fn dial(monitor: &Monitor, token: Option<&str>) -> Dial {
    let mut dial = Dial::new(monitor.server.address().to_string().parse().unwrap());
    dial.token = token.map(str::to_owned);
    dial
}

fn place(client: &mut Client) -> Result<(), WireError> {
    let submit = Submit {
        query: "select * from IO".to_owned(),
        ..Submit::default()
    };
    client.submit(&submit).map(drop)
}

fn assert_denied<T: std::fmt::Debug>(answer: Result<T, WireError>, part: &str) {
    let error = answer.unwrap_err();
    assert!(matches!(error, WireError::Denied { .. }), "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn loopback_requires_tokens_and_a_unix_socket_does_not() {
    let directory = Directory::new();
    let mut options = ServerOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
        ..ServerOptions::default()
    };
    let error = Server::bind(options.clone()).unwrap_err().to_string();
    assert!(error.contains("every user of this host"), "{error}");
    options.tokens = Some(tokens(&directory));
    drop(Server::bind(options.clone()).unwrap());
    // The user needs no token at the socket; a presented token still applies.
    let socket = directory.path().join("m.sock");
    options.listen = Listen::Unix(socket.clone());
    let monitor = Monitor::start(options).unwrap();
    place(&mut Client::connect(dial(&monitor, None)).unwrap()).unwrap();
    let mut grafana = Client::connect(dial(&monitor, Some(GRAFANA))).unwrap();
    assert_denied(place(&mut grafana), "`grafana` is not permitted to place");
    assert_denied(
        Client::connect(dial(&monitor, Some("wrongwrongwrongwrong")))
            .unwrap()
            .queries(),
        "unknown token",
    );
    // The rejected peer and the reason are reported.
    until("both are reported", || {
        monitor.has_received("refused")
            && monitor.has_received("`grafana` is not permitted to place")
    });
    drop((monitor, grafana));
    until("the socket is removed", || !socket.exists());
}

#[test]
fn a_reachable_address_requires_tls_and_authentication() {
    let directory = Directory::new();
    let authority = Authority::new(&directory, "authority");
    let mut options = ServerOptions {
        listen: SocketAddr::from(([0, 0, 0, 0], 0)).into(),
        ..ServerOptions::default()
    };
    let error = Server::bind(options.clone()).unwrap_err().to_string();
    assert!(error.contains("needs TLS"), "{error}");
    options.tls = Some(authority.server(&directory, None));
    let error = Server::bind(options.clone()).unwrap_err().to_string();
    assert!(error.contains("without authentication"), "{error}");
    options.tokens = Some(tokens(&directory));
    drop(Server::bind(options).unwrap());
}

#[test]
fn a_token_grants_only_its_roles() {
    let directory = Directory::new();
    let monitor = Monitor::local(|o| o.tokens = Some(tokens(&directory)));
    let client = |token| Client::connect(dial(&monitor, token)).unwrap();
    place(&mut client(Some(ALICE))).unwrap();
    let mut grafana = client(Some(GRAFANA));
    assert_eq!(grafana.queries().unwrap()[0]["asked_by"], "grafana");
    assert_denied(place(&mut grafana), "`grafana` is not permitted to place");
    assert_denied(
        grafana.cancel("q"),
        "`grafana` is not permitted to place or cancel",
    );
    assert_denied(client(Some(WEB1)).queries(), "`w` is not permitted to read");
    assert_denied(client(None).queries(), "no token was presented");
    assert_denied(client(Some("0000000000000000")).queries(), "unknown token");
    let agent = Agent::join(&dial(&monitor, Some(ALICE)), "web1")
        .err()
        .unwrap();
    assert!(
        agent
            .message()
            .contains("is not permitted to join as an agent"),
        "{agent}"
    );
    assert_eq!(
        monitor.counted("requests_refused", Some("unauthenticated")),
        2
    );
    assert_eq!(monitor.counted("requests_refused", Some("forbidden")), 4);
}

#[test]
fn an_agent_can_join_only_as_its_own_host() {
    let directory = Directory::new();
    let monitor = Monitor::local(|o| o.tokens = Some(tokens(&directory)));
    let dial = dial(&monitor, Some(WEB1));
    let mut liar = Agent::dial(&dial, hello("db1")).unwrap();
    let status = liar.ended();
    assert!(
        status
            .message()
            .contains("as host `web1` only, not as `db1`"),
        "{status}"
    );
    Agent::join(&dial, "web1").unwrap();
    assert!(!monitor.has_received("joined db1"));
}

#[test]
fn guessing_tokens_closes_only_that_connection() {
    let directory = Directory::new();
    let monitor = Monitor::local(|o| o.tokens = Some(tokens(&directory)));
    let mut good = Client::connect(dial(&monitor, Some(ALICE))).unwrap();
    let mut guesser = Client::connect(dial(&monitor, Some("0000000000000000"))).unwrap();
    let ends = (0..50).any(|_| !matches!(guesser.queries(), Err(WireError::Denied { .. })));
    assert!(ends, "the connection ends");
    assert!(monitor.counted("connections_closed", Some("refusals_max")) >= 1);
    place(&mut good).unwrap();
}

#[test]
fn a_certificate_grants_its_roles() {
    let directory = Directory::new();
    let authority = Authority::new(&directory, "authority");
    let stranger = Authority::new(&directory, "stranger");
    let tls = authority.server(&directory, Some(&authority.certificate));
    let monitor = Monitor::local(|o| o.tls = Some(tls));
    let with = |identity| Dial {
        authority: Some(authority.certificate.clone()),
        identity,
        server_name: Some("localhost".to_owned()),
        ..dial(&monitor, None)
    };
    let signed = |name, uris: &[&str]| Some(authority.sign(&directory, name, uris));
    let client = |identity| Client::connect(with(identity)).unwrap();

    place(&mut client(signed("alice", &["weir:place"]))).unwrap();
    let mut bob = client(signed("bob", &["weir:read"]));
    assert_eq!(bob.queries().unwrap()[0]["asked_by"], "bob");
    assert_denied(place(&mut bob), "`bob` is not permitted to place");
    assert_denied(client(signed("eve", &[])).queries(), "the role is missing");
    Agent::join(&with(signed("web1", &["weir:agent:web1"])), "web1").unwrap();

    // Without a certificate, or with one of another authority, the handshake fails; with TLS 1.3
    // the client gets the error with its first request.
    let asks = |identity| Client::connect(with(identity)).and_then(|mut c| c.queries());
    assert!(matches!(asks(None), Err(WireError::Unreachable { .. })));
    let strange = stranger.sign(&directory, "mallory", &["weir:place"]);
    assert!(matches!(
        asks(Some(strange)),
        Err(WireError::Unreachable { .. })
    ));
    until("they are counted", || {
        monitor.counted("connections_closed", Some("tls_failed")) >= 2
    });
}

/// Changes valid connection settings.
type Change<'a> = &'a dyn Fn(&mut Dial);

#[test]
fn a_client_reports_its_tls_errors() {
    let directory = Directory::new();
    let authority = Authority::new(&directory, "authority");
    let stranger = Authority::new(&directory, "stranger");
    let tls = authority.server(&directory, None);
    let monitor = Monitor::local(|o| {
        o.tls = Some(tls);
        o.tokens = Some(tokens(&directory));
    });
    let ask = |change: Change<'_>| {
        let mut dial = dial(&monitor, Some(ALICE));
        dial.authority = Some(authority.certificate.clone());
        dial.server_name = Some("localhost".to_owned());
        change(&mut dial);
        match Client::connect(dial).and_then(|mut c| c.queries()) {
            Ok(_) => "fine".to_owned(),
            Err(error) => error.to_string(),
        }
    };
    let missing = directory.secret("empty.pem", "nothing");
    let table: [(Change<'_>, &str); 6] = [
        (&|_| {}, "fine"),
        (
            &|d| d.authority = Some(stranger.certificate.clone()),
            "not signed by the given authority",
        ),
        (
            &|d| d.server_name = Some("elsewhere".to_owned()),
            "has another name",
        ),
        (&|d| d.authority = None, "use https://"),
        (
            &|d| d.authority = Some(missing.clone()),
            "contains no certificate",
        ),
        (
            &|d| {
                d.authority = None;
                d.address = format!("https://{}", d.address).parse().unwrap();
            },
            "requires the certificate of the authority",
        ),
    ];
    for (change, part) in table {
        let answer = ask(change);
        assert!(answer.contains(part), "{part}: {answer}");
    }
}

#[test]
fn a_reload_disconnects_removed_tokens_only() {
    let directory = Directory::new();
    let monitor = Monitor::local(|o| o.tokens = Some(tokens(&directory)));
    let mut web1 = Agent::join(&dial(&monitor, Some(WEB1)), "web1").unwrap();
    let mut alice = Client::connect(dial(&monitor, Some(ALICE))).unwrap();

    directory.secret("tokens", "damaged");
    let error = monitor.server.reload().unwrap_err().to_string();
    assert!(error.contains("line 1"), "{error}");
    place(&mut alice).unwrap();

    directory.secret("tokens", &format!("{ALICE} alice place\n"));
    monitor.server.reload().unwrap();
    let status = web1.ended();
    assert!(status.message().contains("no longer accepted"), "{status}");
    place(&mut alice).unwrap();
    assert!(Agent::join(&dial(&monitor, Some(WEB1)), "web1").is_err());
}

#[test]
fn a_reload_disconnects_certificates_of_removed_authorities() {
    let directory = Directory::new();
    let [before, after] = ["before", "after"].map(|name| Authority::new(&directory, name));
    let pem = |authority: &Authority| std::fs::read_to_string(&authority.certificate).unwrap();
    let clients = directory.secret("clients.pem", &pem(&before));
    let tls = before.server(&directory, Some(&clients));
    let monitor = Monitor::local(|o| o.tls = Some(tls));
    let with = |authority: &Authority, name: &str, role: &str| Dial {
        authority: Some(before.certificate.clone()),
        identity: Some(authority.sign(&directory, name, &[role])),
        server_name: Some("localhost".to_owned()),
        ..dial(&monitor, None)
    };
    let mut web1 = Agent::join(&with(&before, "web1", "weir:agent:web1"), "web1").unwrap();
    let mut alice = Client::connect(with(&before, "alice", "weir:place")).unwrap();
    let mut watch = alice.watch("endless").unwrap();
    let disconnect = || monitor.counted("connections_closed", Some("certificate"));

    // Both are accepted: existing connections stay, new ones are admitted.
    directory.secret("clients.pem", &(pem(&before) + &pem(&after)));
    monitor.server.reload().unwrap();
    let mut bob = Client::connect(with(&after, "bob", "weir:place")).unwrap();
    place(&mut bob).unwrap();
    place(&mut alice).unwrap();
    assert_eq!(disconnect(), 0);

    directory.secret("clients.pem", &pem(&after));
    monitor.server.reload().unwrap();
    web1.ended();
    until("what is watched ends", || watch.next(WAIT_MAX).is_err());
    until("both are counted", || disconnect() == 2);
    place(&mut bob).unwrap();
    let again = alice.queries();
    assert!(
        matches!(again, Err(WireError::Unreachable { .. })),
        "{again:?}"
    );
}
