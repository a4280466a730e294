//! [`Code`]: BPF instructions, as include/uapi/linux/bpf.h defines them.

/// A register of a BPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(u8);

/// The result of a helper.
pub const R0: Register = Register(0);
/// The first argument of a helper; helpers change R1 to R5.
pub const R1: Register = Register(1);
/// The second argument of a helper.
pub const R2: Register = Register(2);
/// The third argument of a helper.
pub const R3: Register = Register(3);
/// The fourth argument of a helper.
pub const R4: Register = Register(4);
/// The context of the probe.
pub const CONTEXT: Register = Register(6);
/// The memory that a block fills in.
pub const MEMORY: Register = Register(7);
/// The beginning of a pair, of which a block has the end.
pub const BEGINNING: Register = Register(8);

/// A function of the kernel that programs call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFunction {
    /// `bpf_get_smp_processor_id`
    Processor = 8,
    /// `bpf_get_current_pid_tgid`
    PidTgid = 14,
    /// `bpf_get_current_comm`
    Comm = 16,
    /// `bpf_get_stack`
    Stack = 67,
    /// `bpf_get_current_cgroup_id`
    CgroupId = 80,
    /// `bpf_probe_read_user`
    ReadUser = 112,
    /// `bpf_probe_read_kernel`
    ReadKernel = 113,
    /// `bpf_probe_read_user_str`
    ReadUserText = 114,
    /// `bpf_probe_read_kernel_str`
    ReadKernelText = 115,
    /// `bpf_get_attach_cookie`
    AttachCookie = 174,
}

/// Bytes of an instruction.
const BYTES: usize = 8;

/// An instruction that has no effect: a jump to the next one.
const NOTHING: [u8; BYTES] = [0x05, 0, 0, 0, 0, 0, 0, 0];

/// A sequence of instructions.
#[derive(Clone, Debug, Default)]
pub struct Code(Vec<[u8; BYTES]>);

/// A jump whose target is not known yet.
#[derive(Debug)]
#[must_use]
pub struct Jump(usize);

impl Code {
    /// The number of instructions.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    fn push(&mut self, opcode: u8, to: Register, from: Register, offset: i16, value: i32) {
        let registers = to.0 | from.0 << 4;
        let [o0, o1] = offset.to_ne_bytes();
        let [v0, v1, v2, v3] = value.to_ne_bytes();
        self.0.push([opcode, registers, o0, o1, v0, v1, v2, v3]);
    }

    /// `to = from`
    pub fn copy(&mut self, to: Register, from: Register) {
        self.push(0xbf, to, from, 0, 0);
    }

    /// `to = value`
    pub fn set(&mut self, to: Register, value: i32) {
        self.push(0xb7, to, R0, 0, value);
    }

    /// `to += value`
    pub fn add(&mut self, to: Register, value: i32) {
        if value != 0 {
            self.push(0x07, to, R0, 0, value);
        }
    }

    /// `to += from`
    pub fn add_register(&mut self, to: Register, from: Register) {
        self.push(0x0f, to, from, 0, 0);
    }

    /// `to -= from`
    pub fn subtract(&mut self, to: Register, from: Register) {
        self.push(0x1f, to, from, 0, 0);
    }

    /// `to &= value`
    pub fn and(&mut self, to: Register, value: i32) {
        self.push(0x57, to, R0, 0, value);
    }

    /// `to <<= bits`
    pub fn shift_left(&mut self, to: Register, bits: i32) {
        self.push(0x67, to, R0, 0, bits);
    }

    /// `to >>= bits`, with copies of the sign if the number is signed.
    pub fn shift_right(&mut self, to: Register, bits: i32, is_signed: bool) {
        self.push(if is_signed { 0xc7 } else { 0x77 }, to, R0, 0, bits);
    }

    /// `to = *(from + offset)`, an unsigned number of this size.
    pub fn load(&mut self, to: Register, from: Register, offset: i16, bytes: usize) {
        self.push(0x61 | size(bytes), to, from, offset, 0);
    }

    /// `*(to + offset) = from`, a number of this size.
    pub fn store(&mut self, to: Register, offset: i16, from: Register, bytes: usize) {
        self.push(0x63 | size(bytes), to, from, offset, 0);
    }

    /// `*(to + offset) = 0`, eight bytes.
    pub fn clear(&mut self, to: Register, offset: i16) {
        self.push(0x62 | size(8), to, R0, offset, 0);
    }

    /// Calls a helper.
    pub fn call(&mut self, function: KernelFunction) {
        self.push(0x85, R0, R0, 0, function as i32);
    }

    /// A jump if `register` is `value`.
    pub fn jump_if(&mut self, register: Register, value: i32) -> Jump {
        self.push(0x15, register, R0, 0, value);
        Jump(self.0.len() - 1)
    }

    /// A jump if `register` is not `value`.
    pub fn jump_unless(&mut self, register: Register, value: i32) -> Jump {
        self.push(0x55, register, R0, 0, value);
        Jump(self.0.len() - 1)
    }

    /// A jump.
    pub fn jump(&mut self) -> Jump {
        self.0.push(NOTHING);
        Jump(self.0.len() - 1)
    }

    /// Lets a jump end here.
    pub fn end(&mut self, jump: Jump) {
        let distance = (self.0.len() - jump.0 - 1) as i16;
        self.0[jump.0][2..4].copy_from_slice(&distance.to_ne_bytes());
    }

    /// Writes the instructions over each block of placeholders `r0 = mark` of a compiled object,
    /// and instructions without effect over the rest of the block. Returns the number of blocks.
    ///
    /// # Errors
    /// The number of instructions that fit, if it is less than that of the code.
    pub fn patch(&self, object: &mut [u8], mark: i32) -> Result<usize, usize> {
        let mut placeholder = Code::default();
        placeholder.set(R0, mark);
        let placeholder = placeholder.0[0];
        let (mut at, mut blocks) = (0, 0);
        while at + BYTES <= object.len() {
            let places = object[at..].chunks_exact(BYTES);
            let places = places.take_while(|place| **place == placeholder).count();
            if places == 0 {
                // Sections of instructions are aligned to their size.
                at += BYTES;
                continue;
            }
            if places < self.len() {
                return Err(places);
            }
            for place in 0..places {
                let instruction = self.0.get(place).unwrap_or(&NOTHING);
                object[at + place * BYTES..][..BYTES].copy_from_slice(instruction);
            }
            at += places * BYTES;
            blocks += 1;
        }
        Ok(blocks)
    }
}

/// The bits of an opcode for the size of a number.
fn size(bytes: usize) -> u8 {
    match bytes {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        8 => 0x18,
        _ => unreachable!("numbers have 1, 2, 4 or 8 bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_the_kernels_encoding() {
        let mut code = Code::default();
        code.load(R1, CONTEXT, 24, 4);
        code.store(MEMORY, 32, R1, 2);
        code.shift_right(R1, 3, true);
        code.call(KernelFunction::Comm);
        // As printed by llvm-objdump: r1 = *(u32 *)(r6 + 24); *(u16 *)(r7 + 32) = r1;
        // r1 s>>= 3; call 16.
        let expected = [
            [0x61, 0x61, 24, 0, 0, 0, 0, 0],
            [0x6b, 0x17, 32, 0, 0, 0, 0, 0],
            [0xc7, 0x01, 0, 0, 3, 0, 0, 0],
            [0x85, 0, 0, 0, 16, 0, 0, 0],
        ];
        assert_eq!(code.0, expected);
    }

    #[test]
    fn a_jump_ends_at_its_target() {
        let mut code = Code::default();
        let over = code.jump_if(R1, 0);
        code.set(R0, 1);
        code.set(R0, 2);
        code.end(over);
        assert_eq!(code.0[0][2..4], 2_i16.to_ne_bytes());
    }

    #[test]
    fn a_block_of_placeholders_is_replaced_as_a_whole() {
        let mut code = Code::default();
        (0..3).for_each(|_| code.set(R0, 7));
        let object = code.0.concat();
        let mut object = [vec![0; 8], object, vec![1; 8]].concat();
        let mut short = Code::default();
        short.set(R1, 9);
        assert_eq!(short.patch(&mut object, 7), Ok(1));
        assert_eq!(object[8..16], short.0[0]);
        assert_eq!(object[16..32], [NOTHING, NOTHING].concat());
        assert_eq!((&object[..8], &object[32..]), (&[0; 8][..], &[1; 8][..]));
        let mut object = short.0.concat();
        let long = Code(vec![NOTHING; 2]);
        assert_eq!(long.patch(&mut object, 9), Ok(0), "another register");
        let mut one = Code::default();
        one.set(R0, 9);
        assert_eq!(long.patch(&mut one.0.concat(), 9), Err(1));
    }
}
