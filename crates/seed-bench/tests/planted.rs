//! Files that a bench makes in a directory of others: no planted name is followed.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn no_planted_name_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let [victim, place, report] = ["victim", "place", "report"].map(|name| dir.path().join(name));
    std::fs::write(&victim, "precious").unwrap();
    std::fs::create_dir(&place).unwrap();
    // The names that the number of the process would give; the shell becomes the bench.
    let plant = "for name in .farpage-bench-$$ .farpage-bench-swap-$$; do ln -s \"$VICTIM\" \"$PLACE/$name\"; done; \
                 umask 0; exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", plant, "sh", env!("CARGO_BIN_EXE_farpage-bench")])
        .args(["io", "--pages", "1024", "--rounds", "1", "--dir"])
        .arg(&place)
        .arg("--json")
        .arg(&report)
        .env("VICTIM", &victim)
        .env("PLACE", &place)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(std::fs::metadata(&report).unwrap().permissions().mode() & 0o777, 0o600);
}
