//! [`trace`]: a trace of a known number of requests in the formats that weir reads and does not
//! write, for tests of readers.

/// A trace of `requests` requests in the format of that name, as its tools write it; `None` for a
/// format that weir writes itself, and for an unknown one.
pub fn trace(format: &str, requests: u64) -> Option<Vec<u8>> {
    let lines =
        |line: &dyn Fn(u64) -> String| (1..=requests).map(line).collect::<String>().into_bytes();
    Some(match format {
        "vscsi" => vscsi(1, requests),
        "blkparse" => lines(&blkparse),
        "msr" => lines(&|i| {
            let ticks = 128_166_372_003_061_629 + i * 1000;
            format!("{ticks},usr,0,Read,{},4096,{}\n", i * 4096, i * 100)
        }),
        "alibaba" => lines(&|i| {
            let us = 1_577_808_000_000_046 + i;
            format!("{},W,{},4096,{us}\n", i % 3, i * 4096)
        }),
        "tencent" => lines(&|i| format!("{},{},8,{},1063\n", 1_538_323_200 + i, i * 8, i % 2)),
        "cloudphysics-csv" => lines(&|i| format!("1,{},2a,512,{}\n", 5_633_898 + i, i * 8)),
        "cydonia-csv" => lines(&|i| format!("{},{},w,4096\n", i * 1560, i * 8)),
        "disksim" => lines(&|i| format!("{i}.191135\t{}\t{}\t5\t{:x}\n", i % 3, i * 8, i % 2)),
        "disksim-validation" => lines(&|i| format!("R Hit {} 4 15362.00000 56074.00000\n", i * 4)),
        "mqsim" => lines(&|i| format!("{} {} {} 16 {}\n", 938_513_000 + i, i % 3, i * 16, i % 2)),
        _ => return None,
    })
}

/// A write of 4 KiB: queued, issued after a microsecond, complete after five.
fn blkparse(i: u64) -> String {
    let event = |us: u64, rest: &str| {
        let (seconds, us) = (us / 1_000_000, us % 1_000_000);
        format!("  8,0    1 {i:8} {seconds:5}.{us:06}000    77  {rest}\n")
    };
    event(i * 10, &format!("Q WS {} + 8 [fio]", i * 64))
        + &event(i * 10 + 1, &format!("D WS {} + 8 [fio]", i * 64))
        + &event(i * 10 + 5, &format!("C WS {} + 8 [0]", i * 64))
}

/// Writes of 4 KiB in a version of vscsiStats' binary format, 1 ms apart; in version 2 each takes
/// 250 us.
pub fn vscsi(version: u16, requests: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 1..=requests {
        let (opcode, version) = (0x2au16.to_le_bytes(), (version << 8).to_le_bytes());
        let counts = [
            (i as u32).to_le_bytes(),
            4096u32.to_le_bytes(),
            1u32.to_le_bytes(),
        ]
        .concat();
        let (lbn, time) = ((i * 8).to_le_bytes(), (i * 1000).to_le_bytes());
        bytes.extend(match version[1] {
            1 => [&counts, &opcode[..], &version, &lbn, &time].concat(),
            _ => [
                &opcode[..],
                &version,
                &counts,
                &lbn,
                &time,
                &250u64.to_le_bytes(),
            ]
            .concat(),
        });
    }
    bytes
}
