//! What a user without rights is told. Alone in its process: it runs a copy of the program, and a
//! process forked by another test meanwhile would hold that copy open for writing ("text file
//! busy").

#[test]
fn a_device_without_permission_is_a_failure_that_says_what_to_do() {
    use std::process::Command;
    // Without root this is the plain case; with root it needs another user.
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let dir = tempfile::tempdir().unwrap();
    let api = dir.path().join("api.sock");
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    // Built where others may not look; a copy is readable by everybody.
    let program = dir.path().join("vmlan");
    std::fs::copy(env!("CARGO_BIN_EXE_vmlan"), &program).unwrap();
    let mut command = Command::new("setpriv");
    if root {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    let out = command.args(["--", program.to_str().unwrap(), "switch", "--api"]).arg(&api);
    let out = out.arg("t=tap:vmlantest9").output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{error}");
    assert!(error.contains("vmlan: port t: ") && error.contains("tun"), "{error}");
    assert!(!api.exists());
}
