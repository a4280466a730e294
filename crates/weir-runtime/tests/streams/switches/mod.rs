//! Stream `switches`: context switches. Its table of columns, and its probe.

use weir_model::Unit;
use weir_tap::ebpf::Probe;
use weir_tap::ebpf::stream::{FieldNumber, FieldValue, KernelStream, StreamColumn};
use weir_tap::live::LiveTap;

/// The live tap of the stream.
pub static TAP: LiveTap = LiveTap {
    name: STREAM.name,
    streams: &[STREAM.name],
    open: |demands, options| STREAM.open(demands, options),
    capabilities: || STREAM.capabilities(),
    needs_inventory: |_| false,
};

/// Context switches.
pub static STREAM: KernelStream = KernelStream {
    name: "switches",
    doc: "one row per context switch: the task that leaves a processor",
    object: include_bytes!("switches.bpf.o"),
    event_bytes: 64,
    columns: &[
        StreamColumn::new("ts", FieldValue::Time).doc("when the task left the processor"),
        StreamColumn::new("pid", FieldValue::Number(FieldNumber::unsigned(24, 4)))
            .doc("its process; 0 is the idle task")
            .tested()
            .grouped(),
        StreamColumn::new("tid", FieldValue::Number(FieldNumber::unsigned(28, 4)))
            .doc("its thread")
            .tested()
            .sampled()
            .grouped(),
        StreamColumn::new("ran", FieldValue::Number(FieldNumber::unsigned(32, 8)))
            .unit(Unit::Nanoseconds)
            .null(u64::MAX)
            .doc("how long it ran on the processor; NULL for the first task of a processor")
            .tested()
            .measured(),
        StreamColumn::new("nice", FieldValue::Number(FieldNumber::signed(40, 4)))
            .doc("its nice value; below -20 for real-time tasks")
            .tested()
            .grouped()
            .measured(),
        StreamColumn::new(
            "cause",
            FieldValue::Name(FieldNumber::unsigned(44, 1), CAUSES),
        )
        .doc("wait or preemption")
        .tested()
        .grouped(),
        StreamColumn::new("comm", FieldValue::Text(48))
            .doc("its command name")
            .tested()
            .grouped(),
        StreamColumn::new("cpu", FieldValue::Number(FieldNumber::CPU))
            .doc("the processor")
            .tested()
            .grouped(),
        StreamColumn::new("host", FieldValue::Host)
            .doc("this host")
            .grouped(),
    ],
    counters: &[],
    flush: None,
    probes: |choice| match choice.has(SWITCH.tracepoint) {
        true => Ok(vec![SWITCH]),
        false => Err(SWITCH.tracepoint.into()),
    },
};

/// Why a task leaves its processor.
const CAUSES: &[(i64, &str)] = &[(0, "preemption"), (1, "wait")];

const SWITCH: Probe = Probe {
    program: "on_switch",
    tracepoint: "sched_switch",
    without: "no context switches",
};
