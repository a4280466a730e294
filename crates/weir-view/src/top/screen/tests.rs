//! Screens are compared with those in `pictures/`. `WEIR_BLESS=1` rewrites them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Color;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use weir_model::Symbol;

use super::draw::{ScreenLayout, draw};
use crate::top::batch;
use crate::top::columns::{COLUMNS, index};
use crate::top::gather::{Bars, Key, Tick, TopLine};
use crate::top::levels::{FilesOf, TopFile, TopProcess};
use crate::top::queries::{HISTOGRAMS, TopDisk, TopLevel};
use crate::top::state::{KeyAction, State, View};
use weir_sink::plot::Ink;

const COLORS: Ink = Ink {
    color: true,
    unicode: true,
};

const PLAIN: Ink = Ink {
    color: false,
    unicode: false,
};

fn symbol(text: &str) -> Option<Symbol> {
    (!text.is_empty()).then(|| Symbol::new(text))
}

/// A line with given IOPS and mean latency in us, from which the other columns are derived.
fn line(vm: &str, vdisk: &str, pdisk: &str, op: &str, iops: f64, mean_us: f64) -> TopLine {
    let disk = TopDisk {
        vm: symbol(vm),
        vdisk: symbol(vdisk),
        pdisk: symbol(pdisk),
    };
    let mut values = vec![None; COLUMNS.len()];
    let mut set = |name: &str, value: f64| values[index(name)] = Some(value);
    set("iops", iops);
    set("throughput", iops * 16_384.0);
    set("size", 16_384.0);
    set("load", iops * mean_us / 1e6);
    set("depth", 1.0 + iops * mean_us / 1e6);
    set("sequential", 25.0);
    for (name, share) in [("", 1.0), ("wait_", 0.125), ("service_", 0.875)] {
        let ns = mean_us * 1_000.0 * share;
        set(&format!("{name}mean"), ns);
        set(&format!("{name}p50"), ns * 0.75);
        set(&format!("{name}p99"), ns * 4.0);
        set(&format!("{name}max"), ns * 16.0);
    }
    let key = Key {
        disk,
        op: symbol(op),
        ..Key::EMPTY
    };
    TopLine { key, values }
}

fn tick(lines: Vec<TopLine>) -> Tick {
    let of = |name: &str| -> f64 { lines.iter().filter_map(|l| l.values[index(name)]).sum() };
    let rest = |name: &str| -> f64 {
        let rest = lines.iter().filter(|l| l.key.disk.vm.is_none());
        rest.filter_map(|l| l.values[index(name)]).sum()
    };
    let (iops, load) = (of("iops"), of("load"));
    let totals = [
        iops,
        of("throughput"),
        load,
        1e9 * load / iops,
        2.5e6,
        rest("iops"),
        rest("load"),
    ];
    Tick {
        // 2026-11-21 06:00:00
        at: 1_795_240_800_000_000_000,
        totals: totals.map(Some).to_vec(),
        losses: [123_456.0, 0.0, 0.0, 0.0].map(Some).to_vec(),
        lines,
        ..Tick::default()
    }
}

fn three_vms() -> Vec<TopLine> {
    vec![
        line("db1", "/dev/vda", "/dev/sda", "r", 5_210.0, 212.0),
        line("db1", "/dev/vda", "/dev/sda", "w", 1_890.0, 1_310.0),
        line("db1", "/dev/vdb", "/dev/sdb", "w", 310.0, 95.0),
        line("db1", "/dev/vdb", "/dev/sdb", "f", 12.0, 4_210.0),
        line("web-frontend-03", "/dev/vda", "/dev/sda", "r", 77.0, 180.0),
        line("mail", "/dev/sda", "/dev/sda", "d", 0.5, 12_000.0),
        line("", "", "/dev/sda", "w", 45.0, 800.0),
    ]
}

fn state(ticks: impl IntoIterator<Item = Tick>) -> State {
    let mut state = State::new("live".into(), Duration::from_secs(1));
    ticks.into_iter().for_each(|tick| state.add_tick(tick));
    state
}

fn press(state: &mut State, code: KeyCode) -> KeyAction {
    state.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_in(state: &mut State, text: &str) {
    text.chars().for_each(|c| {
        press(state, KeyCode::Char(c));
    });
}

fn picture(state: &mut State, (width, height): (u16, u16), ink: Ink) -> Buffer {
    let area = Rect::new(0, 0, width, height);
    state.set_page(ScreenLayout::new(area, state.view()).page());
    let mut buffer = Buffer::empty(area);
    draw(state, ink, &mut buffer);
    buffer
}

fn text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let line = |y| -> String {
        let cells = (0..area.width).map(|x| buffer[(x, y)].symbol());
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    (0..area.height).map(line).collect()
}

/// Compares the screen with `pictures/NAME.txt`.
fn check(name: &str, state: &mut State, size: (u16, u16), ink: Ink) {
    let seen = text(&picture(state, size, ink));
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = path.join(format!("src/top/screen/pictures/{name}.txt"));
    if std::env::var_os("WEIR_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &seen).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        seen == expected,
        "{name} is now:\n{seen}\nand was:\n{expected}"
    );
}

#[test]
fn the_busiest_are_first_on_a_small_screen() {
    let mut state = state([tick(three_vms())]);
    check("small", &mut state, (80, 24), COLORS);
}

#[test]
fn a_large_screen_has_more_columns() {
    let grown = |n: usize| {
        let mut lines = three_vms();
        lines[0] = line(
            "db1",
            "/dev/vda",
            "/dev/sda",
            "r",
            5_210.0,
            100.0 * (1 + n % 5) as f64,
        );
        tick(lines)
    };
    let mut state = state((0..30).map(grown));
    check("large", &mut state, (120, 40), COLORS);
}

#[test]
fn without_colours_all_text_is_shown() {
    let mut state = state([tick(three_vms())]);
    let plain = picture(&mut state, (80, 24), PLAIN);
    let colored =
        |cell: &ratatui_core::buffer::Cell| cell.fg != Color::Reset || cell.bg != Color::Reset;
    assert!(!plain.content.iter().any(colored));
    assert!(text(&plain).is_ascii());
    check("monochrome", &mut state, (80, 24), PLAIN);
    // With colours, the letters are the same.
    let unicode = Ink {
        unicode: true,
        ..PLAIN
    };
    let without = text(&picture(&mut state, (80, 24), unicode));
    assert_eq!(text(&picture(&mut state, (80, 24), COLORS)), without);
    assert!(
        picture(&mut state, (80, 24), COLORS)
            .content
            .iter()
            .any(colored)
    );
}

#[test]
fn five_hundred_disks_are_scrolled_through() {
    let lines = (0..500).map(|i| {
        let (vm, disk) = (
            format!("vm{:03}", i / 4),
            format!("/dev/vd{}", ['a', 'b', 'c', 'd'][i % 4]),
        );
        line(&vm, &disk, "/dev/sda", "r", 1_000.0 - i as f64, 250.0)
    });
    let mut state = state([tick(lines.collect())]);
    check("many-top", &mut state, (80, 24), COLORS);
    for _ in 0..3 {
        press(&mut state, KeyCode::PageDown);
    }
    check("many-middle", &mut state, (80, 24), COLORS);
    press(&mut state, KeyCode::End);
    let seen = text(&picture(&mut state, (80, 24), COLORS));
    assert!(seen.contains("> vm124    /dev/vdd"), "{seen}");
    press(&mut state, KeyCode::Up);
    press(&mut state, KeyCode::Home);
    let seen = text(&picture(&mut state, (80, 24), COLORS));
    assert!(seen.contains("> vm000    /dev/vda"), "{seen}");
}

#[test]
fn a_filter_keeps_lines_that_have_it_in_a_name() {
    let mut state = state([tick(three_vms())]);
    press(&mut state, KeyCode::Char('/'));
    type_in(&mut state, "WEB");
    check("filter", &mut state, (80, 24), COLORS);
    type_in(&mut state, "zz");
    let seen = text(&picture(&mut state, (80, 24), COLORS));
    assert!(seen.contains("no name contains the filter text"), "{seen}");
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.order.len(), 7, "as before");
}

#[test]
fn an_empty_table_has_a_reason() {
    let mut state = state([tick(Vec::new())]);
    for (level, why) in [
        (TopLevel::Block, "no I/O in this interval"),
        (TopLevel::Vdisk, "QEMU counted no I/O"),
    ] {
        state.level = level;
        let seen = text(&picture(&mut state, (80, 24), COLORS));
        assert!(seen.contains(why), "{seen}");
        let seen = batch::text(&state);
        assert!(seen.contains(why), "{seen}");
    }
}

#[test]
fn a_vm_opens_to_its_disks_and_a_disk_to_its_histograms() {
    let mut state = state([tick(three_vms())]);
    assert_eq!(press(&mut state, KeyCode::Enter), KeyAction::QueryView);
    assert_eq!(state.view(), View::Vm(Symbol::new("db1")));
    check("vm", &mut state, (80, 24), COLORS);
    press(&mut state, KeyCode::Down);
    assert_eq!(press(&mut state, KeyCode::Enter), KeyAction::QueryView);
    let seen = text(&picture(&mut state, (80, 24), COLORS));
    assert!(seen.contains("no requests yet"), "{seen}");
    let mut next = tick(three_vms());
    next.bars = vec![bars("r", 9_000), bars("w", 700)];
    state.add_tick(next);
    check("histograms", &mut state, (80, 24), COLORS);
    press(&mut state, KeyCode::Tab);
    check("histograms-writes", &mut state, (120, 40), PLAIN);
    assert_eq!(press(&mut state, KeyCode::Esc), KeyAction::QueryView);
    assert_eq!(press(&mut state, KeyCode::Esc), KeyAction::QueryView);
    assert_eq!(state.view(), View::All);
    assert_eq!(press(&mut state, KeyCode::Char('q')), KeyAction::Quit);
}

/// Requests distributed over the buckets, fewer in later ones.
fn bars(op: &str, requests: i64) -> Bars {
    let histogram = |h: &crate::top::queries::DiskHistogram| {
        let limits = h.limits.iter().enumerate().skip(2);
        let bucket = |(i, limit): (usize, &i64)| (Some((limit * h.unit.0) as f64), requests >> i);
        limits.map(bucket).chain([(None, 1)]).collect()
    };
    Bars {
        op: symbol(op),
        requests: Some(requests as f64),
        histograms: HISTOGRAMS.iter().map(histogram).collect(),
    }
}

#[test]
fn what_is_no_vms_opens_to_the_commands_that_do_it() {
    let mut state = state([tick(three_vms())]);
    press(&mut state, KeyCode::Char('v'));
    press(&mut state, KeyCode::End);
    assert_eq!(press(&mut state, KeyCode::Enter), KeyAction::QueryView);
    assert_eq!(state.view(), View::Rest);
    let mut next = tick(three_vms());
    let mut backup = line("", "", "/dev/sda", "w", 45.0, 800.0);
    backup.key.comm = symbol("backup\x1b[2J");
    next.details = vec![backup];
    state.add_tick(next);
    check("not-a-vm", &mut state, (80, 24), COLORS);
}

/// A line of a file or a process, with the values of `of`.
fn about(file: Option<TopFile>, process: Option<TopProcess>, of: TopLine) -> TopLine {
    let key = Key {
        file,
        process,
        ..Key::EMPTY
    };
    TopLine { key, ..of }
}

fn file(path: &str, inode: i64, iops: f64) -> TopLine {
    let file = TopFile {
        pdisk: symbol("/dev/sda"),
        fs: symbol("ext4"),
        path: symbol(path),
        inode: Some(inode),
    };
    let mut line = about(Some(file), None, line("", "", "", "", iops, 400.0));
    for (name, value) in [("reads", 75.0), ("direct", 100.0), ("cached", 12.0)] {
        line.values[index(name)] = Some(value);
    }
    line
}

fn process(comm: &str, pid: i64, iops: f64) -> TopLine {
    let process = TopProcess {
        vm: None,
        pid: Some(pid),
        comm: symbol(comm),
        cgroup: symbol("/system.slice/db.service"),
    };
    about(None, Some(process), line("", "", "", "", iops, 400.0))
}

#[test]
fn levels_are_switched_and_files_open_to_their_processes() {
    let mut state = state([tick(three_vms())]);
    press(&mut state, KeyCode::Char('l'));
    assert_eq!(state.level, TopLevel::Block);
    assert!(state.notice.as_ref().unwrap().contains("no other level"));
    state.level_absent = Some("this kernel has no iomap_dio_rw_begin".into());
    press(&mut state, KeyCode::Char('f'));
    assert_eq!(state.notice, state.level_absent);
    state.levels = TopLevel::ALL.to_vec();
    assert!(state.streams().is_empty(), "nothing else is attached");

    // By a key to all files, in the order of a column that the level has.
    state.sort = 3 + index("depth");
    assert_eq!(press(&mut state, KeyCode::Char('l')), KeyAction::QueryLevel);
    assert_eq!(
        state.streams(),
        ["FileIO", "PageCache", "FileIO", "PageCache"]
    );
    assert_eq!(state.sort, 3 + index("load"));
    let deep = "/srv/images/a-folder-with-a-long-name/of/many/levels/base.qcow2";
    let files = || {
        tick(vec![
            file(deep, 12, 900.0),
            file("/srv/a\x1b[2Jb\nc (deleted)", 13, 80.0),
            file("", 14, 7.0),
        ])
    };
    state.add_tick(files());
    check("files", &mut state, (80, 24), PLAIN);
    press(&mut state, KeyCode::Down);
    assert_eq!(press(&mut state, KeyCode::Enter), KeyAction::QueryView);
    let View::Processes(opened, TopLevel::File) = state.view() else {
        panic!("{:?}", state.view());
    };
    assert_eq!(opened.inode, Some(13));
    let mut next = files();
    // A late line of another view is not shown.
    next.details = vec![process("postgres", 4711, 70.0), file("/other", 1, 1.0)];
    state.add_tick(next);
    check("processes", &mut state, (80, 24), COLORS);
    assert_eq!(
        press(&mut state, KeyCode::Enter),
        KeyAction::None,
        "the last view"
    );
    assert_eq!(press(&mut state, KeyCode::Esc), KeyAction::QueryView);
    assert_eq!((state.view(), state.order.len()), (View::All, 3));

    // The next level: a process opens to its files.
    press(&mut state, KeyCode::Char('l'));
    assert_eq!(state.streams(), ["IOpath", "IOpath"]);
    state.add_tick(tick(vec![process("fio\t", 9, 12.0)]));
    check("app", &mut state, (80, 24), PLAIN);
    press(&mut state, KeyCode::Enter);
    assert!(matches!(state.view(), View::Files(FilesOf::Process(_))));
    press(&mut state, KeyCode::Char('l'));
    assert_eq!((state.level, state.view()), (TopLevel::Vdisk, View::All));
    press(&mut state, KeyCode::Char('l'));
    assert_eq!(state.level, TopLevel::Block);
}

#[test]
fn a_disk_opens_to_its_files_and_these_to_their_processes() {
    let mut state = state([tick(three_vms())]);
    state.levels = TopLevel::ALL.to_vec();
    press(&mut state, KeyCode::Enter);
    assert_eq!(press(&mut state, KeyCode::Char('f')), KeyAction::QueryView);
    let disk = symbol("/dev/sda");
    assert_eq!(state.view(), View::Files(FilesOf::Disk(disk)));
    assert_eq!(
        (state.level, state.streams()),
        (TopLevel::Block, vec!["IOpath"])
    );
    let mut next = tick(three_vms());
    next.details = vec![file("/srv/db", 12, 900.0)];
    state.add_tick(next);
    let seen = text(&picture(&mut state, (80, 24), COLORS));
    assert!(seen.contains("all > db1 > files of /dev/sda"), "{seen}");
    press(&mut state, KeyCode::Enter);
    assert!(matches!(state.view(), View::Processes(_, TopLevel::App)));
    let seen = text(&picture(&mut state, (80, 24), COLORS));
    assert!(
        seen.contains("files of /dev/sda > processes of /srv/db"),
        "{seen}"
    );
    for view in [
        View::Files(FilesOf::Disk(disk)),
        View::Vm(Symbol::new("db1")),
        View::All,
    ] {
        assert_eq!(press(&mut state, KeyCode::Esc), KeyAction::QueryView);
        assert_eq!(state.view(), view);
    }
    assert!(state.streams().is_empty());
}

#[test]
fn batch_tables_have_the_keys_and_columns_of_their_level() {
    let mut state = state([]);
    state.level = TopLevel::File;
    state.add_tick(tick(vec![file("/srv/a\x1b[2J", 13, 80.0)]));
    let table = batch::text(&state);
    let header = table.lines().nth(2).unwrap();
    assert!(
        header.starts_with("PDISK     FS    PATH           INODE  IOPS"),
        "{table}"
    );
    assert!(
        !header.contains("QD") && table.contains("/srv/a\\x1b[2J"),
        "{table}"
    );
    let json: serde_json::Value = serde_json::from_str(&batch::json(&state)).unwrap();
    let row = &json["rows"][0];
    assert_eq!(
        (&json["level"], &row["inode"], &row["direct"]),
        (&"file".into(), &13.into(), &100.0.into())
    );
    assert_eq!(row["path"], "/srv/a\x1b[2J");
    assert!(row.get("depth").is_none(), "{row}");
}

#[test]
fn keys_sort_turn_round_and_stop_the_picture() {
    let mut state = state([tick(three_vms())]);
    let first = |state: &State| state.lines()[state.order[0]].key.disk.vm;
    press(&mut state, KeyCode::Char('m'));
    assert_eq!(first(&state), symbol("mail"), "the greatest mean latency");
    press(&mut state, KeyCode::Char('r'));
    assert_eq!(first(&state), symbol("db1"), "the least");
    press(&mut state, KeyCode::Char('r'));
    press(&mut state, KeyCode::Char(' '));
    state.add_tick(tick(vec![line(
        "new", "/dev/vda", "/dev/sdc", "r", 1.0, 1.0,
    )]));
    check("paused", &mut state, (80, 24), COLORS);
    press(&mut state, KeyCode::Char(' '));
    assert_eq!(first(&state), symbol("new"));
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.key(interrupt), KeyAction::Interrupt);
}

#[test]
fn the_line_that_was_chosen_is_followed_when_the_order_changes() {
    let mut state = state([tick(three_vms())]);
    press(&mut state, KeyCode::Down);
    let chosen = state.selected;
    let mut lines = three_vms();
    lines[6] = line("", "", "/dev/sda", "w", 45_000.0, 800.0);
    lines.swap(1, 4);
    state.add_tick(tick(lines));
    assert_eq!(state.selected, chosen);
    state.add_tick(tick(vec![]));
    assert_eq!(state.selected, None);
    let seen = text(&picture(&mut state, (80, 24), COLORS));
    assert!(seen.contains("no I/O in this interval"), "{seen}");
}

#[test]
fn losses_are_highlighted() {
    let mut lossy = tick(three_vms());
    lossy.losses = [999_999.0, 1.0, 2.0, 24.0].map(Some).to_vec();
    let mut state = state([lossy]);
    let seen = text(&picture(&mut state, (80, 24), COLORS));
    assert!(seen.contains("seen 99.999 %, missed 1, late 2"), "{seen}");
    let seen = batch::text(&state);
    assert!(
        seen.contains("missed 1, late 2, 24 sectors unseen"),
        "{seen}"
    );
}

#[test]
fn rates_and_sums_of_an_interval_with_losses_are_marked_as_lower_bounds() {
    let lossy = Tick {
        lower_bound: true,
        ..tick(three_vms())
    };
    let mut state = state([lossy]);
    let seen = text(&picture(&mut state, (100, 24), COLORS));
    assert!(seen.contains("all: >=7.5k IOPS"), "{seen}");
    assert!(
        seen.contains(" >5.2k ") && !seen.contains(" 5.2k "),
        "{seen}"
    );
    let plain = batch::text(&state);
    assert!(
        plain.contains("all: >=7.5k IOPS") && plain.contains(" >=5.2k "),
        "{plain}"
    );
    assert!(!plain.contains("latency mean >="), "{plain}");
    let json: serde_json::Value = serde_json::from_str(&crate::top::batch::json(&state)).unwrap();
    assert_eq!(json["lower_bound"], true);
    state.add_tick(tick(three_vms()));
    assert!(!batch::text(&state).contains(">="));
}

#[test]
fn no_size_is_too_small_to_draw_on() {
    let mut state = state([tick(three_vms())]);
    for view in ["all", "a VM", "a disk"] {
        let mut next = tick(three_vms());
        next.bars = vec![bars("r", 9_000)];
        state.add_tick(next);
        for width in 0..60 {
            for height in 0..40 {
                picture(&mut state, (width, height), COLORS);
            }
        }
        assert_eq!(view == "a disk", matches!(state.view(), View::Disk(_)));
        press(&mut state, KeyCode::Enter);
    }
    state.help = true;
    picture(&mut state, (3, 3), COLORS);
    check("help", &mut state, (80, 24), COLORS);
}
