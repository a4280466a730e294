//! [`Series`]: the latest values of one series, its basic windows, and the normalised coefficients
//! of its latest windows.

use std::collections::VecDeque;

use super::basic_window::{BasicWindow, Phases};
use super::correlator::CorrelationOptions;

/// A window is compared if at least this share of its values is known.
const KNOWN_SHARE: f64 = 0.75;

/// A series whose deviation is smaller than this share of its mean is constant: rounding errors
/// would be a considerable part of it.
const DEVIATION_SHARE_MIN: f64 = 1e-6;

/// The greatest magnitude of a value, so that no square overflows.
const VALUE_MAX: f64 = 1e100;

/// Added to the squared length of the rest, which is a difference of rounded numbers.
const REST_SLACK: f64 = 1e-8;

/// The numbers of the first coefficients that are compared for many series at a time: first a few,
/// which often suffice, and then more.
pub const FIRST_MAX: usize = 4;
pub const HEAD_MAX: usize = 24;

/// A series of one value per step.
#[derive(Clone, Debug)]
pub struct Series {
    /// The values of the last `window + lag` steps, twice, so that each window is contiguous: step
    /// s is at s modulo half the length, and half the length later.
    values: Vec<f64>,
    /// Whether they are known, not repeated from an earlier step; in the same order, once.
    known: Vec<bool>,
    /// How many values of the latest window are known.
    known_count: usize,
    /// The last known value and its step; `None` before the first one.
    last: Option<(f64, u64)>,
    /// The step of the first known value.
    begin: u64,
    /// Basic windows, the latest last, which may be incomplete.
    basics: VecDeque<BasicWindow>,
    /// The sum of the basic windows of a window; kept for its allocation.
    sum: BasicWindow,
    /// For each of the last `lag + 1` windows: its frame, and its coefficients.
    frames: Vec<Option<Frame>>,
    points: Vec<f32>,
}

/// What normalises a window.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The mean.
    pub mean: f64,
    /// The inverse of the root of the sum of squared distances from the mean.
    pub scale: f64,
    /// The length of the normalised window without its first [`FIRST_MAX`] numbers, and without its
    /// first [`HEAD_MAX`].
    pub head_rests: [f32; 2],
    /// The same without all kept coefficients.
    pub rest: f32,
}

impl Series {
    /// A series without values.
    pub fn new(options: &CorrelationOptions) -> Series {
        let kept = options.window + options.lag;
        Series {
            values: vec![0.0; 2 * kept],
            known: vec![false; kept],
            known_count: 0,
            last: None,
            begin: 0,
            basics: VecDeque::new(),
            sum: BasicWindow::new(0, options.coefficients()),
            frames: vec![None; options.lag + 1],
            points: vec![0.0; (options.lag + 1) * options.numbers()],
        }
    }

    /// Adds the value of `step`, one after the previous one. A missing value repeats the last
    /// known one, and its window has one known value less.
    pub fn add(
        &mut self,
        value: Option<f64>,
        step: u64,
        options: &CorrelationOptions,
        phases: &Phases,
    ) {
        let value = value.filter(|value| value.is_finite());
        let value = value.map(|value| value.clamp(-VALUE_MAX, VALUE_MAX));
        if self.last.is_none() {
            self.begin = step;
        }
        self.last = value.map(|value| (value, step)).or(self.last);
        let slot = slot_of(step, self.frames.len());
        self.frames[slot] = None;
        let Some((kept, _)) = self.last else { return };
        self.put(kept, value.is_some(), step, options);
        self.add_to_basic(kept, step, options, phases);
        if step + 1 >= self.begin + options.window as u64 {
            self.frames[slot] = self.frame(step, options, phases);
        }
    }

    fn put(&mut self, value: f64, is_known: bool, step: u64, options: &CorrelationOptions) {
        let kept = self.known.len();
        if let Some(left) = step.checked_sub(options.window as u64)
            && left >= self.begin
        {
            self.known_count -= usize::from(self.known[slot_of(left, kept)]);
        }
        let at = slot_of(step, kept);
        self.values[at] = value;
        self.values[at + kept] = value;
        self.known[at] = is_known;
        self.known_count += usize::from(is_known);
    }

    fn add_to_basic(
        &mut self,
        value: f64,
        step: u64,
        options: &CorrelationOptions,
        phases: &Phases,
    ) {
        let basic = options.basic() as u64;
        if step.is_multiple_of(basic) || self.basics.is_empty() {
            let oldest = self.basics.front().map(|basic| basic.begin);
            let is_passed = |begin| begin + (options.window as u64) < step;
            let mut next = match oldest.is_some_and(is_passed) {
                true => self.basics.pop_front().expect("there is an oldest"),
                false => BasicWindow::new(step, options.coefficients()),
            };
            next.clear(step);
            self.basics.push_back(next);
        }
        let latest = self.basics.back_mut().expect("one was added");
        latest.add(value, step, phases);
    }

    /// Sums the basic windows inside the window that ends at `step`, and the values before them.
    /// Nothing is subtracted, so rounding errors do not accumulate as the window slides.
    fn summed(&mut self, step: u64, options: &CorrelationOptions, phases: &Phases) {
        let first = step + 1 - options.window as u64;
        let sum = &mut self.sum;
        sum.clear(first);
        let inside = self.basics.iter().filter(|basic| basic.begin >= first);
        let covered = inside.clone().map(|basic| basic.begin).min();
        for early in first..covered.unwrap_or(step + 1) {
            let value = self.values[slot_of(early, self.known.len())];
            sum.add(value, early, phases);
        }
        inside.for_each(|basic| sum.merge(basic));
    }

    /// The frame of the window that ends at `step`, with its coefficients in `points`; `None` if it
    /// is constant or too few of its values are known.
    fn frame(&mut self, step: u64, options: &CorrelationOptions, phases: &Phases) -> Option<Frame> {
        let window = options.window as f64;
        if (self.known_count as f64) < KNOWN_SHARE * window {
            return None;
        }
        self.summed(step, options, phases);
        let sum = &self.sum;
        let deviation = (sum.squares / window).sqrt();
        if deviation == 0.0 || deviation < DEVIATION_SHARE_MIN * sum.mean.abs() {
            return None;
        }
        let scale = 1.0 / sum.squares.sqrt();
        // The coefficients are those of the orthonormal transform. The conjugate half is included
        // by the factor √2, so that products of points are parts of the correlation.
        let factor = scale * (2.0 / window).sqrt();
        let numbers = options.numbers();
        let slot = slot_of(step, self.frames.len());
        let point = &mut self.points[slot * numbers..(slot + 1) * numbers];
        let (mut length, mut head_lengths) = (0.0, [0.0; 2]);
        for (at, [re, im]) in sum.coefficients.iter().enumerate() {
            let [cos, sin] = phases.at(at + 1, sum.begin);
            let number = [re * cos - im * sin, re * sin + im * cos].map(|x| factor * x);
            point[2 * at] = number[0] as f32;
            point[2 * at + 1] = number[1] as f32;
            length += number[0] * number[0] + number[1] * number[1];
            for (head_length, numbers) in head_lengths.iter_mut().zip([FIRST_MAX, HEAD_MAX]) {
                if 2 * at + 1 < numbers {
                    *head_length = length;
                }
            }
        }
        let rest = |length: f64| ((1.0 - length).max(0.0) + REST_SLACK).sqrt() as f32;
        Some(Frame {
            mean: sum.mean,
            scale,
            head_rests: head_lengths.map(rest),
            rest: rest(length),
        })
    }

    /// The last step with a known value.
    pub fn last_known(&self) -> Option<u64> {
        self.last.map(|(_, step)| step)
    }

    /// The frame of the window that ends at `step`, one of the last `lag + 1`; `None` if it cannot
    /// be compared.
    pub fn frame_at(&self, step: u64) -> Option<&Frame> {
        self.frames[slot_of(step, self.frames.len())].as_ref()
    }

    /// Its coefficients.
    pub fn point_at(&self, step: u64) -> &[f32] {
        let numbers = self.points.len() / self.frames.len();
        let slot = slot_of(step, self.frames.len());
        &self.points[slot * numbers..(slot + 1) * numbers]
    }

    /// The values of the window that ends at `step`.
    pub fn values_at(&self, step: u64, window: usize) -> &[f64] {
        let first = slot_of(step + 1 - window as u64, self.known.len());
        &self.values[first..first + window]
    }

    /// Whether the value of `step` is known.
    pub fn is_known(&self, step: u64) -> bool {
        self.known[slot_of(step, self.known.len())]
    }
}

fn slot_of(step: u64, slots: usize) -> usize {
    (step % slots as u64) as usize
}
