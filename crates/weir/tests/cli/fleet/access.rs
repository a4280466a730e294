//! Who may ask a monitor what.

use super::processes::Monitor;

const COUNT: &str = "select count(*) from IO [range 1 s slide 1 s]";

/// A monitor that wants tokens, and files with those of a reader, of a placer and of nobody.
fn guarded() -> Monitor {
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
    fn with(&self, name: &str, args: &[&str]) -> crate::support::Said {
        let file = self.home.path().join(name);
        self.run(&[args, &["--token-file", file.to_str().unwrap()]].concat())
    }
}

#[test]
fn a_token_says_who_asks_and_what_they_may() {
    let monitor = guarded();
    let query = ["query", "--name", "q", "--standing", "--for", "1ms", COUNT];

    let nobody = monitor.run(&["fleet", "queries"]);
    assert_eq!(nobody.code, 1);
    assert!(nobody.err.contains("no token was shown"), "{}", nobody.err);
    let wrong = monitor.with("wrong", &query);
    assert_eq!(wrong.code, 1);
    assert!(wrong.err.contains("not known"), "{}", wrong.err);

    let reader = monitor.with("reader", &query);
    assert_eq!(reader.code, 1);
    assert!(
        reader.err.contains("`reader` may not place"),
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
