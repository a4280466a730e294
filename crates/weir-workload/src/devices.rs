//! [`whole_disk`]: the disk that a device of the host is, or is a partition of.

/// The disk of a partition: Linux names it by a number after the disk's name, with a `p` between
/// where that ends in a digit (block/partitions/core.c, `part_devt` and `disk_name`). Other names
/// that end in a number are of disks themselves, as `/dev/nullb1` and `/dev/vg0/web1`.
pub fn whole_disk(path: &str) -> &str {
    let disk = path.trim_end_matches(|c: char| c.is_ascii_digit());
    let Some(name) = disk.strip_prefix("/dev/") else {
        return path;
    };
    if disk == path || name.contains('/') {
        return path;
    }
    let ends_in_digit = |text: &str| text.ends_with(|c: char| c.is_ascii_digit());
    match disk.strip_suffix('p') {
        Some(before) if ends_in_digit(before) => before,
        _ if has_letters(name) => disk,
        _ => path,
    }
}

/// True for the name of a disk that letters identify, so that a number after it is a partition's.
fn has_letters(name: &str) -> bool {
    let kinds = ["sd", "vd", "xvd", "hd", "dasd"];
    let are_letters = |rest: &str| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_lowercase());
    kinds
        .iter()
        .any(|kind| name.strip_prefix(kind).is_some_and(are_letters))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_belongs_to_its_disk() {
        for (path, disk) in [
            ("/dev/sda3", "/dev/sda"),
            ("/dev/sda", "/dev/sda"),
            ("/dev/vdb12", "/dev/vdb"),
            ("/dev/nvme0n1p2", "/dev/nvme0n1"),
            ("/dev/nvme0n1", "/dev/nvme0n1"),
            ("/dev/loop7p1", "/dev/loop7"),
            ("/dev/loop7", "/dev/loop7"),
            ("/dev/md127", "/dev/md127"),
            ("/dev/dm-3", "/dev/dm-3"),
            ("/dev/mapper/vg0", "/dev/mapper/vg0"),
            ("/dev/vg0/web1", "/dev/vg0/web1"),
            ("/dev/nullb1", "/dev/nullb1"),
            ("/dev/bcache0", "/dev/bcache0"),
            ("/dev/bcache0p1", "/dev/bcache0"),
            ("/dev/xvda1", "/dev/xvda"),
            ("/var/lib/images/web1", "/var/lib/images/web1"),
        ] {
            assert_eq!(whole_disk(path), disk);
        }
    }
}
