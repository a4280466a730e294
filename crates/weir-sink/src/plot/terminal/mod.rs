//! Plots for a terminal: lines of text of limited width, each ended by a newline.

mod heat_map;
mod histogram;
mod lines;
mod timeline;

pub use heat_map::heat_map;
pub use histogram::histogram;
pub use lines::lines;
pub use timeline::timeline;

use crate::text::{fitting, shown, width};

/// `text`, truncated or padded to this many columns, from the left or the right.
fn cell(text: &str, columns: usize, right: bool) -> String {
    let text = shown(text);
    let text = fitting(&text, columns);
    let gap = " ".repeat(columns - width(text));
    match right {
        true => gap + text,
        false => text.to_owned() + &gap,
    }
}

/// Labels under an axis, each starting at its position; overlapping labels are omitted.
fn under(labels: &[(usize, String)], columns: usize) -> String {
    let mut line = String::new();
    let mut taken = 0;
    for (place, label) in labels {
        let label = shown(label);
        let wide = width(&label);
        // The last ones are shifted left to end with the axis.
        let place = (*place).min(columns.saturating_sub(wide));
        if (place < taken + 2 && taken > 0) || wide > columns {
            continue;
        }
        line += &" ".repeat(place - taken);
        line += &label;
        taken = place + wide;
    }
    line
}
