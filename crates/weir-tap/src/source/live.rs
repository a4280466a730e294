//! `live`: this host's block I/O, virtual machines and devices.

use weir_model::{Capabilities, Demand};

use super::{EventSource, SourceKind, SourceSettings, Started};
use crate::TapError;
use crate::ebpf::LiveOptions;
use crate::live::{self, LiveTap};

/// This host.
pub static KIND: SourceKind = SourceKind {
    name: "live",
    argument: "",
    aliases: &[],
    doc: "the block layer of this host",
    is_live: true,
    open: |_, _| Ok(Box::new(Host)),
};

/// The taps of this host, each of which is started when a demand needs it.
struct Host;

impl EventSource for Host {
    fn probe(&self) -> Result<Capabilities, TapError> {
        Ok(live::capabilities())
    }

    fn start(
        &self,
        demands: &[Demand],
        settings: &SourceSettings,
    ) -> Result<Vec<Started>, TapError> {
        let mut parts: Vec<(&LiveTap, Vec<usize>)> = Vec::new();
        for (position, demand) in demands.iter().enumerate() {
            let tap = LiveTap::of(&demand.stream).ok_or_else(|| TapError::Unavailable {
                what: format!("`{}` is not available live", demand.stream),
                remedy: "use --from FILE to query a recording".into(),
            })?;
            match parts
                .iter_mut()
                .find(|(known, _)| std::ptr::eq(*known, tap))
            {
                Some((_, positions)) => positions.push(position),
                None => parts.push((tap, vec![position])),
            }
        }
        let start = |(tap, positions): (&LiveTap, Vec<usize>)| {
            let own: Vec<Demand> = positions.iter().map(|at| demands[*at].clone()).collect();
            let inventory = match own.iter().any(tap.needs_inventory) {
                true => Some((settings.inventory)()?),
                false => None,
            };
            let options = LiveOptions {
                inventory,
                ..settings.live.clone()
            };
            Ok(Started {
                tap: (tap.open)(&own, &options).map_err(live::unwatched)?,
                demands: positions,
            })
        };
        parts.into_iter().map(start).collect()
    }
}
