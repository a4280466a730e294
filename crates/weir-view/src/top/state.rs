//! [`State`]: the content of the screen, and the effect of keys. It does no I/O: a key returns a
//! [`KeyAction`], which the owner of the terminal and the queries performs.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::time::Duration;

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use weir_model::Symbol;

use super::columns::{COLUMNS, index};
use super::gather::{Key, Tick, TopLine};
use super::history::History;
use super::levels::{APP_STREAMS, FILE_STREAMS, FilesOf, TopFile};
use super::queries::{HISTOGRAM_INTERVALS, TopDisk, TopLevel};

/// An action that a key requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyAction {
    /// None, or one that [`State`] has performed itself.
    None,
    /// Quit.
    Quit,
    /// Quit, as by SIGINT.
    Interrupt,
    /// Redraw the complete screen.
    Redraw,
    /// Change the queries to those of the current view.
    QueryView,
    /// Change the queries to those of the other level.
    QueryLevel,
}

/// A view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Every disk of every VM.
    All,
    /// One VM's disks.
    Vm(Symbol),
    /// The I/O of no VM, by command.
    Rest,
    /// One disk's histograms.
    Disk(TopDisk),
    /// The files of a disk, or of a process.
    Files(FilesOf),
    /// The processes of a file, from the requests of the level from which its line is.
    Processes(TopFile, TopLevel),
}

/// The number of names of a line. The sort keys are these, then the columns.
pub const NAMES: usize = 3;

/// The headers of the names of lines, by what the lines are.
pub const HEADERS: [[&str; NAMES]; 4] = [
    ["VM", "DISK", "OP"],
    ["COMMAND", "DISK", "OP"],
    ["FILE", "DISK", "FS"],
    ["PROCESS", "CGROUP", "VM"],
];

/// Maximum length of the filter.
const FILTER_CHARS_MAX: usize = 60;

/// The complete input for drawing.
#[derive(Debug)]
pub struct State {
    /// The source of events, as text.
    pub source: String,
    /// The interval between tables.
    pub interval: Duration,
    /// The level of observation.
    pub level: TopLevel,
    /// The levels that are available.
    pub levels: Vec<TopLevel>,
    /// Why another one is not.
    pub level_absent: Option<String>,
    /// The stack of views, the current one last. Never empty.
    pub views: Vec<View>,
    /// The displayed tick.
    pub tick: Tick,
    /// The number of ticks that were skipped, since the terminal was too slow.
    pub ticks_skipped: u64,
    /// The latest tick, while an older one is displayed.
    latest: Option<Tick>,
    /// Whether the display is paused.
    pub paused: bool,
    /// Latencies of the last intervals.
    pub history: History,
    /// The index of the sort key in [`NAMES`] and columns.
    pub sort: usize,
    /// Whether the order is reversed.
    pub reversed: bool,
    /// Only lines with this text in a name are shown.
    pub filter: String,
    /// The previous filter, while a new one is typed.
    pub typing: Option<String>,
    /// The selected line.
    pub selected: Option<Key>,
    /// The first line is selected, whichever it is.
    at_top: bool,
    /// The displayed lines, as positions in [`State::lines`].
    pub order: Vec<usize>,
    /// The first line on the screen.
    pub first: usize,
    /// The number of lines that fit; set by the drawing code.
    pub page: usize,
    /// The index of the op of a disk's histograms, among those present.
    pub op: usize,
    /// The help is shown.
    pub help: bool,
    /// A message, until the next key.
    pub notice: Option<String>,
    /// The stacked devices with I/O that are not observed, if nothing else is displayed.
    pub unobserved: Option<String>,
    /// The source has ended.
    pub ended: bool,
}

impl State {
    /// No tick, all disks, the highest load first.
    pub fn new(source: String, interval: Duration) -> State {
        State {
            source,
            interval,
            level: TopLevel::Block,
            levels: vec![TopLevel::Block],
            level_absent: None,
            views: vec![View::All],
            tick: Tick::default(),
            ticks_skipped: 0,
            latest: None,
            paused: false,
            history: History::default(),
            sort: NAMES + index("load"),
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
            unobserved: None,
            ended: false,
        }
    }

    /// The current view.
    pub fn view(&self) -> View {
        *self.views.last().expect("there is always a view")
    }

    /// The lines of the view, before filter and order.
    pub fn lines(&self) -> &[TopLine] {
        match self.view() {
            View::Rest | View::Files(_) | View::Processes(..) => &self.tick.details,
            _ => &self.tick.lines,
        }
    }

    /// The headers of the names of the view's lines.
    pub fn headers(&self) -> &'static [&'static str; NAMES] {
        let [disks, commands, files, processes] = &HEADERS;
        match (self.view(), self.level) {
            (View::Rest, _) => commands,
            (View::Files(_), _) | (View::All, TopLevel::File) => files,
            (View::Processes(..), _) | (View::All, TopLevel::App) => processes,
            _ => disks,
        }
    }

    /// The level whose columns the view's lines have.
    pub fn columns_level(&self) -> TopLevel {
        match self.view() {
            View::Files(_) => TopLevel::App,
            View::Processes(_, level) => level,
            _ => self.level,
        }
    }

    /// The number of lines of the view that exceed the maximum.
    pub fn omitted(&self) -> usize {
        match self.view() {
            View::Rest | View::Files(_) | View::Processes(..) => self.tick.details_omitted,
            _ => self.tick.lines_omitted,
        }
    }

    /// The streams of files and processes that the level and the view read.
    pub fn streams(&self) -> Vec<&'static str> {
        let of_level = |level: TopLevel| match level {
            TopLevel::File => &FILE_STREAMS[..],
            TopLevel::App => &APP_STREAMS,
            TopLevel::Block | TopLevel::Vdisk => &[],
        };
        [self.level, self.columns_level()].map(of_level).concat()
    }

    /// The selected line.
    pub fn selected_line(&self) -> Option<&TopLine> {
        let lines = self.lines();
        let selected = self.selected?;
        let mut shown = self.order.iter().map(|&i| &lines[i]);
        shown.find(|line| line.key == selected)
    }

    /// Adds the tick of the next interval.
    pub fn add_tick(&mut self, tick: Tick) {
        self.history.add(tick.lines.iter().chain(&tick.details));
        if self.paused {
            self.latest = Some(tick);
        } else {
            self.tick = tick;
            self.update_order();
        }
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> KeyAction {
        self.notice = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => KeyAction::Interrupt,
                KeyCode::Char('l') => KeyAction::Redraw,
                _ => KeyAction::None,
            };
        }
        if self.typing.is_some() {
            self.type_filter(key.code);
            return KeyAction::None;
        }
        if self.help {
            self.help = false;
            return match key.code {
                KeyCode::Char('q') => KeyAction::Quit,
                _ => KeyAction::None,
            };
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::F(10) => return KeyAction::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char(' ') | KeyCode::Char('p') => self.pause(),
            KeyCode::Char('/') | KeyCode::F(4) => self.typing = Some(self.filter.clone()),
            KeyCode::Char('<') | KeyCode::Left => {
                self.sort_by((0..self.sort).rev().find(|&sort| self.has_column(sort)));
            }
            KeyCode::Char('>') | KeyCode::Right => {
                let all = NAMES + COLUMNS.len();
                self.sort_by((self.sort + 1..all).find(|&sort| self.has_column(sort)));
            }
            KeyCode::Char('r' | 'R') => {
                self.reversed = !self.reversed;
                self.update_order();
            }
            KeyCode::Char('l') => return self.switch_level(),
            KeyCode::Char('f') => return self.open_files(),
            KeyCode::Char(letter) => self.sort_by(sort_of(letter)),
            KeyCode::Down => self.move_selection(1),
            KeyCode::Up => self.move_selection(-1),
            KeyCode::PageDown => self.move_selection(self.page as isize),
            KeyCode::PageUp => self.move_selection(-(self.page as isize)),
            KeyCode::Home => self.move_selection(isize::MIN),
            KeyCode::End => self.move_selection(isize::MAX),
            KeyCode::Tab => self.op = self.op.wrapping_add(1),
            KeyCode::Enter => return self.open(),
            KeyCode::Esc | KeyCode::Backspace => return self.back(),
            _ => {}
        }
        KeyAction::None
    }

    /// The interval of histograms; the number of intervals received so far is not considered.
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
        self.update_order();
    }

    /// Switches to the next level.
    fn switch_level(&mut self) -> KeyAction {
        let all = TopLevel::ALL.iter().cycle();
        let mut next = all.skip_while(|level| **level != self.level).skip(1);
        let next = next.find(|level| self.levels.contains(level));
        let Some(&next) = next.filter(|level| **level != self.level) else {
            self.notice = Some(self.level_absent.clone().unwrap_or_else(|| {
                "no other level is available: vdisk requires the live source and VMs of QEMU".into()
            }));
            return KeyAction::None;
        };
        self.level = next;
        self.views = vec![View::All];
        self.tick = Tick::default();
        self.history = History::default();
        self.sort_by(Some(match self.has_column(self.sort) {
            true => self.sort,
            false => NAMES + index("load"),
        }));
        self.reset_view();
        KeyAction::QueryLevel
    }

    /// Opens the files of the disk of the selected line, or of the open disk.
    fn open_files(&mut self) -> KeyAction {
        let disk = match self.view() {
            View::Disk(disk) => Some(disk),
            _ => self.selected_line().map(|line| line.key.disk),
        };
        let Some(pdisk) = disk.and_then(|disk| disk.pdisk) else {
            self.notice = Some("f opens the files of a disk of level block".into());
            return KeyAction::None;
        };
        if !self.levels.contains(&TopLevel::App) {
            let absent = "this source has no stream IOpath, from which files of a disk are".into();
            self.notice = Some(self.level_absent.clone().unwrap_or(absent));
            return KeyAction::None;
        }
        self.push(View::Files(FilesOf::Disk(Some(pdisk))))
    }

    fn push(&mut self, view: View) -> KeyAction {
        self.views.push(view);
        self.reset_view();
        KeyAction::QueryView
    }

    /// Whether the lines of the view have a column, by its sort key.
    fn has_column(&self, sort: usize) -> bool {
        let level = self.columns_level();
        let column = sort.checked_sub(NAMES).map(|i| &COLUMNS[i]);
        column.is_none_or(|column| column.is_of(level))
    }

    /// Why the table has no lines.
    pub fn why_empty(&self) -> &'static str {
        match (self.lines().is_empty(), self.level) {
            (false, _) => "no name contains the filter text; / changes the filter",
            (true, TopLevel::Block | TopLevel::App) => "no I/O in this interval",
            (true, TopLevel::File) => "no request of a file in this interval",
            (true, TopLevel::Vdisk) => {
                "QEMU counted no I/O of a VM with a QMP socket (docs/vdisk.md)"
            }
        }
    }

    fn pause(&mut self) {
        self.paused = !self.paused;
        if let Some(tick) = self.latest.take() {
            self.tick = tick;
        }
        self.update_order();
    }

    fn sort_by(&mut self, sort: Option<usize>) {
        if let Some(sort) = sort.filter(|&s| s < NAMES + COLUMNS.len()) {
            self.sort = sort;
            self.update_order();
        }
    }

    /// Opens the selected line: a VM, then a disk.
    fn open(&mut self) -> KeyAction {
        let Some(line) = self.selected_line() else {
            return KeyAction::None;
        };
        let key = line.key;
        let view = match (self.view(), key.file, key.process) {
            // Below the processes of a file and the files of a process there is nothing.
            (View::Files(FilesOf::Process(_)) | View::Processes(..) | View::Disk(_), ..) => {
                return KeyAction::None;
            }
            (_, Some(file), _) => View::Processes(file, self.columns_level()),
            (_, _, Some(process)) => View::Files(FilesOf::Process(process)),
            (View::All, ..) => match key.disk.vm {
                Some(vm) => View::Vm(vm),
                None => View::Rest,
            },
            _ => View::Disk(key.disk),
        };
        self.push(view)
    }

    /// Returns to the previous view; in the first one removes the filter.
    fn back(&mut self) -> KeyAction {
        if self.views.len() == 1 {
            self.filter.clear();
            self.update_order();
            return KeyAction::None;
        }
        self.views.pop();
        self.reset_view();
        KeyAction::QueryView
    }

    fn reset_view(&mut self) {
        // Earlier results of these queries are of another view.
        self.tick.details.clear();
        self.tick.bars.clear();
        (self.first, self.op, self.at_top) = (0, 0, true);
        self.update_order();
    }

    /// Moves the selection by a number of lines.
    fn move_selection(&mut self, by: isize) {
        let last = self.order.len() as isize - 1;
        if last < 0 {
            return;
        }
        let to = (self.selected_position() as isize)
            .saturating_add(by)
            .clamp(0, last) as usize;
        self.selected = Some(self.lines()[self.order[to]].key);
        self.at_top = to == 0;
        self.scroll_to_selected();
    }

    /// The position of the selected line.
    fn selected_position(&self) -> usize {
        let lines = self.lines();
        let selected = |&i: &usize| Some(lines[i].key) == self.selected;
        self.order.iter().position(selected).unwrap_or(0)
    }

    /// Sets the number of lines that fit.
    pub fn set_page(&mut self, lines: usize) {
        self.page = lines.max(1);
        self.scroll_to_selected();
    }

    /// Scrolls to the selected line.
    fn scroll_to_selected(&mut self) {
        let place = self.selected_position();
        let last_first = self.order.len().saturating_sub(self.page);
        let least = (place + 1).saturating_sub(self.page);
        self.first = self.first.clamp(least, place.max(least)).min(last_first);
    }

    /// Filters and sorts the displayed lines.
    fn update_order(&mut self) {
        let lines = self.lines();
        let filter = self.filter.to_lowercase();
        let mut order: Vec<usize> = (0..lines.len())
            .filter(|&i| self.is_in_view(&lines[i]) && matches(&lines[i], &filter))
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
        // If the first line is selected, the selection remains at the top; a line that the user
        // selected is followed.
        if self.at_top || self.selected_line().is_none() {
            let top = self.order.first().map(|&i| self.lines()[i].key);
            (self.selected, self.at_top) = (top, true);
        }
        self.scroll_to_selected();
    }

    /// True for lines of the current view.
    fn is_in_view(&self, line: &TopLine) -> bool {
        match self.view() {
            View::All | View::Rest => true,
            // Late lines of the query of another view are of something else.
            View::Files(_) => line.key.file.is_some(),
            View::Processes(..) => line.key.process.is_some(),
            View::Vm(vm) => line.key.disk.vm == Some(vm),
            View::Disk(disk) => line.key.disk == disk,
        }
    }
}

/// The sort keys by letter, as in top(1): by VM, disk, requests, bytes, latency.
fn sort_of(letter: char) -> Option<usize> {
    let column = |name| Some(NAMES + index(name));
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

/// A line's names as displayed.
pub fn names(line: &TopLine) -> [Cow<'static, str>; NAMES] {
    let text = |name: Option<Symbol>| Cow::Borrowed(name.map_or("", Symbol::as_str));
    let Key {
        disk,
        file,
        process,
        comm,
        op,
    } = line.key;
    if let Some(file) = file {
        let number = || file.inode.map(|inode| format!("inode {inode}").into());
        let path = file.path.map(|path| Cow::Borrowed(path.as_str()));
        let path = path.or_else(number).unwrap_or_default();
        return [path, text(file.pdisk), text(file.fs)];
    }
    if let Some(process) = process {
        let name = match (process.comm, process.pid) {
            (Some(comm), Some(pid)) => format!("{}[{pid}]", comm.as_str()).into(),
            (None, Some(pid)) => format!("[{pid}]").into(),
            (comm, None) => text(comm),
        };
        return [name, text(process.cgroup), text(process.vm)];
    }
    [
        text(comm.or(disk.vm)),
        text(disk.vdisk.or(disk.pdisk)),
        text(op),
    ]
}

fn matches(line: &TopLine, filter: &str) -> bool {
    let disk = line.key.disk;
    let texts = [disk.vm, disk.vdisk, disk.pdisk, line.key.comm];
    let mut texts = texts.iter().flatten();
    let has = |text: &str| text.to_lowercase().contains(filter);
    filter.is_empty()
        || texts.any(|t| has(t.as_str()))
        || names(line).iter().take(2).any(|name| has(name))
}

/// Names ascending, missing ones last; numbers descending.
fn compare(a: &TopLine, b: &TopLine, sort: usize) -> Ordering {
    match sort.checked_sub(NAMES) {
        None => {
            let [a, b] = [a, b].map(|line| names(line)[sort].clone());
            a.is_empty().cmp(&b.is_empty()).then(a.cmp(&b))
        }
        Some(column) => {
            let value = |line: &TopLine| line.values[column].unwrap_or(f64::NEG_INFINITY);
            value(b).total_cmp(&value(a))
        }
    }
}
