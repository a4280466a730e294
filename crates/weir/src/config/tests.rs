//! Configuration files say all their mistakes at once, and what a reload changes.

use weir_monitor::config::MonitorConfig;

use super::*;

fn monitor_of(text: &str) -> (MonitorConfig, Vec<String>) {
    let mut document = Document::parse("m.toml", text);
    let config = super::monitor::of(&mut document);
    (config, document.faults())
}

fn tapdisk_of(text: &str) -> (TapdiskConfig, Vec<String>) {
    let mut document = Document::parse("t.toml", text);
    let config = TapdiskConfig::of(&mut document);
    (config, document.faults())
}

fn agent_of(text: &str) -> (AgentConfig, Vec<String>) {
    let mut document = Document::parse("a.toml", text);
    let config = AgentConfig::of(&mut document);
    (config, document.faults())
}

#[test]
fn an_empty_file_means_the_defaults() {
    assert_eq!(monitor_of(""), (MonitorConfig::default(), vec![]));
    assert_eq!(agent_of(""), (AgentConfig::default(), vec![]));
}

#[test]
fn every_mistake_is_told_with_its_line_and_a_remedy() {
    let text = "listne = \"127.0.0.1:1\"\n\
        heartbeat = 50\n\
        idle = \"2 parsecs\"\n\
        \n\
        [limits]\n\
        queries = 0\n\
        query_memory = \"lots\"\n\
        [[query]]\n\
        name = \"q\"\n";
    let (_, faults) = monitor_of(text);
    assert_eq!(
        faults,
        [
            "weir: m.toml:1: unknown key `listne`; did you mean `listen`?",
            "weir: m.toml:2: `heartbeat`: expected a text in quotes with its unit, found 50",
            "weir: m.toml:3: `idle`: expected a number with ns, us, ms, s, m, h or d, as in 10s or 250ms",
            "weir: m.toml:6: `limits.queries`: expected a whole number from 1 to 100000, found 0",
            "weir: m.toml:7: `limits.query_memory`: expected a number with KiB, MiB or GiB, as in 512MiB",
            "weir: m.toml:8: `query.text` is missing; write text = \"select ..\"",
        ]
    );
}

#[test]
fn syntax_is_told_with_its_line_too() {
    let (_, faults) = monitor_of("idle = \"2 s\"\nlisten = = 3\n");
    assert!(faults[0].starts_with("weir: m.toml:2: "), "{faults:?}");
}

#[test]
fn a_file_says_what_is_meant() {
    let (config, faults) = agent_of(
        "monitor = \"monitor.example:7733\"\nhost = \"a\"\nfrom = \"x.parquet\"\n\
         token_file = \"/t\"\n[tls]\nca = \"/ca\"\n[uplink]\nspool = \"none\"\nmemory = \"4 MiB\"\n\
         [limits]\ncpu = \"20 %\"\nmemory = \"256 MiB\"\n",
    );
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(config.cpu_share, Some(0.2));
    assert_eq!((config.spool_bytes, config.uplink_bytes), (0, 4 << 20));
    assert_eq!(config.security.ca, Some("/ca".into()));
    assert_eq!(config.security.token_file, Some("/t".into()));
}

#[test]
fn a_sink_is_of_a_format_that_can_be_added_to() {
    let with = |sink: &str| {
        let query = "[[query]]\nname = \"q\"\ntext = \"x\"\n[[query.sink]]\n";
        monitor_of(&format!("{query}{sink}")).1
    };
    assert!(with("file = \"a.csv\"\n").is_empty());
    for sink in ["parquet", "table"] {
        let faults = with(&format!("file = \"a\"\nformat = \"{sink}\"\n"));
        let told = faults.iter().any(|f| f.contains("cannot be added to"));
        assert!(told, "{faults:?}");
    }
    assert!(!with("file = \"a.parquet\"\n").is_empty());
}

#[test]
fn an_agent_is_not_overtaken_between_two_heartbeats() {
    assert!(
        monitor_of("heartbeat = \"1 s\"\nidle = \"2 s\"\n")
            .1
            .is_empty()
    );
    for text in ["heartbeat = \"2 s\"\n", "idle = \"999 ms\"\n"] {
        let (_, faults) = monitor_of(text);
        assert!(
            faults[0].contains("less than two of `heartbeat`"),
            "{faults:?}"
        );
    }
    // What agents would not do is not taken either.
    for text in [
        "heartbeat = \"1 ms\"\n",
        "heartbeat = \"20 s\"\nidle = \"1 h\"\n",
    ] {
        assert!(monitor_of(text).1[0].contains("from 5 ms to 10 s"));
    }
}

#[test]
fn names_are_there_once() {
    let twice = "[[query]]\nname = \"q\"\ntext = \"x\"\n[[query]]\nname = \"q\"\ntext = \"y\"\n";
    let (_, faults) = monitor_of(twice);
    assert_eq!(faults.len(), 1);
    assert!(
        faults[0].contains("two [[query]] are called `q`"),
        "{faults:?}"
    );
}

#[test]
fn a_reload_tells_what_needs_a_restart() {
    let settings = |text| Document::parse("m.toml", text).settings();
    let before = settings("idle = \"2 s\"\nlisten = \"127.0.0.1:1\"\nstate = \"/s\"\n");
    let after = settings(
        "idle = \"3 s\"\nlisten = \"127.0.0.1:2\"\nstate = \"/s\"\n[[query]]\nname = \"q\"\n",
    );
    let changes = before.changes(&after, monitor::TAKEN_AT_ONCE);
    assert_eq!(
        changes.taken,
        ["idle = \"3 s\" (was \"2 s\")", "query q.name = \"q\" (new)"]
    );
    assert_eq!(
        changes.to_string(),
        "idle = \"3 s\" (was \"2 s\"); query q.name = \"q\" (new); \
         listen = \"127.0.0.1:2\" (was \"127.0.0.1:1\"): needs a restart"
    );
    assert_eq!(after.changes(&after, &[]).to_string(), "nothing changed");
}

#[test]
fn a_tapdisks_file_names_disks_and_every_mistake() {
    let (config, faults) = tapdisk_of(
        "nbd = \"unix:/n\"\nsocket_mode = \"660\"\n[[disk]]\nimage = \"/a\"\nsocket = \"/s\"\n\
         read_only = true\nqueues = 4\npoll = \"20us\"\ndelay = [\"5ms,op=r\", \"1ms\"]\n",
    );
    assert!(faults.is_empty(), "{faults:?}");
    let disk = &config.disks[0];
    assert_eq!((disk.read_only, disk.queues), (true, Some(4)));
    assert_eq!(disk.injections.delays.len(), 2);
    assert_eq!(config.socket_mode, Some(0o660));
    let (_, faults) = tapdisk_of(
        "nbd = \"10.0.0.1:1\"\n[[disk]]\nsokcet = \"/s\"\nqueues = 0\nengine = \"warp\"\n\
         delay = [\"soon\"]\n",
    );
    for part in [
        "t.toml:1: `nbd`: ",
        "t.toml:3: unknown key `disk.sokcet`; did you mean `socket`?",
        "`disk.queues`: expected a whole number from 1 to 256",
        "t.toml:5: `disk.engine`: expected auto, uring or sync",
        "t.toml:6: `disk.delay`: ",
        "`disk.image` is missing",
    ] {
        assert!(
            faults.iter().any(|f| f.contains(part)),
            "{part}: {faults:?}"
        );
    }
}

#[test]
fn the_example_files_are_right() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    for file in ["monitor.toml", "agent.toml", "tapdisk.toml"] {
        let text = std::fs::read_to_string(root.join(file)).expect(file);
        // What is commented out is an example as well.
        let all: String = text
            .lines()
            .map(|line| match line.strip_prefix("#: ") {
                Some(example) => format!("{example}\n"),
                None => format!("{line}\n"),
            })
            .collect();
        for text in [text, all] {
            let faults = match file {
                "monitor.toml" => monitor_of(&text).1,
                "tapdisk.toml" => tapdisk_of(&text).1,
                _ => agent_of(&text).1,
            };
            assert!(faults.is_empty(), "{file}: {faults:?}");
        }
    }
}
