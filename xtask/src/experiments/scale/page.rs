//! docs/scale.md.

use super::{Fleet, ScaleRun};

/// The page of these runs, each of which lasted `seconds` at least.
pub(super) fn page(alone: &[ScaleRun], forwarded: &[ScaleRun], seconds: u64) -> String {
    let large = forwarded.iter().find(|run| run.fleet.monitors > 1);
    let option = large.map_or(String::new(), |run| {
        format!(" --large {}", run.fleet.agents)
    });
    let mut page = format!(
        "# A fleet beyond one monitor: costs\n\n\
         ```\ncargo xtask experiments scale{option}\n```\n\n\
         The command wrote this page. Agents are simulated as in [load tests of a \
         monitor](simulate.md);\nprotocol, monitors, Kafka (one broker, KRaft) and Flink (job \
         manager, task manager with one slot,\nSQL Gateway) are real. All of it ran on the same two \
         processors, {seconds} s at least for each figure.\nThe query, placed at the monitor and in \
         Flink:\n\n```sql\n{}\n```\n\n",
        Fleet::of_one_monitor(1).query().replace(" from", "\nfrom")
    );
    page += "## The monitor alone\n\n\
             Each agent has 10 requests per second; heartbeats are one second apart.\n\n\
             | agents | rows/s | messages/s | monitor, processors | per 1,000 agents | memory per \
             agent | result p50 | p99 |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for run in alone {
        page += &format!(
            "| {} | {:.0} | {:.0} | {:.2} | {:.3} | {} KB | {:.0} ms | {:.0} ms |\n",
            count(run.fleet.agents),
            run.rows_per_second,
            run.messages_per_second,
            run.monitor_percent / 100.0,
            per_thousand(run, run.monitor_percent),
            run.memory_per_agent / 1_000,
            run.monitor_ms[0],
            run.monitor_ms[1],
        );
    }
    page += "\n## With Kafka and Flink\n\n\
             Processors; results are from the end of a window to the client.\n\n\
             | agents | monitors | slide | monitors | Kafka | Flink | all per 1,000 agents | \
             monitor's result p50, p99 | Flink's result p50, p99 | windows compared |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for run in forwarded {
        let (kafka, flink) = (
            run.kafka_percent.unwrap_or(0.0),
            run.flink_percent.unwrap_or(0.0),
        );
        let [p50, p99] = run.flink_ms.unwrap_or([f64::NAN; 2]);
        page += &format!(
            "| {} | {} | {} s | {:.2} | {:.2} | {:.2} | {:.3} | {:.0}, {:.0} ms | {:.0}, {:.0} ms | \
             {} |\n",
            count(run.fleet.agents),
            run.fleet.monitors,
            run.fleet.slide,
            run.monitor_percent / 100.0,
            kafka / 100.0,
            flink / 100.0,
            per_thousand(run, run.monitor_percent + kafka + flink),
            run.monitor_ms[0],
            run.monitor_ms[1],
            p50,
            p99,
            run.windows,
        );
    }
    let late: u64 = alone.iter().chain(forwarded).map(|run| run.late).sum();
    page += &format!(
        "\nAll windows that both have contain the same rows, compared as texts; of several monitors, \
         counts and\nsums are added and compared. Rows that were late: {late}.\n"
    );
    if let Some(run) = large {
        page += &format!(
            "\nIn the fleet of {} agents each has one request per second, heartbeats are {} s apart, \
             the query\nhas `[range {} s slide {} s]`, and each monitor has a topic that the one job \
             of Flink reads.\n",
            count(run.fleet.agents),
            run.fleet.heartbeat(),
            run.fleet.window(),
            run.fleet.slide,
        );
    }
    page + SIZING
}

/// With a comma between thousands.
fn count(number: usize) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", count(number / 1_000), number % 1_000),
    }
}

/// Processors for each thousand agents.
fn per_thousand(run: &ScaleRun, percent: f64) -> f64 {
    percent / 100.0 * 1_000.0 / run.fleet.agents as f64
}

/// What follows from the figures.
const SIZING: &str = "
## Which tier

| fleet | tier |
| --- | --- |
| up to some thousands of hosts | one monitor |
| the same, with history for weeks, replay, or programs that read Kafka | one monitor that forwards |
| hosts that no monitor reaches, with a Kafka that they reach | agents that [forward themselves](forward.md#without-a-monitor) |
| more | monitors for a part of the hosts each, which forward to one Kafka; Flink merges |

A monitor's cost is that of the messages of its agents, so it grows with their number, and with the
heartbeats and slides: a slide of 10 s instead of 1 s has a tenth of the rows. It is a little less
than linear, since steps of time are shared. Each agent has a connection, so a process has as many
agents as files (`LimitNOFILE`), and from one address `limits.connections_per_address`. Kafka and
Flink have a cost without agents, which the smallest fleet shows, and then that of a message per
group, host and slide. Flink's results are later by the interval of the monitor's checkpoints and of
the watermarks, one second each. With [sites](fleet.md#sites), the upstream monitor has the
connections and rows of as many hosts as there are sites.
";
