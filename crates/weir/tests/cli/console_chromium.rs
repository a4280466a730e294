//! Headless Chromium, driven over the DevTools protocol.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use crate::support::Scratch;

/// How long the page may take to show something.
const WAIT: Duration = Duration::from_secs(20);

/// The names of the program in distributions.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A page in a browser, with everything that it has logged and requested.
pub struct Browser {
    child: Child,
    socket: WebSocket<TcpStream>,
    session: Value,
    next_id: u64,
    /// Messages of the console, exceptions and violations of the policy.
    complaints: Vec<String>,
    requests: Vec<String>,
    _profile: Scratch,
}

impl Browser {
    /// A page of 1,280 px; `None` without the program.
    pub fn start() -> Option<Browser> {
        let profile = Scratch::new();
        let directory = format!("--user-data-dir={}", profile.path().display());
        let start = |program: &&str| {
            let mut command = Command::new(program);
            command.args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
            ]);
            command.args([
                "--disable-background-networking",
                "--disable-component-update",
            ]);
            command.args([
                "--lang=en-US",
                "--remote-debugging-port=0",
                &directory,
                "about:blank",
            ]);
            command.env("HOME", profile.path()).stdout(Stdio::null());
            command.stderr(Stdio::piped()).spawn().ok()
        };
        let mut child = PROGRAMS.iter().find_map(start)?;
        let messages = BufReader::new(child.stderr.take().unwrap());
        let mut lines = messages.lines().map_while(Result::ok);
        let url = lines.find_map(|line| line.split("listening on ").nth(1).map(str::to_owned))?;
        std::thread::spawn(move || lines.for_each(drop));
        let address = url.split('/').nth(2).unwrap().to_owned();
        let stream = TcpStream::connect(address).unwrap();
        let (socket, _) = tungstenite::client(url, stream).unwrap();
        let mut browser = Browser {
            child,
            socket,
            session: Value::Null,
            next_id: 0,
            complaints: Vec::new(),
            requests: Vec::new(),
            _profile: profile,
        };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        browser.session = browser.call("Target.attachToTarget", attach)["sessionId"].clone();
        for domain in ["Runtime", "Log", "Network", "Page"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(1280);
        Some(browser)
    }

    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.socket
            .send(Message::text(message.to_string()))
            .unwrap();
        loop {
            let Message::Text(text) = self.socket.read().unwrap() else {
                continue;
            };
            let answer: Value = serde_json::from_str(&text).unwrap();
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => self.complaints.push(parameters.to_string()),
            "Runtime.consoleAPICalled" => self.complaints.push(parameters.to_string()),
            "Log.entryAdded" => self.complaints.push(parameters["entry"].to_string()),
            "Page.javascriptDialogOpening" => self.complaints.push(parameters.to_string()),
            "Network.requestWillBeSent" => {
                let url = &parameters["request"]["url"];
                self.requests.push(url.as_str().unwrap().to_owned());
            }
            "Network.webSocketCreated" => {
                self.requests
                    .push(parameters["url"].as_str().unwrap().to_owned());
            }
            _ => {}
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn resize(&mut self, width: u32) {
        self.resize_to(width, 900);
    }

    pub fn resize_to(&mut self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        self.call("Runtime.evaluate", parameters)["result"]["value"].clone()
    }

    /// The value of an expression once it is neither null nor false.
    pub fn wait_for(&mut self, expression: &str) -> Value {
        let started = Instant::now();
        loop {
            let value = self.evaluate(expression);
            if !value.is_null() && value != false {
                return value;
            }
            if started.elapsed() > WAIT {
                let text = self.evaluate("document.body.innerText");
                panic!(
                    "{expression}: never; the page shows {text}; {:?}",
                    self.complaints
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Asserts that the page logged nothing, and requested nothing from another origin.
    pub fn assert_clean(&mut self, address: &str) {
        self.evaluate("1");
        assert_eq!(self.complaints, Vec::<String>::new());
        let own = [
            format!("http://{address}/"),
            format!("ws://{address}/"),
            "data:".to_owned(),
        ];
        let foreign = self.requests.iter().filter(|url| *url != "about:blank");
        let mut foreign = foreign.filter(|url| !own.iter().any(|own| url.starts_with(own)));
        assert_eq!(foreign.next(), None);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
