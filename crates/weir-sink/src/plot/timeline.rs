//! [`TimelinePlot`]: requests as bars over time, one below the other.

use weir_model::Nanos;

/// Requests over an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelinePlot {
    /// Its title.
    pub title: String,
    /// The first instant that is drawn.
    pub begin_ns: Nanos,
    /// The last.
    pub end_ns: Nanos,
    /// The requests, from top to bottom.
    pub bars: Vec<TimelineBar>,
}

/// A request: a bar with a part for its time in the queue and one for its time at the device.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineBar {
    /// Its name.
    pub label: String,
    /// When it was inserted into the queue, if that is known.
    pub inserted_ns: Option<Nanos>,
    /// When it was issued to the device.
    pub issued_ns: Nanos,
    /// When it finished, if that is known.
    pub finished_ns: Option<Nanos>,
}

impl TimelinePlot {
    /// The place of an instant, from 0 at the beginning to 1 at the end.
    pub(super) fn place(&self, at_ns: Nanos) -> f64 {
        let length = self.end_ns.saturating_sub(self.begin_ns).max(1);
        let place = at_ns.saturating_sub(self.begin_ns) as f64 / length as f64;
        place.clamp(0.0, 1.0)
    }

    /// The places of a bar: the beginning of its wait, the beginning of its service, its end.
    pub(super) fn places(&self, bar: &TimelineBar) -> [f64; 3] {
        let issued = self.place(bar.issued_ns);
        let inserted = bar.inserted_ns.map_or(issued, |at| self.place(at));
        let finished = bar.finished_ns.map_or(1.0, |at| self.place(at));
        [inserted.min(issued), issued, finished.max(issued)]
    }
}
