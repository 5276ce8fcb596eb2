//! What a connection to an NBD server begins with: the fixed newstyle handshake, `NBD_OPT_GO`, and a read of the
//! header.
//!
//! All of it is sent at once. What the server says is parsed from its beginning whenever more of it has come, and every
//! length in it is the server's, so none is believed. No locks, but for what is found out once.

use super::header::ExportHeader;
use crate::opening::{Answer, Greeting};
use farpage_ipc::conf::nbd::ExportId;
use farpage_swap::PAGE_SIZE;
use std::sync::OnceLock;

pub(crate) const MAGIC: &[u8; 8] = b"NBDMAGIC";
pub(crate) const HAVE_OPTION: &[u8; 8] = b"IHAVEOPT";
pub(crate) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST: u32 = 0x2560_9513;
pub(crate) const REPLY: u32 = 0x6744_6698;
/// The options and what servers answer to them.
const FIXED_NEWSTYLE: u16 = 1;
const OPTION_GO: u32 = 7;
const ACK: u32 = 1;
const INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
/// Longest piece of an answer that is listened to.
const PIECE_MAX: u32 = 4096;
/// Names the request for the header.
const HEADER_HANDLE: u64 = u64::from_be_bytes(*b"header..");

/// Flags of an export.
const READ_ONLY: u16 = 1 << 1;
const SEND_TRIM: u16 = 1 << 5;
const CAN_MULTI_CONN: u16 = 1 << 8;

/// What a server says of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExportInfo {
    /// Bytes.
    pub size: u64,
    /// Transmission flags.
    pub flags: u16,
    /// Bytes of a request at least; 1 if it does not say.
    pub least: u32,
    /// Bytes of a request at most.
    pub most: u32,
}

impl ExportInfo {
    /// Nothing can be written.
    pub fn read_only(&self) -> bool {
        self.flags & READ_ONLY != 0
    }

    /// Space can be given back.
    pub fn trims(&self) -> bool {
        self.flags & SEND_TRIM != 0
    }

    /// Several connections see the same.
    pub fn many(&self) -> bool {
        self.flags & CAN_MULTI_CONN != 0
    }
}

/// See the module header.
pub struct NbdGreeting {
    hello: Vec<u8>,
    info: OnceLock<ExportInfo>,
    /// The id that the header must have.
    expected: OnceLock<ExportId>,
}

impl NbdGreeting {
    /// For an export of this name.
    pub fn new(export: &str) -> NbdGreeting {
        let mut greeting = NbdGreeting::asking(export);
        greeting.hello.extend_from_slice(&request(0, HEADER_HANDLE, 0, PAGE_SIZE as u32));
        greeting
    }

    /// Only the question for an export of this name: a server that refuses it may say so, and not hear the rest.
    pub fn asking(export: &str) -> NbdGreeting {
        let name = export.as_bytes();
        let mut hello = u32::from(FIXED_NEWSTYLE).to_be_bytes().to_vec();
        hello.extend_from_slice(HAVE_OPTION);
        hello.extend_from_slice(&OPTION_GO.to_be_bytes());
        hello.extend_from_slice(&(name.len() as u32 + 8).to_be_bytes());
        hello.extend_from_slice(&(name.len() as u32).to_be_bytes());
        hello.extend_from_slice(name);
        // One piece of information that is asked for.
        hello.extend_from_slice(&1u16.to_be_bytes());
        hello.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
        NbdGreeting { hello, info: OnceLock::new(), expected: OnceLock::new() }
    }

    /// From now on the header must have this id.
    pub fn expect(&self, id: ExportId) {
        let _ = self.expected.set(id);
    }

    /// The id that it must have.
    pub fn expected(&self) -> Option<ExportId> {
        self.expected.get().copied()
    }

    /// What the first server that welcomed us said of the export.
    pub fn info(&self) -> Option<ExportInfo> {
        self.info.get().copied()
    }

    fn welcomed(&self, info: ExportInfo, header: &[u8]) -> Answer {
        let first = *self.info.get_or_init(|| info);
        if info.size < first.size {
            return Answer::Another("the export has become smaller");
        }
        let Some(expected) = self.expected.get() else { return Answer::Welcome };
        match ExportHeader::parse(header) {
            Some(header) if header.id == *expected => Answer::Welcome,
            Some(_) => Answer::Another("another farpage uses this export now"),
            None => Answer::Another("the server has not kept what it was given"),
        }
    }
}

impl Greeting for NbdGreeting {
    fn hello(&self) -> &[u8] {
        &self.hello
    }

    fn answer(&self, got: &[u8]) -> Answer {
        let mut bytes = GreetingBytes(got);
        match bytes.answer() {
            Err(GreetingStop::More) => Answer::More,
            Err(GreetingStop::Refused(why)) => Answer::Refused(why),
            Ok((info, header)) => self.welcomed(info, header),
        }
    }
}

/// Why there is no answer.
enum GreetingStop {
    More,
    Refused(&'static str),
}

/// What has not been looked at.
struct GreetingBytes<'a>(&'a [u8]);

impl<'a> GreetingBytes<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], GreetingStop> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(GreetingStop::More)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GreetingStop> {
        self.take(N)?.try_into().map_err(|_| GreetingStop::More)
    }

    fn u16(&mut self) -> Result<u16, GreetingStop> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, GreetingStop> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, GreetingStop> {
        self.array().map(u64::from_be_bytes)
    }

    /// The export, and its header page.
    fn answer(&mut self) -> Result<(ExportInfo, &'a [u8]), GreetingStop> {
        if self.array::<8>()? != *MAGIC {
            return Err(GreetingStop::Refused("it is no NBD server"));
        }
        if self.array::<8>()? != *HAVE_OPTION || self.u16()? & FIXED_NEWSTYLE == 0 {
            return Err(GreetingStop::Refused(
                "the server speaks an old form of the protocol; use one of the last ten years",
            ));
        }
        let info = self.options()?;
        if self.u32()? != REPLY {
            return Err(GreetingStop::Refused("the server does not answer a request for the first page"));
        }
        let (errno, handle) = (self.u32()?, self.u64()?);
        if errno != 0 || handle != HEADER_HANDLE {
            return Err(GreetingStop::Refused("the first page of the export cannot be read"));
        }
        let header = self.take(PAGE_SIZE)?;
        if !self.0.is_empty() {
            return Err(GreetingStop::Refused("the server sends what nobody has asked for"));
        }
        Ok((info, header))
    }

    fn options(&mut self) -> Result<ExportInfo, GreetingStop> {
        let mut info = ExportInfo { least: 1, most: 32 << 20, ..ExportInfo::default() };
        loop {
            if self.u64()? != OPTION_REPLY || self.u32()? != OPTION_GO {
                return Err(GreetingStop::Refused("the server answers what nobody has asked"));
            }
            let (kind, len) = (self.u32()?, self.u32()?);
            if len > PIECE_MAX {
                return Err(GreetingStop::Refused("the server's answer is too long"));
            }
            let mut data = GreetingBytes(self.take(len as usize)?);
            match kind {
                ACK if info.size == 0 => return Err(GreetingStop::Refused("the export has no size")),
                ACK if info.least > PAGE_SIZE as u32 || (info.most as usize) < crate::BATCH_MAX * PAGE_SIZE => {
                    return Err(GreetingStop::Refused("its requests cannot be a page, or as long as ours"));
                }
                ACK => return Ok(info),
                INFO => data
                    .information(&mut info)
                    .map_err(|_| GreetingStop::Refused("the server's answer is too short"))?,
                0x8000_0001 => return Err(GreetingStop::Refused("the server is too old: it does not know NBD_OPT_GO")),
                0x8000_0002 => return Err(GreetingStop::Refused("the server does not allow that")),
                0x8000_0005 => {
                    return Err(GreetingStop::Refused(
                        "the server wants TLS: use a tunnel, or allow plain connections",
                    ));
                }
                0x8000_0006 => return Err(GreetingStop::Refused("the server has no export of this name")),
                0x8000_0007 => return Err(GreetingStop::Refused("the server is shutting down")),
                _ if kind & 0x8000_0000 != 0 => return Err(GreetingStop::Refused("the server refuses the export")),
                _ => {}
            }
        }
    }

    fn information(&mut self, info: &mut ExportInfo) -> Result<(), GreetingStop> {
        match self.u16()? {
            INFO_EXPORT => (info.size, info.flags) = (self.u64()?, self.u16()?),
            INFO_BLOCK_SIZE => (info.least, _, info.most) = (self.u32()?, self.u32()?, self.u32()?),
            _ => {}
        }
        Ok(())
    }
}

/// A request as it is sent.
pub(super) fn request(command: u16, handle: u64, at: u64, len: u32) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..4].copy_from_slice(&REQUEST.to_be_bytes());
    bytes[6..8].copy_from_slice(&command.to_be_bytes());
    bytes[8..16].copy_from_slice(&handle.to_be_bytes());
    bytes[16..24].copy_from_slice(&at.to_be_bytes());
    bytes[24..].copy_from_slice(&len.to_be_bytes());
    bytes
}
