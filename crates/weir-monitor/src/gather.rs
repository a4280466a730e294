//! [`Waiting`]: the rows of one channel, of all agents, that wait for the watermark of the fleet.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use weir_model::Batch;
use weir_query::engine::{batch_bytes, in_time_order};

use super::agents::AgentId;

/// Waiting rows, by the first instant of each piece.
#[derive(Default)]
pub struct Waiting {
    pieces: BinaryHeap<Reverse<Piece>>,
    arrivals: u64,
    /// The column that contains the number of requests per row, if it is not one.
    counts: Option<usize>,
    requests: u64,
}

/// Rows of one agent, in time order.
struct Piece {
    arrival: u64,
    agent: AgentId,
    bytes: usize,
    batch: Batch,
}

impl Piece {
    fn key(&self) -> (i64, u64) {
        (self.batch.ts[0], self.arrival)
    }
}

impl PartialEq for Piece {
    fn eq(&self, other: &Piece) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Piece {}

impl PartialOrd for Piece {
    fn partial_cmp(&self, other: &Piece) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Piece {
    fn cmp(&self, other: &Piece) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// Rows that the watermark has passed.
pub struct Released {
    /// In timestamp order; those of one instant in the order of arrival.
    pub rows: Batch,
    /// The bytes by which the waiting rows of each agent decrease.
    pub freed: Vec<(AgentId, usize)>,
}

impl Waiting {
    /// No rows; `counts` is the column that contains the number of requests per row.
    pub fn counting(counts: Option<usize>) -> Waiting {
        Waiting {
            counts,
            ..Waiting::default()
        }
    }

    /// The requests in the rows.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The last instant of the rows.
    pub fn last(&self) -> Option<i64> {
        let last = |Reverse(piece): &Reverse<Piece>| piece.batch.ts.last().copied();
        self.pieces.iter().filter_map(last).max()
    }

    /// The rows of agents, in the order of arrival.
    pub fn in_order_of_arrival(&self) -> Vec<(AgentId, &Batch)> {
        let mut pieces: Vec<&Piece> = self.pieces.iter().map(|Reverse(piece)| piece).collect();
        pieces.sort_by_key(|piece| piece.arrival);
        pieces
            .into_iter()
            .map(|piece| (piece.agent, &piece.batch))
            .collect()
    }

    /// Adds rows of an agent, in timestamp order; returns their approximate bytes.
    pub fn push(&mut self, agent: AgentId, batch: Batch) -> usize {
        if batch.is_empty() {
            return 0;
        }
        let bytes = batch_bytes(&batch);
        let requests = batch.requests(self.counts);
        self.requests = self.requests.saturating_add(requests);
        self.arrivals += 1;
        self.pieces.push(Reverse(Piece {
            arrival: self.arrivals,
            agent,
            bytes,
            batch,
        }));
        bytes
    }

    /// Removes the rows at or before `upto`; `None` if there are none. Later rows are not touched,
    /// so the work is proportional to the rows.
    pub fn release(&mut self, upto: i64) -> Option<Released> {
        let mut due: Vec<Piece> = Vec::new();
        let mut freed = Vec::new();
        while let Some(Reverse(first)) = self.pieces.peek()
            && first.batch.ts[0] <= upto
        {
            let Some(Reverse(mut piece)) = self.pieces.pop() else {
                unreachable!("it was looked at");
            };
            let rows = piece.batch.ts.partition_point(|&ts| ts <= upto);
            let rest = piece.batch.slice(rows, piece.batch.len() - rows);
            let bytes = if rest.is_empty() {
                0
            } else {
                batch_bytes(&rest)
            };
            freed.push((piece.agent, piece.bytes.saturating_sub(bytes)));
            if !rest.is_empty() {
                self.pieces.push(Reverse(Piece {
                    bytes: bytes.min(piece.bytes),
                    batch: rest,
                    ..piece
                }));
            }
            piece.batch = piece.batch.slice(0, rows);
            let requests = piece.batch.requests(self.counts);
            self.requests = self.requests.saturating_sub(requests);
            due.push(piece);
        }
        due.sort_by_key(|piece| piece.arrival);
        let batches: Vec<Batch> = due.into_iter().map(|piece| piece.batch).collect();
        (!batches.is_empty()).then(|| Released {
            rows: in_time_order(&batches),
            freed,
        })
    }

    /// Removes all rows; returns the bytes by which the waiting rows of each agent decrease.
    pub fn clear(&mut self) -> Vec<(AgentId, usize)> {
        self.requests = 0;
        self.pieces
            .drain()
            .map(|Reverse(p)| (p.agent, p.bytes))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Column;

    fn batch(ts: &[i64]) -> Batch {
        Batch::stream(ts.to_vec(), vec![Column::ints(ts.to_vec())])
    }

    #[test]
    fn rows_come_out_in_time_order_up_to_the_instant() {
        let (a, b) = (AgentId(0), AgentId(1));
        let mut waiting = Waiting::default();
        let held = waiting.push(a, batch(&[1, 4, 9])) + waiting.push(b, batch(&[2, 5, 5]));
        assert_eq!(waiting.requests(), 6);
        assert!(waiting.release(0).is_none());
        let first = waiting.release(4).unwrap();
        assert_eq!(first.rows.ts[..], [1, 2, 4]);
        assert_eq!(waiting.requests(), 3);
        let second = waiting.release(9).unwrap();
        assert_eq!(second.rows.ts[..], [5, 5, 9]);
        let freed = first.freed.iter().chain(&second.freed);
        assert_eq!(freed.map(|(_, bytes)| bytes).sum::<usize>(), held);
        assert!(waiting.release(i64::MAX).is_none());
        assert_eq!(waiting.requests(), 0);
        // Rows that are groups.
        let mut waiting = Waiting::counting(Some(0));
        waiting.push(a, batch(&[10, 20]));
        assert_eq!(waiting.requests(), 30);
        waiting.release(15);
        assert_eq!(waiting.requests(), 20);
        waiting.clear();
        assert_eq!(waiting.requests(), 0);
    }
}
