//! The example configuration files in `packaging`.

use std::fs;
use std::path::Path;

use weir_agent::config::AgentConfig;
use weir_monitor::config::MonitorConfig;
use weir_runtime::config::parse;
use weir_tapdisk::service::TapdiskConfig;

#[test]
fn the_example_files_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    for path in [
        "monitor.toml",
        "agent.toml",
        "tapdisk.toml",
        "compose/monitor.toml",
        "compose/agent.toml",
        "kubernetes/monitor.toml",
        "kubernetes/agent.toml",
    ] {
        let file = path.rsplit('/').next().unwrap();
        let text = fs::read_to_string(folder.join(path)).expect(path);
        // The settings in comments are examples as well.
        let all = text.replace("\n#: ", "\n");
        for text in [text, all] {
            let faults = match file {
                "monitor.toml" => parse::<MonitorConfig>(file, &text).err(),
                "tapdisk.toml" => parse::<TapdiskConfig>(file, &text).err(),
                _ => parse::<AgentConfig>(file, &text).err(),
            };
            assert_eq!(faults, None, "{path}");
        }
    }
}
