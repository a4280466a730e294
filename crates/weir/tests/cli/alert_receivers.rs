//! `weir alert watch`: what is delivered to webhooks and to Alertmanager.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ring::hmac;
use serde_json::Value;

use crate::live::{watchable, watched_disk};
use crate::support::{CommandOutput, Scratch, interrupt, run, skipped, weir};

/// The bundled recording.
const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/fio-loop.parquet"
);

/// Fires in the recording, and clears before its end.
const BUSY: &str = "create alert busy as
    select pdisk, count(*) as n from IO [range 1 s slide 100 ms] group by pdisk
    when n > 150 for 200 ms until n < 100
    annotations '{n} requests on {pdisk}' as summary;";

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// A request that the receiver got.
struct Post {
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Post {
    fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A receiver that answers with these statuses, and the last of them from then on.
struct Hook {
    address: String,
    posts: Arc<Mutex<Vec<Post>>>,
}

impl Hook {
    fn start(statuses: &[u16]) -> Hook {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hook = Hook {
            address: listener.local_addr().unwrap().to_string(),
            posts: Arc::default(),
        };
        let (posts, statuses) = (hook.posts.clone(), statuses.to_vec());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut posts = posts.lock().unwrap();
                let status = statuses.get(posts.len()).or(statuses.last()).unwrap();
                posts.push(answer(stream.unwrap(), *status));
            }
        });
        hook
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// The events of all posts.
    fn events(&self) -> Vec<Value> {
        let posts = self.posts.lock().unwrap();
        let events = posts.iter().flat_map(|post| {
            let events = post.json()["events"].as_array().cloned();
            events.unwrap_or_default()
        });
        events.collect()
    }
}

fn answer(stream: TcpStream, status: u16) -> Post {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let path = line.split(' ').nth(1).unwrap().to_owned();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.push((name.to_owned(), value.to_owned()));
    }
    let mut post = Post {
        path,
        headers,
        body: String::new(),
    };
    let length = post.header("content-length").unwrap().parse().unwrap();
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    post.body = String::from_utf8(body).unwrap();
    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    reader.get_mut().write_all(head.as_bytes()).unwrap();
    post
}

/// Whether a file of the state directory has the events that wait for a webhook.
fn is_spool(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("webhook-"))
}

fn watch(args: &[&str]) -> CommandOutput {
    run(&[&["alert", "watch", "--from", SAMPLE], args].concat())
}

fn secret(scratch: &Scratch) -> String {
    let path = scratch.write(
        "key",
        &format!("{}\n", std::str::from_utf8(SECRET).unwrap()),
    );
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

#[test]
fn a_webhook_gets_signed_events_and_not_those_that_were_only_pending() {
    let scratch = Scratch::new();
    let file = scratch.write("alerts.cql", BUSY);
    let hook = Hook::start(&[204]);
    let key = secret(&scratch);
    let args = [
        "-f",
        &file,
        "--webhook",
        &hook.url(),
        "--secret",
        &key,
        "--json",
        "--pending",
    ];
    let printed = watch(&args).fine();
    let printed: Vec<Value> = printed
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let is_pending = |event: &Value| {
        event["state"] == "pending" || event["from"] == "pending" && event["state"] == "clear"
    };
    assert!(printed.iter().any(is_pending), "{printed:?}");
    let reported: Vec<Value> = printed.into_iter().filter(|e| !is_pending(e)).collect();
    assert_eq!(hook.events(), reported);
    assert_eq!(reported[0]["state"], "firing");
    assert_eq!(reported[0]["labels"]["pdisk"], "/dev/loop1");
    for post in hook.posts.lock().unwrap().iter() {
        assert_eq!(post.path, "/hook");
        assert_eq!(post.json()["version"], 1);
        let signature = post
            .header("x-weir-signature")
            .unwrap()
            .strip_prefix("v1=")
            .unwrap();
        let bytes = (0..signature.len()).step_by(2);
        let bytes: Vec<u8> = bytes
            .map(|i| u8::from_str_radix(&signature[i..i + 2], 16).unwrap())
            .collect();
        let signed = format!("{}:{}", post.header("x-weir-timestamp").unwrap(), post.body);
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
        hmac::verify(&key, signed.as_bytes(), &bytes).unwrap();
    }
}

#[test]
fn a_webhook_that_fails_gets_the_events_again_and_one_that_refuses_does_not() {
    let scratch = Scratch::new();
    let file = scratch.write("alerts.cql", BUSY);
    let state = scratch.path().join("state").display().to_string();
    let hook = Hook::start(&[503]);
    let url = hook.url();
    let args = ["-f", &file, "--webhook", &url, "--state", &state];
    let failed = watch(&args);
    assert_eq!(failed.code, 0, "{}", failed.err);
    assert!(
        failed.err.contains("status 503; trying again"),
        "{}",
        failed.err
    );
    assert!(
        failed.err.contains("events were not delivered"),
        "{}",
        failed.err
    );
    // The next run with this directory has it.
    let first_id = hook.events()[0]["id"].clone();
    let spooled = std::fs::read_dir(&state).unwrap();
    let spooled: Vec<_> = spooled.map(|e| e.unwrap().path()).collect();
    let spool = spooled.iter().find(|p| is_spool(p)).unwrap();
    let text = std::fs::read_to_string(spool).unwrap();
    assert!(text.contains(first_id.as_str().unwrap()), "{text}");

    let refusing = Hook::start(&[400]);
    let refused = watch(&["-f", &file, "--webhook", &refusing.url()]);
    assert_eq!(refused.code, 0, "{}", refused.err);
    assert!(
        refused.err.contains("with status 400; they are dropped"),
        "{}",
        refused.err
    );
    let ids: Vec<String> = refusing
        .events()
        .iter()
        .map(|e| e["id"].to_string())
        .collect();
    let mut unique = ids.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), ids.len(), "a refused event is not sent again");
}

#[test]
fn events_that_wait_are_delivered_by_the_next_run() {
    let scratch = Scratch::new();
    let file = scratch.write("alerts.cql", BUSY);
    let state = scratch.path().join("state").display().to_string();
    let hook = Hook::start(&[503, 200]);
    let url = hook.url();
    let args = ["-f", file.as_str(), "--webhook", &url, "--state", &state];
    assert_eq!(watch(&args).code, 0);
    let sent = hook.posts.lock().unwrap().len();
    assert_eq!(watch(&args).code, 0);
    let posts = hook.posts.lock().unwrap();
    assert!(sent >= 1 && posts.len() > sent, "{sent}");
    let ids = |post: &Post| -> Vec<String> {
        let json = post.json();
        let events = json["events"].as_array().unwrap().iter();
        events.map(|event| event["id"].to_string()).collect()
    };
    // The first post was refused for now: its events come again.
    let accepted: Vec<String> = posts[1..].iter().flat_map(ids).collect();
    assert!(ids(&posts[0]).iter().all(|id| accepted.contains(id)));
    let spool = std::fs::read_dir(&state)
        .unwrap()
        .map(|e| e.unwrap().path());
    let mut spool = spool.filter(|path| is_spool(path));
    assert_eq!(std::fs::read_to_string(spool.next().unwrap()).unwrap(), "");
}

#[test]
fn options_of_receivers_are_checked_before_anything_is_attached() {
    let scratch = Scratch::new();
    let file = scratch.write("alerts.cql", BUSY);
    let readable = scratch.write("readable", "0123456789abcdef");
    std::fs::set_permissions(&readable, std::fs::Permissions::from_mode(0o644)).unwrap();
    let short = scratch.write("short", "123\n");
    std::fs::set_permissions(&short, std::fs::Permissions::from_mode(0o600)).unwrap();
    let hook = "http://127.0.0.1:9/";
    let cases: [(&[&str], &str); 5] = [
        (&["--webhook", "example.org"], "expected a URL"),
        (&["--webhook", "http://u:p@example.org/"], "--secret"),
        (&["--webhook", hook, "--secret", &readable], "chmod 600"),
        (&["--webhook", hook, "--secret", &short], "openssl rand"),
        (&["--secret", &short], "--webhook"),
    ];
    for (args, expected) in cases {
        let output = watch(&[&["-f", &file], args].concat());
        assert_eq!(output.code, 2, "{args:?}: {}", output.err);
        assert!(output.err.contains(expected), "{args:?}: {}", output.err);
    }
}

/// A child that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(address).ok()?;
    let head = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}

fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_real_alertmanager_shows_an_alert_while_it_fires() {
    let test = "a_real_alertmanager_shows_an_alert_while_it_fires";
    let Some(disk) = watched_disk(test) else {
        return;
    };
    let scratch = Scratch::new();
    let config = scratch.write(
        "am.yml",
        "route: {receiver: none}\nreceivers: [{name: none}]\n",
    );
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let child = Command::new("prometheus-alertmanager")
        .arg(format!("--config.file={config}"))
        .arg(format!(
            "--storage.path={}",
            scratch.path().join("am").display()
        ))
        .arg(format!("--web.listen-address={free}"))
        .arg("--cluster.listen-address=")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(child) = child else {
        return skipped(test, "prometheus-alertmanager is not installed");
    };
    let _alertmanager = Running(child);
    let address = free.to_string();
    wait_for("Alertmanager starts", || get(&address, "/api/v2/alerts"));
    let text = format!(
        "create alert written as select pdisk, sum(bytes) as bytes from IO [range 2 s slide 1 s]
         where pdisk = '{}' and op = 'w' group by pdisk
         annotations '{{bytes}} written' as summary;",
        disk.path()
    );
    let file = scratch.write("alerts.cql", &text);
    let url = format!("http://{address}");
    let args = [
        "alert",
        "watch",
        "-f",
        &file,
        "--device",
        disk.path(),
        "--alertmanager",
        &url,
    ];
    let child = weir(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut running = Running(child);
    let alert = wait_for("the alert fires", || {
        write(disk.path());
        let alerts = get(&address, "/api/v2/alerts")?;
        alerts.as_array()?.first().cloned()
    });
    assert_eq!(alert["labels"]["alertname"], "written");
    assert_eq!(alert["labels"]["pdisk"], disk.path());
    assert_eq!(alert["status"]["state"], "active");
    // Without writes its row leaves, and the alert is resolved.
    wait_for("the alert is resolved", || {
        let alerts = get(&address, "/api/v2/alerts")?;
        alerts.as_array()?.is_empty().then_some(())
    });
    interrupt(&running.0);
    assert_eq!(running.0.wait().unwrap().code(), Some(130));
}

/// Writes 4 KiB to the device, past the page cache.
fn write(device: &str) {
    let status = Command::new("dd")
        .args(["if=/dev/zero", "bs=4096", "count=1", "oflag=direct"])
        .arg(format!("of={device}"))
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_kill_and_a_restart_do_not_fire_a_second_time() {
    let test = "a_kill_and_a_restart_do_not_fire_a_second_time";
    let Some(disk) = watched_disk(test).filter(|_| watchable(test)) else {
        return;
    };
    let scratch = Scratch::new();
    let text = "create alert seen as select count(*) as n from IO [range 2 s slide 200 ms]
        when n > 0 until n < 0;";
    let file = scratch.write("alerts.cql", text);
    let state = scratch.path().join("state").display().to_string();
    let args = [
        "alert",
        "watch",
        "-f",
        &file,
        "--device",
        disk.path(),
        "--state",
        &state,
        "--json",
    ];
    let mut ids = Vec::new();
    for _ in 0..2 {
        let child = weir(&args).stdout(Stdio::piped()).spawn().unwrap();
        let mut running = Running(child);
        let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
        let (stop, device) = (
            Arc::new(std::sync::atomic::AtomicBool::new(false)),
            disk.path().to_owned(),
        );
        let stopped = stop.clone();
        let load = std::thread::spawn(move || {
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                write(&device);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let firing = lines
            .by_ref()
            .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        let firing = firing
            .filter(|event| event["state"] == "firing")
            .take(1)
            .last();
        ids.push(firing.unwrap()["id"].clone());
        // The state is stored with the event, before it is printed or soon after.
        std::thread::sleep(Duration::from_millis(1_500));
        running.0.kill().unwrap();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        load.join().unwrap();
    }
    assert_eq!(ids[0], ids[1], "the same firing");
}

#[test]
fn a_silence_withholds_messages_and_not_states() {
    let scratch = Scratch::new();
    let file = scratch.write("alerts.cql", BUSY);
    let state = scratch.path().join("state").display().to_string();
    let silence = |args: &[&str]| run(&[&["alert"], args, &["--state", &state]].concat());
    let add = [
        "silence",
        "--alert",
        "busy",
        "--for",
        "1h",
        "--comment",
        "maintenance",
    ];
    let id = silence(&add).fine();
    let hook = Hook::start(&[200]);
    let watched = |more: &[&str]| {
        let url = hook.url();
        let args = [&["-f", &file, "--webhook", &url, "--state", &state], more].concat();
        watch(&args).fine()
    };
    let text = watched(&[]);
    assert!(
        text.contains("pending -> firing") && text.contains("(silenced)"),
        "{text}"
    );
    assert!(hook.events().is_empty());
    let listed = silence(&["silences", "--json"]).fine();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["id"], id.trim());
    assert_eq!(listed[0]["comment"], "maintenance");
    silence(&["unsilence", id.trim()]).fine();
    assert_eq!(silence(&["silences"]).fine(), "no silences\n");
    let again = silence(&["unsilence", id.trim()]);
    assert!(
        again.code == 2 && again.err.contains("alert silences"),
        "{}",
        again.err
    );
    assert_eq!(silence(&["silence", "--for", "1h"]).code, 2);
}

#[test]
fn a_route_groups_events_and_selects_the_receiver() {
    let scratch = Scratch::new();
    let file = scratch.write("alerts.cql", BUSY);
    let (pager, mail) = (Hook::start(&[200]), Hook::start(&[200]));
    let routes = format!(
        "[[receiver]]\nname = \"pager\"\nwebhook = \"{}\"\n\
         [[receiver]]\nname = \"mail\"\nwebhook = \"{}\"\n\
         [[route]]\nalerts = [\"busy\"]\nreceivers = [\"pager\"]\ngroup_by = [\"alert\"]\n\
         group_wait = \"100 ms\"\n[[route]]\nreceivers = [\"mail\"]\n",
        pager.url(),
        mail.url()
    );
    let path = scratch.write("routes.toml", &routes);
    watch(&["-f", &file, "--routes", &path]).fine();
    let states: Vec<Value> = pager.events().iter().map(|e| e["state"].clone()).collect();
    assert_eq!(states, ["firing"]);
    let posts = pager.posts.lock().unwrap();
    assert_eq!(
        posts[0].json()["group"],
        serde_json::json!({"alert": "busy"})
    );
    drop(posts);
    assert!(mail.events().is_empty());
    let wrong = scratch.write("wrong.toml", &routes.replace("[\"mail\"]", "[\"male\"]"));
    let wrong = watch(&["-f", &file, "--routes", &wrong]);
    assert_eq!(wrong.code, 2);
    assert!(
        wrong.err.contains("no [[receiver]] with the name `male`"),
        "{}",
        wrong.err
    );
}
