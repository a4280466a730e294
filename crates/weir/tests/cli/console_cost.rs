//! What a page with 12 live heat maps and 12 line charts costs: browser, console, and the process
//! that reads the source.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testing::{DiskLoad, PacedLoad};

use super::Console;
use super::browser::signed_in;
use super::chromium::Browser;

/// Replaces the page by charts, each of a query of its own.
const CHARTS: &str = "(async () => {
    const [app, charts, lines, panels, source] = await Promise.all(['push', 'charts', 'lines', 'panel', 'source']
        .map((name) => import(`./${name}.js`)));
    const status = await panels.request('api/v1/status');
    const context = await source.sourceContext(new app.Push(() => {}), status, undefined, null);
    const shown = [];
    for (let i = 0; i < 12; i += 1) {
        const condition = `sector % 12 = ${i}`;
        shown.push(charts.heat(context, charts.MEASURES[i % 4], { title: `Heat map ${i}`, condition }));
        const chart = new lines.LineChart(`Lines ${i}`, '');
        shown.push(charts.overTime(context, {
            title: `Lines ${i}`,
            query: (interval) => `Rstream(select op, count(*) as n from IO ${panels.slides(context)}`
                + `${panels.where(condition, ...interval)} group by op)`,
            content: chart.root, clear: () => chart.clear(), draw: () => chart.draw(),
            onRows: (frame) => {
                for (let row = 0; row < frame.rows; row += 1) {
                    chart.add(panels.valuesOf(frame, 'op')[row], panels.valuesOf(frame, 'instant')[row],
                        Number(panels.valuesOf(frame, 'n')[row]), context.step.seconds * 1000);
                }
            },
        }));
    }
    const grid = document.createElement('div');
    grid.className = 'grid';
    grid.append(...shown.map((one) => one.root));
    document.getElementById('page').replaceChildren(grid);
    return shown.length;
})()";

/// Processor time of a process since its start, in clock ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let mut fields = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
    let mut field = || fields.next().and_then(Result::ok).unwrap_or(0);
    field() + field()
}

/// The processes below one, by what they are.
fn processes(pid: u32) -> BTreeMap<u32, String> {
    let mut found = BTreeMap::new();
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(path).unwrap_or_default();
    for child in children.split_whitespace().filter_map(|c| c.parse().ok()) {
        let command = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        let args = || command.split(['\0', ' ']);
        let kind = args().find_map(|arg| arg.strip_prefix("--type="));
        let kind = kind.or_else(|| args().nth(1));
        found.insert(child, kind.unwrap_or_default().to_owned());
        found.extend(processes(child));
    }
    found
}

/// The shares of a processor in percent, by process, over a time.
fn shares(pids: &[(String, u32)], time: Duration) -> Vec<(String, f64)> {
    let before: Vec<u64> = pids.iter().map(|(_, pid)| ticks(*pid)).collect();
    let started = Instant::now();
    std::thread::sleep(time);
    let seconds = started.elapsed().as_secs_f64();
    let share = |((name, pid), before): (&(String, u32), u64)| {
        (name.clone(), (ticks(*pid) - before) as f64 / seconds)
    };
    pids.iter().zip(before).map(share).collect()
}

/// Bytes of live objects of the page.
fn heap(browser: &mut Browser) -> u64 {
    browser.call("HeapProfiler.collectGarbage", json!({}));
    let usage = browser.call("Runtime.getHeapUsage", json!({}));
    usage["usedSize"].as_f64().unwrap() as u64
}

/// `WEIR_MINUTES=60 WEIR_TEST_PROGRAM=target/release/weir cargo test --workspace --test cli -- \
/// --ignored --nocapture a_page_of_24_charts`
#[test]
#[ignore = "takes minutes; prints figures"]
fn a_page_of_24_charts_keeps_its_heap() {
    let test = "a_page_of_24_charts_keeps_its_heap";
    let minutes = std::env::var("WEIR_MINUTES").map_or(2, |text| text.parse().unwrap());
    let Some(disk) = crate::live::watched_disk(test) else {
        return;
    };
    let mut console = Console::start(&["--device", disk.path()]);
    console.wait_for_source();
    let load = PacedLoad::start(DiskLoad {
        read: 70,
        write: 30,
        rate: 2_000,
        count: u64::MAX,
        ..DiskLoad::on(disk.path())
    });
    let Some(mut browser) = signed_in(&mut console, test) else {
        return;
    };
    assert_eq!(browser.evaluate(CHARTS), Value::from(24));
    std::thread::sleep(Duration::from_secs(20));
    // What the browser reports to this test would be a part of its cost.
    for domain in ["Network", "Log", "Page"] {
        browser.call(&format!("{domain}.disable"), json!({}));
    }
    let mut pids = vec![("console".to_owned(), console.pid())];
    pids.extend(
        processes(console.pid())
            .into_iter()
            .map(|(pid, name)| (name, pid)),
    );
    let of_browser = processes(browser.pid()).into_iter();
    pids.extend(of_browser.map(|(pid, name)| (format!("browser {name}"), pid)));
    pids.push(("browser".to_owned(), browser.pid()));
    for (width, height) in [(1_280, 900), (3_840, 2_160)] {
        browser.resize_to(width, height);
        std::thread::sleep(Duration::from_secs(5));
        println!("{width} x {height}:");
        for (name, share) in shares(&pids, Duration::from_secs(40)) {
            println!("  {share:5.2} % {name}");
        }
    }
    browser.resize_to(1_280, 900);
    let started = Instant::now();
    let mut heaps = Vec::new();
    for minute in 0..=minutes {
        while started.elapsed() < Duration::from_secs(60 * minute) {
            std::thread::sleep(Duration::from_millis(200));
        }
        heaps.push(heap(&mut browser));
        println!(
            "minute {minute}: {:.1} MB",
            heaps[minute as usize] as f64 / 1e6
        );
    }
    assert!(load.completed() > 1_000 * minutes, "there is a load");
    // The charts keep ten minutes.
    if let Some(full) = heaps.get(15) {
        let last = heaps.last().unwrap();
        assert!(last * 10 <= full * 11, "{full} to {last} bytes");
    }
    drop(load);
}
