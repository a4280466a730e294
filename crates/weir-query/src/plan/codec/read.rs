//! Decodes a plan; every node is checked against its inputs.

use std::sync::Arc;

use weir_model::{Alias, Declaration, Field, Schema, Shape, Symbol, Type, Unit};
use weir_sketch::{Bytes, Malformed};

use super::tags::{self, NodeTag, WindowTag, get};
use super::{BYTES_MAX, COLUMNS_MAX, COLUMNS_TOTAL_MAX, CodecError, HEIGHT_MAX, MAGIC, VERSION};
use crate::expr::Expr;
use crate::function::{AggregateCall, Shared};
use crate::plan::{GlobalGroup, JoinKind, OrderBy, PANES_MAX, Plan, SetOp, ToStream, Window};
use crate::window::{Now, Partition, Since};

/// Decodes a whole plan.
pub(super) fn plan(bytes: &[u8]) -> Result<Plan, CodecError> {
    if bytes.len() > BYTES_MAX {
        return Err(CodecError::TooLong(bytes.len()));
    }
    let rest = bytes.strip_prefix(MAGIC).ok_or(CodecError::NotAPlan)?;
    let mut bytes = Bytes::new(rest);
    let version = bytes.u64()?;
    if version != VERSION {
        return Err(CodecError::Version(version));
    }
    let mut read = Read {
        bytes,
        declarations: Vec::new(),
        columns: 0,
    };
    read.declarations = read.list(Read::declaration)?;
    let plan = read.node(HEIGHT_MAX)?;
    read.bytes.end()?;
    Ok(Arc::unwrap_or_clone(plan))
}

/// A decoder.
pub(super) struct Read<'b> {
    pub(super) bytes: Bytes<'b>,
    declarations: Vec<Declaration>,
    /// The number of columns of all nodes decoded so far.
    columns: usize,
}

/// An invalid plan.
pub(super) fn invalid(why: impl Into<String>) -> CodecError {
    CodecError::Invalid(why.into())
}

/// An error with reason `why`, unless `right`.
pub(super) fn ensure(right: bool, why: &str) -> Result<(), CodecError> {
    right.then_some(()).ok_or_else(|| invalid(why))
}

impl<'b> Read<'b> {
    pub(super) fn number(&mut self) -> Result<usize, CodecError> {
        usize::try_from(self.bytes.u64()?).map_err(|_| invalid("a number is too large"))
    }

    pub(super) fn flag(&mut self) -> Result<bool, CodecError> {
        match self.bytes.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1").into()),
        }
    }

    pub(super) fn text(&mut self) -> Result<&'b str, CodecError> {
        let bytes = self.bytes.bytes()?;
        std::str::from_utf8(bytes).map_err(|_| Malformed("a text is not valid UTF-8").into())
    }

    pub(super) fn ty(&mut self) -> Result<Type, CodecError> {
        Ok(get(&mut self.bytes, tags::TYPES)?)
    }

    pub(super) fn unit(&mut self) -> Result<Unit, CodecError> {
        Ok(get(&mut self.bytes, tags::UNITS)?)
    }

    pub(super) fn list<T>(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<T, CodecError>,
    ) -> Result<Vec<T>, CodecError> {
        let len = self.bytes.length(1)?;
        // No capacity is reserved: an element may need much more memory than its byte.
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(each(self)?);
        }
        Ok(items)
    }

    pub(super) fn option<T>(
        &mut self,
        some: impl FnOnce(&mut Self) -> Result<T, CodecError>,
    ) -> Result<Option<T>, CodecError> {
        self.flag()?.then(|| some(self)).transpose()
    }

    /// A duration, at least one instant.
    fn span(&mut self) -> Result<i64, CodecError> {
        let span = self.bytes.i64()?;
        ensure(span > 0, "a duration is not positive")?;
        Ok(span)
    }

    /// Counts the columns of a node, up to the maximum.
    fn columns(&mut self, columns: usize) -> Result<(), CodecError> {
        self.columns = self.columns.saturating_add(columns);
        ensure(
            columns <= COLUMNS_MAX && self.columns <= COLUMNS_TOTAL_MAX,
            "it has too many columns",
        )
    }

    fn declaration(&mut self) -> Result<Declaration, CodecError> {
        let name = self.text()?.to_owned();
        let shape = get(&mut self.bytes, tags::SHAPES)?;
        let fields = self.list(Read::field)?;
        ensure(fields.len() <= COLUMNS_MAX, "it has too many columns")?;
        Ok(Declaration {
            name,
            shape,
            schema: Arc::new(Schema::new(fields)),
            star: self.option(|r| r.list(|r| Ok(r.text()?.to_owned())))?,
            doc: self.text()?.to_owned(),
            fold: None,
        })
    }

    fn field(&mut self) -> Result<Field, CodecError> {
        let name = self.text()?.to_owned();
        Ok(Field {
            name,
            ty: self.ty()?,
            unit: self.unit()?,
            nullable: self.flag()?,
            doc: self.text()?.to_owned(),
            aliases: self.list(Read::alias)?,
            values: self.option(|r| Ok(get(&mut r.bytes, tags::CLOSED_SETS)?))?,
        })
    }

    fn alias(&mut self) -> Result<Alias, CodecError> {
        // The symbol table keeps a name for as long as an alias lives.
        let name = Symbol::try_new(self.text()?).map_err(|full| invalid(full.to_string()))?;
        Ok(Alias {
            name: name.as_str(),
            converted: self.option(Read::unit)?,
        })
    }

    /// The fields of computed columns of these types.
    fn fields_of(&mut self, types: impl Iterator<Item = Type>) -> Result<Vec<Field>, CodecError> {
        let fields = self.list(Read::field)?;
        self.columns(fields.len())?;
        let same = fields.iter().map(|f| f.ty).eq(types);
        ensure(
            same,
            "the type of a column differs from that of its expression",
        )?;
        Ok(fields)
    }

    /// A node with its inputs, at most `height` levels.
    fn node(&mut self, height: usize) -> Result<Arc<Plan>, CodecError> {
        let below = height.checked_sub(1);
        let below = below.ok_or_else(|| invalid("it is nested too deeply"))?;
        let tag = get(&mut self.bytes, tags::NODES)?;
        let mut input = || self.node(below);
        match tag {
            NodeTag::Source => self.source(),
            NodeTag::Join => {
                let (left, right) = (input()?, input()?);
                self.join(left, right)
            }
            NodeTag::SetOp => {
                let (left, right) = (input()?, input()?);
                self.set_op(left, right)
            }
            tag => {
                let input = input()?;
                self.over(tag, input)
            }
        }
    }

    fn source(&mut self) -> Result<Arc<Plan>, CodecError> {
        let number = self.number()?;
        let declaration = self.declarations.get(number);
        let declaration = declaration
            .ok_or_else(|| invalid("a source is not declared"))?
            .clone();
        self.columns(declaration.schema.len())?;
        Ok(Plan::source(declaration))
    }

    fn join(&mut self, left: Arc<Plan>, right: Arc<Plan>) -> Result<Arc<Plan>, CodecError> {
        relation(&left)?;
        relation(&right)?;
        let kind: JoinKind = get(&mut self.bytes, tags::JOINS)?;
        self.columns(left.schema.len() + right.schema.len())?;
        let on = self.list(|r| {
            let pair = (r.expr(&left.schema)?, r.expr(&right.schema)?);
            ensure(
                same_representation(pair.0.ty(), pair.1.ty()),
                "join keys differ in type",
            )?;
            Ok(pair)
        })?;
        let both = [&left.schema.fields[..], &right.schema.fields[..]].concat();
        let residual = self.option(|r| r.condition(&Schema::new(both)))?;
        Ok(Plan::join(left, right, kind, on, residual))
    }

    fn set_op(&mut self, left: Arc<Plan>, right: Arc<Plan>) -> Result<Arc<Plan>, CodecError> {
        relation(&left)?;
        relation(&right)?;
        let op: SetOp = get(&mut self.bytes, tags::SET_OPS)?;
        let all = self.flag()?;
        self.columns(left.schema.len())?;
        let types =
            |plan: &Plan| -> Vec<Type> { plan.schema.fields.iter().map(|f| f.ty).collect() };
        let (l, r) = (types(&left), types(&right));
        let same = l.len() == r.len() && l.iter().zip(&r).all(|(l, r)| same_representation(*l, *r));
        ensure(same, "a set operation has inputs with different columns")?;
        Ok(Plan::set_op(left, right, op, all))
    }

    /// A node with one input.
    fn over(&mut self, tag: NodeTag, input: Arc<Plan>) -> Result<Arc<Plan>, CodecError> {
        let schema = input.schema.clone();
        match tag {
            NodeTag::Source | NodeTag::Join | NodeTag::SetOp => {
                unreachable!("operators with one input")
            }
            NodeTag::Window => {
                let window = self.window(&schema)?;
                let all = Window::unbounded(None);
                let fits = input.shape == Shape::Stream || window == all;
                ensure(fits, "a window is applied to a relation")?;
                no_partials(&schema)?;
                Ok(Plan::window(input, window))
            }
            NodeTag::Select => {
                let predicate = self.condition(&schema)?;
                Ok(Plan::select(input, predicate))
            }
            NodeTag::Project => {
                // A column of partials can be passed through, though no expression can use it.
                let exprs = self.list(|r| r.expr_or_partial(&schema))?;
                let fields = self.fields_of(exprs.iter().map(Expr::ty))?;
                Ok(Plan::project(input, exprs, fields))
            }
            NodeTag::Aggregate => {
                relation(&input)?;
                let keys = self.list(|r| r.expr(&schema))?;
                let calls = self.list(|r| r.call(Some(&schema)))?;
                let global = self.global()?;
                let fields = self.fields_of(columns_of(&keys, &calls))?;
                Ok(Plan::aggregate(input, keys, calls, global, fields))
            }
            NodeTag::Partial => self.partial(input),
            NodeTag::Merge => self.merge(input),
            NodeTag::Distinct => {
                relation(&input)?;
                Ok(Plan::distinct(input))
            }
            NodeTag::Order => {
                relation(&input)?;
                let by = self.list(|r| r.order_by(&schema))?;
                let limit = self.option(|r| Ok(r.bytes.u64()?))?;
                let offset = self.bytes.u64()?;
                Ok(Plan::order(input, by, limit, offset))
            }
            NodeTag::Istream | NodeTag::Dstream | NodeTag::Rstream => {
                relation(&input)?;
                let kind = match tag {
                    NodeTag::Istream => ToStream::Istream,
                    NodeTag::Dstream => ToStream::Dstream,
                    _ => ToStream::Rstream {
                        every: self.option(Read::span)?,
                    },
                };
                Ok(Plan::to_stream(input, kind))
            }
        }
    }

    fn partial(&mut self, input: Arc<Plan>) -> Result<Arc<Plan>, CodecError> {
        let schema = input.schema.clone();
        stream(&input)?;
        let slide = self.span()?;
        let keys = self.list(|r| r.expr(&schema))?;
        let calls = self.list(|r| r.call(Some(&schema)))?;
        ensure(calls.iter().all(AggregateCall::splits), CANNOT_SPLIT)?;
        let named = self.fields_of(keys.iter().map(Expr::ty))?;
        self.columns(calls.len())?;
        Ok(Plan::partial(input, slide, keys, calls, named))
    }

    fn merge(&mut self, input: Arc<Plan>) -> Result<Arc<Plan>, CodecError> {
        stream(&input)?;
        let size = self.option(Read::span)?;
        let slide = self.span()?;
        let fits = size.is_none_or(|size| size % slide == 0 && size / slide <= PANES_MAX);
        ensure(
            fits,
            "a window is not a multiple of its slide, or has too many slides",
        )?;
        let keys = self.number()?;
        let calls = self.list(|r| r.call(None))?;
        let global = self.global()?;
        ensure(calls.iter().all(AggregateCall::splits), CANNOT_SPLIT)?;
        let fields = &input.schema.fields;
        let states = Shared::of(&calls).owners.len();
        let columns = keys.checked_add(states).and_then(|n| n.checked_add(1));
        let fits = columns == Some(fields.len());
        ensure(
            fits,
            "the input of a merge differs from its keys and states",
        )?;
        let (key_fields, state_fields) = fields.split_at(keys);
        let (state_fields, requests) = state_fields.split_at(states);
        let partial = |f: &Field| f.ty == Type::Partial;
        let fits = !key_fields.iter().any(partial)
            && state_fields.iter().all(partial)
            && requests.iter().all(|f| f.ty == Type::Int);
        ensure(fits, "the input of a merge has no partial aggregates")?;
        let types = key_fields.iter().map(|f| f.ty);
        let types: Vec<Type> = types.chain(calls.iter().map(|c| c.ty)).collect();
        let fields = self.fields_of(types.into_iter())?;
        let window = (size, slide);
        Ok(Plan::merge(input, window, keys, calls, global, fields))
    }

    fn global(&mut self) -> Result<GlobalGroup, CodecError> {
        Ok(match self.flag()? {
            true => GlobalGroup::FromStart,
            false => GlobalGroup::FromFirstRow,
        })
    }

    fn window(&mut self, schema: &Schema) -> Result<Window, CodecError> {
        Ok(match get(&mut self.bytes, tags::WINDOWS)? {
            WindowTag::Now => Now.into(),
            WindowTag::Range => Window::range(self.span()?, self.option(Read::span)?),
            WindowTag::Rows => Window::rows(self.rows()?),
            WindowTag::Partition => Window::Partition(Partition {
                keys: self.list(|r| r.expr(schema))?,
                rows: self.rows()?,
            }),
            WindowTag::Unbounded => Window::unbounded(self.option(Read::span)?),
            WindowTag::Since => Window::Since(Since {
                origin: self.origin(schema)?,
                size: self.option(Read::span)?,
                slide: self.option(Read::span)?,
            }),
        })
    }

    /// The expression for the instant at which a row began.
    fn origin(&mut self, schema: &Schema) -> Result<Expr, CodecError> {
        let origin = self.expr(schema)?;
        ensure(
            same_representation(origin.ty(), Type::Time),
            "an origin is not a timestamp",
        )?;
        Ok(origin)
    }

    /// The number of rows of a window, at least one.
    fn rows(&mut self) -> Result<u64, CodecError> {
        let rows = self.bytes.u64()?;
        ensure(rows > 0, "a window has no rows")?;
        Ok(rows)
    }

    fn order_by(&mut self, schema: &Schema) -> Result<OrderBy, CodecError> {
        Ok(OrderBy {
            expr: self.expr(schema)?,
            descending: self.flag()?,
            nulls_first: self.flag()?,
        })
    }
}

const CANNOT_SPLIT: &str = "partials of an aggregate that cannot be split";

/// Whether values of two types have the same representation. Timestamps are integers.
pub(super) fn same_representation(a: Type, b: Type) -> bool {
    let integral = |ty| matches!(ty, Type::Int | Type::Time);
    a == b || integral(a) && integral(b)
}

/// The types of keys and calls.
fn columns_of<'p>(keys: &'p [Expr], calls: &'p [AggregateCall]) -> impl Iterator<Item = Type> + 'p {
    keys.iter().map(Expr::ty).chain(calls.iter().map(|c| c.ty))
}

/// An error if a column is of partial aggregates, which can only be merged.
fn no_partials(schema: &Schema) -> Result<(), CodecError> {
    let complete = schema.fields.iter().all(|f| f.ty != Type::Partial);
    ensure(complete, "partial aggregates can only be merged")
}

fn relation(input: &Plan) -> Result<(), CodecError> {
    no_partials(&input.schema)?;
    ensure(
        input.shape == Shape::Relation,
        "a stream is used as a relation",
    )
}

fn stream(input: &Plan) -> Result<(), CodecError> {
    ensure(
        input.shape == Shape::Stream,
        "a relation is used as a stream",
    )
}
