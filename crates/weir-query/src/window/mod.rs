//! Windows: which rows of a stream are in a relation, each entering and leaving at its exact
//! instant. A window is one file with its description in the plan, its properties and its
//! operator, and one line in the list of [`Window`].

mod delayed;
mod merge;
mod now;
mod partition;
mod range;
mod rows;
mod schedule;
mod sessions;
mod since;
mod unbounded;

use serde::{Deserialize, Serialize};
use weir_model::Schema;

use crate::expr::Expr;
use crate::operator::Operator;

pub use delayed::Delayed;
pub use now::Now;
pub use partition::Partition;
pub use range::Range;
pub use rows::Rows;
pub use sessions::Sessions;
pub use since::Since;
pub use unbounded::Unbounded;

/// Maximum number of slides in a window that is merged from panes.
pub const PANES_MAX: i64 = 3_600;

/// Why a window does not consist of slides.
const NO_SLIDE: &str = "its window has no slide, such as in [range 1 s slide 1 s]";

/// The properties of a window that planning uses, and its operator.
pub(crate) trait WindowKind {
    /// Its text in a plan, as in CQL; `print` has the forms of its parts.
    fn text(&self, print: &Print<'_>) -> String;

    /// A remark for `weir explain`, where the text alone is not enough.
    fn remark(&self) -> Option<&'static str> {
        None
    }

    /// The slide, where the relation changes only at multiples of one.
    fn slide(&self) -> Option<i64> {
        None
    }

    /// When a row enters.
    fn entrance(&self) -> Entrance {
        Entrance {
            delay: 0,
            slide: self.slide(),
        }
    }

    /// The window that changes only at multiples of `every` and has the same content as this one
    /// there; `None` if there is none, or this one has a slide already.
    fn with_slide(&self, every: i64) -> Option<Window> {
        let _ = every;
        None
    }

    /// Whether every row is in the relation at a multiple of `every`.
    fn contains_all_at_multiples(&self, every: i64) -> bool {
        let _ = every;
        false
    }

    /// Its length (`None`: unbounded) and its slide, if it consists of whole slides.
    ///
    /// # Errors
    /// Why it does not: a clause without full stop.
    fn whole_slides(&self) -> Result<(Option<i64>, i64), String> {
        Err(NO_SLIDE.into())
    }

    /// The memory of the window: its content after τ depends only on rows after τ minus this.
    /// `None` where there is no such bound.
    fn memory(&self) -> Option<i64> {
        None
    }

    /// The number of rows in the relation.
    fn content(&self) -> WindowContent;

    /// Whether rows leave in the order in which they entered.
    fn is_fifo(&self) -> bool {
        true
    }

    /// Whether one row never makes another leave, so that rows can be dropped before the window.
    fn is_per_row(&self) -> bool {
        true
    }

    /// Whether rows that fail `condition` can be dropped before the window instead of after it.
    fn commutes_with(&self, condition: &Expr) -> bool;

    /// The expressions over a row that determine when it enters or leaves.
    fn exprs(&self) -> &[Expr] {
        &[]
    }

    /// The same expressions, to rewrite them.
    fn exprs_mut(&mut self) -> &mut [Expr] {
        &mut []
    }

    /// The operator of the window over a stream of this schema. The query that needs it receives
    /// no rows up to instant `after`.
    fn operator(&self, schema: &Schema, after: i64) -> Box<dyn Operator>;
}

/// The number of rows in a relation that a window makes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowContent {
    /// Those of one instant.
    Instant,
    /// Those of this many instants.
    Instants(i64),
    /// At most this many, of each key if there are keys.
    Rows(u64),
    /// All rows.
    All,
}

/// The forms in which the parts of a window are printed.
pub(crate) struct Print<'a> {
    /// A number of instants.
    pub span: &'a dyn Fn(i64) -> String,
    /// An expression over a row of the stream.
    pub expr: &'a dyn Fn(&Expr) -> String,
}

/// When a row enters a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entrance {
    /// How long after its timestamp.
    pub delay: i64,
    /// At multiples of this only, then.
    pub slide: Option<i64>,
}

impl Entrance {
    /// When a row of instant `ts` enters.
    pub fn of(self, ts: i64) -> i64 {
        round_up(ts.saturating_add(self.delay), self.slide)
    }
}

impl Print<'_> {
    /// ` slide 1 s`, or nothing.
    fn slide(&self, slide: Option<i64>) -> String {
        slide.map_or(String::new(), |slide| {
            format!(" slide {}", (self.span)(slide))
        })
    }
}

/// Declares [`Window`] with a variant for each window.
macro_rules! windows {
    ($($window:ident),* $(,)?) => {
        /// Which rows of a stream are in the relation at instant τ.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Window {
            $(#[doc = concat!("[`", stringify!($window), "`].")] $window($window),)*
        }

        impl Window {
            /// Its properties.
            pub(crate) fn kind(&self) -> &dyn WindowKind {
                match self {
                    $(Window::$window(window) => window,)*
                }
            }

            fn kind_mut(&mut self) -> &mut dyn WindowKind {
                match self {
                    $(Window::$window(window) => window,)*
                }
            }
        }

        $(impl From<$window> for Window {
            fn from(window: $window) -> Window {
                Window::$window(window)
            }
        })*
    };
}

windows! {
    Now,
    Range,
    Since,
    Rows,
    Partition,
    Unbounded,
    Delayed,
    Sessions,
}

impl Window {
    /// `[Range size]`, with a slide if there is one.
    pub fn range(size: i64, slide: Option<i64>) -> Window {
        Range { size, slide }.into()
    }

    /// `[Rows rows]`.
    pub fn rows(rows: u64) -> Window {
        Rows { rows }.into()
    }

    /// `[Range Unbounded]`, with a slide if there is one.
    pub fn unbounded(slide: Option<i64>) -> Window {
        Unbounded { slide }.into()
    }

    /// The window with its expressions replaced by `rewrite`.
    pub fn map_exprs(&self, rewrite: impl Fn(&Expr) -> Expr) -> Window {
        let mut window = self.clone();
        for expr in window.kind_mut().exprs_mut() {
            *expr = rewrite(expr);
        }
        window
    }
}

/// Whether `condition` reads only columns that are among `keys`.
fn reads_only(keys: &[Expr], condition: &Expr) -> bool {
    let is_key = |column: usize| {
        let mut keys = keys.iter();
        keys.any(|key| matches!(key, Expr::Column { index, .. } if *index == column))
    };
    let mut reads_keys_only = true;
    condition.visit_columns(&mut |column| reads_keys_only &= is_key(column));
    reads_keys_only
}

/// `ts` rounded up to a multiple of `slide`.
pub(crate) fn round_up(ts: i64, slide: Option<i64>) -> i64 {
    let Some(slide) = slide else { return ts };
    match ts.rem_euclid(slide) {
        0 => ts,
        rest => ts.saturating_add(slide - rest),
    }
}

/// `ts` rounded down to a multiple of `slide`.
fn round_down(ts: i64, slide: Option<i64>) -> i64 {
    match slide {
        None => ts,
        Some(slide) => ts.saturating_sub(ts.rem_euclid(slide)),
    }
}
