//! The page of `weir console` in headless Chromium.

use serde_json::{Value, json};

use super::chromium::Browser;
use super::{Console, SAMPLE};
use crate::support::{Scratch, requests, run, skipped};

/// A browser that has opened the link of the console.
pub fn signed_in(console: &mut Console, test: &str) -> Option<Browser> {
    let Some(mut browser) = Browser::start() else {
        skipped(test, "no chromium");
        return None;
    };
    let (address, secret) = console.link();
    browser.open(&format!("http://{address}/#link={secret}"));
    browser.wait_for("document.body?.dataset.connected === 'true'");
    let address = browser.evaluate("location.hash");
    assert!(
        !address.as_str().unwrap().contains("link="),
        "the secret stays in the address"
    );
    Some(browser)
}

/// The number that `weir query` prints.
fn count(trace: &str, condition: &str) -> i64 {
    let text = format!("select count(*) as n from IO where {condition}");
    let out = run(&[
        "query", "--from", trace, "--final", "--format", "json", &text,
    ])
    .fine();
    let row: Value = serde_json::from_str(&out).unwrap();
    row["n"].as_i64().unwrap()
}

/// An expression: the label of the heat map that begins so, once the recording has ended.
fn label(begin: &str) -> String {
    format!(
        "(() => {{ const map = [...document.querySelectorAll('canvas')].find((c) => \
         c.getAttribute('aria-label').startsWith('{begin}: ')); const panel = \
         map?.closest('.panel'); return panel?.innerText.includes('recording has ended') && \
         map.getAttribute('aria-label'); }})()"
    )
}

#[test]
fn every_page_shows_the_recording() {
    let mut console = Console::of(SAMPLE);
    let Some(mut browser) = signed_in(&mut console, "every_page_shows_the_recording") else {
        return;
    };
    let total = count(SAMPLE, "latency is not null");
    let shown = browser.wait_for(&label("Latency of all disks over time"));
    let expected = format!("{total} values");
    assert!(
        shown.as_str().unwrap().contains(&expected),
        "{shown}, not {expected}"
    );
    let painted = "(() => { const c = document.querySelectorAll('canvas')[1]; const d = \
        c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0; for (let i = 3; \
        i < d.length; i += 4) if (d[i] > 0) n += 1; return n > 500; })()";
    browser.wait_for(painted);

    browser
        .wait_for("(document.querySelector('td a')?.click(), location.hash.startsWith('#disk'))");
    for (title, column, op) in [
        ("Latency of reads", "latency", "r"),
        ("Latency of writes", "latency", "w"),
        ("Size of reads", "bytes", "r"),
        ("Size of writes", "bytes", "w"),
    ] {
        let total = count(SAMPLE, &format!("op = '{op}' and {column} is not null"));
        let shown = browser.wait_for(&label(&format!("{title} over time")));
        let expected = format!(": {total} values");
        assert!(
            shown.as_str().unwrap().contains(&expected),
            "{shown}, not {expected}"
        );
    }
    for width in [360, 1280] {
        browser.resize(width);
        for page in ["overview", "disk&pdisk=%2Fdev%2Floop1", "query"] {
            browser.evaluate(&format!("location.hash = '#{page}'"));
            let name = page.split('&').next().unwrap();
            browser.wait_for(&format!("document.title === 'weir {name}'"));
            let fits = "document.documentElement.scrollWidth <= innerWidth";
            assert_eq!(browser.evaluate(fits), true, "{page} at {width} px");
        }
    }
    browser.assert_clean(&console.address);
}

#[test]
fn the_editor_shows_diagnostics_and_results() {
    let mut console = Console::of(SAMPLE);
    let Some(mut browser) = signed_in(&mut console, "the_editor_shows_diagnostics_and_results")
    else {
        return;
    };
    browser.evaluate("location.hash = '#query'");
    browser.wait_for("document.getElementById('editor') !== null");
    let write = |text: &str| {
        format!(
            "{{ const e = document.getElementById('editor'); e.value = {}; \
             e.dispatchEvent(new Event('input')); }}",
            json!(text)
        )
    };
    // A character of four bytes in UTF-8 and two units in UTF-16 precedes the position.
    browser.evaluate(&write("select '\u{1F4BE}', avrg(latency) from IO"));
    let marked = browser.wait_for("document.querySelector('#diagnostics mark')?.textContent");
    assert_eq!(marked, "avrg");
    let text = "select op, count(*) as n from IO group by op order by n desc";
    browser.evaluate(&write(text));
    browser.evaluate("document.getElementById('run').click()");
    let rows = browser.wait_for(
        "document.querySelector('#result')?.innerText.includes('recording has ended') && \
         [...document.querySelectorAll('#result tbody tr')].map((r) => r.innerText).join('\\n')",
    );
    let out = run(&[
        "query", "--from", SAMPLE, "--final", "--format", "csv", text,
    ])
    .fine();
    let ops = out
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(1).unwrap());
    let shown = rows
        .as_str()
        .unwrap()
        .lines()
        .map(|line| line.split('\t').next().unwrap());
    assert!(ops.eq(shown), "{rows} instead of {out}");
    let address = browser.evaluate("location.hash");
    assert!(
        address.as_str().unwrap().starts_with("#query&q=select"),
        "{address}"
    );
    let tallies = "select op, histogram(latency) as h from IO group by op";
    browser.evaluate(&write(tallies));
    browser.evaluate("document.getElementById('run').click()");
    browser.wait_for("document.querySelectorAll('#result meter').length > 5");
    browser.evaluate("document.getElementById('explain').click()");
    browser
        .wait_for("document.querySelector('section[aria-label=Plan]')?.innerText.includes('IO')");
    browser.assert_clean(&console.address);
}

#[test]
fn correlations_are_those_of_the_query() {
    let sample = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../samples/three-disks.parquet"
    );
    let mut console = Console::of(sample);
    let Some(mut browser) = signed_in(&mut console, "correlations_are_those_of_the_query") else {
        return;
    };
    for (metric, pairs) in [("iops", 1), ("latency", 0)] {
        let page = format!("#correlations&metric={metric}&window=20+s");
        browser.evaluate(&format!("location.hash = '{page}'"));
        browser.wait_for(&format!(
            "document.querySelector('.panel')?.innerText.includes('whose {metric} correlates')"
        ));
        let shown = browser.wait_for(&label("Coefficients"));
        let cql = browser.evaluate("document.querySelector('.panel pre').textContent");
        let cql = cql.as_str().unwrap();
        let out = run(&["query", "--from", sample, "--final", "--format", "csv", cql]).fine();
        let rows: Vec<&str> = out.lines().skip(1).collect();
        assert_eq!(rows.len(), pairs, "{out}");
        let drawn = "[...document.querySelectorAll('.panel tbody tr')].length";
        assert_eq!(browser.evaluate(drawn), pairs);
        let shown = shown.as_str().unwrap();
        match pairs {
            0 => assert!(shown.ends_with("no pair"), "{shown}"),
            _ => assert!(
                shown.contains("/dev/loop4 and app /dev/loop5 0.99"),
                "{shown}"
            ),
        }
    }
    // Cells of the pair are orange, and the arrow of the graph is drawn.
    browser.evaluate("location.hash = '#correlations&metric=iops&window=20+s'");
    browser.wait_for(&label("Graph"));
    for canvas in 0..2 {
        browser.wait_for(&format!(
            "(() => {{ const c = document.querySelectorAll('canvas')[{canvas}]; const d = \
             c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0; for (let i = \
             0; i < d.length; i += 4) if (d[i] > 150 && d[i + 2] < 90 && d[i + 3] > 200) n += 1; \
             return n > 50; }})()"
        ));
    }
    browser.resize(360);
    browser.wait_for("document.documentElement.scrollWidth <= innerWidth");
    browser.assert_clean(&console.address);
}

#[test]
fn markup_in_a_name_is_shown_as_text() {
    let scratch = Scratch::new();
    let name = "<img src=x onerror=alert(1)>";
    let trace = requests(100).replace(",vm1,", &format!(",{name},"));
    let trace = scratch.write("t.csv", &trace);
    let mut console = Console::of(&trace);
    let Some(mut browser) = signed_in(&mut console, "markup_in_a_name_is_shown_as_text") else {
        return;
    };
    let shows = format!(
        "document.querySelector('tbody')?.innerText.includes({})",
        json!(name)
    );
    browser.wait_for(&shows);
    browser
        .wait_for("(document.querySelector('td a')?.click(), location.hash.startsWith('#disk'))");
    browser.wait_for("document.querySelector('h1')?.innerText.includes('onerror')");
    assert_eq!(
        browser.evaluate("document.querySelectorAll('img').length"),
        0
    );
    browser.assert_clean(&console.address);
}

#[test]
fn a_page_reports_that_its_console_has_ended() {
    let mut console = Console::of(SAMPLE);
    let Some(mut browser) = signed_in(&mut console, "a_page_reports_that_its_console_has_ended")
    else {
        return;
    };
    browser.wait_for(&label("Latency of all disks over time"));
    drop(console);
    browser.wait_for("document.getElementById('connection').innerText.includes('not connected')");
    // The last results stay.
    assert!(
        browser
            .evaluate(&label("Latency of all disks over time"))
            .is_string()
    );
}

/// Waits until all panels show the whole recording: none becomes higher after that.
fn wait_for_panels(browser: &mut Browser) {
    browser.wait_for(
        "[...document.querySelectorAll('.panel > .state')].every((s) => \
         s.innerText.includes('recording has ended'))",
    );
}

/// Presses at one point of an element, moves to another, and releases: shares of its size.
fn drag(browser: &mut Browser, selector: &str, from: (f64, f64), to: (f64, f64)) {
    let measure = format!(
        "(() => {{ const e = {selector}; e.scrollIntoView({{ block: 'center' }}); \
         const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; }})()"
    );
    let area = browser.evaluate(&measure);
    let area: Vec<f64> = serde_json::from_value(area).unwrap();
    let at = |(x, y): (f64, f64)| (area[0] + x * area[2], area[1] + y * area[3]);
    let middle = ((from.0 + to.0) / 2.0, (from.1 + to.1) / 2.0);
    for (kind, point, buttons) in [
        ("mouseMoved", at(from), 0),
        ("mousePressed", at(from), 1),
        ("mouseMoved", at(middle), 1),
        ("mouseMoved", at(to), 1),
        ("mouseReleased", at(to), 0),
    ] {
        let button = if kind == "mouseMoved" { "none" } else { "left" };
        let event = json!({ "type": kind, "x": point.0, "y": point.1, "button": button,
            "buttons": buttons, "clickCount": 1 });
        browser.call("Input.dispatchMouseEvent", event);
    }
}

/// The heat map whose label begins so.
fn canvas(begin: &str) -> String {
    format!(
        "[...document.querySelectorAll('canvas')].find((c) => \
         c.getAttribute('aria-label').startsWith('{begin}'))"
    )
}

/// The selection of a heat map once its rows were read: the heading, the query and the count.
fn selection(browser: &mut Browser) -> (u64, String, u64) {
    let found = browser.wait_for(
        "(() => { const s = document.querySelector('.selection:not([hidden])'); return \
         s?.dataset.rows && [s.querySelector('h3').textContent, \
         s.querySelector('textarea').value, s.dataset.rows]; })()",
    );
    let text = |at: usize| found[at].as_str().unwrap().to_owned();
    let values = text(0).split(' ').next().unwrap().parse().unwrap();
    (values, text(1), text(2).parse().unwrap())
}

#[test]
fn a_rectangle_selects_the_requests_that_its_query_returns() {
    let test = "a_rectangle_selects_the_requests_that_its_query_returns";
    let mut console = Console::of(SAMPLE);
    let Some(mut browser) = signed_in(&mut console, test) else {
        return;
    };
    for (title, from, to) in [
        ("Latency of reads", (0.2, 0.1), (0.7, 0.5)),
        ("Latency of writes", (0.3, 0.2), (0.31, 0.75)),
        ("Size of writes", (0.15, 0.05), (0.9, 0.4)),
        ("Seek distance of reads", (0.9, 0.8), (0.2, 0.3)),
        ("Queue depth of writes", (0.2, 0.1), (0.95, 0.8)),
        ("Inter-arrival time of reads", (0.2, 0.2), (0.8, 0.7)),
    ] {
        browser.evaluate("location.hash = '#overview'");
        browser.wait_for("document.title === 'weir overview'");
        browser.evaluate("location.hash = '#disk&pdisk=%2Fdev%2Floop1'");
        browser.wait_for(&label(&format!("{title} over time")));
        wait_for_panels(&mut browser);
        drag(&mut browser, &canvas(title), from, to);
        let (values, text, rows) = selection(&mut browser);
        // The cells, the rows on the page, and those of the command agree.
        let out = run(&["query", "--from", SAMPLE, "--format", "json", &text]).fine();
        let printed = out.lines().count() as u64;
        assert_eq!((values, rows), (printed, printed), "{title}: {text}");
        assert!(rows > 0, "{title}: {text}");
    }
    browser.assert_clean(&console.address);
}

#[test]
fn the_query_of_a_rectangle_can_be_edited() {
    let test = "the_query_of_a_rectangle_can_be_edited";
    let mut console = Console::of(SAMPLE);
    let Some(mut browser) = signed_in(&mut console, test) else {
        return;
    };
    browser.wait_for(&label("Latency of all disks over time"));
    let map = canvas("Latency of all disks");
    wait_for_panels(&mut browser);
    drag(&mut browser, &map, (0.15, 0.1), (0.95, 0.85));
    let (_, text, rows) = selection(&mut browser);
    let edited = format!("{text} and op = 'w'");
    let write = format!(
        "{{ const s = document.querySelector('.selection'); \
         s.querySelector('textarea').value = {}; s.querySelector('button').click(); }}",
        json!(edited)
    );
    browser.evaluate(&write);
    let (_, _, fewer) = selection(&mut browser);
    let out = run(&["query", "--from", SAMPLE, "--format", "json", &edited]).fine();
    assert_eq!(fewer, out.lines().count() as u64);
    assert!(fewer < rows);
    // Without a pointer: the arrow keys select, and Enter shows the requests.
    browser.evaluate(&format!("{map}.focus()"));
    let key = |name: &str, modifiers: u32| json!({ "type": "keyDown", "key": name, "code": name, "modifiers": modifiers });
    for _ in 0..2 {
        browser.call("Input.dispatchKeyEvent", key("ArrowLeft", 0));
    }
    for name in ["ArrowLeft", "ArrowLeft", "ArrowUp", "ArrowUp", "ArrowUp"] {
        browser.call("Input.dispatchKeyEvent", key(name, 8));
    }
    browser.call("Input.dispatchKeyEvent", key("Enter", 0));
    let (values, text, rows) = selection(&mut browser);
    let out = run(&["query", "--from", SAMPLE, "--format", "json", &text]).fine();
    let printed = out.lines().count() as u64;
    assert_eq!((values, rows), (printed, printed), "{text}");
    browser.assert_clean(&console.address);
}

#[test]
fn the_pixels_of_a_heat_map_are_the_counts_of_the_query() {
    let test = "the_pixels_of_a_heat_map_are_the_counts_of_the_query";
    let mut console = Console::of(SAMPLE);
    let Some(mut browser) = signed_in(&mut console, test) else {
        return;
    };
    browser.evaluate("location.hash = '#disk&pdisk=%2Fdev%2Floop1'");
    browser.wait_for(&label("Size of writes over time"));
    // The colours of all cells; the scale is steadily brighter, so they have an order.
    let pixels = format!(
        "(() => {{ const c = {}; const [left, top, right, bottom] = [64, 8, 8, 20]; \
         const g = c.getContext('2d'); const columns = 62, rows = 6; const cells = []; \
         for (let x = 0; x < columns; x += 1) for (let y = 0; y < rows; y += 1) {{ \
         const at = [left + (x + 0.5) * (c.width - left - right) / columns, \
         top + (y + 0.5) * (c.height - top - bottom) / rows]; \
         const p = g.getImageData(Math.floor(at[0]), Math.floor(at[1]), 1, 1).data; \
         cells.push([x, rows - 1 - y, p[3] === 0 ? 0 : p[0] + 2 * p[1]]); }} return cells; }})()",
        canvas("Size of writes")
    );
    let cells: Vec<(usize, usize, u64)> =
        serde_json::from_value(browser.evaluate(&pixels)).unwrap();
    let text = "Rstream(select histogram(bytes) as h from IO [range 100 ms slide 100 ms] \
                where op = 'w')";
    let out = run(&["query", "--from", SAMPLE, "--format", "json", text]).fine();
    let slides: Vec<Value> = out
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(slides.len(), 62);
    let mut counted: Vec<(u64, u64)> = Vec::new();
    for (x, row, brightness) in cells {
        let limit = 4096u64 << row;
        let pairs = slides[x]["h"].as_array().cloned().unwrap_or_default();
        let of_limit = pairs.iter().find(|pair| pair[0] == limit);
        let count = of_limit.map_or(0, |pair| pair[1].as_u64().unwrap());
        counted.push((count, brightness));
    }
    counted.sort_unstable();
    assert!(counted.last().unwrap().0 > 5);
    for pair in counted.windows(2) {
        let [(before, dark), (count, bright)] = [pair[0], pair[1]];
        match before == count {
            true => assert_eq!(dark, bright, "two cells of {count} values"),
            false => assert!(dark < bright, "{before} values and {count} values"),
        }
    }
}

#[test]
fn recordings_are_opened_moved_on_and_compared() {
    let test = "recordings_are_opened_moved_on_and_compared";
    let scratch = Scratch::new();
    let folder = scratch.path().join("recordings");
    std::fs::create_dir(&folder).unwrap();
    for name in ["a.parquet", "b.parquet"] {
        std::fs::copy(SAMPLE, folder.join(name)).unwrap();
    }
    let mut console = Console::start(&["--from", SAMPLE, "--recordings", folder.to_str().unwrap()]);
    let Some(mut browser) = signed_in(&mut console, test) else {
        return;
    };
    browser.evaluate("location.hash = '#recordings'");
    browser.wait_for("document.querySelectorAll('#page input[type=checkbox]').length === 2");
    browser.evaluate("document.querySelectorAll('#page input').forEach((e) => e.click())");
    browser.wait_for(
        "(document.getElementById('compare').click(), location.hash.startsWith('#compare'))",
    );
    let both = "[...document.querySelectorAll('canvas')].filter((c) => \
        c.getAttribute('aria-label').startsWith('Latency of writes over time: 780 values')).length === 2";
    browser.wait_for(both);
    // An interval in the address limits all charts.
    let range = "#overview&source=recording%3Aa.parquet&after=1795234965000&until=1795234967000";
    browser.evaluate(&format!("location.hash = '{range}'"));
    let shown = browser.wait_for(&label("Latency of all disks over time"));
    let inside = "ts > timestamp '2026-11-21T04:22:45Z' and ts <= timestamp '2026-11-21T04:22:47Z'";
    let total = count(SAMPLE, &format!("latency is not null and {inside}"));
    let expected = format!(": {total} values");
    assert!(
        shown.as_str().unwrap().contains(&expected),
        "{shown}, not {expected}"
    );
    browser.wait_for("document.querySelector('[aria-label=Later]') !== null");
    browser.evaluate("document.querySelector('[aria-label=Later]').click()");
    browser.wait_for("location.hash.includes('after=1795234966000')");
    browser.assert_clean(&console.address);
}

#[test]
fn the_editor_completes_names() {
    let mut console = Console::of(SAMPLE);
    let Some(mut browser) = signed_in(&mut console, "the_editor_completes_names") else {
        return;
    };
    browser.evaluate("location.hash = '#query'");
    browser.wait_for("document.getElementById('editor') !== null");
    let begin = "{ const e = document.getElementById('editor'); e.value = 'select laten'; \
        e.focus(); e.setSelectionRange(12, 12); e.dispatchEvent(new InputEvent('input')); }";
    browser.evaluate(begin);
    browser
        .wait_for("document.querySelector('#completions li')?.textContent.startsWith('latency')");
    let tab = json!({ "type": "keyDown", "key": "Tab", "code": "Tab" });
    browser.call("Input.dispatchKeyEvent", tab);
    browser.wait_for("document.getElementById('editor').value === 'select latency'");
    browser.assert_clean(&console.address);
}

#[test]
fn live_charts_show_the_load_with_what_was_retained() {
    let test = "live_charts_show_the_load_with_what_was_retained";
    if !crate::live::watchable(test) {
        return;
    }
    let Some(disk) = crate::live::loop_disk(test) else {
        return;
    };
    let mut console = Console::start(&["--device", disk.path()]);
    console.wait_for_source();
    // Before the page is open.
    super::live::write_requests(disk.path(), 300);
    let Some(mut browser) = signed_in(&mut console, test) else {
        return;
    };
    super::live::write_requests(disk.path(), 200);
    let total = "(() => { const c = [...document.querySelectorAll('canvas')].find((c) => \
        c.getAttribute('aria-label').startsWith('Latency of all disks over time: 500 values')); \
        return c !== undefined; })()";
    browser.wait_for(total);
    let map = canvas("Latency of all disks");
    drag(&mut browser, &map, (0.02, 0.01), (0.98, 0.97));
    let (values, text, rows) = selection(&mut browser);
    assert_eq!((values, rows), (500, 500), "{text}");
    for page in ["queries", "alerts", "fleet", "recordings"] {
        browser.evaluate(&format!("location.hash = '#{page}'"));
        browser.wait_for(&format!("document.title === 'weir {page}'"));
        browser.wait_for("document.querySelector('h1') !== null");
    }
    browser.assert_clean(&console.address);
}

#[test]
fn a_disk_is_limited_from_its_page_and_its_lease_ended() {
    let test = "a_disk_is_limited_from_its_page_and_its_lease_ended";
    if !crate::live::watchable(test) {
        return;
    }
    let scratch = Scratch::new();
    let Some(vm) = super::live::ServedVm::start(test, &scratch) else {
        return;
    };
    let state = scratch.file("leases");
    let mut console = Console::start(&["--act", &vm.name, "--act-state", &state]);
    let Some(mut browser) = signed_in(&mut console, test) else {
        return;
    };
    let page = format!("#disk&vm={}&vdisk=/dev/vda", vm.name);
    browser.evaluate(&format!("location.hash = '{page}'"));
    browser.wait_for("document.querySelector('#limit > summary') !== null");
    browser.evaluate("document.getElementById('limit').open = true");
    browser.evaluate("document.getElementById('limit-iops').value = '300'");
    browser.evaluate("document.getElementById('limit-show').click()");
    browser.wait_for("document.querySelector('#limit pre')?.textContent.includes('\"iops\":300')");
    assert_eq!(vm.iops(), 0);
    browser.evaluate("document.getElementById('limit-apply').click()");
    browser.wait_for("document.querySelector('#limit a[href=\"#alerts\"]') !== null");
    assert_eq!(vm.iops(), 300);
    browser.evaluate("location.hash = '#alerts'");
    browser.wait_for("document.querySelector('button[aria-label^=\"End lease\"]') !== null");
    browser.evaluate("document.querySelector('button[aria-label^=\"End lease\"]').click()");
    browser.wait_for("document.body.innerText.includes('no limit is set')");
    assert_eq!(vm.iops(), 0);
    browser.assert_clean(&console.address);
}

#[test]
fn the_alerts_of_a_fleet_are_shown_silenced_and_removed() {
    let test = "the_alerts_of_a_fleet_are_shown_silenced_and_removed";
    let monitor = crate::fleet::processes::Monitor::start();
    let alert = "create alert present as select host, state from hosts when state = 'up'
        labels host annotations '<b>{host}</b> is {state}' as summary;";
    let file = monitor.home.write("alert.cql", alert);
    monitor.run(&["alert", "place", "-f", &file]).fine();
    let trace = monitor.home.write("a.csv", &requests(10));
    let _agents = monitor.agents(&[trace]);
    let mut console = Console::start(&["--monitor", &monitor.address]);
    let Some(mut browser) = signed_in(&mut console, test) else {
        return;
    };
    browser.evaluate("location.hash = '#alerts'");
    browser.wait_for("document.body.innerText.includes('<b>a</b> is up')");
    browser.wait_for("document.body.innerText.includes('present{host=\\\"a\\\"}')");
    browser.evaluate("document.getElementById('silence').open = true");
    browser.evaluate("document.getElementById('silence-alert').value = 'present'");
    browser.evaluate("document.getElementById('silence-labels').value = 'host=a zone=x=y'");
    browser.evaluate("document.getElementById('silence-comment').value = 'reboot <i>soon</i>'");
    browser.evaluate("document.getElementById('silence-add').click()");
    browser.wait_for("document.body.innerText.includes('reboot <i>soon</i>')");
    let listed = monitor.run(&["alert", "silences", "--json"]).fine();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["labels"], json!({ "host": "a", "zone": "x=y" }));
    let click =
        |label: &str| format!("document.querySelector('button[aria-label^=\"{label}\"]').click()");
    browser.evaluate(&click("End silence"));
    browser.wait_for("document.body.innerText.includes('no silences')");
    browser.evaluate(&click("Remove alert present"));
    browser.wait_for("document.body.innerText.includes('no alert runs at the monitor')");
    assert_eq!(monitor.run(&["alert", "list", "--json"]).fine(), "[]\n");
    browser.assert_clean(&console.address);
}
