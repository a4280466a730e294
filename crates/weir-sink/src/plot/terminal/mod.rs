//! Plots for a terminal: lines of text no wider than asked, each ended by a newline.

mod heat_map;
mod histogram;
mod lines;

pub use heat_map::heat_map;
pub use histogram::histogram;
pub use lines::lines;

use crate::text::{fitting, shown, width};

/// `text`, cut to so many columns, and filled up with spaces from the left or the right.
fn cell(text: &str, columns: usize, right: bool) -> String {
    let text = shown(text);
    let text = fitting(&text, columns);
    let gap = " ".repeat(columns - width(text));
    match right {
        true => gap + text,
        false => text.to_owned() + &gap,
    }
}

/// Labels under an axis of so many columns, each beginning at its place; one that would run into the one
/// before is left out.
fn under(labels: &[(usize, String)], columns: usize) -> String {
    let mut line = String::new();
    let mut taken = 0;
    for (place, label) in labels {
        let label = shown(label);
        let wide = width(&label);
        // The last ones are drawn to the left so that they end with the axis.
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
