//! The new process image: path, arguments, environment, and the exec itself.

use crate::early;
use crate::failure::{FAILED, Failure, NOT_EXECUTABLE, NOT_FOUND, Result, shown, why};
use std::ffi::{CStr, CString, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What `execve` is told.
#[derive(Debug, Clone)]
pub struct Image {
    path: PathBuf,
    file: CString,
    argv: Vec<CString>,
    /// `KEY=VALUE`.
    env: Vec<CString>,
}

impl Image {
    /// The program with its arguments and this process's environment.
    pub fn new(path: &Path, argv: &[OsString]) -> Result<Image> {
        let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| Failure::new("an argument contains a NUL byte"));
        let env = std::env::vars_os().map(|(key, value)| {
            let mut pair = key.into_vec();
            pair.push(b'=');
            pair.extend_from_slice(value.as_bytes());
            text(pair)
        });
        Ok(Image {
            path: path.to_path_buf(),
            file: text(path.as_os_str().as_bytes().to_vec())?,
            argv: argv.iter().map(|a| text(a.as_bytes().to_vec())).collect::<Result<_>>()?,
            env: env.collect::<Result<_>>()?,
        })
    }

    /// Sets a variable.
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        self.unset(key);
        let pair = [key.as_bytes(), b"=", value].concat();
        let pair = CString::new(pair).map_err(|_| Failure::new(format!("{key}: the value contains a NUL byte")))?;
        self.env.push(pair);
        Ok(())
    }

    /// Removes a variable.
    pub fn unset(&mut self, key: &str) {
        self.env.retain(|pair| {
            let pair = pair.as_bytes();
            !(pair.starts_with(key.as_bytes()) && pair.get(key.len()) == Some(&b'='))
        });
    }

    /// Replaces this process; comes back only with the reason why it could not.
    pub fn exec(&self) -> io::Error {
        early::restore_closed_descriptors();
        let error = execve(&self.file, &self.argv, &self.env);
        if error.raw_os_error() != Some(libc::ENOEXEC) {
            return error;
        }
        // As execvp: what the kernel does not know is a script for the shell. What begins like an ELF file is none.
        if self.is_elf() {
            return error;
        }
        let mut argv = vec![c"/bin/sh".to_owned(), self.file.clone()];
        argv.extend(self.argv.iter().skip(1).cloned());
        execve(c"/bin/sh", &argv, &self.env)
    }

    /// A file that cannot be read is none as far as we know; the shell cannot read it either.
    fn is_elf(&self) -> bool {
        let mut head = [0; 4];
        let read = File::open(&self.path).and_then(|mut file| file.read_exact(&mut head));
        read.is_ok() && head == *b"\x7fELF"
    }

    /// The failure for what [`Image::exec`] came back with.
    pub fn failure(&self, error: &io::Error) -> Failure {
        let status = match error.raw_os_error() {
            Some(libc::ENOENT) => NOT_FOUND,
            Some(libc::ENOMEM) => FAILED,
            _ => NOT_EXECUTABLE,
        };
        let reason = match error.raw_os_error() {
            Some(libc::ENOEXEC) => {
                "it is an ELF file that this kernel does not start: damaged, or of another kind".into()
            }
            _ => why(error),
        };
        Failure::with_status(status, format!("cannot run {}: {reason}", shown(&self.path)))
    }
}

/// Comes back only with the reason why it could not.
fn execve(file: &CStr, argv: &[CString], env: &[CString]) -> io::Error {
    match nix::unistd::execve(file, argv, env) {
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_by_whole_name() {
        let mut image = Image::new(Path::new("/x"), &["x".into()]).unwrap();
        image.set("FARPAGE_T", b"1").unwrap();
        image.set("FARPAGE_T2", b"2").unwrap();
        image.set("FARPAGE_T", b"3").unwrap();
        let ours: Vec<_> = image.env.iter().filter(|e| e.as_bytes().starts_with(b"FARPAGE_T")).collect();
        assert_eq!(ours, [c"FARPAGE_T2=2", c"FARPAGE_T=3"]);
        image.unset("FARPAGE_T");
        assert!(!image.env.iter().any(|e| e.as_bytes().starts_with(b"FARPAGE_T=")));
    }
}
