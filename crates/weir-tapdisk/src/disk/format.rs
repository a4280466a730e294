//! [`find`]: detects image formats, so that an image in one of them is not served, and overwritten,
//! as raw.
//!
//! A format is detected by its signature, as by QEMU's `bdrv_probe` functions; a fixed VHD by its
//! footer. LUKS is not among them: a guest that encrypts a whole disk writes that header itself.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The user's setting of an image's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageFormat {
    /// Raw, unless it has the signature of another format; then it is rejected.
    #[default]
    Probe,
    /// Raw, whatever it contains.
    Raw,
}

/// A format, and the position and content of its signature.
struct Signature(&'static str, Position, &'static [u8]);

enum Position {
    /// From the start of the image, in bytes.
    Start(usize),
    /// Before the end of the image, in bytes.
    End(usize),
}

use Position::{End, Start};

/// Sources: QEMU's `block/*.c` and `docs/interop`; VMware "Virtual Disk Format 5.0"; Microsoft
/// "Virtual Hard Disk Image Format Specification", whose footer has 511 bytes in old versions.
static SIGNATURES: &[Signature] = &[
    Signature("qcow or qcow2", Start(0), b"QFI\xfb"),
    Signature("qed", Start(0), b"QED\0"),
    Signature("vmdk", Start(0), b"KDMV"),
    Signature("vmdk", Start(0), b"COWD"),
    Signature("vmdk", Start(0), b"# Disk DescriptorFile"),
    Signature("vhdx", Start(0), b"vhdxfile"),
    Signature("vdi", Start(64), &[0x7f, 0x10, 0xda, 0xbe]),
    Signature("vhd (vpc)", Start(0), b"conectix"),
    Signature("vhd (vpc)", End(512), b"conectix"),
    Signature("vhd (vpc)", End(511), b"conectix"),
    Signature("parallels", Start(0), b"WithoutFreeSpace"),
    Signature("parallels", Start(0), b"WithouFreSpacExt"),
    Signature("bochs", Start(0), b"Bochs Virtual HD Image"),
    Signature(
        "cloop",
        Start(0),
        b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop",
    ),
    Signature("dmg", End(512), b"koly"),
];

/// Bytes that are read at the start and at the end.
const PROBED_BYTES: usize = 512;

/// The format other than raw of an image of `bytes` bytes.
///
/// # Errors
/// The image cannot be read.
pub(crate) fn find(image: &File, bytes: u64) -> io::Result<Option<&'static str>> {
    let length = bytes.min(PROBED_BYTES as u64) as usize;
    let (mut first, mut last) = (vec![0; length], vec![0; length]);
    image.read_exact_at(&mut first, 0)?;
    image.read_exact_at(&mut last, bytes - length as u64)?;
    let matches = |Signature(_, position, bytes): &&Signature| {
        let rest = match *position {
            Start(offset) => first.get(offset..),
            End(before) => length.checked_sub(before).map(|at| &last[at..]),
        };
        rest.is_some_and(|rest| rest.starts_with(bytes))
    };
    Ok(SIGNATURES.iter().find(matches).map(|found| found.0))
}
