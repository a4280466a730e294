//! [`SharedDevice`]: how much slower two disks are together on a device than each alone on it.

use serde::Serialize;

use super::advisor::Advisor;
use super::affinity::DiskAffinity;
use super::stream::HostedDevice;
use crate::profile::HostedDisk;

/// The disks whose pairs are replayed, the busiest.
const DISKS_MAX: usize = 6;

/// A pair that is slower by less may share a device, a pair that is slower by more should not.
const SLOWDOWN: f64 = 1.1;

/// Two disks on one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharedDevice {
    /// The disks.
    pub disks: [HostedDisk; 2],
    /// The device of the busier one, on which both are replayed.
    pub device: HostedDevice,
    /// The objective of the requests of both together over that of each alone.
    pub slowdown: f64,
    /// Its interval.
    pub slowdown_interval: [f64; 2],
    /// What follows.
    pub advice: SharingAdvice,
    /// How the loads relate.
    pub affinity: DiskAffinity,
}

/// Whether two disks may share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SharingAdvice {
    /// The whole interval is below a slowdown of 10 %.
    Together,
    /// The whole interval is above it.
    Separate,
    /// Neither, or too many requests are of a kind that was not measured.
    Undecided,
}

impl SharingAdvice {
    /// The name.
    pub fn as_str(self) -> &'static str {
        match self {
            SharingAdvice::Together => "together",
            SharingAdvice::Separate => "separate",
            SharingAdvice::Undecided => "undecided",
        }
    }
}

/// The pairs of the busiest disks, the most slowed first.
pub(super) fn pairs(advisor: &mut Advisor) -> Vec<SharedDevice> {
    let load = |disk: &usize| {
        advisor.disks[*disk]
            .stream
            .within(&advisor.validation)
            .len()
    };
    let mut busiest: Vec<usize> = (0..advisor.disks.len()).collect();
    busiest.retain(|disk| load(disk) > 0);
    busiest.sort_by_key(|disk| std::cmp::Reverse(load(disk)));
    busiest.truncate(DISKS_MAX);
    let mut found = Vec::new();
    for (number, a) in busiest.iter().enumerate() {
        for b in &busiest[number + 1..] {
            found.extend(pair(advisor, *a, *b));
        }
    }
    found.sort_by(|a, b| b.slowdown.total_cmp(&a.slowdown));
    found
}

fn pair(advisor: &mut Advisor, a: usize, b: usize) -> Option<SharedDevice> {
    let of = &advisor.disks[a].stream.device;
    let device = advisor
        .devices
        .iter()
        .position(|device| device.device == *of)?;
    let alone = [a, b].map(|disk| advisor.predicted(device, &[disk], false));
    let mut both = [a, b];
    both.sort_unstable();
    let together = advisor.predicted(device, &both, false);
    let ratios: Vec<f64> = (0..together.runs())
        .map(|run| {
            let mut apart = alone[0].latencies(run, None);
            apart.extend(alone[1].latencies(run, None));
            let mut shared = together.latencies(run, None);
            advisor.objective.of(&mut shared) / advisor.objective.of(&mut apart)
        })
        .collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    let factor = advisor.error_factor(device)?;
    let [low, high] = [least / factor, most * factor];
    let is_measured = together.unmeasured_share <= super::advisor::UNMEASURED_SHARE_MAX;
    Some(SharedDevice {
        disks: [a, b].map(|disk| advisor.disks[disk].stream.disk.clone()),
        device: advisor.devices[device].device.clone(),
        slowdown: ratios[0],
        slowdown_interval: [low, high],
        advice: match is_measured {
            true if high < SLOWDOWN => SharingAdvice::Together,
            true if low > SLOWDOWN => SharingAdvice::Separate,
            _ => SharingAdvice::Undecided,
        },
        affinity: DiskAffinity::of(&advisor.disks[a], &advisor.disks[b], &advisor.validation),
    })
}
