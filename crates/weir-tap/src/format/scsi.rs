//! SCSI opcodes and their operations (T10, SCSI Block Commands).

use weir_model::Op;

/// The operation of a command, `None` for those that are not block I/O.
pub fn op(opcode: u8) -> Option<Op> {
    match opcode {
        // READ (6), (10), (12), (16)
        0x08 | 0x28 | 0xa8 | 0x88 => Some(Op::Read),
        // WRITE (6), (10), (12), (16); WRITE AND VERIFY (10), (12), (16)
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e => Some(Op::Write),
        // SYNCHRONIZE CACHE (10), (16)
        0x35 | 0x91 => Some(Op::Flush),
        // UNMAP
        0x42 => Some(Op::Discard),
        // WRITE SAME (10), (16)
        0x41 | 0x93 => Some(Op::WriteZeroes),
        _ => None,
    }
}
