//! The help screen: keys and columns.

use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;

use super::ink::Styles;
use crate::top::columns::COLUMNS;
use weir_sink::plot::Ink;

const KEYS: &[(&str, &str)] = &[
    ("q", "quit"),
    (
        "< >",
        "sort by the column to the left, to the right; the arrows do the same",
    ),
    (
        "L i b t x",
        "sort by LOAD, IOPS, B/s, P99, MAX; v d o by VM, DISK, OP",
    ),
    ("r", "reverse the order"),
    ("/", "show lines that have a text in a name"),
    (
        "Enter",
        "open the selected line: a VM's disks, a disk's histograms",
    ),
    ("Esc", "back; at the top, take the filter away"),
    (
        "l",
        "level: the host's requests (block), or the VMs' own as QEMU counts them (vdisk)",
    ),
    ("Space", "stand still, go on"),
    ("Ctrl-L", "write the screen anew"),
];

/// Draws the help in place of the view.
pub fn draw(ink: Ink, buffer: &mut Buffer) {
    let area = buffer.area;
    let mut lines: Vec<(String, Style)> = vec![("weir top: keys".into(), ink.title())];
    let key = |(key, what): &(&str, &str)| (format!("  {key:<10} {what}"), Style::new());
    lines.extend(KEYS.iter().map(key));
    lines.push(("columns, as far as there is room".into(), ink.title()));
    let described = COLUMNS.iter().filter(|c| !c.name.contains('_'));
    lines.extend(described.map(|c| (format!("  {:<10} {}", c.header, c.doc), Style::new())));
    let times = "  W. S.      the same of wait (insert to issue) and service (issue to completion)";
    lines.push((times.into(), Style::new()));
    for (y, (text, style)) in (area.y..area.bottom()).zip(lines) {
        buffer.set_stringn(area.x, y, text, area.width.into(), style);
    }
}
