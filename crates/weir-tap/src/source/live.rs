//! `live`: this host's block I/O, virtual machines and devices.

use std::sync::Arc;

use weir_model::{Capabilities, Demand};

use super::{EventSource, SourceKind, SourceSettings, Started};
use crate::ebpf::LiveOptions;
use crate::live::{self, LiveTap};
use crate::probe::ProbeStream;
use crate::{Tap, TapError};

/// This host.
pub static KIND: SourceKind = SourceKind {
    name: "live",
    argument: "",
    aliases: &[],
    doc: "the block layer of this host",
    is_live: true,
    part: "kernel",
    open: |_, settings| {
        let probes = settings.probes.clone();
        Ok(Box::new(Host { probes }))
    },
};

/// The taps of this host, each of which is started when a demand needs it.
struct Host {
    /// The streams of probes that queries define.
    probes: Vec<Arc<ProbeStream>>,
}

/// What serves a demand.
enum Serving<'a> {
    Tap(&'static LiveTap),
    Probe(&'a ProbeStream),
}

impl Host {
    fn serving(&self, stream: &str) -> Option<Serving<'_>> {
        if let Some(tap) = LiveTap::of(stream) {
            return Some(Serving::Tap(tap));
        }
        let mut probes = self.probes.iter();
        let probe = probes.find(|probe| probe.name().eq_ignore_ascii_case(stream));
        probe.map(|probe| Serving::Probe(probe))
    }
}

impl Serving<'_> {
    fn is(&self, other: &Serving<'_>) -> bool {
        match (self, other) {
            (Serving::Tap(tap), Serving::Tap(other)) => std::ptr::eq(*tap, *other),
            (Serving::Probe(probe), Serving::Probe(other)) => std::ptr::eq(*probe, *other),
            _ => false,
        }
    }

    fn open(
        &self,
        demands: &[Demand],
        settings: &SourceSettings,
    ) -> Result<Box<dyn Tap>, TapError> {
        let needs_inventory = |demand: &Demand| match self {
            Serving::Tap(tap) => (tap.needs_inventory)(demand),
            Serving::Probe(probe) => probe.needs_inventory(demand),
        };
        let inventory = match demands.iter().any(needs_inventory) {
            true => Some((settings.inventory)()?),
            false => None,
        };
        let options = LiveOptions {
            inventory: inventory.clone(),
            ..settings.live.clone()
        };
        let tap = match self {
            Serving::Tap(tap) => (tap.open)(demands, &options),
            Serving::Probe(probe) => probe.open(demands, &options),
        }?;
        inventory.map_or(Ok(()), |watch| watch.ready())?;
        Ok(tap)
    }
}

impl EventSource for Host {
    fn probe(&self) -> Result<Capabilities, TapError> {
        let mut all = live::capabilities();
        let probes = self.probes.iter().map(|probe| probe.capabilities());
        all.streams.extend(probes);
        Ok(all)
    }

    fn start(
        &self,
        demands: &[Demand],
        settings: &SourceSettings,
    ) -> Result<Vec<Started>, TapError> {
        let mut parts: Vec<(Serving<'_>, Vec<usize>)> = Vec::new();
        for (position, demand) in demands.iter().enumerate() {
            let serving = self
                .serving(&demand.stream)
                .ok_or_else(|| TapError::Unavailable {
                    what: format!("`{}` is not available live", demand.stream),
                    remedy: "use --from FILE to query a recording".into(),
                })?;
            match parts.iter_mut().find(|(known, _)| known.is(&serving)) {
                Some((_, positions)) => positions.push(position),
                None => parts.push((serving, vec![position])),
            }
        }
        let start = |(serving, positions): (Serving<'_>, Vec<usize>)| {
            let own: Vec<Demand> = positions.iter().map(|at| demands[*at].clone()).collect();
            Ok(Started {
                tap: serving.open(&own, settings).map_err(live::unwatched)?,
                demands: positions,
            })
        };
        parts.into_iter().map(start).collect()
    }
}
