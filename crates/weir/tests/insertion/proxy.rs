//! A QMP socket in front of a guest's, which injects faults into commands that change the guest.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use weir_testing::{Guest, Scratch};

use crate::machine::Machine;

/// The fault of a command that changes the guest's disks (`blockdev-..`). Such commands are counted
/// from 0.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// No fault.
    Count,
    /// This command is refused.
    Refuse { at: usize },
    /// This command is executed, and the connection ends before its response is sent.
    Lose { at: usize },
    /// This command is executed, and never gets a response.
    Hang { at: usize },
    /// This command is executed, and its response is delayed.
    Pause { at: usize, pause: Duration },
    /// All commands are refused.
    RefuseAll,
}

/// The socket; no process can connect after it is dropped.
pub struct Proxy {
    path: PathBuf,
    shared: Arc<Shared>,
    _scratch: Scratch,
}

struct Shared {
    trouble: Trouble,
    qemu: PathBuf,
    names: Mutex<Vec<String>>,
    counted: AtomicUsize,
    hanging: AtomicBool,
    ended: AtomicBool,
}

impl Proxy {
    pub fn start(guest: &Guest, trouble: Trouble) -> Proxy {
        let scratch = Scratch::new();
        let path = scratch.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let shared = Arc::new(Shared {
            trouble,
            qemu: guest.qmp_socket().with_file_name("qmp-test"),
            names: Mutex::default(),
            counted: AtomicUsize::new(0),
            hanging: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let own = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                if own.ended.load(Ordering::SeqCst) {
                    return;
                }
                // The tests make clients disconnect during a command, so an error is expected.
                let _ = own.serve(client.unwrap());
            }
        });
        Proxy {
            path,
            shared,
            _scratch: scratch,
        }
    }

    /// The commands of an insertion without faults. The insertion is undone.
    pub fn commands(machine: &Machine) -> Vec<String> {
        let proxy = Proxy::start(&machine.guest, Trouble::Count);
        let printed = machine.tapdisk("insert", &["--qmp", proxy.path()]);
        assert_eq!(printed.code, Some(0), "{printed:?}");
        let names = proxy.shared.names.lock().unwrap().clone();
        drop(proxy);
        machine.remove();
        names
    }

    pub fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Whether the command with the fault has arrived.
    pub fn is_hanging(&self) -> bool {
        self.shared.hanging.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // Wakes the thread, if it waits for clients.
        let _ = UnixStream::connect(&self.path);
    }
}

impl Shared {
    fn serve(&self, client: UnixStream) -> std::io::Result<()> {
        let qemu = UnixStream::connect(&self.qemu)?;
        let (mut to_client, mut to_qemu) = (client.try_clone()?, qemu.try_clone()?);
        let mut answers = BufReader::new(qemu);
        let mut greeting = String::new();
        answers.read_line(&mut greeting)?;
        to_client.write_all(greeting.as_bytes())?;
        for line in BufReader::new(client).lines() {
            let line = line?;
            let asked: Value = serde_json::from_str(&line)?;
            let name = asked["execute"].as_str().unwrap_or_default().to_owned();
            let number = name.starts_with("blockdev-").then(|| {
                self.names.lock().unwrap().push(name);
                self.counted.fetch_add(1, Ordering::SeqCst)
            });
            let is_it = |at: usize| number == Some(at);
            match self.trouble {
                Trouble::Refuse { at } if is_it(at) => {
                    refuse(&mut to_client, &asked)?;
                    continue;
                }
                Trouble::RefuseAll if number.is_some() => {
                    refuse(&mut to_client, &asked)?;
                    continue;
                }
                _ => {}
            }
            to_qemu.write_all(format!("{line}\n").as_bytes())?;
            let mut answer = String::new();
            loop {
                answer.clear();
                if answers.read_line(&mut answer)? == 0 {
                    return Ok(());
                }
                let message: Value = serde_json::from_str(&answer)?;
                if message.get("event").is_none() {
                    break;
                }
            }
            match self.trouble {
                Trouble::Lose { at } if is_it(at) => return Ok(()),
                Trouble::Hang { at } if is_it(at) => {
                    self.hanging.store(true, Ordering::SeqCst);
                    while !self.ended.load(Ordering::SeqCst) {
                        thread::sleep(Duration::from_millis(5));
                    }
                    return Ok(());
                }
                Trouble::Pause { at, pause } if is_it(at) => {
                    self.hanging.store(true, Ordering::SeqCst);
                    thread::sleep(pause);
                }
                _ => {}
            }
            to_client.write_all(answer.as_bytes())?;
        }
        Ok(())
    }
}

fn refuse(client: &mut UnixStream, asked: &Value) -> std::io::Result<()> {
    let error = json!({"class": "GenericError", "desc": "injected"});
    let answer = json!({"id": asked["id"], "error": error});
    client.write_all(format!("{answer}\n").as_bytes())
}
