//! Histograms of two dimensions: as heat maps for the terminal or as SVG, or their cells as JSON or
//! CSV.

use serde_json::{Value, json};
use weir_model::{Nanos, Symbol};
use weir_sink::plot::{HeatMap, Ink, Quantity, phrase, svg, terminal};
use weir_sketch::{Axis, Grid};
use weir_workload::json::unit_name;
use weir_workload::{Metric, Subject};

use crate::hist::counted::name;

/// One dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellAxis {
    /// A metric.
    Of(Metric),
    /// Time since the start, ns.
    Time,
    /// Address on the disk, bytes.
    Address,
}

/// A grid for each disk, and its dimensions.
pub struct Cells {
    /// The horizontal and vertical dimension.
    pub dimensions: [CellAxis; 2],
    /// The start of the time axis.
    pub started_at: Option<Nanos>,
    /// The grids.
    pub grids: Vec<(Subject, Grid)>,
}

impl CellAxis {
    fn name(self) -> &'static str {
        match self {
            CellAxis::Of(metric) => metric.name(),
            CellAxis::Time => "time",
            CellAxis::Address => "address",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            CellAxis::Of(metric) => unit_name(metric.measure()),
            CellAxis::Time => "ns",
            CellAxis::Address => "bytes",
        }
    }

    /// The label of an axis, and the quantity of its values.
    fn axis(self) -> (&'static str, Quantity) {
        match self {
            CellAxis::Of(metric) => (phrase(metric), metric.measure().into()),
            CellAxis::Time => ("time", Quantity::Elapsed),
            CellAxis::Address => ("address", Quantity::Bytes),
        }
    }
}

impl Cells {
    /// As heat maps, one below the other.
    pub fn text(&self, ink: Ink, columns: usize) -> String {
        let map = |map: HeatMap| terminal::heat_map(&map, ink, columns) + "\n";
        self.maps().map(map).collect()
    }

    /// As one SVG.
    pub fn picture(&self) -> String {
        let pictures: Vec<svg::Picture> = self.maps().map(|map| svg::heat_map(&map)).collect();
        svg::Picture::side_by_side("heat maps", &pictures, 1).standalone()
    }

    /// The cells that are not empty, a line of JSON for each disk.
    pub fn json(&self) -> String {
        let [x, y] = self.dimensions;
        let text = |symbol: Option<Symbol>| symbol.map(Symbol::as_str);
        let line = |(subject, grid): &(Subject, Grid)| {
            let cells = cells(grid).map(|(x, y, count)| json!([x.0, x.1, y.0, y.1, count]));
            let line = json!({
                "vm": text(subject.vm),
                "vdisk": text(subject.vdisk),
                "pdisk": text(subject.pdisk),
                "begun_ns": self.started_at,
                "x": {"of": x.name(), "unit": x.unit()},
                "y": {"of": y.name(), "unit": y.unit()},
                "cells": cells.collect::<Vec<Value>>(),
            });
            format!("{line}\n")
        };
        self.grids.iter().map(line).collect()
    }

    /// The cells that are not empty, with a header; an open limit of a cell is empty.
    pub fn csv(&self) -> String {
        let [x, y] = self.dimensions.map(CellAxis::name);
        let mut text = format!("disk,{x}_min,{x}_max,{y}_min,{y}_max,requests\n");
        for (subject, grid) in &self.grids {
            let disk = name(subject).replace('"', "\"\"");
            for (x, y, count) in cells(grid) {
                let [x0, x1, y0, y1] =
                    [x.0, x.1, y.0, y.1].map(|v| v.map_or(String::new(), |v| v.to_string()));
                text += &format!("\"{disk}\",{x0},{x1},{y0},{y1},{count}\n");
            }
        }
        text
    }

    fn maps(&self) -> impl Iterator<Item = HeatMap> + '_ {
        let [x, y] = self.dimensions.map(CellAxis::axis);
        self.grids.iter().map(move |(subject, grid)| {
            let title = format!("{}: {} against {}", name(subject), y.0, x.0);
            HeatMap::of_grid(&title, grid, x, y)
        })
    }
}

/// The lowest and the highest value of a cell along an axis.
type Span = (Option<i64>, Option<i64>);

fn cells(grid: &Grid) -> impl Iterator<Item = (Span, Span, u64)> + '_ {
    let span = |axis: &Axis, cell| axis.span(cell);
    grid.cells()
        .map(move |(column, row, count)| (span(grid.x(), column), span(grid.y(), row), count))
}
