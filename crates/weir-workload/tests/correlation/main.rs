//! Correlated pairs of series, compared with a computation of every coefficient.

mod brute;
mod disks;
mod many;
mod single;
