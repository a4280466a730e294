//! The help screen: keys and columns.

use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;

use super::ink::Styles;
use crate::top::columns::COLUMNS;
use weir_sink::plot::Ink;

const KEYS: &[(&str, &str)] = &[
    ("q", "quit"),
    (
        "< > r",
        "sort by the column on the left, on the right; reverse the order",
    ),
    (
        "L i b t x",
        "sort by LOAD, IOPS, B/s, P99, MAX; v d o by VM, DISK, OP",
    ),
    ("/", "show only lines with a text in a name"),
    (
        "Enter",
        "open the selected line: a VM's disks, a disk's histograms",
    ),
    ("Esc", "back; in the first view, remove the filter"),
    ("l", "next level: block, file, app (processes), vdisk"),
    (
        "f",
        "the files of the selected disk; Enter there: their processes",
    ),
    ("Space", "pause, continue; Ctrl-L redraws the screen"),
];

/// Draws the help in place of the view.
pub fn draw(ink: Ink, buffer: &mut Buffer) {
    let area = buffer.area;
    let mut lines: Vec<(String, Style)> = vec![("weir top: keys".into(), ink.title())];
    let key = |(key, what): &(&str, &str)| (format!("  {key:<10} {what}"), Style::new());
    lines.extend(KEYS.iter().map(key));
    lines.push((
        "columns, as far as the screen is wide enough".into(),
        ink.title(),
    ));
    let described = COLUMNS
        .iter()
        .filter(|c| c.cql.is_some() && !c.name.contains('_'));
    lines.extend(described.map(|c| (format!("  {:<10} {}", c.header, c.doc), Style::new())));
    let times = "  W. S.      the same for wait (insert to issue), service (issue to completion)";
    lines.push((times.into(), Style::new()));
    let files = "  READ DIR   levels file, app: % reads, direct I/O; HIT % from the page cache";
    lines.push((files.into(), Style::new()));
    for (y, (text, style)) in (area.y..area.bottom()).zip(lines) {
        buffer.set_stringn(area.x, y, text, area.width.into(), style);
    }
}
