//! The queries of `docs/cql.md`, on random rows of the built-in streams and relations: engine and
//! oracle agree.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use weir_model::{Catalog, Declaration, Field, NANOS_PER_SECOND, Type, Value};
use weir_query::engine::{Engine, EngineOptions};
use weir_query::{CheckOptions, compile, compile_unoptimized};

use crate::support::feed::{self, Event, Random};
use crate::support::history::Element;
use crate::support::oracle;
use crate::support::run::Run;

/// The number of rows of each query.
const ROWS: usize = 480;

#[test]
fn documented_queries_agree_with_the_oracle() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cql.md");
    let page = fs::read_to_string(page).expect("the page can be read");
    let blocks: Vec<&str> = page.split("```cql\n").skip(1).collect();
    assert!(blocks.len() > 10, "the page has queries");
    let catalog = Catalog::builtin();
    let names: Vec<String> = catalog
        .declarations
        .iter()
        .map(|d| d.name.clone())
        .collect();
    let mut random = Random::new(17);
    let feed = rows(&catalog, &read_by(&blocks, &catalog), &mut random);
    let mut silent = 0;
    for block in blocks {
        let (text, _) = block.split_once("```").expect("a block ends");
        let options = CheckOptions::live();
        let plan = compile(text, &catalog, &options).expect(text).plan;
        let unoptimized = compile_unoptimized(text, &catalog, &options)
            .expect(text)
            .plan;
        let history = feed::history(&feed, &names, &unoptimized);
        let expected = oracle::evaluate(&unoptimized, &history);
        assert_eq!(expected.failure, None, "{text}");
        silent += usize::from(expected.changes.instants.is_empty());
        let options = EngineOptions {
            span_rows_max: 7,
            ..EngineOptions::default()
        };
        let mut run = Run::new(Engine::new(options), catalog.declarations.clone());
        run.begin(history.begin);
        let query = run.add(&plan);
        run.act(&feed::cut(&feed, names.len(), &mut random));
        run.finish();
        let result = expected
            .changes
            .agree(&run.query(query).changes, ["oracle", "engine"]);
        assert_eq!(result, Ok(()), "{text}");
    }
    assert!(
        silent < 3,
        "{silent} queries of the page have nothing to say"
    );
}

/// The positions of the streams and relations that the queries read.
fn read_by(blocks: &[&str], catalog: &Catalog) -> Vec<usize> {
    let mut read = BTreeSet::new();
    for block in blocks {
        let (text, _) = block.split_once("```").expect("a block ends");
        let plan = compile(text, catalog, &CheckOptions::live())
            .expect(text)
            .plan;
        let names: Vec<_> = plan.sources().iter().map(|d| d.name.clone()).collect();
        let declared = catalog.declarations.iter().enumerate();
        read.extend(
            declared
                .filter(|(_, d)| names.contains(&d.name))
                .map(|(at, _)| at),
        );
    }
    read.into_iter().collect()
}

/// Rows of the streams and relations at these positions, in timestamp order; relations only have
/// insertions.
fn rows(catalog: &Catalog, read: &[usize], random: &mut Random) -> Vec<Event> {
    let mut ts = 1_700_000_000 * NANOS_PER_SECOND;
    let mut row = || {
        ts += [0, 1, 1_000_000, 150_000_000, 600_000_000][random.below(5) as usize];
        let source = read[random.below(read.len() as u64) as usize];
        let declaration = &catalog.declarations[source];
        let row = values(declaration, ts, random);
        Event::Row(source, Element { ts, weight: 1, row })
    };
    (0..ROWS).map(|_| row()).collect()
}

fn values(declaration: &Declaration, ts: i64, random: &mut Random) -> Vec<Value> {
    let mut value = |field: &Field| match field.ty {
        _ if field.nullable && random.once_in(8) => Value::Null,
        Type::Time => Value::Int(ts),
        Type::Float => Value::Float(random.below(8) as f64 / 2.0),
        Type::Bool => Value::Bool(random.once_in(2)),
        Type::Text => Value::text(texts(&field.name)[random.below(2) as usize]),
        // Some values of each dimension lie on either side of the limits in the page's queries.
        _ => Value::Int(match field.name.as_str() {
            "wait" | "service" | "latency" => 400_000 * random.below(8) as i64,
            "bytes" => 4096 << random.below(6),
            "sectors" => 8 << random.below(6),
            _ => random.below(4) as i64,
        }),
    };
    declaration.schema.fields.iter().map(&mut value).collect()
}

fn texts(column: &str) -> [&'static str; 2] {
    match column {
        "type" => ["Q", "R"],
        "op" => ["r", "w"],
        "comm" => ["fio", "kworker/1:2"],
        _ => ["one", "two"],
    }
}
