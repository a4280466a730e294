//! The taps of a live agent: opened when a fragment needs them, closed when none does, and what they
//! tell.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;
use weir_model::{Batch, Catalog, Demand, Folded};
use weir_query::plan::Plan;
use weir_wire::ChannelId;

use super::super::demands::{BLOCK, covers, wanted};
use super::super::folds;
use super::super::service::{Service, Told};
use super::super::shedding;
use super::super::tap::OpenTap;
use super::Agent;

/// A recording begins when no order has come for so long: what is started together sees all of it.
const SETTLE: Duration = Duration::from_millis(300);

/// A recording waits while so much waits to be taken by the monitor; what happens now cannot.
const RECORDED_BYTES_MAX: u64 = 4 << 20;

impl Agent {
    /// Opens and closes taps as is needed, and starts fragments whose taps are there.
    pub(super) fn serve(&mut self) {
        // Before it is known how far the clock is off, rows would have the wrong time.
        if !self.is_synchronised() {
            return;
        }
        if !self.pending.is_empty() {
            // They begin now, not where time was when the last one left.
            self.reach();
        }
        self.find_wanted();
        self.close_unwanted();
        let settled = self.options.ground.is_live() || self.ordered.elapsed() > SETTLE;
        for (name, demands) in &self.wanted {
            match self.services.get_mut(name) {
                Some(service) => service.serve(&self.options.ground, demands),
                None if name == BLOCK && !settled => {}
                None => {
                    let catalog = Catalog::builtin();
                    let declared = demands.iter().filter_map(|d| catalog.find(&d.stream));
                    declared.for_each(|declaration| self.core.declare(declaration));
                    let service = Service::begin(&self.options.ground, name, demands.clone());
                    self.services.insert(name.clone(), service);
                }
            }
        }
        self.start_served(|_, _| false);
    }

    /// Closes the taps that no fragment needs. What comes from the next one begins anew.
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

    /// Starts the fragments that have waited for what is served now: by `extra`, by name of a tap
    /// and what is needed of it, or by the services.
    fn start_served(&mut self, extra: impl Fn(&str, &[Demand]) -> bool) {
        let live = self.options.ground.live_capabilities();
        for channel in std::mem::take(&mut self.pending) {
            let plan: Arc<Plan> = self.plans[&channel].clone();
            let served = |(name, needed): (&String, &Vec<Demand>)| {
                extra(name, needed) || self.services.get(name).is_some_and(|s| s.gives(needed))
            };
            match wanted(std::iter::once(&*plan), live.as_ref(), &self.folds)
                .iter()
                .all(served)
            {
                true => self.core.start(channel, &plan),
                false => self.pending.push(channel),
            }
        }
    }

    /// Hears what the taps say. False if that was nothing.
    pub(super) fn listen(&mut self) -> bool {
        let now = self.clock.steady();
        let full = self.uplink.state().waiting.bytes > RECORDED_BYTES_MAX;
        let mut heard = false;
        let names: Vec<String> = self.services.keys().cloned().collect();
        for name in names {
            // It is taken out meanwhile, since what it says changes the rest.
            let Some(mut service) = self.services.remove(&name) else {
                continue;
            };
            if full && service.is_recorded() {
                self.services.insert(name, service);
                continue;
            }
            let mut over = None;
            heard |= service.listen(now, &mut |tap, told| match told {
                Told::Rows { demand, batch } => self.push(tap, demand, &batch),
                Told::Folded { demand, folded } => self.push_folded(tap, demand, folded),
                Told::Opened { at } | Told::Switched { at } => {
                    let at = self.to_monitor(at);
                    let at = tap
                        .interval()
                        .map_or(at, |interval| folds::over(interval, at));
                    for (outlet, source) in tap.outlets.iter_mut().zip(&tap.sources) {
                        let at = outlet.reached(at, |at| at);
                        self.core.told(source, at);
                    }
                    // They see what comes after that.
                    self.start_with(&name, &tap.demands);
                }
                Told::NotOpened(why) => self.fail(&name, &why, true),
                Told::Over(why) => over = Some(why),
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
        heard
    }

    /// Starts what has waited for the tap `name`, which serves `demands` from here on.
    fn start_with(&mut self, name: &str, demands: &[Demand]) {
        self.start_served(|needed_of, needed| needed_of == name && covers(demands, needed));
    }

    /// A tap does not serve, or no more: those that need it fail.
    fn fail(&mut self, name: &str, why: &str, pending_only: bool) {
        warn!(tap = %name, reason = %why, "the tap failed");
        self.note("tap", "probe_failed", Some(why));
        let live = self.options.ground.live_capabilities();
        let needs = |plan: &Plan| {
            wanted(std::iter::once(plan), live.as_ref(), &self.folds).contains_key(name)
        };
        let concerned = self.plans.iter().filter(|(channel, plan)| {
            needs(plan) && (!pending_only || self.pending.contains(channel))
        });
        let concerned: Vec<ChannelId> = concerned.map(|(channel, _)| *channel).collect();
        for channel in concerned {
            self.refuse(channel, why.to_owned());
        }
    }

    /// Hands rows of a tap to the core: in the monitor's time, those that are kept.
    fn push(&mut self, tap: &OpenTap, demand: usize, batch: &Batch) {
        let source = &tap.sources[demand];
        // Of a stream; what a relation holds may be asked for later.
        if batch.weights.is_none() && !self.core.reads(source) {
            return;
        }
        let (uplink, clock) = (self.uplink.clock(), self.clock);
        let to_monitor = |at| uplink.to_monitor(clock.shown(at));
        let outlet = &tap.outlets[demand];
        let rows = outlet.rows(batch, self.now(), to_monitor);
        // Relations are small; and what the kernel adds up is dear only where it is told as rows.
        let kept = match rows.weights.is_some() || tap.interval().is_some() {
            true => rows,
            false => {
                let keep = self.shedding.keep_one_in();
                let kept = shedding::kept(&rows, outlet.req_id_column(), keep);
                self.own.shed(rows.len() - kept.len());
                kept
            }
        };
        self.rows_waiting += kept.len();
        self.core.push(source, kept);
    }

    /// Hands groups to the core, at the end of their interval.
    fn push_folded(&mut self, tap: &OpenTap, demand: usize, folded: Folded) {
        let Some(interval) = tap.interval() else {
            return;
        };
        let end = folds::end_of(interval, self.to_monitor(folded.end));
        let folded = Folded { end, ..folded };
        self.core.push_folded(&tap.sources[demand], folded);
    }
}
