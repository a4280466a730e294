//! [`advise`]: which disk should be on which device.
//!
//! Changes (a disk moves, or two disks exchange their devices) are searched in the first half of
//! the recording: the merged requests are replayed, and the change that improves the objective most
//! is applied, up to a number of changes. What was found is then predicted for the second half. It
//! is a recommendation only if the whole interval of the prediction is better than what was
//! recorded.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use weir_model::Nanos;

use super::affinity::{DiskAffinity, DiskLoadShape};
use super::estimate::{LatencyEstimate, LatencyObjective, Prediction, pooled, recorded_latencies};
use super::measure::{MeasuredDevice, PreparedDisk};
use super::report::{
    AdvisedDevice, AdvisedDisk, ColocationReport, DiskMove, Neighbour, PlacementOutcome,
};
use super::sharing;
use super::stream::{DiskStream, DiskStreams, HostedDevice};
use crate::profile::HostedDisk;

/// A change that improves the objective by less is not proposed, whatever the error of the model.
const GAIN_MIN: f64 = 0.02;

/// The requests that are replayed for each possible change, and for the prediction.
const SEARCHED_REQUESTS: usize = 60_000;
const PREDICTED_REQUESTS: usize = 400_000;

/// The parts of a longer recording that are replayed.
const SLICES: usize = 8;

/// The possible changes that are replayed in each round, those of the busiest disks first.
const CHANGES_TRIED: usize = 400;

/// With a larger share of requests of a kind that the device was not measured with, nothing is
/// predicted.
pub(super) const UNMEASURED_SHARE_MAX: f64 = 0.1;

/// The neighbours that are listed as reasons for a move.
const NEIGHBOURS_MAX: usize = 3;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColocationOptions {
    /// What is to be improved.
    pub objective: LatencyObjective,
    /// The greatest number of moves and exchanges.
    pub changes_max: usize,
}

/// A device that was measured by a recording of its own.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The device.
    pub device: HostedDevice,
    /// The requests by which it was measured.
    pub streams: Vec<DiskStream>,
}

/// A move of a disk, or an exchange of the devices of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Move(usize, usize),
    Exchange(usize, usize),
}

/// The disks, and the devices that were measured.
pub(super) struct Advisor {
    pub disks: Vec<PreparedDisk>,
    pub devices: Vec<MeasuredDevice>,
    /// Devices with too few requests for a measurement.
    unmeasured: Vec<HostedDevice>,
    pub objective: LatencyObjective,
    pub training: Range<Nanos>,
    pub validation: Range<Nanos>,
    /// The device of each disk; `None` if it is not measured.
    placement: Vec<Option<usize>>,
    predictions: HashMap<(usize, Vec<usize>, bool), Rc<Prediction>>,
}

/// Advises on the placement of all disks.
pub fn advise(
    recorded: DiskStreams,
    calibrations: Vec<Calibration>,
    options: ColocationOptions,
) -> ColocationReport {
    let all = || recorded.streams.iter().flat_map(|stream| &stream.requests);
    let begin_ns = all().map(|request| request.arrival_ns).min().unwrap_or(0);
    let end_ns = all()
        .map(|request| request.arrival_ns + 1)
        .max()
        .unwrap_or(0);
    let requests = all().count() as u64;
    let mut report = ColocationReport {
        begin_ns,
        end_ns,
        objective: options.objective,
        requests,
        requests_omitted: recorded.requests_omitted,
        requests_untimed: recorded.requests_untimed,
        ..ColocationReport::default()
    };
    let mut advisor = Advisor::new(recorded.streams, calibrations, begin_ns..end_ns, &options);
    advisor.advise(&options, &mut report);
    report
}

impl Advisor {
    fn new(
        streams: Vec<DiskStream>,
        calibrations: Vec<Calibration>,
        all: Range<Nanos>,
        options: &ColocationOptions,
    ) -> Advisor {
        let middle = all.start + (all.end - all.start) / 2;
        let mut advisor = Advisor {
            disks: streams.into_iter().map(PreparedDisk::new).collect(),
            devices: Vec::new(),
            unmeasured: Vec::new(),
            objective: options.objective,
            training: all.start..middle,
            validation: middle..all.end,
            placement: Vec::new(),
            predictions: HashMap::new(),
        };
        for calibration in calibrations {
            advisor.add_calibration(calibration);
        }
        advisor.add_recorded_devices();
        let devices = &advisor.devices;
        let of = |disk: &PreparedDisk| devices.iter().position(|d| d.device == disk.stream.device);
        advisor.placement = advisor.disks.iter().map(of).collect();
        advisor
    }

    fn disks_on(&self, device: &HostedDevice) -> Vec<&PreparedDisk> {
        let disks = self.disks.iter();
        disks.filter(|disk| disk.stream.device == *device).collect()
    }

    fn add_calibration(&mut self, calibration: Calibration) {
        let disks: Vec<PreparedDisk> = calibration
            .streams
            .into_iter()
            .map(PreparedDisk::new)
            .collect();
        let disks: Vec<&PreparedDisk> = disks.iter().collect();
        let all = || disks.iter().flat_map(|disk| &disk.stream.requests);
        let begin = all().map(|request| request.arrival_ns).min().unwrap_or(0);
        let end = all()
            .map(|request| request.arrival_ns + 1)
            .max()
            .unwrap_or(0);
        // The demands are measured by all of it, the error by the use of the device, if it is used.
        let measured =
            MeasuredDevice::measure(&calibration.device, &disks, &(begin..end), &(begin..end));
        let Some(mut measured) = measured else {
            self.unmeasured.push(calibration.device);
            return;
        };
        measured.calibrated = true;
        let used = self.disks_on(&calibration.device);
        let used = measured.accuracy_on(&used, &self.validation);
        measured.accuracy = used.or(measured.accuracy);
        self.devices.push(measured);
    }

    fn add_recorded_devices(&mut self) {
        let mut found: Vec<HostedDevice> = Vec::new();
        found.extend(self.disks.iter().map(|disk| disk.stream.device.clone()));
        found.sort();
        found.dedup();
        for device in found {
            if self
                .devices
                .iter()
                .any(|measured| measured.device == device)
            {
                continue;
            }
            let disks = self.disks_on(&device);
            let measured =
                MeasuredDevice::measure(&device, &disks, &self.training, &self.validation);
            match measured {
                Some(measured) => self.devices.push(measured),
                None => self.unmeasured.push(device),
            }
        }
        self.devices.sort_by(|a, b| a.device.cmp(&b.device));
    }

    fn advise(&mut self, options: &ColocationOptions, report: &mut ColocationReport) {
        report.unmeasured = std::mem::take(&mut self.unmeasured);
        let before = self.placement.clone();
        let found = match self.devices.len() {
            0 | 1 => Vec::new(),
            _ => self.search(options.changes_max),
        };
        // As many of the changes as improve the second half, too.
        let mut placements = vec![before.clone()];
        for change in found {
            let mut next = placements[placements.len() - 1].clone();
            apply(&mut next, change);
            placements.push(next);
        }
        let mut chosen = 0;
        let mut value_ns = self
            .total(&before, false)
            .map_or(0.0, |total| total.value_ns);
        for (number, placement) in placements.iter().enumerate().skip(1) {
            let after = self
                .total(placement, false)
                .map_or(f64::INFINITY, |total| total.value_ns);
            if after < value_ns * (1.0 - GAIN_MIN) {
                (chosen, value_ns) = (number, after);
            }
        }
        let tried = placements.len() > 1;
        let after = placements.swap_remove(chosen);
        self.describe(&before, &after, report);
        report.outcome = self.outcome(&before, &after, report, tried);
        report.sharing = sharing::pairs(self);
    }

    /// The moves and exchanges that improve the first half, in the order in which they were found.
    fn search(&mut self, changes_max: usize) -> Vec<Change> {
        let mut placement = self.placement.clone();
        let mut found = Vec::new();
        while found.len() < changes_max {
            let Some(present) = self.total(&placement, true) else {
                break;
            };
            let mut best: Option<(f64, Change)> = None;
            for change in self.changes(&placement) {
                let mut next = placement.clone();
                apply(&mut next, change);
                let Some(total) = self.total(&next, true) else {
                    continue;
                };
                if best.is_none_or(|(value, _)| total.value_ns < value) {
                    best = Some((total.value_ns, change));
                }
            }
            let worth = best.filter(|(value, _)| *value < present.value_ns * (1.0 - GAIN_MIN));
            let Some((_, change)) = worth else {
                break;
            };
            apply(&mut placement, change);
            found.push(change);
        }
        found
    }

    /// The possible changes. I/O of the host itself is not moved if there are VMs.
    fn changes(&self, placement: &[Option<usize>]) -> Vec<Change> {
        let has_vms = self
            .disks
            .iter()
            .any(|disk| disk.stream.disk.name.vm.is_some());
        let is_movable = |disk: &usize| {
            let is_of_vm = self.disks[*disk].stream.disk.name.vm.is_some();
            placement[*disk].is_some() && (is_of_vm || !has_vms)
        };
        let mut movable: Vec<usize> = (0..self.disks.len()).filter(is_movable).collect();
        let load = |disk: usize| self.disks[disk].stream.within(&self.training).len();
        movable.sort_by_key(|disk| std::cmp::Reverse(load(*disk)));
        let mut changes = Vec::new();
        for (number, disk) in movable.iter().enumerate() {
            let others = (0..self.devices.len()).filter(|to| placement[*disk] != Some(*to));
            changes.extend(others.map(|to| Change::Move(*disk, to)));
            let rest = movable[..number].iter();
            let rest = rest.filter(|other| placement[**other] != placement[*disk]);
            changes.extend(rest.map(|other| Change::Exchange(*disk, *other)));
        }
        changes.truncate(CHANGES_TRIED);
        changes
    }

    /// The disks of a device.
    fn disks_of(placement: &[Option<usize>], device: usize) -> Vec<usize> {
        let on = |disk: &usize| placement[*disk] == Some(device);
        (0..placement.len()).filter(on).collect()
    }

    /// The latencies of these disks on a device, in the first half or, if not `quick`, the second.
    pub fn predicted(&mut self, device: usize, disks: &[usize], quick: bool) -> Rc<Prediction> {
        let key = (device, disks.to_vec(), quick);
        if let Some(prediction) = self.predictions.get(&key) {
            return prediction.clone();
        }
        let windows = self.windows(quick);
        let of: Vec<&PreparedDisk> = disks.iter().map(|disk| &self.disks[*disk]).collect();
        let prediction = Prediction::of(&self.devices[device], &of, &windows, quick);
        let prediction = Rc::new(prediction);
        self.predictions.insert(key, prediction.clone());
        prediction
    }

    /// The time that is replayed: evenly spaced slices, if there are many requests.
    fn windows(&self, quick: bool) -> Vec<Range<Nanos>> {
        let (window, limit) = match quick {
            true => (&self.training, SEARCHED_REQUESTS),
            false => (&self.validation, PREDICTED_REQUESTS),
        };
        let count: usize = self
            .disks
            .iter()
            .map(|disk| disk.stream.within(window).len())
            .sum();
        if count <= limit {
            return vec![window.clone()];
        }
        let length = (window.end - window.start) / SLICES as Nanos;
        let slice = (length as f64 * limit as f64 / count as f64) as Nanos;
        let begin = |number: usize| window.start + length * number as Nanos;
        (0..SLICES)
            .map(|n| begin(n)..begin(n) + slice.max(1))
            .collect()
    }

    /// The objective over all devices.
    fn total(&mut self, placement: &[Option<usize>], quick: bool) -> Option<LatencyEstimate> {
        let predictions: Vec<Rc<Prediction>> = (0..self.devices.len())
            .map(|device| (device, Self::disks_of(placement, device)))
            .filter(|(_, disks)| !disks.is_empty())
            .map(|(device, disks)| self.predicted(device, &disks, quick))
            .collect();
        let predictions: Vec<&Prediction> = predictions.iter().map(|p| &**p).collect();
        let used = (0..self.devices.len()).filter(|device| placement.contains(&Some(*device)));
        let factors = used.map(|device| self.error_factor(device).unwrap_or(1.0));
        pooled(&predictions, self.objective, factors.fold(1.0, f64::max))
    }

    pub fn error_factor(&self, device: usize) -> Option<f64> {
        self.objective.error_factor(&self.devices[device])
    }

    fn recorded(&self, disks: &[usize]) -> Option<f64> {
        let disks: Vec<&PreparedDisk> = disks.iter().map(|disk| &self.disks[*disk]).collect();
        let mut latencies = recorded_latencies(&disks, &self.windows(false));
        (!latencies.is_empty()).then(|| self.objective.of(&mut latencies))
    }

    fn describe(
        &mut self,
        before: &[Option<usize>],
        after: &[Option<usize>],
        report: &mut ColocationReport,
    ) {
        let placed: Vec<usize> = (0..before.len())
            .filter(|disk| before[*disk].is_some())
            .collect();
        report.recorded_ns = self.recorded(&placed);
        report.modelled = self.total(before, false);
        report.predicted = self.total(after, false);
        for device in 0..self.devices.len() {
            let disks = [before, after].map(|placement| Self::disks_of(placement, device));
            let described = self.device(device, disks);
            report.devices.push(described);
        }
        for disk in 0..self.disks.len() {
            let stream = &self.disks[disk].stream;
            report.disks.push(AdvisedDisk {
                disk: stream.disk.clone(),
                requests: stream.requests.len() as u64,
                shape: DiskLoadShape::of(&self.disks[disk], &self.validation),
                recorded_ns: self.recorded(&[disk]),
                modelled: before[disk].and_then(|device| self.of_disk(before, device, disk)),
                predicted: after[disk].and_then(|device| self.of_disk(after, device, disk)),
            });
            if let (Some(from), Some(to)) = (before[disk], after[disk])
                && from != to
            {
                let leaves = self.neighbours(before, disk);
                let joins = self.neighbours(after, disk);
                report.moves.push(DiskMove {
                    disk: self.disks[disk].stream.disk.clone(),
                    from: self.devices[from].device.clone(),
                    to: self.devices[to].device.clone(),
                    leaves,
                    joins,
                });
            }
        }
    }

    fn device(&mut self, device: usize, [before, after]: [Vec<usize>; 2]) -> AdvisedDevice {
        let factor = self.error_factor(device).unwrap_or(1.0);
        let predictions = [&before, &after].map(|disks| {
            let any = !disks.is_empty();
            any.then(|| self.predicted(device, disks, false))
        });
        let [modelled, predicted] = &predictions;
        let estimate = |prediction: &Option<Rc<Prediction>>| {
            let prediction = prediction.as_ref()?;
            prediction.estimate(None, self.objective, factor)
        };
        let names = |disks: &[usize]| -> Vec<HostedDisk> {
            disks
                .iter()
                .map(|disk| self.disks[*disk].stream.disk.clone())
                .collect()
        };
        let measured = &self.devices[device];
        AdvisedDevice {
            device: measured.device.clone(),
            calibrated: measured.calibrated,
            channels: measured.channels(),
            accuracy: measured.accuracy,
            depths: measured.depths.clone(),
            recorded_ns: self.recorded(&before),
            modelled: estimate(modelled),
            predicted: estimate(predicted),
            utilisation: modelled.as_ref().and_then(|p| p.utilisation),
            utilisation_predicted: predicted.as_ref().and_then(|p| p.utilisation),
            unmeasured_share: predicted.as_ref().map_or(0.0, |p| p.unmeasured_share),
            disks_before: names(&before),
            disks_after: names(&after),
        }
    }

    fn of_disk(
        &mut self,
        placement: &[Option<usize>],
        device: usize,
        disk: usize,
    ) -> Option<LatencyEstimate> {
        let disks = Self::disks_of(placement, device);
        let number = disks.iter().position(|of| *of == disk);
        let factor = self.error_factor(device).unwrap_or(1.0);
        let prediction = self.predicted(device, &disks, false);
        prediction.estimate(number, self.objective, factor)
    }

    /// The busiest disks that share the device of a disk.
    fn neighbours(&self, placement: &[Option<usize>], disk: usize) -> Vec<Neighbour> {
        let device = placement[disk].expect("a disk that moves has a device");
        let mut others = Self::disks_of(placement, device);
        others.retain(|other| *other != disk);
        let load = |disk: usize| self.disks[disk].stream.within(&self.validation).len();
        others.sort_by_key(|other| std::cmp::Reverse(load(*other)));
        let others = others
            .iter()
            .take(NEIGHBOURS_MAX)
            .map(|other| &self.disks[*other]);
        let neighbour = |other: &PreparedDisk| Neighbour {
            disk: other.stream.disk.clone(),
            affinity: DiskAffinity::of(&self.disks[disk], other, &self.validation),
        };
        others.map(neighbour).collect()
    }

    fn outcome(
        &self,
        before: &[Option<usize>],
        after: &[Option<usize>],
        report: &ColocationReport,
        tried: bool,
    ) -> PlacementOutcome {
        if self.disks.is_empty() {
            return PlacementOutcome::NoRequests;
        }
        if self.devices.len() < 2 {
            return PlacementOutcome::OneDevice;
        }
        if before == after {
            return match tried {
                true => PlacementOutcome::NotInSecondHalf,
                false => PlacementOutcome::NoBetterPlacement,
            };
        }
        let changed = |device: &usize| {
            let [was, is] = [before, after].map(|placement| Self::disks_of(placement, *device));
            was != is
        };
        let changed: Vec<usize> = (0..self.devices.len()).filter(changed).collect();
        let of = |device: &usize| &report.devices[*device];
        if let Some(device) = changed
            .iter()
            .find(|d| of(d).unmeasured_share > UNMEASURED_SHARE_MAX)
        {
            return PlacementOutcome::UnmeasuredRequests(of(device).device.clone());
        }
        let used = (0..self.devices.len()).filter(|device| after.contains(&Some(*device)));
        let mut used = used.filter(|device| self.error_factor(*device).is_none());
        if let Some(device) = used.next() {
            return PlacementOutcome::UnknownError(of(&device).device.clone());
        }
        match (report.recorded_ns, report.predicted) {
            (Some(recorded_ns), Some(predicted)) if predicted.interval_ns[1] < recorded_ns => {
                PlacementOutcome::Recommended
            }
            _ => PlacementOutcome::WithinError,
        }
    }
}

fn apply(placement: &mut [Option<usize>], change: Change) {
    match change {
        Change::Move(disk, to) => placement[disk] = Some(to),
        Change::Exchange(a, b) => placement.swap(a, b),
    }
}
