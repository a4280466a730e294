//! The report of `weir characterise`: what kind of workload each disk has, and what follows.
//!
//! | module | gives |
//! | --- | --- |
//! | [`text`](mod@text) | words and numbers for a terminal |

pub mod text;
