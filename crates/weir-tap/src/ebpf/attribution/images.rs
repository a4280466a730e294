//! [`Images`]: the virtual disks whose data is a file or a device of the host, by its path.

use std::collections::HashMap;
use std::fs;

use weir_model::Symbol;
use weir_model::inventory::BlockDevice;

use crate::inventory::Snapshot;

/// A virtual disk with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageOf {
    /// The VM, as a position in the snapshot.
    pub vm: u32,
    /// The disk as the VM sees it.
    pub vdisk: Symbol,
    /// True if a byte of the image is the same byte of the disk.
    pub is_whole: bool,
    /// The first sector of an image that is a partition, on its device; otherwise 0.
    pub start_sector: u64,
}

/// Virtual disks by the paths of their images, without symbolic links.
#[derive(Debug, Default)]
pub struct Images(HashMap<Symbol, Vec<ImageOf>>);

impl Images {
    /// The images of an inventory.
    pub fn new(snapshot: &Snapshot) -> Images {
        let mut images = Images::default();
        let devices: HashMap<Symbol, &BlockDevice> =
            snapshot.devices.iter().map(|d| (d.device, d)).collect();
        for laid in &snapshot.disks {
            let Some(image) = laid.disk.image else {
                continue;
            };
            let path = resolved(image);
            let device = devices.get(&path);
            let bytes = match device {
                Some(device) => Some(device.bytes),
                None => fs::metadata(path.as_str())
                    .ok()
                    .map(|file| file.len() as i64),
            };
            // A raw image of another size has the disk in a part of it.
            let sectors = |bytes: Option<i64>| bytes.map(|bytes| (bytes + 511) / 512);
            let is_raw = laid
                .disk
                .format
                .is_some_and(|format| format.as_str() == "raw");
            let is_whole = is_raw && bytes.is_some() && sectors(bytes) == sectors(laid.disk.bytes);
            let start_sector = device.and_then(|device| device.start_sectors).unwrap_or(0);
            let vdisk = laid.disk.vdisk;
            let (vm, start_sector) = (laid.vm, start_sector.unsigned_abs());
            images.add(
                path,
                ImageOf {
                    vm,
                    vdisk,
                    is_whole,
                    start_sector,
                },
            );
        }
        images
    }

    fn add(&mut self, path: Symbol, image: ImageOf) {
        self.0.entry(path).or_default().push(image);
    }

    /// True without images.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The only disk with this image, of `vm` if that is known; whether there are others.
    pub fn only(&self, path: Symbol, vm: Option<u32>) -> (Option<ImageOf>, bool) {
        let all = self.0.get(&path).map_or(&[][..], Vec::as_slice);
        let mut own = all
            .iter()
            .filter(|image| vm.is_none_or(|vm| image.vm == vm));
        match (own.next(), own.next()) {
            (Some(only), None) => (Some(*only), false),
            (first, _) => (None, first.is_some()),
        }
    }
}

fn resolved(path: Symbol) -> Symbol {
    let found = fs::canonicalize(path.as_str()).ok();
    let found = found.and_then(|path| Symbol::try_new(path.to_str()?).ok());
    found.unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(vm: u32, vdisk: &str) -> ImageOf {
        ImageOf {
            vm,
            vdisk: Symbol::new(vdisk),
            is_whole: true,
            start_sector: 0,
        }
    }

    #[test]
    fn an_image_of_several_disks_is_that_of_a_known_vm() {
        let [own, shared] = ["/srv/own", "/srv/shared"].map(Symbol::new);
        let mut images = Images::default();
        images.add(own, image(0, "/dev/vda"));
        images.add(shared, image(0, "/dev/vdb"));
        images.add(shared, image(1, "/dev/vdb"));
        images.add(shared, image(2, "/dev/vdb"));
        images.add(shared, image(2, "/dev/vdc"));
        assert_eq!(images.only(own, None), (Some(image(0, "/dev/vda")), false));
        assert_eq!(images.only(own, Some(1)), (None, false));
        assert_eq!(images.only(shared, None), (None, true));
        assert_eq!(
            images.only(shared, Some(1)),
            (Some(image(1, "/dev/vdb")), false)
        );
        assert_eq!(images.only(shared, Some(2)), (None, true));
        assert_eq!(images.only(Symbol::new("/srv/other"), None), (None, false));
    }
}
