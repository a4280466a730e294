//! Statements of a client on the library of a monitor: what it shows, and the views that a query
//! reads.

use serde::de::DeserializeOwned;
use weir_model::{Catalog, Declaration, StoredView, Type, Value};
use weir_query::library::described;
use weir_query::syntax::ast::{CatalogList, CatalogQuery};
use weir_query::{CheckOptions, Checked, compile};
use weir_runtime::failure::Failure;
use weir_runtime::inspection::{self, Listing};
use weir_runtime::question::{QueryText, is_foreign, options, with_views};
use weir_runtime::views;
use weir_wire::{Client, WireError};

/// The checked query. If it reads something else than the streams of the catalog, then with the
/// stored views of the monitor, and those of the user whose names the monitor does not have. A
/// query with errors is not sent, and if it has none of these names the monitor is not contacted
/// before.
///
/// # Errors
/// The diagnostics, or when the monitor cannot be reached.
pub fn checked(
    question: &QueryText,
    connect: impl FnOnce() -> Result<Client, Failure>,
) -> Result<(Checked, Client), Failure> {
    let options = options(true);
    match compile(&question.text, &Catalog::builtin(), &options) {
        Ok(checked) => {
            question.warn(&checked.warnings);
            Ok((checked, connect()?))
        }
        Err(found) if is_foreign(&found) => {
            let mut client = connect()?;
            let stored = with_views(fleet_catalog(&mut client)?, &views_of(&mut client)?);
            let checked = compile(&question.text, &stored, &options);
            let checked = checked.map_err(|d| question.failure(&d))?;
            question.warn(&checked.warnings);
            Ok((checked, client))
        }
        Err(found) => Err(question.failure(&found)),
    }
}

/// What queries can name: the built-in sources, and the streams of agents; those of a monitor that
/// is older are not known.
fn fleet_catalog(client: &mut Client) -> Result<Catalog, Failure> {
    let mut catalog = Catalog::builtin();
    let own: Vec<Declaration> = match client.streams() {
        Err(WireError::Refused(_) | WireError::Denied { .. }) => Vec::new(),
        streams => parsed(streams?)?,
    };
    catalog.declarations.extend(own);
    Ok(catalog)
}

/// The views of a monitor, then those of the user with other names.
fn views_of(client: &mut Client) -> Result<Vec<StoredView>, Failure> {
    let mut all = monitor_views(client)?;
    let of_user = views::read()?;
    let is_new = |view: &StoredView| !all.iter().any(|v| v.name.eq_ignore_ascii_case(&view.name));
    let new: Vec<StoredView> = of_user.into_iter().filter(is_new).collect();
    all.extend(new);
    Ok(all)
}

/// The views of a monitor; none if it is older, or does not show them.
fn monitor_views(client: &mut Client) -> Result<Vec<StoredView>, Failure> {
    match client.views() {
        Err(WireError::Refused(_) | WireError::Denied { .. }) => Ok(Vec::new()),
        views => parsed(views?),
    }
}

/// The result of a statement at a monitor.
///
/// # Errors
/// The diagnostics, or when the monitor rejects the request.
pub fn listing(
    client: &mut Client,
    question: &QueryText,
    inspection: &CatalogQuery,
) -> Result<Listing, Failure> {
    let catalog = fleet_catalog(client)?;
    Ok(match inspection {
        CatalogQuery::Describe { name, .. } => {
            let declared = name.as_ref().and_then(|name| catalog.find(&name.value));
            if let Some(declaration) = declared {
                return Ok(inspection::columns(&declaration.schema.fields));
            }
            let stored = with_views(catalog, &views_of(client)?);
            let checked = described(&question.text, &stored, &CheckOptions::live());
            let checked = checked.map_err(|d| question.failure(&d))?;
            inspection::columns(&checked.plan.schema.fields)
        }
        CatalogQuery::ShowView(name) => inspection::view(&stored(client)?, &name.value)?,
        CatalogQuery::Show { what, like } => {
            let mut listing = match what {
                CatalogList::Streams => inspection::stream_listing(&catalog.declarations),
                CatalogList::Views => inspection::stored_views(&stored(client)?),
                CatalogList::Functions => inspection::functions(),
                CatalogList::Queries => queries(client)?,
            };
            if let Some(like) = like {
                listing.keep_like(&like.value);
            }
            listing
        }
    })
}

/// The views of a monitor, which have to be shown.
fn stored(client: &mut Client) -> Result<Vec<StoredView>, Failure> {
    parsed(client.views()?)
}

fn parsed<T: DeserializeOwned>(list: serde_json::Value) -> Result<Vec<T>, Failure> {
    serde_json::from_value(list)
        .map_err(|e| Failure::world(format!("the monitor's list of views or streams: {e}")))
}

/// The queries that run at a monitor, as far as the client may see them.
fn queries(client: &mut Client) -> Result<Listing, Failure> {
    let mut listing = Listing::new(&[
        ("name", Type::Text),
        ("owner", Type::Text),
        ("since", Type::Time),
        ("standing", Type::Bool),
        ("strategy", Type::Text),
        ("clients", Type::Int),
        ("rows_out", Type::Int),
        ("failed", Type::Text),
        ("query", Type::Text),
    ]);
    for query in client.queries()?.as_array().into_iter().flatten() {
        let text = |key: &str| query[key].as_str().map_or(Value::Null, Value::text);
        let int = |key: &str| query[key].as_i64().map_or(Value::Null, Value::Int);
        listing.push(vec![
            text("name"),
            text("owner"),
            int("since"),
            query["standing"].as_bool().map_or(Value::Null, Value::Bool),
            text("strategy"),
            int("clients"),
            int("rows_out"),
            text("failed"),
            text("query"),
        ]);
    }
    Ok(listing)
}
