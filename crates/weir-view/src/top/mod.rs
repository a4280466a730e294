//! `weir top`: whose I/O it is and how it fares, live on a screen or as plain tables.
//!
//! ```text
//! queries (CQL) ─ run loop ─ gather: ticks ─┬─ state ─ draw: the screen, in a thread of its own
//!         └──────── changes, by keys ───────┘       └─ batch: plain tables or JSON
//! ```
//!
//! [`queries`] has every question; [`columns`] is the list that both the main question and the
//! table are made of. What keys do is a function of the state ([`state`]), and so is the picture
//! ([`screen`]).

pub mod batch;
pub mod bounds;
pub mod columns;
pub mod figures;
pub mod gather;
pub mod history;
pub mod inbox;
pub mod queries;
pub mod replay;
pub mod screen;
pub mod state;
