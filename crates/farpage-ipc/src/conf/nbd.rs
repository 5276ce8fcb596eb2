//! `nbd://HOST[:PORT][/EXPORT]` and `nbd+unix:///PATH[?EXPORT]`: an export of an NBD server as a swap device.
//!
//! Callers: `conf`, the command, `swap`. No locks.

use super::address::ServerAddress;
use super::server_error::ServerSpecError;
use super::server_options::ServerOptions;
use std::fmt;

const PORT: u16 = 10809;
/// Longest name of an export: a greeting has to fit.
const EXPORT_MAX: usize = 256;

/// Names the pages on an export.
pub type ExportId = [u8; 16];

/// An export and how it is to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdSpec {
    /// Where the server is.
    pub address: ServerAddress,
    /// The export's name; empty: the server's default.
    pub export: String,
    /// How the server is to be used.
    pub served: ServerOptions,
    /// Set by the launcher, which has made the export ours: what its header says.
    pub id: Option<ExportId>,
}

impl NbdSpec {
    /// Reads what stands before the first comma. `None`: it is something else.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(head: &str) -> Option<Result<NbdSpec, ServerSpecError>> {
        if let Some(path) = head.strip_prefix("nbd+unix://") {
            // Others write the export as the path, and the path as an option.
            let (path, export) = match path.split_once('?') {
                None => (path, ""),
                Some((export, rest)) => match rest.strip_prefix("socket=") {
                    Some(path) => (path, export.trim_start_matches('/')),
                    None => (export, rest),
                },
            };
            if path.contains('?') || export.contains('?') || export.starts_with("socket=") {
                return Some(Err(ServerSpecError::QuestionMark));
            }
            return Some(ServerAddress::unix(path).and_then(|address| NbdSpec::at(address, export)));
        }
        if head.starts_with("nbds://") || head.starts_with("nbds+unix://") {
            return Some(Err(ServerSpecError::Tls));
        }
        let (place, export) = head.strip_prefix("nbd://").map(|rest| rest.split_once('/').unwrap_or((rest, "")))?;
        Some(ServerAddress::parse(place, PORT).and_then(|address| NbdSpec::at(address, export)))
    }

    fn at(address: ServerAddress, export: &str) -> Result<NbdSpec, ServerSpecError> {
        if export.len() > EXPORT_MAX || export.contains(|c: char| c.is_control() || c == ';') {
            return Err(ServerSpecError::Export);
        }
        let export = export.into();
        Ok(NbdSpec { address, export, served: ServerOptions::default(), id: None })
    }

    /// Reads one of its options but `size` and `prio`. `None`: it is none.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn option(&mut self, name: &str, value: Option<&str>) -> Option<Result<(), ServerSpecError>> {
        match (name, value) {
            ("id", Some(text)) => {
                let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32);
                let Some(number) = number else { return Some(Err(ServerSpecError::Id(text.into()))) };
                self.id = Some(number.to_be_bytes());
            }
            _ => return self.served.option(name, value),
        }
        Some(Ok(()))
    }

    /// What the device is called.
    pub fn name(&self) -> String {
        match (&self.address, self.export.as_str()) {
            (ServerAddress::Unix { .. }, "") => format!("nbd+unix://{}", self.address),
            (ServerAddress::Unix { .. }, export) => format!("nbd+unix://{}?{export}", self.address),
            (ServerAddress::Tcp { .. }, "") => format!("nbd://{}", self.address),
            (ServerAddress::Tcp { .. }, export) => format!("nbd://{}/{export}", self.address),
        }
    }
}

impl fmt::Display for NbdSpec {
    /// Without `size` and `prio`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        self.served.write_timeout(f)?;
        self.served.write_others(f)?;
        self.id.map_or(Ok(()), |id| write!(f, ",id={:032x}", u128::from_be_bytes(id)))
    }
}

#[cfg(test)]
mod tests {
    use crate::conf::SwapSpec;

    #[test]
    fn exports_are_read_and_written() {
        for text in [
            "nbd://box:10809",
            "nbd://10.0.0.1:7000/some/name,timeout=5s,noencrypt,size=8388608,prio=4",
            "nbd://[fd00::2]:10809/x,timeout=inf,mirror=file:/var/tmp",
            "nbd+unix:///run/nbd.sock",
            "nbd+unix:///run/nbd.sock?name,id=000102030405060708090a0b0c0d0e0f",
        ] {
            assert_eq!(SwapSpec::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(SwapSpec::parse("nbd://box,encrypt,timeout=1m").unwrap().to_string(), "nbd://box:10809");
        let usual = SwapSpec::parse("nbd+unix:///name?socket=/run/nbd.sock").unwrap();
        assert_eq!(usual.to_string(), "nbd+unix:///run/nbd.sock?name");
    }

    #[test]
    fn what_is_wrong_with_an_export_is_told() {
        for (text, part) in [
            ("nbd://", "no name"),
            ("nbd://box:x", "port"),
            ("nbds://box", "tunnel"),
            ("nbd+unix://tmp/x", "absolute"),
            ("nbd+unix:///x?socket=/y?z", "question mark"),
            ("nbd://box,timeout=soon", "60s, 10m or inf"),
            ("nbd://box,mirror=/var/tmp", "mirror=file:/var/tmp"),
            ("nbd://box,mirror=file:", "mirror=file:/var/tmp"),
            ("nbd://box,id=1", "no id"),
            ("nbd://box,free=1", "free=1"),
        ] {
            let error = SwapSpec::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
