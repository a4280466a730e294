//! [`Site`]: the hosts behind an agent that is the monitor of a site.
//!
//! What a site reports holds for results after its last watermark. Rows wait for other agents, so
//! it is applied when the watermark of the fleet passes that instant. A step of the watermark over
//! several reports has the worst of each number.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use weir_model::Nanos;
use weir_wire::{ChannelHosts, ChannelId, SiteHosts};

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Site {
    /// Of the results of the last step; `None` before the first report.
    shown: Option<SiteHosts>,
    /// Of results at the watermark, and immediately after it.
    present: SiteHosts,
    /// Of results after these instants, in order.
    later: VecDeque<(Nanos, SiteHosts)>,
    watermark: Nanos,
}

impl Site {
    /// All its hosts.
    pub fn hosts(&self) -> u32 {
        self.shown.as_ref().map_or(0, |shown| shown.hosts)
    }

    /// Those that are connected and do not delay others.
    pub fn responded(&self) -> u32 {
        let shown = self.shown.as_ref();
        shown.map_or(0, |shown| shown.responded.min(shown.hosts))
    }

    /// Those in the results of a channel that the site runs.
    pub fn in_channel(&self, channel: ChannelId) -> Option<ChannelHosts> {
        let shown = self.shown.as_ref()?;
        let found = shown
            .channels
            .binary_search_by_key(&channel.0, |of| of.channel);
        let of = shown.channels[found.ok()?];
        Some(ChannelHosts {
            missing: of.missing.min(shown.hosts),
            failed: of.failed.min(shown.hosts),
            ..of
        })
    }

    /// Adds a report, which holds for results after `from`.
    pub fn report(&mut self, from: Nanos, mut hosts: SiteHosts) {
        hosts.channels.sort_unstable_by_key(|of| of.channel);
        if self.shown.is_none() {
            self.shown = Some(hosts.clone());
            self.present = hosts;
            return;
        }
        match self.later.back_mut() {
            Some((at, last)) if *at == from => *last = hosts,
            _ => self.later.push_back((from, hosts)),
        }
    }

    /// Shows what holds for the results up to `watermark` since the last call.
    pub fn advance(&mut self, watermark: Nanos) {
        let mut shown: Option<SiteHosts> = None;
        let before = std::mem::replace(&mut self.watermark, watermark);
        if self.shown.is_none() || watermark <= before {
            return;
        }
        if self.later.front().is_none_or(|(from, _)| *from > before) {
            shown = Some(self.present.clone());
        }
        let due = self.later.partition_point(|(from, _)| *from < watermark);
        for (_, hosts) in self.later.drain(..due) {
            shown = Some(match shown {
                Some(earlier) => worse(&earlier, &hosts),
                None => hosts.clone(),
            });
            self.present = hosts;
        }
        self.shown = shown;
    }
}

/// The larger number of what is missing of each kind.
fn worse(one: &SiteHosts, other: &SiteHosts) -> SiteHosts {
    let mut channels = other.channels.clone();
    for of in &one.channels {
        // Those of `other` are sorted, and first.
        let others = &mut channels[..other.channels.len()];
        match others.binary_search_by_key(&of.channel, |of| of.channel) {
            Ok(same) => others[same] = worse_of_channel(&others[same], of),
            Err(_) => channels.push(*of),
        }
    }
    channels.sort_unstable_by_key(|of| of.channel);
    SiteHosts {
        hosts: one.hosts.max(other.hosts),
        responded: one.responded.min(other.responded),
        channels,
    }
}

/// The same of one channel.
pub fn worse_of_channel(one: &ChannelHosts, other: &ChannelHosts) -> ChannelHosts {
    ChannelHosts {
        channel: one.channel,
        missing: one.missing.max(other.missing),
        failed: one.failed.max(other.failed),
        complete_from_ns: one.complete_from_ns.max(other.complete_from_ns),
        requests_away: one.requests_away.max(other.requests_away),
    }
}

/// A [`Site`] in the state of the monitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedSite {
    present: SavedHosts,
    later: Vec<(Nanos, SavedHosts)>,
}

/// [`SiteHosts`] in the state of the monitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedHosts {
    hosts: u32,
    responded: u32,
    channels: Vec<SavedChannelHosts>,
}

/// [`ChannelHosts`] in the state of the monitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedChannelHosts {
    channel: u64,
    missing: u32,
    failed: u32,
    complete_from: Nanos,
    requests_away: u64,
}

impl SavedSite {
    /// Of a site that has reported its hosts.
    pub fn of(site: &Site) -> Option<SavedSite> {
        site.shown.as_ref()?;
        let later = site.later.iter();
        Some(SavedSite {
            present: SavedHosts::of(&site.present),
            later: later.map(|(at, h)| (*at, SavedHosts::of(h))).collect(),
        })
    }

    /// The site, whose results up to `watermark` have been emitted.
    pub fn restored(self, watermark: Nanos) -> Site {
        let present = self.present.hosts();
        let later = self.later.into_iter();
        Site {
            shown: Some(present.clone()),
            present,
            later: later.map(|(at, saved)| (at, saved.hosts())).collect(),
            watermark,
        }
    }
}

impl SavedHosts {
    fn of(hosts: &SiteHosts) -> SavedHosts {
        let channels = hosts.channels.iter().map(|of| SavedChannelHosts {
            channel: of.channel,
            missing: of.missing,
            failed: of.failed,
            complete_from: of.complete_from_ns,
            requests_away: of.requests_away,
        });
        SavedHosts {
            hosts: hosts.hosts,
            responded: hosts.responded,
            channels: channels.collect(),
        }
    }

    fn hosts(self) -> SiteHosts {
        let channels = self.channels.into_iter().map(|of| ChannelHosts {
            channel: of.channel,
            missing: of.missing,
            failed: of.failed,
            complete_from_ns: of.complete_from,
            requests_away: of.requests_away,
        });
        SiteHosts {
            hosts: self.hosts,
            responded: self.responded,
            channels: channels.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report about channel 1.
    fn report(hosts: u32, missing: u32) -> SiteHosts {
        let channel = ChannelHosts {
            channel: 1,
            missing,
            ..ChannelHosts::default()
        };
        SiteHosts {
            hosts,
            responded: hosts,
            channels: vec![channel],
        }
    }

    fn missing(site: &Site) -> u32 {
        site.in_channel(ChannelId(1)).unwrap().missing
    }

    #[test]
    fn a_report_holds_for_later_results() {
        let mut site = Site::default();
        site.advance(10);
        site.report(10, report(3, 0));
        assert_eq!((site.hosts(), missing(&site)), (3, 0), "the first one");
        // One host is missing in the results in (20, 30].
        site.report(20, report(3, 1));
        site.report(30, report(4, 0));
        site.advance(20);
        assert_eq!(missing(&site), 0);
        site.advance(21);
        assert_eq!(missing(&site), 1);
        let saved = SavedSite::of(&site).unwrap();
        let json = serde_json::to_string(&saved).unwrap();
        let mut again = serde_json::from_str::<SavedSite>(&json)
            .unwrap()
            .restored(21);
        for site in [&mut site, &mut again] {
            site.advance(30);
            assert_eq!((site.hosts(), missing(site)), (3, 1));
            site.advance(31);
            assert_eq!((site.hosts(), missing(site)), (4, 0));
        }
        // A step over several reports has the worst of them.
        site.report(40, report(4, 2));
        site.report(50, report(4, 0));
        site.advance(100);
        assert_eq!(missing(&site), 2);
        site.advance(101);
        assert_eq!(missing(&site), 0);
    }
}
