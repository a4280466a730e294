//! Sinks: where answers go (table, JSON, CSV, deltas, Parquet).
