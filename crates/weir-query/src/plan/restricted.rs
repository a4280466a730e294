//! [`restricted`]: a plan that reads only the rows of one VM.

use std::sync::Arc;

use weir_model::{Declaration, Field, Type, Unit, Value};

use super::{Node, Plan};
use crate::expr::{BinaryOp, Expr};

/// The column by which sources are restricted.
const COLUMN: &str = "vm";

/// `plan` over the rows of its sources whose column `vm` is `vm`. Every source is restricted where
/// it is read, so no operator above it, whatever the query, receives a row of another VM.
///
/// # Errors
/// The source without such a column, with the reason.
pub fn restricted(plan: &Arc<Plan>, vm: &str) -> Result<Arc<Plan>, String> {
    match &plan.node {
        Node::Source(_) => Ok(Plan::select(plan.clone(), condition(plan, vm)?)),
        // One selection, so that the tap tests both conditions.
        Node::Select { input, predicate } if matches!(input.node, Node::Source(_)) => {
            let conditions = vec![condition(input, vm)?, predicate.clone()];
            Ok(Plan::select_all(input.clone(), conditions))
        }
        _ => {
            let inputs = plan.inputs().into_iter();
            let inputs = inputs.map(|input| restricted(input, vm));
            Ok(plan.with_inputs(inputs.collect::<Result<_, String>>()?))
        }
    }
}

/// Whether the rows of a source can be restricted to those of a VM.
pub fn has_vm(source: &Declaration) -> bool {
    position(&source.schema.fields).is_some()
}

fn position(fields: &[Field]) -> Option<usize> {
    let mut fields = fields.iter();
    fields.position(|f| f.name == COLUMN && f.ty == Type::Text)
}

/// The condition on the rows of a source.
fn condition(source: &Plan, vm: &str) -> Result<Expr, String> {
    let index = position(&source.schema.fields);
    let Some(index) = index else {
        let sources = source.sources();
        let name = sources.first().map_or("?", |d| d.name.as_str());
        return Err(format!(
            "`{name}` has no column `{COLUMN}`, and only rows of VM `{vm}` may be read here"
        ));
    };
    let value = Expr::Literal {
        value: Value::text(vm),
        ty: Type::Text,
        unit: Unit::None,
    };
    let column = Expr::column(index, Type::Text, Unit::None);
    Ok(Expr::boolean(BinaryOp::Equal, column, value))
}

#[cfg(test)]
mod tests {
    use weir_model::Catalog;

    use super::*;
    use crate::{CheckOptions, compile, compile_unoptimized};

    fn attempt(text: &str) -> Result<Arc<Plan>, String> {
        let options = CheckOptions::live();
        let checked = compile_unoptimized(text, &Catalog::builtin(), &options);
        restricted(&checked.expect(text).plan, "web")
    }

    /// Whether every source is below a selection of the VM alone.
    fn is_safe(plan: &Plan) -> bool {
        let rows_of_vm = |predicate: &Expr, source: &Plan| {
            let mut conditions = predicate.clone().conjuncts().into_iter();
            conditions.any(|c| Ok(c) == condition(source, "web"))
        };
        match &plan.node {
            Node::Source(_) => false,
            Node::Select { input, predicate } if matches!(input.node, Node::Source(_)) => {
                rows_of_vm(predicate, input)
            }
            _ => plan.inputs().into_iter().all(|input| is_safe(input)),
        }
    }

    #[test]
    fn each_source_of_each_kind_of_query_is_restricted() {
        for text in [
            "select * from IO",
            "select vm from IO where vm = 'db' or 1 = 1",
            "select count(*) from IO [range 1 s slide 1 s] where vm <> 'web' or vm is null",
            "select a.vm from IO [range 1 s] a, IO [range 1 s] b where a.vm <> b.vm",
            "select a.vm from vms v left join IO [range 1 s] a on v.vm <> a.vm",
            "select v.vm from IO [range 1 s] a full join vms v on a.vm = v.vm",
            "select vm from IO [range 1 s] where sector in (select bytes from IO [range 9 s])",
            "select vm, (select max(latency) from IO [range 1 s]) from vms",
            "select vm from vms where not exists (select 1 from disks where disks.vm = vms.vm)",
            "select vm from vms union all select vm from disks except select vm from IO [now]",
            "create view web as select vm, op from IO; select op from web",
            "create view a as select vm from vms; create view b as select vm from a; \
             select * from b",
            "with vms as (select vm from disks) select * from vms",
            "rstream(select vm from IO [rows 5]) every 1 s",
            "select vm, row_number() over (partition by vm order by ts) from IO [range 1 s]",
            "select distinct vm from IOstream [partition by vm rows 1]",
            "select vm from blockstats",
            "select vm, sum(operations) from blocklatency [range 2 s slide 1 s] group by cube (vm)",
        ] {
            let plan = attempt(text).unwrap();
            assert!(is_safe(&plan), "{text}\n{plan}");
            let optimized = crate::optimize::optimize(&plan);
            assert!(is_safe(&optimized), "{text}\n{optimized}");
        }
    }

    #[test]
    fn a_source_without_a_vm_is_refused_wherever_it_is_read() {
        for (text, source) in [
            ("select * from weir", "weir"),
            ("select host from hosts", "hosts"),
            ("select count(*) from devices", "devices"),
            ("select host from hosts where 1 = 0", "hosts"),
            ("select vm from vms, hosts", "hosts"),
            (
                "select vm from vms where exists (select 1 from hosts)",
                "hosts",
            ),
            (
                "select vm, (select count(*) from weir [range 1 s]) from vms",
                "weir",
            ),
            (
                "create view vm as select 'web' as vm from weir; select vm from vm",
                "weir",
            ),
            ("select vm from vms union select host from hosts", "hosts"),
        ] {
            let error = attempt(text).expect_err(text);
            assert!(
                error.starts_with(&format!("`{source}` has no column")),
                "{error}"
            );
        }
    }

    /// The stream of a probe has no VM, whatever a query calls its columns.
    #[test]
    fn a_stream_of_a_probe_is_refused() {
        let mut catalog = Catalog::builtin();
        let mut switches = catalog.find("hosts").expect("built in").clone();
        switches.name = "switches".into();
        catalog.declarations.push(switches);
        for text in [
            "select host as vm from switches",
            "select io.vm from IO [range 1 s] as io, switches as s where io.host = s.host",
            "create view vms as select host as vm from switches; select vm from vms",
            "select vm from IO [range 1 s] where host in (select host from switches)",
        ] {
            let checked = compile_unoptimized(text, &catalog, &CheckOptions::live());
            let error = restricted(&checked.expect(text).plan, "web").expect_err(text);
            assert!(error.starts_with("`switches` has no column"), "{error}");
        }
    }

    #[test]
    fn a_restricted_plan_is_that_of_the_query_with_the_condition() {
        let options = CheckOptions::live();
        let catalog = Catalog::builtin();
        let written = "select op, count(*) from IO [range 1 s slide 1 s] where vm = 'web' \
                       and op = 'r' group by op";
        let written = compile(written, &catalog, &options).unwrap();
        let text = "select op, count(*) from IO [range 1 s slide 1 s] where op = 'r' group by op";
        let plan = crate::optimize::optimize(&attempt(text).unwrap());
        assert_eq!(plan.to_string(), written.plan.to_string());
        // A fragment, which is optimized already, gets the condition beside its own.
        let fragment = compile(text, &catalog, &options).unwrap().plan;
        assert!(is_safe(&restricted(&fragment, "web").unwrap()));
    }
}
