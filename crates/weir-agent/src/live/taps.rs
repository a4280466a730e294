//! The taps of a live agent: opened when a fragment needs them, closed when none does, and the
//! processing of their rows.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;
use weir_model::{Batch, Demand, Folded};
use weir_query::plan::Plan;
use weir_wire::ChannelId;

use super::super::demands::{BLOCK, covers, wanted};
use super::super::folds;
use super::super::service::{Service, TapMessage};
use super::super::shedding;
use super::super::tap::OpenTap;
use super::Agent;

/// A recording starts when no order has arrived for this time, so that queries that are started
/// together receive all of it.
const SETTLE: Duration = Duration::from_millis(300);

/// A recording pauses while this number of bytes waits to be acknowledged; a live source cannot.
const RECORDED_BYTES_MAX: u64 = 4 << 20;

impl Agent {
    /// Opens and closes taps as needed, and starts the fragments whose taps are open.
    pub(super) fn serve(&mut self) {
        // Before the clock offset is known, rows would have a wrong timestamp.
        if !self.is_synchronised() {
            return;
        }
        if !self.pending.is_empty() {
            // They start now, not at the watermark at which the last fragment ended.
            self.reach();
        }
        self.find_wanted();
        self.close_unwanted();
        let settled = self.options.source_config.is_live() || self.ordered.elapsed() > SETTLE;
        for (name, demands) in &self.wanted {
            match self.services.get_mut(name) {
                Some(service) => service.serve(&self.options.source_config, demands),
                None if name == BLOCK && !settled => {}
                None => {
                    let catalog = self.served.capabilities.catalog();
                    let declared = demands.iter().filter_map(|d| catalog.find(&d.stream));
                    declared.for_each(|declaration| self.core.declare(declaration));
                    let service =
                        Service::begin(&self.options.source_config, name, demands.clone());
                    self.services.insert(name.clone(), service);
                }
            }
        }
        self.start_served(|_, _| false);
    }

    /// Closes the taps that no fragment needs. The next tap of that name starts without state.
    fn close_unwanted(&mut self) {
        let (wanted, core) = (&self.wanted, &mut self.core);
        self.services.retain(|name, service| {
            let kept = wanted.contains_key(name);
            if !kept {
                for source in service.sources() {
                    core.forget_source(source);
                    core.set_folding(source, 0);
                }
            }
            kept
        });
        let services = &self.services;
        self.missed
            .retain(|(name, _), _| services.contains_key(name));
    }

    /// Starts the pending fragments that are served now: by `extra`, given the name of a tap and
    /// the demands on it, or by the services.
    fn start_served(&mut self, extra: impl Fn(&str, &[Demand]) -> bool) {
        for channel in std::mem::take(&mut self.pending) {
            let plan: Arc<Plan> = self.plans[&channel].clone();
            let served = |(name, needed): (&String, &Vec<Demand>)| {
                extra(name, needed) || self.services.get(name).is_some_and(|s| s.gives(needed))
            };
            match wanted(std::iter::once(&*plan), &self.served, &self.folds)
                .iter()
                .all(served)
            {
                true => self.core.start(channel, &plan),
                false => self.pending.push(channel),
            }
        }
    }

    /// Receives from the taps. False if there was nothing.
    pub(super) fn listen(&mut self) -> bool {
        let now = self.clock.now();
        let full = self.uplink.state().waiting.bytes > RECORDED_BYTES_MAX;
        let mut received = false;
        let names: Vec<String> = self.services.keys().cloned().collect();
        for name in names {
            // Removed during processing, since its messages change the rest of `self`.
            let Some(mut service) = self.services.remove(&name) else {
                continue;
            };
            if full && service.is_recorded() {
                self.services.insert(name, service);
                continue;
            }
            let mut over = None;
            received |= service.listen(now, &mut |tap, message| match message {
                TapMessage::Rows { demand, batch } => self.push(tap, demand, &batch),
                TapMessage::Folded { demand, folded } => self.push_folded(tap, demand, folded),
                TapMessage::Opened { at } | TapMessage::Switched { at } => {
                    let at = self.to_monitor(at);
                    let at = tap
                        .interval()
                        .map_or(at, |interval| folds::over(interval, at));
                    for (conversion, source) in tap.conversions.iter_mut().zip(&tap.sources) {
                        let at = conversion.reached(at, |at| at);
                        self.core.watermark_sent(source, at);
                    }
                    // They receive the rows after that.
                    self.start_with(&name, &tap.demands);
                }
                TapMessage::NotOpened(why) => self.fail(&name, &why, true),
                TapMessage::Over(why) => over = Some(why),
            });
            match over {
                None => drop(self.services.insert(name, service)),
                Some(None) => {
                    self.replayed |= service.is_recorded();
                    self.services.insert(name, service);
                }
                Some(Some(why)) => {
                    self.fail(&name, &why, false);
                    for source in service.sources() {
                        self.core.forget_source(source);
                        self.core.set_folding(source, 0);
                    }
                }
            }
        }
        // Before the tallies are written again.
        self.count_folding();
        received
    }

    /// Counts the losses of the taps since the last call for all fragments that read them.
    pub(super) fn report_missed(&mut self) {
        for (name, service) in &self.services {
            for (cause, total) in service.missed() {
                let before = self.missed.entry((name.clone(), cause)).or_default();
                let requests = u64::try_from(total - *before).unwrap_or(0);
                *before = total;
                if requests > 0 {
                    for source in service.sources() {
                        self.core.missed(source, requests, cause);
                    }
                }
            }
        }
    }

    /// Starts the fragments that wait for the tap `name`, which serves `demands` from now on.
    fn start_with(&mut self, name: &str, demands: &[Demand]) {
        self.start_served(|needed_of, needed| needed_of == name && covers(demands, needed));
    }

    /// Handles a tap that cannot serve: the fragments that need it fail.
    fn fail(&mut self, name: &str, why: &str, pending_only: bool) {
        warn!(tap = %name, reason = %why, "the tap failed");
        self.note("tap", "probe_failed", Some(why));
        let needs = |plan: &Plan| {
            wanted(std::iter::once(plan), &self.served, &self.folds).contains_key(name)
        };
        let concerned = self.plans.iter().filter(|(channel, plan)| {
            needs(plan) && (!pending_only || self.pending.contains(channel))
        });
        let concerned: Vec<ChannelId> = concerned.map(|(channel, _)| *channel).collect();
        for channel in concerned {
            self.refuse(channel, why.to_owned());
        }
    }

    /// Passes the kept rows of a tap to the core, in the monitor's time.
    fn push(&mut self, tap: &OpenTap, demand: usize, batch: &Batch) {
        let source = &tap.sources[demand];
        // Rows of a stream; the content of a relation may be needed later.
        if batch.weights.is_none() && !self.core.reads(source) {
            return;
        }
        let clock = self.uplink.clock();
        let to_monitor = |at| clock.to_monitor(at);
        let conversion = &tap.conversions[demand];
        let rows = conversion.rows(batch, self.now(), to_monitor);
        // Relations are small, and rows that the kernel aggregates are expensive only as rows.
        let kept = match rows.weights.is_some() || tap.interval().is_some() {
            true => rows,
            false => {
                let keep = self.shedding.keep_one_in();
                let kept = shedding::kept(&rows, conversion.req_id_column(), keep);
                self.own.shed(rows.len() - kept.len());
                kept
            }
        };
        self.rows_waiting += kept.len();
        self.core.push(source, kept);
    }

    /// Passes groups to the core, at the end of their interval.
    fn push_folded(&mut self, tap: &OpenTap, demand: usize, folded: Folded) {
        let Some(interval) = tap.interval() else {
            return;
        };
        let end = folds::end_of(interval, self.to_monitor(folded.end));
        let folded = Folded { end, ..folded };
        self.core.push_folded(&tap.sources[demand], folded);
    }
}
