//! Which clients a monitor serves, and what they may do.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::processes::{Monitor, Process, until};
use crate::support::{CommandOutput, Scratch, run, skipped};

const COUNT: &str = "select count(*) from IO [range 1 s slide 1 s]";

/// A monitor that requires tokens, and token files: of a reader, of a placer and of no client.
pub fn guarded() -> Monitor {
    let names = ["reader", "placer", "wrong"];
    let tokens = names.map(|name| (name, format!("{name}-{}", "0123456789abcdef")));
    let known = format!(
        "{} reader read\n{} placer place\n",
        tokens[0].1, tokens[1].1
    );
    let mut files = vec![("tokens", known)];
    files.extend(tokens);
    Monitor::with_files("tokens = \"HOME/tokens\"\n", &files)
}

impl Monitor {
    fn with(&self, name: &str, args: &[&str]) -> crate::support::CommandOutput {
        let file = self.home.path().join(name);
        self.run(&[args, &["--token-file", file.to_str().unwrap()]].concat())
    }
}

#[test]
fn a_token_determines_the_client_and_its_roles() {
    let monitor = guarded();
    let query = ["query", "--name", "q", "--standing", "--for", "1ms", COUNT];

    let anonymous = monitor.run(&["fleet", "queries"]);
    assert_eq!(anonymous.code, 1);
    assert!(
        anonymous.err.contains("no token was presented"),
        "{}",
        anonymous.err
    );
    let wrong = monitor.with("wrong", &query);
    assert_eq!(wrong.code, 1);
    assert!(wrong.err.contains("unknown token"), "{}", wrong.err);

    let reader = monitor.with("reader", &query);
    assert_eq!(reader.code, 1);
    assert!(
        reader.err.contains("`reader` is not permitted to place"),
        "{}",
        reader.err
    );
    let placer = monitor.with("placer", &query);
    assert_eq!(placer.code, 0, "{}", placer.err);

    let listed = monitor
        .with("reader", &["fleet", "queries", "--json"])
        .fine();
    assert!(listed.contains("\"owner\":\"placer\""), "{listed}");
    let watched = monitor.with("reader", &["fleet", "watch", "q", "--for", "1ms"]);
    assert_eq!(watched.code, 0, "{}", watched.err);
    assert_eq!(monitor.with("reader", &["fleet", "cancel", "q"]).code, 1);
    assert_eq!(monitor.with("placer", &["fleet", "cancel", "q"]).code, 0);
}

#[test]
fn a_token_file_that_others_can_read_is_refused_by_clients_and_agents() {
    let monitor = guarded();
    let file = monitor.home.path().join("reader");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let client = monitor.with("reader", &["fleet", "queries"]);
    let token = file.to_str().unwrap();
    let state = monitor.home.path().join("agent");
    let state = state.to_str().unwrap();
    let agent = monitor.run(&["agent", "--token-file", token, "--state", state]);
    for printed in [client, agent] {
        assert_eq!(printed.code, 1, "{}", printed.err);
        assert!(printed.err.contains("chmod 600"), "{}", printed.err);
    }
    // The group may read it, as the group of a service does.
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    assert_eq!(monitor.with("reader", &["fleet", "queries"]).code, 0);
}

#[test]
fn the_monitor_logs_whom_it_refuses_and_why() {
    let monitor = guarded();
    monitor.with("wrong", &["fleet", "queries"]);
    monitor.with("reader", &["query", "--standing", "--for", "1ms", COUNT]);
    let line = |part: &str| {
        let printed = monitor.printed();
        let mut lines = printed.lines();
        lines.any(|line| line.contains("WARN peer rejected peer=127.0.0.1:") && line.contains(part))
    };
    until("both are logged", || {
        line("unknown token") && line("`reader` is not permitted to place or cancel queries")
    });
}

#[test]
fn the_loopback_interface_is_not_served_without_tokens() {
    let home = Scratch::new();
    let state = home.path().join("state");
    let args = ["monitor", "--listen", "127.0.0.1:0", "--state"];
    let (code, printed) = Process::start(&[&args[..], &[state.to_str().unwrap()]].concat()).end();
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("every user of this host"), "{printed}");
    assert!(printed.contains("unix:PATH"), "{printed}");
}

#[test]
fn another_user_cannot_connect_to_the_monitors_socket() {
    const TEST: &str = "another_user_cannot_connect_to_the_monitors_socket";
    if !rustix::process::geteuid().is_root() {
        return skipped(TEST, "it takes root to run as another user");
    }
    let monitor = Monitor::start();
    // The directory is accessible, so that only the permissions of the socket are tested.
    fs::set_permissions(monitor.home.path(), Permissions::from_mode(0o755)).unwrap();
    let binary = monitor.home.path().join("weir");
    fs::copy(env!("CARGO_BIN_EXE_weir"), &binary).unwrap();
    let queries = |user: &str, group: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", group, "--clear-groups"]);
        command.arg(&binary).args(["fleet", "queries", "--monitor"]);
        command.arg(&monitor.address).current_dir("/");
        CommandOutput::of(command.output().unwrap())
    };
    let other = queries("65534", "65534");
    assert_eq!(other.code, 1, "{}", other.out);
    assert!(other.err.contains("Permission denied"), "{}", other.err);
    assert!(other.err.contains("socket's group"), "{}", other.err);
    // A member of the socket's group, which is the group of the monitor, can connect.
    let member = queries("65534", "0");
    assert_eq!(member.code, 0, "{}", member.err);
}

#[test]
fn a_configuration_is_checked_as_a_start_checks_it() {
    let home = Scratch::new();
    let socket = home.path().join("m.sock");
    let check = |listen: &str| {
        let file = home.write("m.toml", &format!("listen = \"{listen}\"\n"));
        run(&["monitor", "--check", "--config", &file])
    };
    let valid = check(&format!("unix:{}", socket.display()));
    assert_eq!(valid.code, 0, "{}", valid.err);
    assert!(
        valid.err.contains("the configuration is valid"),
        "{}",
        valid.err
    );
    assert!(!socket.exists(), "it only checks");
    let open = check("127.0.0.1:7733");
    assert_eq!(open.code, 2, "{}", open.err);
    assert!(open.err.contains("every user of this host"), "{}", open.err);
}
