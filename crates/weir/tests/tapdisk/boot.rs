//! The firmware can read a served disk: SeaBIOS boots from it, and loads the content of the image.

use std::fs;
use std::process::{Command, Stdio};

use weir_testing::VhostDisk;

use crate::process::{Scratch, Tapdisk, ready};

/// A boot sector (x86, real mode, at 0:7c00). It makes the BIOS read 64 sectors from sector 1 on
/// (INT 13h, AH=42h), computes their sum, writes it to the first serial port and ends the machine.
#[rustfmt::skip]
const BOOT: &[u8] = &[
    0xfa,                     // cli
    0x31, 0xc0,               // xor ax,ax
    0x8e, 0xd8,               // mov ds,ax
    0x8e, 0xc0,               // mov es,ax
    0x8e, 0xd0,               // mov ss,ax
    0xbc, 0x00, 0x7c,         // mov sp,0x7c00
    0xfc,                     // cld
    0xbe, 0x4d, 0x7c,         // mov si,0x7c4d
    0xb4, 0x42,               // mov ah,0x42
    0xcd, 0x13,               // int 0x13
    0xb3, 0x45,               // mov bl,0x45
    0x72, 0x26,               // jb 0x7c3e
    0xbe, 0x00, 0x80,         // mov si,0x8000
    0xb9, 0x00, 0x40,         // mov cx,0x4000
    0x31, 0xdb,               // xor bx,bx
    0xad,                     // lods ax,WORD PTR ds:[si]
    0xd1, 0xc3,               // rol bx,1
    0x01, 0xc3,               // add bx,ax
    0xe2, 0xf9,               // loop 0x7c20
    0xb9, 0x04, 0x00,         // mov cx,0x4
    0xba, 0xf8, 0x03,         // mov dx,0x3f8
    0xc1, 0xc3, 0x04,         // rol bx,0x4
    0x88, 0xd8,               // mov al,bl
    0x24, 0x0f,               // and al,0xf
    0x3c, 0x0a,               // cmp al,0xa
    0x1c, 0x69,               // sbb al,0x69
    0x2f,                     // das
    0xee,                     // out dx,al
    0xe2, 0xf1,               // loop 0x7c2d
    0xb3, 0x0a,               // mov bl,0xa
    0x88, 0xd8,               // mov al,bl
    0xba, 0xf8, 0x03,         // mov dx,0x3f8
    0xee,                     // out dx,al
    0xba, 0xf4, 0x00,         // mov dx,0xf4
    0x30, 0xc0,               // xor al,al
    0xee,                     // out dx,al
    0xf4,                     // hlt
    0xeb, 0xfd,               // jmp 0x7c4a
    // The disk address packet: 64 sectors to 0:8000, from sector 1 on.
    0x10, 0x00, 0x40, 0x00, 0x00, 0x80, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];

/// The sum that the boot sector computes.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u16::from_le_bytes([w[0], w[1]]));
    words.fold(0u16, |sum, word| sum.rotate_left(1).wrapping_add(word))
}

#[test]
fn the_firmware_boots_from_a_served_disk() {
    const TEST: &str = "the_firmware_boots_from_a_served_disk";
    if ready(TEST, &["qemu-system-x86_64"]).is_none() {
        return;
    }
    let scratch = Scratch::new();
    let mut image: Vec<u8> = (0..1u32 << 18)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    image[..512].fill(0);
    image[..BOOT.len()].copy_from_slice(BOOT);
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    let (path, socket) = (scratch.file("d.raw"), scratch.file("d.sock"));
    fs::write(&path, &image).unwrap();
    let tapdisk = Tapdisk::start(&["--image", &path, "--socket", &socket, "--vm", "bios"]);
    let serial = scratch.file("serial");
    let status = Command::new("timeout")
        .args([
            "90",
            "qemu-system-x86_64",
            "-M",
            "pc",
            "-accel",
            "tcg",
            "-m",
            "256",
            "-nodefaults",
        ])
        .args([
            "-display",
            "none",
            "-no-reboot",
            "-serial",
            &format!("file:{serial}"),
        ])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"])
        .args(VhostDisk::shared_memory())
        .args(VhostDisk::new("disk0", &socket).args())
        .stdin(Stdio::null())
        .status()
        .unwrap();
    let printed = fs::read_to_string(&serial).unwrap();
    assert_eq!(
        status.code(),
        Some(1),
        "the boot sector ends the machine: {printed}"
    );
    assert_eq!(
        printed,
        format!("{:04X}\n", sum(&image[512..512 + 64 * 512]))
    );
    let reads = tapdisk.requests("r");
    assert!(reads > 0, "the tap saw the firmware's reads");
    tapdisk.stop();
}
