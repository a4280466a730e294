//! [`NodeOptions`]: options of a block node on the command line that QMP does not report.

use super::command_line::CommandLine;
use super::options::Options;

/// Options of a block node that QMP does not show (`BlockdevOptions` of qapi/block-core.json).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeOptions {
    /// Discards are forwarded to the child.
    pub discard: bool,
    /// Falls back to read-only if the image cannot be opened for writing.
    pub auto_read_only: bool,
    /// Other processes may write the same image.
    pub force_share: bool,
    /// The child was defined inline in the node's definition, and is therefore deleted when the
    /// node no longer uses it.
    pub is_inline: bool,
}

impl NodeOptions {
    /// The options of the node `node`, or of the only drive with file `file`, in the arguments of a
    /// QEMU; `None` if the arguments do not define it.
    pub fn find(arguments: &[String], node: &str, file: &str) -> Option<NodeOptions> {
        let line = CommandLine::parse(arguments);
        if let Some(options) = line.nodes.get(node) {
            return Some(NodeOptions::of(options));
        }
        let is_it = |drive: &&Options| {
            drive.get("node-name") == Some(node)
                || ["file", "filename", "file.filename"]
                    .iter()
                    .any(|key| drive.get(key) == Some(file))
        };
        let mut drives = line.drives.iter().filter(is_it);
        match (drives.next(), drives.next()) {
            (Some(drive), None) => Some(NodeOptions::of(drive)),
            _ => None,
        }
    }

    fn of(options: &Options) -> NodeOptions {
        let is_on = |key: &str| options.flag(key) == Some(true);
        NodeOptions {
            discard: options.get("discard") == Some("unmap") || is_on("discard"),
            auto_read_only: is_on("auto-read-only"),
            force_share: is_on("force-share"),
            is_inline: options.get("file").is_none() && !options.below("file").is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_its_name_or_its_file() {
        let words = [
            "qemu-system-x86_64",
            "-blockdev",
            "node-name=f0,driver=file,filename=/a",
            "-blockdev",
            r#"{"node-name":"n0","driver":"raw","file":"f0","discard":"unmap","auto-read-only":true}"#,
            "-blockdev",
            "driver=raw,node-name=n1,file.driver=file,file.filename=/e,file.node-name=f1",
            "-drive",
            "file=/b,format=raw,if=virtio,discard=on",
            "-drive",
            "file=/c,format=raw,if=virtio",
            "-drive",
            "file=/c,format=raw,if=virtio,read-only=on",
        ];
        let arguments = words.map(String::from);
        let find = |node, file| NodeOptions::find(&arguments, node, file);
        let options = find("n0", "/a").unwrap();
        assert_eq!(
            (options.discard, options.auto_read_only, options.force_share),
            (true, true, false)
        );
        assert!(!options.is_inline && find("n1", "/e").unwrap().is_inline);
        assert_eq!(find("f0", "/a"), Some(NodeOptions::default()));
        assert!(find("#block1", "/b").unwrap().discard);
        assert_eq!(find("#block1", "/c"), None, "it could be either");
        assert_eq!(find("libvirt-9-format", "/d"), None);
    }
}
