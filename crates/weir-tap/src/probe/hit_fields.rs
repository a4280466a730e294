//! The fields that a probe has of the hit itself: its stacks, and the VM of its process.

use weir_model::{ProbeField, ProbeType};

use super::generate::{Content, Origin, StackParts};
use super::resolve::{Fields, Found, ProbeError};

/// The stacks of the thread that hit a probe: their fields, parts and descriptions.
const STACKS: [(&str, StackParts, &str); 3] = [
    (
        "stack",
        StackParts {
            kernel: true,
            user: true,
        },
        "the functions of the process and of the kernel, which have `_[k]`, outermost first",
    ),
    (
        "ustack",
        StackParts {
            kernel: false,
            user: true,
        },
        "the functions of the process, outermost first",
    ),
    (
        "kstack",
        StackParts {
            kernel: true,
            user: false,
        },
        "the functions of the kernel, outermost first",
    ),
];

/// What every probe has: its stacks, and the VM of its process.
pub fn of_hit_itself(field: &ProbeField) -> Option<Found> {
    let is_own_vm = field.path == "pid" && field.ty == Some(ProbeType::Vm);
    let vm = is_own_vm.then(|| Found {
        declared: "the VM of the current process".into(),
        content: Content::VmOfTask,
        origin: Origin::CurrentVm,
    });
    vm.or_else(|| stack(field))
}

/// A stack, which every probe has unless a field of its own has the name.
fn stack(field: &ProbeField) -> Option<Found> {
    let mut all = STACKS.iter();
    let (_, parts, meaning) = all.find(|(name, ..)| *name == field.path)?;
    Some(Found {
        declared: (*meaning).into(),
        content: Content::Stack(*parts),
        origin: Origin::Stack,
    })
}

/// A timer has stacks only.
pub fn of_timer<'a>() -> Fields<'a> {
    let find = |field: &ProbeField| {
        stack(field).ok_or_else(|| {
            let message = format!("a timer has no field `{}`", field.path);
            let names = STACKS.iter().map(|(name, ..)| *name);
            ProbeError::new(message).near(&field.path, names.collect::<Vec<_>>())
        })
    };
    Fields {
        names: STACKS.iter().map(|(name, ..)| (*name).into()).collect(),
        find: Box::new(find),
    }
}
