//! The report of `weir characterise`: what kind of workload each disk has, and what follows.
//!
//! | module | gives |
//! | --- | --- |
//! | [`text`](mod@text) | words and numbers for a terminal |
//! | [`html`] | the same as one page, with its plots |
//! | [`plots`] | the plots |

pub mod html;
pub mod plots;
pub mod text;
