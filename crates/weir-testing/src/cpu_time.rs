//! [`cpu_time`]: what a piece of work costs, whatever else the machine does meanwhile.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The processor time of this thread so far (`CLOCK_THREAD_CPUTIME_ID`, clock_gettime(2)). That of
/// `/proc/thread-self/schedstat` is as old as the last tick.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
