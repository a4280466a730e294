//! The command line as a user meets it: the built binary, its output, its exit codes.

mod agent;
mod certificates;
mod characterise;
mod endings;
mod exporter;
mod fleet;
mod folds;
mod formats;
mod hist;
mod hist_live;
mod iostat;
mod live;
mod pairing;
mod partials;
mod query;
mod reference;
mod script;
mod simulate;
mod support;
mod terminal;
mod top;
mod words;
