//! Relation `correlations`: the pairs of disks whose load or latency correlates, of each window.

use weir_model::correlation::correlations_schema;
use weir_model::{Batch, ColumnBuilder, Type, Value};
use weir_workload::HostedDisk;
use weir_workload::correlation::{DiskCorrelator, DiskPair, StepLoad};

use crate::disk_load::{StepSource, load};
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::plan::Correlation;
use crate::synopsis::gather::{batch_bytes, whole_instants};

/// The pairs of each step, as a stream.
pub(super) struct Correlate {
    /// Those of the columns.
    types: Vec<Type>,
    metrics: Vec<Compared>,
    /// The first step began before the observation.
    has_started: bool,
}

/// One metric of all disks.
struct Compared {
    name: &'static str,
    correlator: DiskCorrelator,
    /// The pairs of the latest search.
    pairs: Batch,
}

impl Correlate {
    pub(super) fn new(by: &Correlation) -> Correlate {
        let fields = correlations_schema().fields;
        let types: Vec<Type> = fields.iter().map(|field| field.ty).collect();
        let metrics = by.metrics.iter().map(|&metric| Compared {
            name: metric.as_str(),
            correlator: DiskCorrelator::new(metric, by.step, by.options()),
            pairs: Batch::empty(types.len()),
        });
        Correlate {
            metrics: metrics.collect(),
            types,
            has_started: false,
        }
    }

    /// Adds the step that ends at `at`, and emits the pairs of the windows that end with it.
    fn add(&mut self, at: i64, loads: &[(HostedDisk, StepLoad)], out: &mut Vec<Batch>) {
        if !std::mem::replace(&mut self.has_started, true) {
            return;
        }
        for compared in &mut self.metrics {
            compared.correlator.step(at, loads.iter().cloned());
            // With many disks, pairs hold until the next search.
            if compared.correlator.is_due() {
                let report = compared.correlator.compare();
                let pairs = report.map_or(Vec::new(), |report| report.pairs);
                compared.pairs = rows(&self.types, compared.name, &pairs);
            }
        }
        self.emit(at, out);
    }

    fn emit(&self, at: i64, out: &mut Vec<Batch>) {
        let found = self.metrics.iter().map(|compared| &compared.pairs);
        let found = found.filter(|pairs| !pairs.is_empty());
        out.extend(found.map(|pairs| Batch {
            ts: vec![at; pairs.len()].into(),
            ..pairs.clone()
        }));
    }
}

impl Operator for Correlate {
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        let mut out = Vec::new();
        for batch in whole_instants(inputs[0]) {
            let mut row = 0;
            while row < batch.len() {
                let at = batch.ts[row];
                let rows = batch.ts[row..].iter().take_while(|ts| **ts == at).count();
                let loads = (row..row + rows).filter_map(|r| load(&batch, r, StepSource::Fleet));
                match span.is_past_input {
                    // A part of a step would be a common change of all disks.
                    true => self.emit(at, &mut out),
                    false => self.add(at, &loads.collect::<Vec<_>>(), &mut out),
                }
                row += rows;
            }
        }
        Ok(out)
    }

    fn bytes(&self) -> usize {
        let of = |compared: &Compared| compared.correlator.bytes() + batch_bytes(&compared.pairs);
        self.metrics.iter().map(of).sum()
    }
}

/// The pairs as rows of the relation.
fn rows(types: &[Type], metric: &str, pairs: &[DiskPair]) -> Batch {
    let columns = types.iter().map(|ty| ColumnBuilder::new(*ty, pairs.len()));
    let mut columns: Vec<ColumnBuilder> = columns.collect();
    for pair in pairs {
        let [r_low, r_high] = pair.coefficient_interval;
        let values = [Value::text(metric)]
            .into_iter()
            .chain(names(&pair.leader))
            .chain(names(&pair.follower))
            .chain([
                Value::Int(pair.lag_ns),
                Value::Float(pair.coefficient),
                Value::Float(r_low),
                Value::Float(r_high),
                Value::Float(pair.p_value),
                Value::text(pair.verdict.as_str()),
                Value::Int(pair.begin_ns),
                Value::Int(pair.end_ns),
            ]);
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
    let columns = columns.iter_mut().map(ColumnBuilder::finish).collect();
    // The instants are those at which it is emitted.
    Batch::stream(vec![0; pairs.len()], columns)
}

fn names(disk: &HostedDisk) -> [Value; 4] {
    let name = &disk.name;
    [disk.host, name.vm, name.vdisk, name.pdisk].map(|name| name.map_or(Value::Null, Value::text))
}
