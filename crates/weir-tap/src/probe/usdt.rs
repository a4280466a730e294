//! The sites of a USDT probe, and whether this kernel can probe them without damage.

use super::ProbeError;
use super::elf::{Program, UsdtSite};
use crate::ebpf::kernel::release;

/// The first release whose uprobes replace a NOP of 5 bytes with a call. No release is known here
/// that leaves the bytes below the stack pointer (the red zone of the x86-64 ABI) as they are.
const LONG_NOP_SINCE: (u32, u32) = (6, 18);

/// The sites of a USDT probe.
pub fn usdt(
    file: &str,
    program: &Program,
    provider: &str,
    name: &str,
) -> Result<Vec<UsdtSite>, ProbeError> {
    let is_it = |site: &&UsdtSite| site.provider == provider && site.name == name;
    let sites: Vec<UsdtSite> = program.sites.iter().filter(is_it).cloned().collect();
    match sites.is_empty() {
        true => {
            let message = format!("{file} has no USDT probe `{provider}:{name}`");
            let names = program.sites.iter().map(|site| &*site.name);
            Err(ProbeError::new(message).near(name, names.collect::<Vec<_>>()))
        }
        false if sites.iter().any(|site| site.is_long_nop) && release() >= Some(LONG_NOP_SINCE) => {
            let message = format!(
                "a site of `{provider}:{name}` is a NOP of 5 bytes, which this kernel replaces with \
                 a call that overwrites 8 bytes below the stack pointer, where the program may \
                 have data"
            );
            let help = "build the program with the probes of <sys/sdt.h>, which are NOPs of 1 byte";
            Err(ProbeError::new(message).help(help))
        }
        false => Ok(sites),
    }
}
