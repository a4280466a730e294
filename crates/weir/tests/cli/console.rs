//! `weir console`: its API, and the attacks that it must withstand.

#[path = "console_browser.rs"]
mod browser;
#[path = "console_chromium.rs"]
mod chromium;
#[path = "console_cost.rs"]
mod cost;
#[path = "console_live.rs"]
mod live;
#[path = "console_owner.rs"]
mod owner;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest;
use tungstenite::{Message, WebSocket};

use crate::support::{Scratch, interrupt, requests, run, weir};

const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/fio-loop.parquet"
);

const COUNTS: &str = "select op, count(*) as n from IO group by op order by op";

/// A running console, and what a browser that has opened its link knows.
pub struct Console {
    child: Child,
    out: BufReader<ChildStdout>,
    address: String,
    cookie: String,
    token: String,
    _scratch: Scratch,
}

/// A response.
pub struct Reply {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Console {
    fn of(trace: &str) -> Console {
        Console::start(&["--from", trace])
    }

    pub fn start(args: &[&str]) -> Console {
        let scratch = Scratch::new();
        let token = scratch.path().join("token");
        let all = ["console", "--listen", "127.0.0.1:0", "--write-token"];
        let all = [&all[..], &[token.to_str().unwrap()], args].concat();
        let mut child = weir(&all).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut console = Console {
            child,
            out,
            address: String::new(),
            cookie: String::new(),
            token: String::new(),
            _scratch: scratch,
        };
        let (address, secret) = console.link();
        console.address = address;
        let reply = console.trade(&secret);
        assert_eq!(reply.status, 204, "{}", reply.body);
        let cookie = reply.header("set-cookie").unwrap();
        console.cookie = cookie.split(';').next().unwrap().to_owned();
        while console.token.is_empty() {
            console.token = std::fs::read_to_string(&token).unwrap_or_default();
        }
        console.token = console.token.trim().to_owned();
        console
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it without a chance to clean up.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The address and the secret of the next link that is printed.
    fn link(&mut self) -> (String, String) {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        let link = line.trim().strip_prefix("http://").expect(&line);
        let (address, secret) = link
            .split_once("/#link=")
            .expect("a secret in the fragment");
        (address.to_owned(), secret.to_owned())
    }

    fn trade(&self, secret: &str) -> Reply {
        let body = json!({ "secret": secret }).to_string();
        let headers = [("Origin", self.origin())];
        self.post_with("/api/v1/session", &headers, "application/json", &body)
    }

    fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends a request with exactly these headers.
    fn send(&self, method: &str, path: &str, headers: &[(&str, String)], body: &str) -> Reply {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let headers = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"));
        let headers: String = headers.collect();
        let head = format!("{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\n");
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut bytes = Vec::new();
        // A server that rejects a large body closes the connection with the rest unread.
        let _ = stream.read_to_end(&mut bytes);
        Reply::parse(&bytes)
    }

    fn host(&self) -> (&'static str, String) {
        ("Host", self.address.clone())
    }

    pub fn get(&self, path: &str) -> Reply {
        let cookie = ("Cookie", self.cookie.clone());
        self.send("GET", path, &[self.host(), cookie], "")
    }

    fn post_with(&self, path: &str, headers: &[(&str, String)], kind: &str, body: &str) -> Reply {
        let own = [self.host(), ("Content-Type", kind.to_owned())];
        self.send("POST", path, &[&own[..], headers].concat(), body)
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        let headers = [("Origin", self.origin()), ("Cookie", self.cookie.clone())];
        self.post_with(path, &headers, "application/json", &body.to_string())
    }

    pub fn query(&self, text: &str, parameters: &str) -> Reply {
        let text: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        self.get(&format!("/api/v1/query?q={text}{parameters}"))
    }

    /// Opens the WebSocket; the status code if it is refused.
    fn open(&self, headers: &[(&str, String)]) -> Result<WebSocket<TcpStream>, u16> {
        let url = format!("ws://{}/api/v1/push", self.address);
        let mut request = url.into_client_request().unwrap();
        for (name, value) in headers {
            let name = tungstenite::http::HeaderName::from_bytes(name.as_bytes()).unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let stream = TcpStream::connect(&self.address).unwrap();
        let wait = Some(Duration::from_secs(60));
        stream.set_read_timeout(wait).unwrap();
        match tungstenite::client(request, stream) {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(reply))) => {
                Err(reply.status().as_u16())
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn socket(&self) -> WebSocket<TcpStream> {
        let headers = [("Origin", self.origin()), ("Cookie", self.cookie.clone())];
        self.open(&headers).expect("signed in")
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        // A test may have ended it.
        if self.child.try_wait().unwrap().is_none() {
            interrupt(&self.child);
        }
        self.child.wait().unwrap();
    }
}

impl Reply {
    fn parse(bytes: &[u8]) -> Reply {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
        let head = head.to_ascii_lowercase();
        let body = match head.contains("transfer-encoding: chunked") {
            true => unchunked(body),
            false => body.to_owned(),
        };
        Reply {
            status: status.unwrap_or(0),
            head,
            body,
        }
    }

    fn header(&self, name: &str) -> Option<String> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.into_iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.to_owned())
    }

    /// The objects of a result, a line each.
    fn rows(&self) -> Vec<Value> {
        let rows = self.body.lines().map(serde_json::from_str);
        rows.collect::<Result<_, _>>()
            .unwrap_or_else(|_| panic!("{}", self.body))
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}", self.body))
    }
}

/// A body without the sizes of its chunks; panics if its end is missing.
fn unchunked(body: &str) -> String {
    let (mut rest, mut text) = (body, String::new());
    loop {
        let (size, after) = rest.split_once("\r\n").expect("the size of a chunk");
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return text;
        }
        text += &after[..size];
        rest = &after[size + 2..];
    }
}

#[test]
fn a_query_returns_what_weir_query_prints() {
    let console = Console::of(SAMPLE);
    for (format, name) in [("json", "json"), ("csv", "csv-safe")] {
        let reply = console.query(COUNTS, &format!("&format={format}"));
        let args = [
            "query", "--from", SAMPLE, "--final", "--format", name, COUNTS,
        ];
        assert_eq!(reply.status, 200);
        assert_eq!(reply.body, run(&args).fine());
    }
    let stream = "select ts, op, latency from IO";
    let reply = console.query(stream, "&format=csv");
    let args = ["query", "--from", SAMPLE, "--format", "csv-safe", stream];
    assert!(
        reply.body == run(&args).fine(),
        "the rows of the stream differ"
    );
    let short = console.query(COUNTS, "&for=1s");
    let args = [
        "query", "--from", SAMPLE, "--final", "--for", "1s", "--format", "json", COUNTS,
    ];
    assert_eq!(short.body, run(&args).fine());
}

#[test]
fn an_incorrect_query_has_diagnostics_with_byte_positions() {
    let console = Console::of(SAMPLE);
    let text = "select avrg(latency) from IO group by op";
    let checked = console.post("/api/v1/check", &json!({ "q": text })).json();
    assert_eq!(checked["ok"], false);
    let first = &checked["diagnostics"][0];
    let at = |key: &str| first[key].as_u64().unwrap() as usize;
    assert_eq!(&text[at("start")..at("end")], "avrg");
    for reply in [
        console.query(text, ""),
        console.post("/api/v1/explain", &json!({ "q": text })),
    ] {
        assert_eq!(reply.status, 400);
        assert_eq!(&reply.json()["error"]["diagnostics"][0], first);
    }
}

#[test]
fn a_query_does_not_change_the_library_of_views() {
    let console = Console::of(SAMPLE);
    let reply = console.query("create view v as select * from IO", "");
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("weir sql"), "{}", reply.body);
    let option = console.query("--help", "");
    assert_eq!(option.status, 400, "a query is never an option");
}

#[test]
fn every_path_of_the_description_exists_and_no_other() {
    let console = Console::of(SAMPLE);
    let described = console.get("/api/v1/openapi.json").json();
    let paths = described["paths"].as_object().unwrap();
    for (path, methods) in paths {
        let methods = methods.as_object().unwrap();
        for method in methods.keys() {
            let origin = ("Origin", console.origin());
            let cookie = ("Cookie", console.cookie.clone());
            let headers = [console.host(), origin, cookie];
            let method = method.to_uppercase();
            let reply = console.send(&method, path, &headers, "");
            assert!(![404, 405].contains(&reply.status), "{method} {path}");
        }
        for other in ["get", "post", "delete"].map(str::to_owned) {
            if !methods.contains_key(&other) {
                let other = other.to_uppercase();
                let headers = [console.host(), ("Cookie", console.cookie.clone())];
                let own = ("Origin", console.origin());
                let reply = console.send(&other, path, &[&headers[..], &[own]].concat(), "");
                assert_eq!(reply.status, 405, "{other} {path}");
            }
        }
    }
    assert_eq!(console.get("/api/v1/other").status, 404);
    // All routes of the source are described.
    let source = concat!(
        include_str!("../../../weir-console/src/api.rs"),
        include_str!("../../../weir-console/src/state_api.rs"),
        include_str!("../../../weir-console/src/fleet_alerts_api.rs")
    );
    let routes = source.split(".route(\"").skip(1);
    for route in routes.map(|rest| rest.split('"').next().unwrap()) {
        assert!(paths.contains_key(route), "{route} is not described");
    }
}

#[test]
fn streams_and_plans_are_those_of_the_commands() {
    let console = Console::of(SAMPLE);
    let streams = console.get("/api/v1/streams").json();
    assert!(
        streams
            .as_array()
            .unwrap()
            .iter()
            .any(|s| s["name"] == "IO")
    );
    let plan = console
        .post("/api/v1/explain", &json!({ "q": COUNTS }))
        .json();
    let args = ["explain", "--json", "--from", SAMPLE, COUNTS];
    let expected: Value = serde_json::from_str(&run(&args).fine()).unwrap();
    assert_eq!(plan, expected);
}

#[test]
fn foreign_sites_are_rejected() {
    let console = Console::of(SAMPLE);
    let cookie = ("Cookie", console.cookie.clone());
    let local = console.address.clone();
    let (host, foreign) = (local.as_str(), "http://foreign.example");
    for path in ["/", "/app.js", "/api/v1/streams"] {
        for (host, origin) in [
            ("rebound.example", None),
            ("rebound.example", Some("http://rebound.example")),
            (host, Some(foreign)),
            (host, Some("null")),
        ] {
            let mut headers = vec![("Host", host.to_owned()), cookie.clone()];
            headers.extend(origin.map(|origin| ("Origin", origin.to_owned())));
            let reply = console.send("GET", path, &headers, "");
            assert_eq!(reply.status, 403, "{path} {host} {origin:?}");
        }
    }
    let body = json!({ "q": COUNTS }).to_string();
    let cases = [
        (vec![cookie.clone()], "application/json", 403),
        (
            vec![cookie.clone(), ("Origin", foreign.into())],
            "application/json",
            403,
        ),
        // The types that a form can send without a preflight request.
        (
            vec![cookie.clone(), ("Origin", console.origin())],
            "text/plain",
            415,
        ),
        (vec![("Origin", console.origin())], "application/json", 401),
        (
            vec![cookie, ("Origin", console.origin())],
            "application/json",
            200,
        ),
    ];
    for (headers, kind, status) in cases {
        let reply = console.post_with("/api/v1/check", &headers, kind, &body);
        assert_eq!(reply.status, status, "{headers:?} {kind}");
    }
}

#[test]
fn the_upgrade_is_checked_as_any_request() {
    let console = Console::of(SAMPLE);
    let origin = ("Origin", console.origin());
    let cookie = ("Cookie", console.cookie.clone());
    let rebound = ("Host", "rebound.example".to_owned());
    let to_rebound = ("Origin", "http://rebound.example".to_owned());
    let foreign = ("Origin", "http://foreign.example".to_owned());
    for (headers, status) in [
        (vec![cookie.clone()], 403),
        (vec![cookie.clone(), foreign], 403),
        (vec![cookie.clone(), rebound, to_rebound], 403),
        (vec![origin.clone()], 401),
        (
            vec![origin.clone(), ("Cookie", "weir_console_1=x".to_owned())],
            401,
        ),
    ] {
        assert_eq!(console.open(&headers).err(), Some(status), "{headers:?}");
    }
    assert!(console.open(&[origin, cookie]).is_ok());
}

#[test]
fn the_link_is_valid_once_and_the_token_needs_no_origin() {
    let mut console = Console::of(SAMPLE);
    let (_, second) = console.link();
    assert_eq!(console.trade("0").status, 403);
    assert_eq!(console.trade(&second).status, 204);
    assert_eq!(console.trade(&second).status, 403);
    let token = ("Authorization", format!("Bearer {}", console.token));
    let body = json!({ "q": COUNTS }).to_string();
    let reply = console.post_with("/api/v1/check", &[token], "application/json", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let token = ("Authorization", "Bearer x".to_owned());
    let reply = console.send("GET", "/api/v1/streams", &[console.host(), token], "");
    assert_eq!(reply.status, 401);
}

#[test]
fn every_response_has_the_policy() {
    let console = Console::of(SAMPLE);
    for path in ["/", "/app.js", "/api/v1/streams", "/api/v1/other", "/../x"] {
        let reply = console.get(path);
        let policy = reply.header("content-security-policy").unwrap();
        for rule in [
            "default-src 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.header("x-content-type-options").unwrap(), "nosniff");
        assert_eq!(reply.header("access-control-allow-origin"), None);
    }
}

#[test]
fn a_page_is_not_sent_twice() {
    let console = Console::of(SAMPLE);
    let tag = console.get("/app.js").header("etag").unwrap();
    let headers = [console.host(), ("If-None-Match", tag)];
    assert_eq!(console.send("GET", "/app.js", &headers, "").status, 304);
}

#[test]
fn too_large_requests_are_rejected() {
    let console = Console::of(SAMPLE);
    let large = json!({ "q": "x".repeat(200 << 10) });
    let reply = console.post("/api/v1/check", &large);
    assert_eq!(reply.status, 413);
    let larger = json!({ "q": "x".repeat(100 << 10) });
    assert_eq!(console.post("/api/v1/check", &larger).status, 413);
    let mut socket = console.socket();
    let _ = socket.send(Message::text("x".repeat(1 << 20)));
    assert!(ends(&mut socket), "a message of 1 MiB ends the connection");
}

#[test]
fn other_addresses_are_refused() {
    let output = run(&["console", "--listen", "0.0.0.0:0", "--from", SAMPLE]);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("ssh -L"), "{}", output.err);
}

/// Whether the server closes the socket, without further results.
fn ends(socket: &mut WebSocket<TcpStream>) -> bool {
    loop {
        match socket.read() {
            Ok(Message::Binary(_)) => return false,
            Ok(_) => {}
            Err(_) => return true,
        }
    }
}

/// The header of a frame: the subscription, flags, sequence, skipped rows and all rows.
fn header(frame: &[u8]) -> [u64; 5] {
    let short = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap()).into();
    let long = |at: usize| u64::from_le_bytes(frame[at..at + 8].try_into().unwrap());
    [short(0), short(4), long(8), long(16), long(24)]
}

fn subscribe(socket: &mut WebSocket<TcpStream>, id: u32, text: &str) {
    let message = json!({ "type": "subscribe", "id": id, "q": text });
    socket.send(Message::text(message.to_string())).unwrap();
}

fn acknowledge(socket: &mut WebSocket<TcpStream>, id: u64, sequence: u64) {
    let message = json!({ "type": "ack", "id": id, "sequence": sequence });
    socket.send(Message::text(message.to_string())).unwrap();
}

#[test]
fn a_recording_waits_for_the_client_and_loses_no_row() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(100_000));
    let console = Console::of(&trace);
    let mut socket = console.socket();
    subscribe(&mut socket, 7, "select ts, bytes from IO");
    let mut unacknowledged = Vec::new();
    while unacknowledged.len() < 2 {
        match socket.read().unwrap() {
            Message::Binary(frame) => unacknowledged.push(header(&frame)),
            Message::Text(text) => panic!("{text}"),
            _ => {}
        }
    }
    // Without an acknowledgement there is no third frame, and the process waits.
    let wait = Some(Duration::from_millis(700));
    socket.get_ref().set_read_timeout(wait).unwrap();
    assert!(socket.read().is_err(), "a frame without credit");
    let wait = Some(Duration::from_secs(60));
    socket.get_ref().set_read_timeout(wait).unwrap();
    assert!(
        unacknowledged[1][4] < 100_000,
        "the whole recording was read"
    );
    acknowledge(&mut socket, 7, 2);
    let mut rows = 0;
    let end = loop {
        match socket.read().unwrap() {
            Message::Binary(frame) => {
                let [id, _, sequence, skipped, total] = header(&frame);
                assert_eq!((id, skipped), (7, 0));
                rows = total;
                acknowledge(&mut socket, id, sequence);
            }
            Message::Text(text) => break serde_json::from_str::<Value>(&text).unwrap(),
            _ => {}
        }
    };
    assert_eq!(rows, 100_000);
    assert_eq!((&end["reason"], &end["id"]), (&json!("end"), &json!(7)));
}

#[test]
fn subscriptions_of_a_socket_do_not_delay_each_other() {
    let console = Console::of(SAMPLE);
    let mut socket = console.socket();
    subscribe(&mut socket, 1, "select avrg(latency) from IO");
    subscribe(&mut socket, 2, COUNTS);
    subscribe(&mut socket, 3, "drop view v");
    let mut reasons = BTreeMap::new();
    let mut frames = 0;
    while reasons.len() < 3 {
        match socket.read().unwrap() {
            Message::Binary(frame) => {
                let [id, flags, sequence, _, rows] = header(&frame);
                assert_eq!((id, flags & 1), (2, 1), "each state of a relation is whole");
                assert!(rows <= 4);
                acknowledge(&mut socket, id, sequence);
                frames += 1;
            }
            Message::Text(text) => {
                let end: Value = serde_json::from_str(&text).unwrap();
                reasons.insert(end["id"].as_u64().unwrap(), end);
            }
            _ => {}
        }
    }
    assert!(frames > 0);
    assert_eq!(reasons[&1]["reason"], "query");
    assert!(
        reasons[&1]["message"]
            .as_str()
            .unwrap()
            .contains("did you mean")
    );
    assert_eq!(reasons[&2]["reason"], "end");
    assert_eq!(reasons[&3]["reason"], "failed");
}

#[test]
fn an_invalid_message_closes_the_socket() {
    let console = Console::of(SAMPLE);
    for message in [
        Message::text("{"),
        Message::text(r#"{"type":"subscribe","id":-1,"q":"x"}"#),
        Message::text(r#"{"type":"other"}"#),
        Message::binary(vec![0; 32]),
    ] {
        let mut socket = console.socket();
        socket.send(message).unwrap();
        assert!(ends(&mut socket));
    }
}

#[test]
fn many_sockets_leave_the_console_usable() {
    let console = Console::of(SAMPLE);
    let headers = [
        ("Origin", console.origin()),
        ("Cookie", console.cookie.clone()),
    ];
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..200 {
        match console.open(&headers) {
            Ok(socket) => open.push(socket),
            Err(status) => {
                assert_eq!(status, 503);
                refused += 1;
            }
        }
    }
    assert_eq!((open.len(), refused), (64, 136));
    assert_eq!(console.query(COUNTS, "").status, 200);
    open.clear();
    let started = Instant::now();
    while console.open(&headers).is_err() {
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn queries_are_limited_and_end_with_their_client() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(100_000));
    let console = Console::start(&["--from", &trace, "--queries-max", "2"]);
    let mut socket = console.socket();
    for id in 1..=3 {
        subscribe(&mut socket, id, "select ts from IO");
    }
    let refused = loop {
        if let Message::Text(text) = socket.read().unwrap() {
            break serde_json::from_str::<Value>(&text).unwrap();
        }
    };
    assert_eq!(refused["id"], 3);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("--queries-max")
    );
    assert_eq!(console.get("/api/v1/status").json()["queries"], 2);
    drop(socket);
    let started = Instant::now();
    while console.get("/api/v1/status").json()["queries"] != 0 {
        assert!(started.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn markup_in_the_name_of_a_vm_stays_text() {
    let scratch = Scratch::new();
    let name = "<img src=x onerror=alert(1)>";
    let trace = requests(10).replace(",vm1,", &format!(",{name},"));
    assert!(trace.contains(name), "{trace}");
    let trace = scratch.write("t.csv", &trace);
    let console = Console::of(&trace);
    let text = "select vm, count(*) as n from IO group by vm";
    let reply = console.query(text, "");
    assert_eq!(reply.json()["vm"], name);
    assert_eq!(
        reply.header("content-type").unwrap(),
        "application/x-ndjson"
    );
    assert_eq!(reply.header("x-content-type-options").unwrap(), "nosniff");
    let disposition = reply.header("content-disposition").unwrap();
    assert!(disposition.starts_with("attachment"), "{disposition}");
}
