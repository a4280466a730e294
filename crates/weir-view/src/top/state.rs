//! [`State`]: what the screen shows, and what keys do to it. It does no I/O: a key gives a
//! [`Wish`], and whoever owns the terminal and the queries grants it.

use std::cmp::Ordering;
use std::time::Duration;

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use weir_model::Symbol;

use super::columns::{COLUMNS, index};
use super::gather::{Key, Line, Tick};
use super::history::History;
use super::queries::{Disk, HISTOGRAM_INTERVALS, Level};

/// What a key asks of the outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing, or what [`State`] could do itself.
    None,
    /// The end.
    Quit,
    /// The end, as by SIGINT.
    Interrupt,
    /// The screen is to be written anew, whatever it holds.
    Redraw,
    /// Other questions: those of the view that is now on top.
    Ask,
    /// Other questions: those of the other level.
    Level,
}

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Every disk of every VM.
    All,
    /// One VM's disks.
    Vm(Symbol),
    /// What is not a VM's: the commands that do it.
    Rest,
    /// One disk's histograms.
    Disk(Disk),
}

/// By what lines are sorted: names first, then the columns.
pub const NAMES: [&str; 3] = ["VM", "DISK", "OP"];

/// Longest text to filter by.
const FILTER_CHARS_MAX: usize = 60;

/// Everything that a picture depends on.
#[derive(Debug)]
pub struct State {
    /// Where events come from, in words.
    pub source: String,
    /// How often there is a table.
    pub interval: Duration,
    /// Where in the stack is looked.
    pub level: Level,
    /// Whether the other level can be had.
    pub levels: bool,
    /// What is looked at, the last on top. Never empty.
    pub views: Vec<View>,
    /// The tick that is shown.
    pub tick: Tick,
    /// The latest one, while an older one is shown.
    latest: Option<Tick>,
    /// Whether the picture stands still.
    pub paused: bool,
    /// Latencies of the last intervals.
    pub history: History,
    /// By which of [`NAMES`] and columns lines are sorted.
    pub sort: usize,
    /// The other way round.
    pub reversed: bool,
    /// Lines that have this in a name are shown.
    pub filter: String,
    /// The filter is being typed; this is what it was before.
    pub typing: Option<String>,
    /// The line that keys act upon.
    pub selected: Option<Key>,
    /// The selected line is the first one, whichever that is.
    at_top: bool,
    /// The lines that are shown, as positions in [`State::lines`].
    pub order: Vec<usize>,
    /// The first line on the screen.
    pub first: usize,
    /// Lines that the screen has room for; told by whoever draws.
    pub page: usize,
    /// Which kind of requests a disk's histograms are about, among those there are.
    pub op: usize,
    /// The help is shown.
    pub help: bool,
    /// Something to tell, until the next key.
    pub notice: Option<String>,
    /// Which stacked devices have I/O and are not watched, where nothing else is shown.
    pub left_out: Option<String>,
    /// The source has ended.
    pub ended: bool,
}

impl State {
    /// Nothing seen yet, everything looked at, the greatest load first.
    pub fn new(source: String, interval: Duration) -> State {
        State {
            source,
            interval,
            level: Level::Block,
            levels: false,
            views: vec![View::All],
            tick: Tick::default(),
            latest: None,
            paused: false,
            history: History::default(),
            sort: NAMES.len() + index("load"),
            reversed: false,
            filter: String::new(),
            typing: None,
            selected: None,
            at_top: true,
            order: Vec::new(),
            first: 0,
            page: 1,
            op: 0,
            help: false,
            notice: None,
            left_out: None,
            ended: false,
        }
    }

    /// What is looked at.
    pub fn view(&self) -> View {
        *self.views.last().expect("there is always a view")
    }

    /// The lines of the view, before filter and order.
    pub fn lines(&self) -> &[Line] {
        match self.view() {
            View::Rest => &self.tick.submitters,
            _ => &self.tick.lines,
        }
    }

    /// The line that keys act upon.
    pub fn selected_line(&self) -> Option<&Line> {
        let lines = self.lines();
        let selected = self.selected?;
        let mut shown = self.order.iter().map(|&i| &lines[i]);
        shown.find(|line| line.key == selected)
    }

    /// Takes what another interval brought.
    pub fn take(&mut self, tick: Tick) {
        self.history.add(tick.lines.iter().chain(&tick.submitters));
        if self.paused {
            self.latest = Some(tick);
        } else {
            self.tick = tick;
            self.arrange();
        }
    }

    /// Does what a key says.
    pub fn key(&mut self, key: KeyEvent) -> Wish {
        self.notice = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Wish::Interrupt,
                KeyCode::Char('l') => Wish::Redraw,
                _ => Wish::None,
            };
        }
        if self.typing.is_some() {
            self.type_filter(key.code);
            return Wish::None;
        }
        if self.help {
            self.help = false;
            return match key.code {
                KeyCode::Char('q') => Wish::Quit,
                _ => Wish::None,
            };
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::F(10) => return Wish::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char(' ') | KeyCode::Char('p') => self.pause(),
            KeyCode::Char('/') | KeyCode::F(4) => self.typing = Some(self.filter.clone()),
            KeyCode::Char('<') | KeyCode::Left => self.sort_by(self.sort.checked_sub(1)),
            KeyCode::Char('>') | KeyCode::Right => self.sort_by(Some(self.sort + 1)),
            KeyCode::Char('r' | 'R') => {
                self.reversed = !self.reversed;
                self.arrange();
            }
            KeyCode::Char('l') => return self.switch_level(),
            KeyCode::Char(letter) => self.sort_by(sort_of(letter)),
            KeyCode::Down => self.step(1),
            KeyCode::Up => self.step(-1),
            KeyCode::PageDown => self.step(self.page as isize),
            KeyCode::PageUp => self.step(-(self.page as isize)),
            KeyCode::Home => self.step(isize::MIN),
            KeyCode::End => self.step(isize::MAX),
            KeyCode::Tab => self.op = self.op.wrapping_add(1),
            KeyCode::Enter => return self.open(),
            KeyCode::Esc | KeyCode::Backspace => return self.back(),
            _ => {}
        }
        Wish::None
    }

    /// How many intervals of its histograms have gone by is of no concern: they fill as they come.
    pub fn histogram_span(&self) -> Duration {
        self.interval * HISTOGRAM_INTERVALS
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = None,
            KeyCode::Esc => self.filter = self.typing.take().unwrap_or_default(),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_CHARS_MAX => {
                self.filter.push(c)
            }
            _ => {}
        }
        self.arrange();
    }

    /// From the host's requests to the VMs' own, and back.
    fn switch_level(&mut self) -> Wish {
        if !self.levels {
            self.notice = Some("level vdisk needs VMs of QEMU, watched live".into());
            return Wish::None;
        }
        self.level = match self.level {
            Level::Block => Level::Vdisk,
            Level::Vdisk => Level::Block,
        };
        self.views = vec![View::All];
        self.tick = Tick::default();
        self.history = History::default();
        self.entered();
        Wish::Level
    }

    fn pause(&mut self) {
        self.paused = !self.paused;
        if let Some(tick) = self.latest.take() {
            self.tick = tick;
        }
        self.arrange();
    }

    fn sort_by(&mut self, sort: Option<usize>) {
        if let Some(sort) = sort.filter(|&s| s < NAMES.len() + COLUMNS.len()) {
            self.sort = sort;
            self.arrange();
        }
    }

    /// Looks into the selected line: a VM, then a disk.
    fn open(&mut self) -> Wish {
        let Some(line) = self.selected_line() else {
            return Wish::None;
        };
        let key = line.key;
        let view = match self.view() {
            View::All => match key.disk.vm {
                Some(vm) => View::Vm(vm),
                None => View::Rest,
            },
            View::Vm(_) => View::Disk(key.disk),
            View::Rest => View::Disk(key.disk),
            View::Disk(_) => return Wish::None,
        };
        self.views.push(view);
        self.entered();
        Wish::Ask
    }

    /// Back to where one came from; at the top the filter goes.
    fn back(&mut self) -> Wish {
        if self.views.len() == 1 {
            self.filter.clear();
            self.arrange();
            return Wish::None;
        }
        self.views.pop();
        self.entered();
        Wish::Ask
    }

    fn entered(&mut self) {
        // Old answers to these questions are of another view.
        self.tick.submitters.clear();
        self.tick.bars.clear();
        (self.first, self.op, self.at_top) = (0, 0, true);
        self.arrange();
    }

    /// Moves the selection by so many lines.
    fn step(&mut self, by: isize) {
        let last = self.order.len() as isize - 1;
        if last < 0 {
            return;
        }
        let to = (self.place() as isize).saturating_add(by).clamp(0, last) as usize;
        self.selected = Some(self.lines()[self.order[to]].key);
        self.at_top = to == 0;
        self.follow();
    }

    /// Where the selected line stands.
    fn place(&self) -> usize {
        let lines = self.lines();
        let selected = |&i: &usize| Some(lines[i].key) == self.selected;
        self.order.iter().position(selected).unwrap_or(0)
    }

    /// The screen has room for so many lines.
    pub fn set_page(&mut self, lines: usize) {
        self.page = lines.max(1);
        self.follow();
    }

    /// Keeps the selected line on the screen.
    fn follow(&mut self) {
        let place = self.place();
        let last_first = self.order.len().saturating_sub(self.page);
        let least = (place + 1).saturating_sub(self.page);
        self.first = self.first.clamp(least, place.max(least)).min(last_first);
    }

    /// Picks and sorts the lines that are shown.
    fn arrange(&mut self) {
        let lines = self.lines();
        let filter = self.filter.to_lowercase();
        let mut order: Vec<usize> = (0..lines.len())
            .filter(|&i| self.belongs(&lines[i]) && matches(&lines[i], &filter))
            .collect();
        order.sort_by(|&a, &b| {
            let by_sort = compare(&lines[a], &lines[b], self.sort);
            let by_sort = if self.reversed {
                by_sort.reverse()
            } else {
                by_sort
            };
            by_sort.then_with(|| names(&lines[a]).cmp(&names(&lines[b])))
        });
        self.order = order;
        // Who looks at the top goes on looking at the top; a line that was chosen is followed.
        if self.at_top || self.selected_line().is_none() {
            let top = self.order.first().map(|&i| self.lines()[i].key);
            (self.selected, self.at_top) = (top, true);
        }
        self.follow();
    }

    /// True for lines of the present view.
    fn belongs(&self, line: &Line) -> bool {
        match self.view() {
            View::All | View::Rest => true,
            View::Vm(vm) => line.key.disk.vm == Some(vm),
            View::Disk(disk) => line.key.disk == disk,
        }
    }
}

/// The letters that sort, as in top(1): by VM, disk, requests, bytes, latency.
fn sort_of(letter: char) -> Option<usize> {
    let column = |name| Some(NAMES.len() + index(name));
    match letter {
        'v' => Some(0),
        'd' => Some(1),
        'o' => Some(2),
        'i' => column("iops"),
        'b' => column("throughput"),
        'L' => column("load"),
        'm' => column("mean"),
        't' => column("p99"),
        'x' => column("max"),
        's' => column("sequential"),
        'w' => column("wait_mean"),
        _ => None,
    }
}

/// A line's names as they are shown.
pub fn names(line: &Line) -> [&'static str; 3] {
    let text = |name: Option<Symbol>| name.map_or("", Symbol::as_str);
    let Key { disk, comm, op } = line.key;
    [
        text(comm.or(disk.vm)),
        text(disk.vdisk.or(disk.pdisk)),
        text(op),
    ]
}

fn matches(line: &Line, filter: &str) -> bool {
    let disk = line.key.disk;
    let texts = [disk.vm, disk.vdisk, disk.pdisk, line.key.comm];
    let mut texts = texts.iter().flatten();
    filter.is_empty() || texts.any(|t| t.as_str().to_lowercase().contains(filter))
}

/// Names in their order, what has none last; numbers greatest first.
fn compare(a: &Line, b: &Line, sort: usize) -> Ordering {
    match sort.checked_sub(NAMES.len()) {
        None => {
            let (a, b) = (names(a)[sort], names(b)[sort]);
            a.is_empty().cmp(&b.is_empty()).then(a.cmp(b))
        }
        Some(column) => {
            let value = |line: &Line| line.values[column].unwrap_or(f64::NEG_INFINITY);
            value(b).total_cmp(&value(a))
        }
    }
}
