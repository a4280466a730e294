//! The faults: each returns what it has done, for the report.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};
use weir_testing::{LoopDisk, PacedLoad};

use super::Run;
use super::schedule::{FaultEvent, FaultKind};
use super::setup::{SETTLE, signal};

/// The queries of clients that end.
const QUERIES: &[&str] = &[
    "select host, op, count(*) from IO [range 1 s slide 1 s] group by host, op",
    "select ts, op, sector, latency from IO where latency > 1 us",
    "select op, avg(latency) from IO [rows 10] group by op",
    "select host, device from devices",
    "select host, state from hosts",
    "select vm, op, sector from IOstream where type = 'Q'",
];

/// The number of clients that start a query at the same time.
const CLIENTS: usize = 3;

/// Causes a fault and repairs it. It takes samples meanwhile.
pub fn cause(run: &mut Run<'_>, event: &FaultEvent) -> Result<String> {
    match event.kind {
        FaultKind::AgentKilled => kill_agent(run, event, false),
        FaultKind::AgentKilledWhileCut => kill_agent(run, event, true),
        FaultKind::MonitorKilled => kill_monitor(run, event),
        FaultKind::AgentPaused => pause(run, event, "agent", run.setup.agent(0).pid()),
        FaultKind::MonitorPaused => pause(run, event, "monitor", run.setup.monitor().pid()),
        FaultKind::TapdiskPaused => pause(run, event, "tapdisk", run.setup.tapdisk_pid()),
        FaultKind::Partition => partition(run, event),
        FaultKind::DiskDetached => detach(run, event),
        FaultKind::ClientStuck => stuck_client(run, event),
        FaultKind::ScraperStuck => stuck_scraper(run, event),
        FaultKind::QueryChurn => churn(run, event),
    }
}

/// What no process had received when the agent was killed is in no count, so the devices are idle
/// then and until the next agent observes them.
fn kill_agent(run: &mut Run<'_>, event: &FaultEvent, is_cut: bool) -> Result<String> {
    if is_cut {
        run.setup.host().cut()?;
        run.wait(event.length);
    }
    run.setup.disks().for_each(|(_, load)| load.pause());
    run.wait(SETTLE);
    run.setup.kill_agent()?;
    run.setup.restart_agent()?;
    run.setup.disks().for_each(|(_, load)| load.resume());
    Ok(match is_cut {
        true => "agent killed with undelivered rows".to_owned(),
        false => "agent killed".to_owned(),
    })
}

fn kill_monitor(run: &mut Run<'_>, event: &FaultEvent) -> Result<String> {
    run.setup.kill_monitor()?;
    run.wait(event.length);
    run.setup.restart_monitor()?;
    Ok("monitor killed".to_owned())
}

fn pause(run: &mut Run<'_>, event: &FaultEvent, name: &str, pid: u32) -> Result<String> {
    signal(pid, "STOP")?;
    run.wait(event.length);
    signal(pid, "CONT")?;
    run.setup.until_complete()?;
    Ok(format!("{name} paused"))
}

fn partition(run: &mut Run<'_>, event: &FaultEvent) -> Result<String> {
    run.setup.host().cut()?;
    run.wait(event.length);
    run.setup.host().mend()?;
    run.setup.until_complete()?;
    Ok("network partition".to_owned())
}

fn detach(run: &mut Run<'_>, event: &FaultEvent) -> Result<String> {
    let number = event.choice % run.setup.disks().count();
    let on_disk = |run: &Run<'_>, act: fn(&LoopDisk, &PacedLoad) -> Result<()>| {
        let (disk, load) = run.setup.disks().nth(number).expect("it exists");
        act(disk, load)
    };
    on_disk(run, |disk, load| {
        load.pause();
        disk.detach()
    })?;
    run.wait(event.length);
    on_disk(run, |disk, load| {
        disk.reattach()?;
        load.resume();
        Ok(())
    })?;
    Ok("disk detached and attached".to_owned())
}

fn stuck_client(run: &mut Run<'_>, event: &FaultEvent) -> Result<String> {
    let query = ["query", "--format", "json", "select * from IOstream"];
    let mut client = run.setup.fleet().command(run.setup.monitor(), &query);
    let client = client.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut client = client?;
    run.wait(event.length);
    client.kill()?;
    client.wait()?;
    Ok("client that does not read".to_owned())
}

fn stuck_scraper(run: &mut Run<'_>, event: &FaultEvent) -> Result<String> {
    let mut silent = run.setup.connect_exporter()?;
    silent.write_all(b"GET /metrics HTTP/1.1\r\nHo")?;
    let mut deaf = run.setup.connect_exporter()?;
    deaf.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    run.wait(event.length);
    Ok("scrapers that do not write or read".to_owned())
}

fn churn(run: &mut Run<'_>, event: &FaultEvent) -> Result<String> {
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let query = QUERIES[event.choice.wrapping_add(client) % QUERIES.len()];
        let args = ["query", "--format", "json", "--for", "1s", query];
        let mut command: Command = run.setup.fleet().command(run.setup.monitor(), &args);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        clients.push((query, command.spawn()?));
    }
    run.wait(Duration::from_millis(1_500));
    for (query, client) in clients {
        let output = client.wait_with_output()?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("query `{query}` failed: {error}");
        }
    }
    Ok("queries started and ended".to_owned())
}
