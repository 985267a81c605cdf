//! Texts of commands and variables that a sandbox cannot get.

use crate::sandbox::{Exec, Fault};

/// Rejects names with `=`: the kernel would read `A=B` as the name `A`.
pub(super) fn refuse_bad_names(env: &[(String, String)]) -> Result<(), Fault> {
    let bad = |(name, value): &&(String, String)| {
        name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
    };
    match env.iter().find(bad) {
        Some((name, _)) => Err(Fault::Refused(format!("invalid name or value of a variable: {name:?}"))),
        None => Ok(()),
    }
}

/// Rejects what the kernel would cut.
pub(super) fn refuse_bad_text(exec: &Exec) -> Result<(), Fault> {
    refuse_bad_names(&exec.env)?;
    if exec.argv.iter().chain([&exec.cwd]).any(|text| text.contains('\0')) {
        return Err(Fault::Refused("a command must not contain a zero byte".to_owned()));
    }
    Ok(())
}
