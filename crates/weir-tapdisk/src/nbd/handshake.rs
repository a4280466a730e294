//! NBD's handshake, "fixed newstyle": client and server negotiate options, and the client chooses
//! an export.
//!
//! A [`Negotiation`] maps input bytes to output bytes; it does no I/O. Source: doc/proto.md of the
//! NBD project, "Newstyle negotiation" and "Option types".

use super::protocol::{Geometry, PAYLOAD_BYTES_MAX};

const INIT_MAGIC: &[u8; 8] = b"NBDMAGIC";
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const REPLY_MAGIC: u64 = 0x3_e889_0455_65a9;

/// Handshake flags of both sides.
const FIXED_NEWSTYLE: u16 = 1 << 0;
const NO_ZEROES: u16 = 1 << 1;

/// Options.
const EXPORT_NAME: u32 = 1;
const ABORT: u32 = 2;
const LIST: u32 = 3;
const INFO: u32 = 6;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;

/// Replies to options.
const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
const REP_ERR_INVALID: u32 = (1 << 31) + 3;
const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;

/// Information about an export.
const INFO_EXPORT: u16 = 0;
const INFO_NAME: u16 = 1;
const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flags of an export.
const HAS_FLAGS: u16 = 1 << 0;
const READ_ONLY: u16 = 1 << 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_FUA: u16 = 1 << 3;
const SEND_TRIM: u16 = 1 << 5;
const SEND_WRITE_ZEROES: u16 = 1 << 6;
const SEND_DF: u16 = 1 << 7;
const CAN_MULTI_CONN: u16 = 1 << 8;

/// The longest name of an export (proto.md, "Values").
pub const NAME_BYTES_MAX: usize = 4096;

/// Maximum length of an option: a name, and a list of information requests.
const OPTION_BYTES_MAX: usize = 3 * NAME_BYTES_MAX;

/// Maximum number of options, so that a handshake ends.
const OPTIONS_MAX: u32 = 256;

/// The size of the largest message of a client, so that a buffer of this size holds it.
pub const MESSAGE_BYTES_MAX: usize = OPTION_HEAD_BYTES + OPTION_BYTES_MAX;

const OPTION_HEAD_BYTES: usize = 16;

/// The zeroes after the answer to `NBD_OPT_EXPORT_NAME`.
const ZEROES: usize = 124;

/// An export that a client can choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its name.
    pub name: String,
    /// Its properties.
    pub geometry: Geometry,
}

/// A handshake in progress.
#[derive(Debug)]
pub struct Negotiation<'a> {
    offers: &'a [Offer],
    has_client_flags: bool,
    no_zeroes: bool,
    fixed: bool,
    structured: bool,
    options: u32,
}

/// The state after the input so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The client has to send more.
    NeedInput,
    /// The transmission phase follows.
    Begin(SelectedExport),
    /// The client has ended the handshake.
    Aborted,
}

/// The result of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectedExport {
    /// The index of the export among the offers.
    pub export: usize,
    /// Whether replies are structured.
    pub structured: bool,
}

/// The protocol violation that ends a connection.
pub type Violation = &'static str;

impl<'a> Negotiation<'a> {
    /// A handshake about these exports; the server's greeting is appended to `out`.
    pub fn new(offers: &'a [Offer], out: &mut Vec<u8>) -> Negotiation<'a> {
        out.extend(INIT_MAGIC);
        out.extend(OPTION_MAGIC);
        out.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        Negotiation {
            offers,
            has_client_flags: false,
            no_zeroes: false,
            fixed: false,
            structured: false,
            options: 0,
        }
    }

    /// Processes one message at the start of `input`, if it is complete: returns its length, 0 if
    /// more input is needed. The answer is appended to `out`.
    ///
    /// # Errors
    /// The client violates the protocol: the connection ends.
    pub fn process(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Step), Violation> {
        if !self.has_client_flags {
            let Some(flags) = input.first_chunk::<4>() else {
                return Ok((0, Step::NeedInput));
            };
            return self
                .set_client_flags(u32::from_be_bytes(*flags))
                .map(|()| (4, Step::NeedInput));
        }
        let Some((head, rest)) = input.split_first_chunk::<OPTION_HEAD_BYTES>() else {
            return Ok((0, Step::NeedInput));
        };
        if head[..8] != *OPTION_MAGIC {
            return Err("it sent an invalid NBD option");
        }
        let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| head[at + i]));
        let (option, length) = (number(8), number(12) as usize);
        if length > OPTION_BYTES_MAX {
            return Err("an option is too long");
        }
        let Some(data) = rest.get(..length) else {
            return Ok((0, Step::NeedInput));
        };
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err("it sent too many options");
        }
        let step = self.answer(option, data, out)?;
        Ok((OPTION_HEAD_BYTES + length, step))
    }

    fn set_client_flags(&mut self, flags: u32) -> Result<(), Violation> {
        let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
        if flags & !known != 0 {
            return Err("it sent unknown handshake flags");
        }
        self.has_client_flags = true;
        self.fixed = flags & u32::from(FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        Ok(())
    }

    fn answer(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, Violation> {
        if option == EXPORT_NAME {
            return self.export_name(data, out).map(Step::Begin);
        }
        if !self.fixed {
            return Err("without fixed newstyle only an export's name may follow");
        }
        let bare = |out: &mut Vec<u8>| match data.is_empty() {
            true => reply(out, option, REP_ACK, &[]),
            false => error(out, option, REP_ERR_INVALID, "this option has no data"),
        };
        match option {
            ABORT => {
                reply(out, option, REP_ACK, &[]);
                return Ok(Step::Aborted);
            }
            LIST => {
                if data.is_empty() {
                    for offer in self.offers {
                        let name = offer.name.as_bytes();
                        let length = (name.len() as u32).to_be_bytes();
                        reply(out, option, REP_SERVER, &[&length, name]);
                    }
                }
                bare(out);
            }
            STRUCTURED_REPLY => {
                self.structured |= data.is_empty();
                bare(out);
            }
            INFO | GO => {
                let selected = self.describe(option, data, out);
                if let (GO, Some(export)) = (option, selected) {
                    return Ok(Step::Begin(self.selected(export)));
                }
            }
            _ => error(out, option, REP_ERR_UNSUP, "unknown option"),
        }
        Ok(Step::NeedInput)
    }

    /// Answers `NBD_OPT_EXPORT_NAME`, which has no error reply.
    fn export_name(&self, data: &[u8], out: &mut Vec<u8>) -> Result<SelectedExport, Violation> {
        let export = self.find(data).ok_or("it requested an unknown export")?;
        let offer = &self.offers[export];
        out.extend(offer.geometry.size_bytes.to_be_bytes());
        out.extend(self.flags(offer).to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; ZEROES]);
        }
        Ok(self.selected(export))
    }

    /// Answers `NBD_OPT_INFO` and `NBD_OPT_GO`; returns the export, if it exists.
    fn describe(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let Some((name, requested)) = name_and_requests(data) else {
            let error_message = "a name and a list of information requests were expected";
            error(out, option, REP_ERR_INVALID, error_message);
            return None;
        };
        let Some(export) = self.find(name) else {
            error(out, option, REP_ERR_UNKNOWN, &self.unknown());
            return None;
        };
        let offer = &self.offers[export];
        let mut add_info = |what: u16, parts: &[&[u8]]| {
            let what = what.to_be_bytes();
            let parts: Vec<&[u8]> = [&[&what[..]], parts].concat();
            reply(out, option, REP_INFO, &parts);
        };
        let size = offer.geometry.size_bytes.to_be_bytes();
        add_info(INFO_EXPORT, &[&size, &self.flags(offer).to_be_bytes()]);
        // Sent without a request: a client that does not know the constraint may violate it.
        let block = offer.geometry.block_bytes;
        let preferred = block.max(4096);
        let sizes = [block, preferred, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
        add_info(INFO_BLOCK_SIZE, &[&sizes.concat()]);
        if requested
            .chunks_exact(2)
            .any(|what| what == INFO_NAME.to_be_bytes())
        {
            add_info(INFO_NAME, &[offer.name.as_bytes()]);
        }
        reply(out, option, REP_ACK, &[]);
        Some(export)
    }

    /// The export of that name; the empty name is the only export.
    fn find(&self, name: &[u8]) -> Option<usize> {
        let named = self
            .offers
            .iter()
            .position(|offer| offer.name.as_bytes() == name);
        named.or_else(|| (name.is_empty() && self.offers.len() == 1).then_some(0))
    }

    fn unknown(&self) -> String {
        let mut error_message = "no such export; the exports are:".to_owned();
        for offer in self.offers {
            if error_message.len() + offer.name.len() > NAME_BYTES_MAX - 8 {
                error_message += " ...";
                break;
            }
            error_message += &format!(" {:?}", offer.name);
        }
        error_message
    }

    fn selected(&self, export: usize) -> SelectedExport {
        SelectedExport {
            export,
            structured: self.structured,
        }
    }

    fn flags(&self, offer: &Offer) -> u16 {
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN;
        flags |= match offer.geometry.read_only {
            true => READ_ONLY,
            false => SEND_TRIM | SEND_WRITE_ZEROES,
        };
        if self.structured {
            flags |= SEND_DF;
        }
        flags
    }
}

/// The parts of `NBD_OPT_INFO` and `NBD_OPT_GO`: a name, and the requested information, two bytes
/// each.
fn name_and_requests(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    if length > NAME_BYTES_MAX {
        return None;
    }
    let (name, rest) = rest.split_at_checked(length)?;
    let (count, requested) = rest.split_first_chunk::<2>()?;
    let whole = requested.len() == 2 * usize::from(u16::from_be_bytes(*count));
    whole.then_some((name, requested))
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.extend(REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((length as u32).to_be_bytes());
    for part in parts {
        out.extend(*part);
    }
}

fn error(out: &mut Vec<u8>, option: u32, kind: u32, error_message: &str) {
    reply(out, option, kind, &[error_message.as_bytes()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers() -> Vec<Offer> {
        let offer = |name: &str, read_only| Offer {
            name: name.into(),
            geometry: Geometry {
                size_bytes: 1 << 20,
                block_bytes: 512,
                read_only,
            },
        };
        vec![offer("vda", false), offer("vdb", true)]
    }

    fn option(option: u32, data: &[u8]) -> Vec<u8> {
        let length = (data.len() as u32).to_be_bytes();
        [&OPTION_MAGIC[..], &option.to_be_bytes(), &length, data].concat()
    }

    fn go(name: &str, requested: &[u16]) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        data.extend((requested.len() as u16).to_be_bytes());
        data.extend(requested.iter().flat_map(|what| what.to_be_bytes()));
        data
    }

    /// An answer: the option, the kind of reply, its data.
    type Answer = (u32, u32, Vec<u8>);

    /// The answers to these messages, a byte at a time, and the result.
    fn negotiate_all(
        offers: &[Offer],
        messages: &[Vec<u8>],
    ) -> (Vec<Answer>, Result<Step, Violation>) {
        let mut out = Vec::new();
        let mut negotiation = Negotiation::new(offers, &mut out);
        assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
        out.clear();
        let (mut input, mut end) = (Vec::new(), Ok(Step::NeedInput));
        for byte in messages.concat() {
            input.push(byte);
            match negotiation.process(&input, &mut out) {
                Ok((consumed, step)) => {
                    input.drain(..consumed);
                    end = Ok(step);
                }
                Err(violation) => {
                    end = Err(violation);
                    break;
                }
            }
            if end != Ok(Step::NeedInput) {
                break;
            }
        }
        let mut answers = Vec::new();
        let mut rest = &out[..];
        while let Some((head, after)) = rest.split_first_chunk::<20>() {
            assert_eq!(head[..8], REPLY_MAGIC.to_be_bytes());
            let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| head[at + i]));
            let (data, after) = after.split_at(number(16) as usize);
            answers.push((number(8), number(12), data.to_vec()));
            rest = after;
        }
        (answers, end)
    }

    const FIXED: [u8; 4] = [0, 0, 0, 3];

    #[test]
    fn a_client_lists_exports_and_disconnects() {
        let offers = offers();
        let messages = [
            FIXED.to_vec(),
            option(LIST, &[]),
            option(STRUCTURED_REPLY, &[]),
            option(INFO, &go("vdb", &[INFO_NAME])),
            option(GO, &go("vda", &[])),
        ];
        let (answers, end) = negotiate_all(&offers, &messages);
        let kinds: Vec<(u32, u32)> = answers
            .iter()
            .map(|(option, kind, _)| (*option, *kind))
            .collect();
        let expected = [
            (LIST, REP_SERVER),
            (LIST, REP_SERVER),
            (LIST, REP_ACK),
            (STRUCTURED_REPLY, REP_ACK),
            (INFO, REP_INFO),
            (INFO, REP_INFO),
            (INFO, REP_INFO),
            (INFO, REP_ACK),
            (GO, REP_INFO),
            (GO, REP_INFO),
            (GO, REP_ACK),
        ];
        assert_eq!(kinds, expected);
        assert_eq!(answers[1].2, b"\0\0\0\x03vdb");
        let flags = |data: &[u8]| u16::from_be_bytes([data[10], data[11]]);
        let both = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_DF | CAN_MULTI_CONN;
        assert_eq!(flags(&answers[4].2), both | READ_ONLY);
        assert_eq!(flags(&answers[8].2), both | SEND_TRIM | SEND_WRITE_ZEROES);
        assert_eq!(answers[6].2, b"\0\x01vdb");
        let sizes = [512u32, 4096, 32 << 20].map(u32::to_be_bytes).concat();
        assert_eq!(answers[9].2, [&[0, 3], &sizes[..]].concat());
        let selected = SelectedExport {
            export: 0,
            structured: true,
        };
        assert_eq!(end, Ok(Step::Begin(selected)));
    }

    #[test]
    fn unknown_or_malformed_options_are_answered_and_the_handshake_continues() {
        let offers = offers();
        let messages = [
            FIXED.to_vec(),
            option(5, &[]),
            option(LIST, b"x"),
            option(STRUCTURED_REPLY, b"x"),
            option(GO, &go("vdz", &[])),
            option(GO, &go("", &[])),
            option(GO, &go("vda", &[3])[..10]),
            option(GO, b"\xff\xff\xff\xff"),
            option(ABORT, &[]),
        ];
        let (answers, end) = negotiate_all(&offers, &messages);
        let kinds: Vec<u32> = answers.iter().map(|(_, kind, _)| *kind).collect();
        let expected = [
            REP_ERR_UNSUP,
            REP_ERR_INVALID,
            REP_ERR_INVALID,
            REP_ERR_UNKNOWN,
            REP_ERR_UNKNOWN,
            REP_ERR_INVALID,
            REP_ERR_INVALID,
            REP_ACK,
        ];
        assert_eq!(kinds, expected);
        let error_message = String::from_utf8(answers[3].2.clone()).unwrap();
        assert_eq!(
            error_message,
            "no such export; the exports are: \"vda\" \"vdb\""
        );
        assert_eq!(end, Ok(Step::Aborted));
    }

    #[test]
    fn an_old_client_selects_its_export_by_name() {
        let offers = &offers()[..1];
        let mut out = Vec::new();
        let mut negotiation = Negotiation::new(offers, &mut out);
        out.clear();
        assert_eq!(
            negotiation.process(&[0; 4], &mut out),
            Ok((4, Step::NeedInput))
        );
        let (consumed, step) = negotiation
            .process(&option(EXPORT_NAME, b""), &mut out)
            .unwrap();
        let selected = SelectedExport {
            export: 0,
            structured: false,
        };
        assert_eq!((consumed, step), (16, Step::Begin(selected)));
        assert_eq!(out.len(), 8 + 2 + ZEROES);
        assert_eq!(out[..8], (1u64 << 20).to_be_bytes());
    }

    #[test]
    fn a_client_that_violates_the_protocol_is_disconnected() {
        let offers = offers();
        let ends = |messages: &[Vec<u8>]| negotiate_all(&offers, messages).1.is_err();
        assert!(ends(&[vec![0, 0, 0, 4]]));
        assert!(ends(&[vec![0; 4], option(LIST, &[])]), "not fixed newstyle");
        assert!(ends(&[FIXED.to_vec(), b"GET / HTTP/1.1\r\n".to_vec()]));
        assert!(ends(&[FIXED.to_vec(), option(EXPORT_NAME, b"none")]));
        let mut long = option(GO, &[]);
        long[12] = 1;
        assert!(ends(&[FIXED.to_vec(), long]));
        let many = vec![option(99, &[]); OPTIONS_MAX as usize + 1];
        assert!(ends(&[vec![FIXED.to_vec()], many].concat()));
    }
}
