//! A heat map as shades, in steps of equal ratio from one to the most.

use super::Picture;
use super::frame::{Frame, Marks, Side};
use crate::plot::{HeatMap, thousands};

/// Shades: classes `h1` to `h9`.
const SHADES: u32 = 9;

/// The largest number of cells per direction; more are merged, as they would be narrower than a
/// pixel or two.
const COLUMNS_MAX: usize = 280;

/// Draws a heat map.
pub fn heat_map(map: &HeatMap) -> Picture {
    let (wide, high) = (map.x.labels.len(), map.y.labels.len());
    let together = wide.div_ceil(COLUMNS_MAX).max(1);
    let columns = wide.div_ceil(together);
    let sum = |column: usize, row: usize| -> u64 {
        let first = column * together;
        let parts = first..(first + together).min(wide);
        parts.map(|c| map.count(c, row)).sum()
    };
    let all = (0..columns).flat_map(|c| (0..high).map(move |r| (c, r)));
    let most = all.clone().map(|(c, r)| sum(c, r)).max().unwrap_or(0);
    let names: Vec<String> = map.x.labels.iter().step_by(together).cloned().collect();
    let mut frame = Frame::new(
        &map.title,
        &Side {
            title: &map.x.title,
            marks: Marks::Names(&names),
        },
        &Side {
            title: &map.y.title,
            marks: Marks::Names(&map.y.labels),
        },
        &legend(map, most),
    );
    let slot = (frame.right - frame.left) / columns.max(1) as f64;
    let step = (frame.bottom - frame.top) / high.max(1) as f64;
    for (c, r) in all {
        let count = sum(c, r);
        let Some(shade) = shade(count, most) else {
            continue;
        };
        let (x, y) = (
            frame.left + slot * c as f64,
            frame.bottom - step * (r + 1) as f64,
        );
        let tooltip = format!(
            "{}, {}: {} {}",
            names[c],
            map.y.labels[r],
            thousands(&count.to_string()),
            map.counted
        );
        // Slightly overlapping, to avoid visible seams.
        let area = [x, y, slot + 0.3, step + 0.3];
        frame
            .canvas
            .rect(&format!("h{shade}"), area, Some(&tooltip));
    }
    frame.finish()
}

/// From 1 for one to [`SHADES`] for the most; `None` for nothing.
fn shade(count: u64, most: u64) -> Option<u32> {
    match (count, most) {
        (0, _) => None,
        (_, 1) => Some(SHADES),
        _ => {
            let share = (count as f64).ln() / (most as f64).ln();
            Some(1 + (share * f64::from(SHADES - 1)).round() as u32)
        }
    }
}

/// The legend of the shades: each with its least count.
fn legend(map: &HeatMap, most: u64) -> Vec<(String, String)> {
    let mut legend: Vec<(String, String)> = Vec::new();
    let mut listed = 0;
    for shade_of in 1..=SHADES {
        let share = f64::from(shade_of - 1) / f64::from(SHADES - 1);
        let count = (most as f64).powf(share).round() as u64;
        if most == 0 || count <= listed || shade(count, most) != Some(shade_of) {
            continue;
        }
        listed = count;
        let mut name = thousands(&count.to_string());
        if shade_of == SHADES {
            name += &format!(" {}", map.counted);
        }
        legend.push((format!("h{shade_of}"), name));
    }
    legend
}
