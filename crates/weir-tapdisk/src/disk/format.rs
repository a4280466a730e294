//! [`find`]: the image formats that are recognised, so that an image in one of them is not served,
//! and overwritten, as raw.
//!
//! A format is recognised by its signature, as QEMU's `bdrv_probe` functions do it; a fixed VHD by
//! its footer. LUKS is not among them: a guest that encrypts a whole disk writes that header
//! itself.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What the user says of an image's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageFormat {
    /// Raw, unless it has the signature of another format: then it is refused.
    #[default]
    Probe,
    /// Raw, whatever is in it.
    Raw,
}

/// A format, by a signature at one place.
struct Signature {
    format: &'static str,
    place: Place,
    bytes: &'static [u8],
}

enum Place {
    /// From the start of the image, in bytes.
    Start(usize),
    /// Before the end of the image, in bytes.
    End(usize),
}

const fn start(format: &'static str, offset: usize, bytes: &'static [u8]) -> Signature {
    Signature {
        format,
        place: Place::Start(offset),
        bytes,
    }
}

const fn end(format: &'static str, before_end: usize, bytes: &'static [u8]) -> Signature {
    Signature {
        format,
        place: Place::End(before_end),
        bytes,
    }
}

/// Sources: QEMU's `block/*.c` and `docs/interop`; VMware "Virtual Disk Format 5.0"; Microsoft
/// "Virtual Hard Disk Image Format Specification", whose footer has 511 bytes in old versions.
static SIGNATURES: &[Signature] = &[
    start("qcow or qcow2", 0, b"QFI\xfb"),
    start("qed", 0, b"QED\0"),
    start("vmdk", 0, b"KDMV"),
    start("vmdk", 0, b"COWD"),
    start("vmdk", 0, b"# Disk DescriptorFile"),
    start("vhdx", 0, b"vhdxfile"),
    start("vdi", 64, &[0x7f, 0x10, 0xda, 0xbe]),
    start("vhd (vpc)", 0, b"conectix"),
    end("vhd (vpc)", 512, b"conectix"),
    end("vhd (vpc)", 511, b"conectix"),
    start("parallels", 0, b"WithoutFreeSpace"),
    start("parallels", 0, b"WithouFreSpacExt"),
    start("bochs", 0, b"Bochs Virtual HD Image"),
    start("cloop", 0, b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop"),
    end("dmg", 512, b"koly"),
];

/// Bytes that are read at either end.
const PROBED_BYTES: usize = 512;

/// The format other than raw that an image of `bytes` bytes has.
///
/// # Errors
/// The image cannot be read.
pub(crate) fn find(image: &File, bytes: u64) -> io::Result<Option<&'static str>> {
    let length = bytes.min(PROBED_BYTES as u64) as usize;
    let (mut first, mut last) = (vec![0; length], vec![0; length]);
    image.read_exact_at(&mut first, 0)?;
    image.read_exact_at(&mut last, bytes - length as u64)?;
    let matches = |signature: &&Signature| {
        let place = match signature.place {
            Place::Start(offset) => first.get(offset..),
            Place::End(before) => length.checked_sub(before).map(|at| &last[at..]),
        };
        place.is_some_and(|there| there.starts_with(signature.bytes))
    };
    Ok(SIGNATURES.iter().find(matches).map(|found| found.format))
}
