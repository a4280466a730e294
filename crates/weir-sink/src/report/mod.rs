//! The report of `weir characterise`: the kind of workload of each disk, and advice.
//!
//! | module | gives |
//! | --- | --- |
//! | [`text`](mod@text) | words and numbers for a terminal |
//! | [`files`] | how files are accessed |
//! | [`html`] | the same as one page, with its plots |
//! | [`plots`] | the plots |
//! | [`colocation`], [`colocation_html`] | the placement of disks of `weir advise` |
//! | [`correlation`], [`correlation_html`] | the pairs of disks of `weir correlate` |
//! | [`outliers`] | the slowest requests of `weir outliers` |

pub mod colocation;
pub mod colocation_html;
pub mod correlation;
pub mod correlation_html;
pub mod files;
pub mod html;
pub mod outliers;
pub mod plots;
pub mod text;
