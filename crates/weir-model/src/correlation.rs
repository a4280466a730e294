//! The columns of relation `correlations`: pairs of disks whose load or latency correlates.

use crate::{Field, Schema, Type, Unit};

/// The name of the relation.
pub const CORRELATIONS: &str = "correlations";

/// The schema of the relation. The engine computes the rows from stream `IO`.
pub fn correlations_schema() -> Schema {
    let text = |name: &str, doc: &str| Field::new(name, Type::Text).doc(doc);
    let number = |name: &str, doc: &str| Field::new(name, Type::Float).doc(doc);
    let time = |name: &str, ty, doc: &str| {
        let field = Field::new(name, ty).doc(doc);
        field.unit(Unit::Nanoseconds)
    };
    Schema::new(vec![
        text(
            "metric",
            "what is compared: latency, iops, bytes or inflight",
        ),
        text(
            "leader_host",
            "host of the leader, the disk that changes first; with lag 0 either one",
        )
        .nullable(),
        text("leader_vm", "VM of the leader").nullable(),
        text("leader_vdisk", "disk of that VM").nullable(),
        text("leader_pdisk", "its device or file on the host").nullable(),
        text(
            "follower_host",
            "host of the follower, the other disk of the pair",
        )
        .nullable(),
        text("follower_vm", "VM of the follower").nullable(),
        text("follower_vdisk", "disk of that VM").nullable(),
        text("follower_pdisk", "its device or file on the host").nullable(),
        time(
            "lag",
            Type::Int,
            "how much later the follower changes, up to 10 steps",
        ),
        number(
            "r",
            "coefficient of correlation of both windows (Pearson), at least 0.8 or at most -0.8",
        ),
        number("r_low", "lower bound of its interval of 95 % confidence"),
        number("r_high", "upper bound of that interval"),
        number(
            "p",
            "probability that chance gives such a pair among all that were compared",
        ),
        text(
            "verdict",
            "move together, move oppositely, leader slows follower, follower slows leader or \
             slow each other",
        ),
        time(
            "window_begin",
            Type::Time,
            "begin of the follower's window; that of the leader is earlier by the lag",
        ),
        time("window_end", Type::Time, "end of that window"),
    ])
}
