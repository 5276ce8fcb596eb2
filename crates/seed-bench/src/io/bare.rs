//! A bare client of a server: no slots, no hashes, no encryption, no second try. What a device cannot be faster than.

use crate::failure::{Failure, Result};
use farpage::PAGE_SIZE;
use farpage_base::mem::units::Page;
use farpage_ipc::conf::address::Endpoint;
use farpage_ipc::conf::{DeviceKind, SwapSpec};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

/// A connection.
pub enum Bare {
    /// To an NBD server.
    Nbd(Box<dyn StreamOf>),
    /// To a Redis server.
    Redis(BufReader<Box<dyn StreamOf>>),
}

/// What a connection is made of.
pub trait StreamOf: Read + Write {}
impl<T: Read + Write> StreamOf for T {}

fn failed(error: std::io::Error) -> Failure {
    Failure::new(format!("bench: the bare client: {error}"))
}

fn nonsense() -> Failure {
    Failure::new("bench: the bare client does not understand the server")
}

/// The key of a page of the bare client's.
fn key(slot: usize) -> String {
    format!("bare:{slot:08}")
}

impl Bare {
    /// Connects. With Redis, stores `pages` there.
    pub fn open(spec: &SwapSpec, pages: &[Page]) -> Result<Bare> {
        let (address, nbd) = match &spec.kind {
            DeviceKind::Nbd(spec) => (&spec.address, Some(&spec.export)),
            DeviceKind::Redis(spec) => (&spec.address, None),
            _ => return Err(Failure::new("bench: --server wants nbd:// or redis://")),
        };
        let endpoint = address.endpoint().ok_or_else(|| Failure::new("bench: write the address as a number"))?;
        let mut stream: Box<dyn StreamOf> = match endpoint {
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address).map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                Box::new(stream)
            }
            Endpoint::Unix(path) => Box::new(UnixStream::connect(path).map_err(failed)?),
        };
        let Some(export) = nbd else {
            let mut bare = Bare::Redis(BufReader::with_capacity(64 << 10, stream));
            for (slot, page) in pages.iter().enumerate() {
                bare.say(&[b"SET", key(slot).as_bytes(), page])?;
                bare.line()?;
            }
            return Ok(bare);
        };
        let mut hello = [0; 18];
        stream.read_exact(&mut hello).map_err(failed)?;
        let name = export.as_bytes();
        let go = [
            &3u32.to_be_bytes()[..],
            b"IHAVEOPT",
            &7u32.to_be_bytes(),
            &(name.len() as u32 + 6).to_be_bytes(),
            &(name.len() as u32).to_be_bytes(),
            name,
            &0u16.to_be_bytes(),
        ];
        stream.write_all(&go.concat()).map_err(failed)?;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head).map_err(failed)?;
            let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            stream.read_exact(&mut vec![0; number(16) as usize]).map_err(failed)?;
            match number(12) {
                1 => return Ok(Bare::Nbd(stream)),
                3 => {}
                _ => return Err(nonsense()),
            }
        }
    }

    /// Reads as many pages as `into` has, side by side from `slot` on.
    pub fn read(&mut self, slot: usize, into: &mut [Page]) -> Result<()> {
        if let Bare::Nbd(stream) = self {
            let at = (1 << 20) + (slot * PAGE_SIZE) as u64;
            let head = [&0x2560_9513u32.to_be_bytes()[..], &0u32.to_be_bytes(), &[0; 8], &at.to_be_bytes()];
            let len = (into.len() * PAGE_SIZE) as u32;
            stream.write_all(&[&head.concat()[..], &len.to_be_bytes()].concat()).map_err(failed)?;
            let mut reply = [0; 16];
            stream.read_exact(&mut reply).map_err(failed)?;
            return stream.read_exact(into.as_flattened_mut()).map_err(failed);
        }
        let keys: Vec<String> = (slot..slot + into.len()).map(key).collect();
        let words: Vec<&[u8]> = [&b"MGET"[..]].into_iter().chain(keys.iter().map(String::as_bytes)).collect();
        self.say(&words)?;
        self.line()?;
        for page in into {
            self.line()?;
            let Bare::Redis(stream) = self else { return Err(nonsense()) };
            stream.read_exact(page).map_err(failed)?;
            stream.read_exact(&mut [0; 2]).map_err(failed)?;
        }
        Ok(())
    }

    fn say(&mut self, words: &[&[u8]]) -> Result<()> {
        let Bare::Redis(stream) = self else { return Err(nonsense()) };
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        stream.get_mut().write_all(&bytes).map_err(failed)
    }

    fn line(&mut self) -> Result<()> {
        let Bare::Redis(stream) = self else { return Err(nonsense()) };
        let mut line = Vec::with_capacity(32);
        stream.read_until(b'\n', &mut line).map_err(failed)?;
        if line.starts_with(b"-") { Err(nonsense()) } else { Ok(()) }
    }

    /// Removes what [`Bare::open`] has stored.
    pub fn close(mut self, pages: usize) -> Result<()> {
        if matches!(self, Bare::Redis(_)) {
            for slot in 0..pages {
                self.say(&[b"DEL", key(slot).as_bytes()])?;
                self.line()?;
            }
        }
        Ok(())
    }
}
