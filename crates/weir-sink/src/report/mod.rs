//! The report of `weir characterise`: the kind of workload of each disk, and advice.
//!
//! | module | gives |
//! | --- | --- |
//! | [`text`](mod@text) | words and numbers for a terminal |
//! | [`html`] | the same as one page, with its plots |
//! | [`plots`] | the plots |

pub mod html;
pub mod plots;
pub mod text;
