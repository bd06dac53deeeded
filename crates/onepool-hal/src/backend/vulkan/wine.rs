//! Wine, which runs programs of Windows on another system's drivers and hides two things of them: that buffers can
//! be made of host memory, although its driver makes them, and every layer.
//!
//! `ONEPOOL_UNDER_WINE=1` in the environment of a program of Windows has imports tried where the extension is listed,
//! and validation left out where it is asked for. The device's advice then says so. Other systems do not look at it.

use std::sync::OnceLock;

const SWITCH: &str = "ONEPOOL_UNDER_WINE";

/// Whether the user says that Wine is what runs the program.
pub(super) fn is_said() -> bool {
    static SAID: OnceLock<bool> = OnceLock::new();
    cfg!(windows) && *SAID.get_or_init(|| std::env::var_os(SWITCH).is_some_and(|value| value == "1"))
}

/// What a user is told of a device then.
pub(super) fn advice() -> Option<String> {
    is_said().then(|| {
        format!("{SWITCH} is set: imports are tried although the driver does not offer them, and validation is off")
    })
}
