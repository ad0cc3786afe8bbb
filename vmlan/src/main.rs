//! vmlan: a LAN for virtual machines.

fn main() -> std::process::ExitCode {
    vmlan::cli::main()
}
