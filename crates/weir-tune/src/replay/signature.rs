//! Known signatures of file systems, partition tables and other formats of a disk.

/// A signature: bytes at a fixed position that a format has.
struct Signature {
    format: &'static str,
    offset_bytes: u64,
    magic: &'static [u8],
}

const fn signature(format: &'static str, offset_bytes: u64, magic: &'static [u8]) -> Signature {
    Signature {
        format,
        offset_bytes,
        magic,
    }
}

/// The signatures, in the order in which they are reported. A partition table may exist beside a
/// file system, and names more.
const SIGNATURES: &[Signature] = &[
    // UEFI specification, 5.3.2; with blocks of 512 and of 4096 bytes.
    signature("a GPT partition table", 512, b"EFI PART"),
    signature("a GPT partition table", 4096, b"EFI PART"),
    signature("LUKS", 0, b"LUKS\xba\xbe"),
    // Linux, fs/xfs/libxfs/xfs_format.h
    signature("an XFS file system", 0, b"XFSB"),
    // Linux, fs/ext4/ext4.h: `s_magic` of the super block, which begins at 1024.
    signature("an ext2, ext3 or ext4 file system", 1080, b"\x53\xef"),
    // Linux, include/uapi/linux/btrfs_tree.h
    signature("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    signature("an f2fs file system", 1024, b"\x10\x20\xf5\xf2"),
    signature("a squashfs file system", 0, b"hsqs"),
    signature("an ISO 9660 file system", 32_769, b"CD001"),
    signature("an NTFS file system", 3, b"NTFS    "),
    signature("an exFAT file system", 3, b"EXFAT   "),
    signature("a FAT file system", 54, b"FAT"),
    signature("a FAT file system", 82, b"FAT32"),
    // Linux, include/linux/swap.h, with pages of 4 and 64 KiB.
    signature("a swap area", 4086, b"SWAPSPACE2"),
    signature("a swap area", 65_526, b"SWAPSPACE2"),
    // LVM2, lib/label/label.c: one of the first four sectors.
    signature("an LVM physical volume", 0, b"LABELONE"),
    signature("an LVM physical volume", 512, b"LABELONE"),
    signature("an LVM physical volume", 1024, b"LABELONE"),
    signature("an LVM physical volume", 1536, b"LABELONE"),
    // Linux, include/uapi/linux/raid/md_p.h: versions 1.1 and 1.2.
    signature("a member of an md array", 0, b"\xfc\x4e\x2b\xa9"),
    signature("a member of an md array", 4096, b"\xfc\x4e\x2b\xa9"),
    signature("a bcache device", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    signature("Ceph data", 0, b"bluestore block device"),
    signature("a qcow2 image", 0, b"QFI\xfb"),
    // Every partition table of DOS, and boot sectors.
    signature("a DOS partition table or boot sector", 510, b"\x55\xaa"),
];

/// The format of the first bytes of a disk; `None` if it is not known.
pub fn known(start: &[u8]) -> Option<&'static str> {
    let has = |signature: &&Signature| {
        let at = usize::try_from(signature.offset_bytes).ok();
        let rest = at.and_then(|at| start.get(at..));
        rest.is_some_and(|rest| rest.starts_with(signature.magic))
    };
    SIGNATURES.iter().find(has).map(|found| found.format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_by_their_signatures() {
        let mut start = vec![0_u8; 128 << 10];
        assert_eq!(known(&start), None);
        start[510..512].copy_from_slice(b"\x55\xaa");
        assert_eq!(known(&start), Some("a DOS partition table or boot sector"));
        start[512..520].copy_from_slice(b"EFI PART");
        assert_eq!(known(&start), Some("a GPT partition table"));
        assert_eq!(known(b"XFSB"), Some("an XFS file system"));
        assert_eq!(known(b""), None);
    }
}
