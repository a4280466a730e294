//! Experiments 4 to 6: hosts with VMs and an agent each, and a monitor.

use anyhow::Result;
use weir_testing::Kit;

use super::copying::Vm;
use super::field::{Asked, Field};
use super::figures::{Row, by_turns};
use super::local::{self, Beside, REQUESTS_PER_SECOND};
use super::{Experiment, Findings, Pace};
use crate::{guest, packages};

/// Maximum number of VMs of a host, as in the thesis.
const VMS_PER_HOST: usize = 3;

/// Requests per second of each of several VMs: nine of them must leave processors idle.
const REQUESTS_PER_SECOND_OF_MANY: u32 = 800;

/// Thesis query 0.
const Q0: &str = "select * from IOstream";

/// Thesis query F: the requests without their responses.
const F: &str = "select * from IOstream where type = 'Q'";

/// Thesis query 5 in one piece; its script has the same parts as views.
const Q5: &str = "with IOstreamq as (select * from IOstream where type = 'Q'), \
    DiskHeadMove as (Istream(select b.sector - (a.sector + a.size) as HeadMove \
        from IOstreamq [rows 2] as a, IOstreamq [rows 1] as b where a.ReqId + 1 = b.ReqId)), \
    CountRequest as (select count(*) as Counter from IOstreamq), \
    CountSequentialReq as (select count(*) as Counter from DiskHeadMove where HeadMove = 0) \
    select 100*CSR.Counter/CR.Counter from CountSequentialReq as CSR, CountRequest as CR";

/// The columns of experiments 4 and 5.
const COLUMNS: &[&str] = &[
    "server, % of a processor",
    "monitor, % of a processor",
    "whole machine, % of a processor",
    "sent to the monitor, KB/s",
    "sent per request, bytes",
];

/// The columns of experiment 6.
const COLUMNS_OF_MANY: &[&str] = &[
    "requests/s",
    "agents, % of a processor",
    "monitor, % of a processor",
    "monitor, µs per request",
    "sent to the monitor, KB/s",
];

/// Experiment 4.
pub static OFFLOADING: Experiment = Experiment {
    number: 4,
    title: "offloading",
    thesis: "With query 0 on the server and on the monitor (Q0Q0), the load of the server was \
             nearly that of query 0 alone, and the monitor used 4.07 % of a processor. Eight \
             queries 5 at the server (Q5x8) used 28 %; with these queries at the monitor \
             (Q0Q5x8), the server had the load of Q0Q0, and the monitor used about 16.5 %: the \
             load had moved to the monitor.",
    here: "The server is a network namespace with an agent; agent and monitor use TLS with \
           certificates on both sides. \"At the server\" is `weir run` there, with the thesis's \
           scripts; \"at the monitor\" are standing queries with `place = \"rows\"`. weir \
                      forwards only what the queries need: for query 5, the requests with the \
                      columns that it reads.",
    run: offloading,
};

/// Experiment 5.
pub static FILTERING: Experiment = Experiment {
    number: 5,
    title: "filtering",
    thesis: "A filter at the server that passes requests and no responses (query F, QFQ5'x8) \
             halved the bytes on the wire compared with forwarding all rows (Q0Q5x8), and \
             reduced the load of the server by 1.2 points and that of the monitor by 1.8 points.",
    here: "Bytes are counted by the kernel at the server's network interface, including TLS, \
           TCP, IP, and heartbeats every 50 ms. Query 10M is that of the thesis, with its three \
           parts, grouped by the device on the host (a program on a loop device has no virtual \
           disk); with `slide 1 s` its result changes once a second, so agents can send partial \
           aggregates.",
    run: filtering,
};

/// Experiment 6.
pub static SCALING: Experiment = Experiment {
    number: 6,
    title: "scaling with VMs and hosts",
    thesis: "Up to three VMs on each of three servers, all rows forwarded by query 0, and query \
             0 or 10M at the monitor: 10 % of a processor for one VM and 10M, 10 points more \
             with the second server and 7 points more with the third, a slower one; less with \
             several VMs on one server, because they shared its disk. The monitor's load was \
             linear in the number of rows and independent of the number of VMs.",
    here: "Each VM has a fixed rate, so the load grows with the number of VMs. The last row has \
           three guests in QEMU, one on each host.",
    run: scaling,
};

fn offloading(pace: Pace) -> Result<Findings> {
    enum Place {
        Server(Beside),
        Monitor(&'static str, usize),
    }
    let configurations = [
        ("Q0 at the server", Place::Server(Beside::Query("0", 1))),
        ("Q5x8 at the server", Place::Server(Beside::Query("5", 8))),
        ("Q0Q0: query 0 at the monitor", Place::Monitor(Q0, 1)),
        ("Q0Q5x8: at the monitor", Place::Monitor(Q5, 8)),
    ];
    let configurations = configurations.map(|(name, place)| (name.to_owned(), place));
    let rows = by_turns(&configurations, pace.runs, |place| {
        let vms = vec![Vm::start("vm1", REQUESTS_PER_SECOND)?];
        match place {
            Place::Server(beside) => {
                let figures = local::turn(beside, &vms, pace.seconds)?;
                // The figure of the whole machine is first there, and no data is sent.
                Ok(vec![figures[1], 0.0, figures[0], 0.0, 0.0])
            }
            Place::Monitor(query, copies) => {
                let asked: Vec<Asked> = (1..=*copies)
                    .map(|copy| Asked::new(&format!("q{copy}"), query, Some("rows")))
                    .collect();
                one_server(vms, &asked, pace)
            }
        }
    })?;
    Ok(Findings::new(COLUMNS, rows))
}

fn filtering(pace: Pace) -> Result<Findings> {
    let configurations = [
        ("Q0: all forwarded", vec![Asked::new("q0", Q0, None)]),
        ("QF: query F at the agent", vec![Asked::new("f", F, None)]),
        ("Q10M as printed, rows", query_10m("", "rows")),
        ("Q10M with slide 1 s, rows", query_10m(" slide 1 s", "rows")),
        (
            "Q10M with slide 1 s, partials",
            query_10m(" slide 1 s", "partials"),
        ),
    ];
    let configurations = configurations.map(|(name, asked)| (name.to_owned(), asked));
    let rows = by_turns(&configurations, pace.runs, |asked| {
        one_server(vec![Vm::start("vm1", REQUESTS_PER_SECOND)?], asked, pace)
    })?;
    let conclusion = compared(&rows);
    Ok(Findings {
        conclusion,
        ..Findings::new(COLUMNS, rows)
    })
}

/// The comparison of bytes sent for each request.
fn compared(rows: &[Row]) -> String {
    let sent = |row: usize| rows[row].figures[4].mean();
    format!(
        "Query F sends {:.2} of the bytes of query 0. With partial aggregates, query 10M sends \
         {:.0} times fewer bytes than query 0, and {:.0} times fewer than with rows.",
        sent(1) / sent(0),
        sent(0) / sent(4),
        sent(3) / sent(4)
    )
}

/// Measures one server with queries at the monitor once.
fn one_server(vms: Vec<Vm>, asked: &[Asked], pace: Pace) -> Result<Vec<f64>> {
    let used = Field::new(vec![vms], asked)?.measured(pace.seconds)?;
    Ok(vec![
        used.agents_percent,
        used.monitor_percent,
        used.machine_percent,
        used.sent_bytes_per_second / 1e3,
        used.sent_bytes_per_second / used.requests_per_second,
    ])
}

fn scaling(pace: Pace) -> Result<Findings> {
    let kit = match Kit::find() {
        Ok(kit) => kit,
        Err(_) => {
            guest::run(&[])?;
            Kit::find()?
        }
    };
    packages::ensure(packages::GUEST)?;
    let mut configurations = Vec::new();
    for (query, asked) in [
        ("Q0", vec![Asked::new("q0", Q0, Some("rows"))]),
        ("Q10M", query_10m("", "rows")),
    ] {
        for vms in [1_usize, 3, 6, 9] {
            let hosts = vms.div_ceil(VMS_PER_HOST);
            let name = format!("{query}: {vms} VMs on {hosts} hosts");
            configurations.push((name, (asked.clone(), Some(vms))));
        }
    }
    let real = "Q10M: 3 guests in QEMU on 3 hosts".to_owned();
    configurations.push((real, (query_10m("", "rows"), None)));
    let rows = by_turns(&configurations, pace.runs, |(asked, vms)| {
        let hosts = match vms {
            Some(vms) => copying(*vms)?,
            None => booted(&kit)?,
        };
        let used = Field::new(hosts, asked)?.measured(pace.seconds)?;
        Ok(vec![
            used.requests_per_second,
            used.agents_percent,
            used.monitor_percent,
            used.monitor_percent * 1e4 / used.requests_per_second,
            used.sent_bytes_per_second / 1e3,
        ])
    })?;
    Ok(Findings::new(COLUMNS_OF_MANY, rows))
}

/// A number of VMs on the minimum number of hosts.
fn copying(vms: usize) -> Result<Vec<Vec<Vm>>> {
    let numbers: Vec<usize> = (1..=vms).collect();
    let host = |numbers: &[usize]| {
        let vm = |number: &usize| Vm::start(&format!("vm{number}"), REQUESTS_PER_SECOND_OF_MANY);
        numbers.iter().map(vm).collect()
    };
    numbers.chunks(VMS_PER_HOST).map(host).collect()
}

/// Three hosts with a real guest each.
fn booted(kit: &Kit) -> Result<Vec<Vec<Vm>>> {
    let host = |name: &str| Ok(vec![Vm::boot(name, kit)?]);
    ["guest1", "guest2", "guest3"]
        .into_iter()
        .map(host)
        .collect()
}

/// Thesis query 10M, its three parts, with windows as printed or with a slide. Its response times
/// exceed the 3 s of its comment.
fn query_10m(slide: &str, place: &str) -> Vec<Asked> {
    let window = format!("[range 3 s{slide}]");
    let sizes = |by: &str| {
        format!(
            "select {by}, avg(size), count(*), sum(size) from IOstream {window} where type = 'Q' group by {by}"
        )
    };
    let times = format!(
        "with ResponseTimes as (Istream(select r.host, r.vm, r.pdisk, r.ts - q.ts as time \
            from IOstream [range 3 s] as q, IOstream [now] as r \
            where q.type = 'Q' and r.type = 'R' and q.ReqId = r.ReqId and q.host = r.host and q.vm = r.vm and q.pdisk = r.pdisk)) \
         select host, vm, pdisk, avg(time) from ResponseTimes {window} group by host, vm, pdisk"
    );
    // The agent computes complete groups of one host's requests and responses.
    let times_place = if place == "partials" { "agent" } else { place };
    vec![
        Asked::new("sizes", &sizes("host, vm, pdisk"), Some(place)),
        Asked::new("sizes_by_op", &sizes("host, vm, pdisk, op"), Some(place)),
        Asked::new("response_times", &times, Some(times_place)),
    ]
}
