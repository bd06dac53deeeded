//! The `onepool` command line tool.

use std::process::ExitCode;

fn main() -> ExitCode {
    onepool::cli::main()
}
