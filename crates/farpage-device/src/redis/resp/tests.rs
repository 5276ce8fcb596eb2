//! The codec against replies that are known beforehand.

use super::*;
use farpage_swap::sim::Random;

/// A server whose replies are known beforehand. They come in pieces.
struct Script {
    replies: Vec<u8>,
    at: usize,
    piece: usize,
}

impl Script {
    fn new(replies: &[u8], piece: usize) -> Script {
        Script { replies: replies.to_vec(), at: 0, piece }
    }
}

impl Replies for Script {
    fn receive(&mut self, into: &mut [u8]) -> Result<usize, Broken> {
        let n = into.len().min(self.piece).min(self.replies.len() - self.at);
        into[..n].copy_from_slice(&self.replies[self.at..self.at + n]);
        self.at += n;
        if n == 0 { Err(Broken::Closed) } else { Ok(n) }
    }
}

#[test]
fn commands_are_written_as_the_protocol_wants_them() {
    let mut commands = Commands::one(&[b"SET", b"a key", b"\r\n\0"]);
    commands.begin(2);
    commands.word(b"GET");
    commands.word(&[b'x'; 120]);
    let mut expected = b"*3\r\n$3\r\nSET\r\n$5\r\na key\r\n$3\r\n\r\n\0\r\n*2\r\n$3\r\nGET\r\n$120\r\n".to_vec();
    expected.extend([b'x'; 120]);
    expected.extend(b"\r\n");
    assert_eq!(commands.bytes(), expected);
    let (text, from) = digits(b':', usize::MAX);
    assert_eq!(&text[from..], format!(":{}\r\n", usize::MAX).as_bytes());
}

#[test]
fn replies_are_read_in_pieces_of_any_size() {
    let long = [b'v'; 5000];
    let mut replies = b"+OK\r\n:12\r\n-OOM command not allowed\r\n*3\r\n$2\r\n\r\n\r\n$-1\r\n$5000\r\n".to_vec();
    replies.extend(long);
    replies.extend(b"\r\n+OK\r\n*2\r\n$1\r\nk\r\n*2\r\n:-3\r\n+x\r\n");
    for piece in [1, 2, 3, 100, 1 << 20] {
        let mut buffer = [0; LINE_MAX];
        let (mut script, mut reader) = (Script::new(&replies, piece), Reader::new(&mut buffer));
        let s = &mut script;
        let mut value = [0; 5000];
        assert_eq!(reader.stored(s), Ok(()));
        assert_eq!(reader.done(s), Ok(()));
        assert_eq!(reader.stored(s), Err(RespError::Refused(ServerRefusal::Full)));
        assert_eq!(reader.array_of(s, 3), Ok(()));
        assert_eq!((reader.value(s, &mut value), &value[..2]), (Ok(Some(2)), &b"\r\n"[..]));
        assert_eq!(reader.value(s, &mut value), Ok(None));
        assert_eq!((reader.value(s, &mut value), value), (Ok(Some(5000)), long));
        assert_eq!(reader.done(s), Ok(()));
        let inner = Reply::Array(Some(vec![Reply::Number(-3), Reply::Status(b"x".to_vec())]));
        let outer = Reply::Array(Some(vec![Reply::Bulk(Some(b"k".to_vec())), inner]));
        assert_eq!(reader.reply(s), Ok(outer));
        assert_eq!(reader.end(), Ok(()));
        assert_eq!(reader.done(s), Err(RespError::Broken(Broken::Closed)));
    }
}

#[test]
fn what_a_server_refuses_is_told_apart() {
    for (text, refusal) in [
        ("OOM command not allowed when used memory > 'maxmemory'.", ServerRefusal::Full),
        ("WRONGPASS invalid username-password pair or user is disabled.", ServerRefusal::Password),
        ("NOAUTH Authentication required.", ServerRefusal::Password),
        ("ERR AUTH <password> called without any password configured for the default user.", ServerRefusal::Password),
        ("ERR Client sent AUTH, but no password is set", ServerRefusal::Password),
        ("NOPERM this user has no permissions to run the 'config|get' command", ServerRefusal::Permission),
        ("ERR unknown command 'CONFIG', with args beginning with: 'GET' ", ServerRefusal::UnknownCommand),
        ("MOVED 3999 127.0.0.1:6381", ServerRefusal::Cluster),
        ("LOADING Redis is loading the dataset in memory", ServerRefusal::Later),
        ("ERR max number of clients reached", ServerRefusal::Later),
        ("READONLY You can't write against a read only replica.", ServerRefusal::ReadOnly),
        ("MISCONF Redis is configured to save RDB snapshots", ServerRefusal::ReadOnly),
        ("ERR value is not an integer or out of range", ServerRefusal::Other),
        ("", ServerRefusal::Other),
    ] {
        let mut script = Script::new(format!("-{text}\r\n").as_bytes(), 9);
        assert_eq!(Reader::new(&mut [0; LINE_MAX]).done(&mut script), Err(RespError::Refused(refusal)), "{text}");
    }
}

#[test]
fn lengths_of_a_hostile_server_are_refused() {
    let value =
        |reply: &str| Reader::new(&mut [0; LINE_MAX]).value(&mut Script::new(reply.as_bytes(), 50), &mut [0; 4097]);
    for reply in [
        "$4098\r\n",
        "$9223372036854775807\r\n",
        "$18446744073709551616\r\n",
        "$-2\r\n",
        "$-9223372036854775808\r\n",
        "$\r\n",
        "$ 1\r\n",
        "$1e3\r\n",
        "$3\r\nabcd\r\n",
        "$3\nabc\r\n",
        "*1\r\n",
        "+OK\r\n",
        "\r\n",
        "\n",
    ] {
        assert_eq!(value(reply), Err(NONSENSE), "{reply:?}");
    }
    let any = |reply: &[u8]| Reader::new(&mut [0; LINE_MAX]).reply(&mut Script::new(reply, 5000));
    let deep = b"*1\r\n*1\r\n*1\r\n:1\r\n";
    let endless = [b'+'; 1 << 16];
    for reply in [&b"*9223372036854775807\r\n"[..], b"*262145\r\n", b"$4194304\r\n", deep, &endless, b"!x\r\n"] {
        assert_eq!(any(reply), Err(NONSENSE), "{:?}", &reply[..reply.len().min(30)]);
    }
    // So many parts are allowed, but nothing is reserved for them before they come.
    assert_eq!(any(b"*262144\r\n:1\r\n"), Err(RespError::Broken(Broken::Closed)));
    let mut many = b"*200000\r\n".to_vec();
    many.extend(b":1\r\n".repeat(200_000));
    assert_eq!(any(&many), Err(NONSENSE), "too much memory");
}

/// Random replies, whole and cut off, never do more than fail, and never give back what was not sent.
#[test]
fn fuzz_replies() {
    bolero::check!().for_each(|bytes: &[u8]| read_all(bytes));
    const PIECES: [&[u8]; 14] =
        [b"+OK", b"-OOM x", b":1", b"$3", b"$-1", b"*2", b"*", b"\r\n", b"\r", b"abc", b"$4096", b"\n", b"9", b"-"];
    let mut rng = Random(7);
    for _ in 0..20_000 {
        let reply: Vec<u8> = (0..rng.index(20)).flat_map(|_| PIECES[rng.index(PIECES.len())]).copied().collect();
        read_all(&reply);
    }
}

/// Parts of a reply as they come in: what is told of a beginning stays true when there is more of it.
fn read_parts(bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        let whole = part_of(rest, 100);
        for cut in 0..rest.len().min(2 * LINE_MAX) {
            let early = part_of(&rest[..cut], 100);
            assert!(early == Ok(None) || early == whole, "{cut} bytes of {rest:?}: {early:?}, and then {whole:?}");
        }
        let Ok(Some((used, part))) = whole else { return };
        if let MgetPart::Value(from, to) = part {
            assert!(from <= to && to - from <= 100 && to < used, "{part:?} of {used}");
        }
        rest = &rest[used..];
    }
}

fn read_all(bytes: &[u8]) {
    read_parts(bytes);
    for (piece, what) in [(1, 0), (7, 1), (1 << 20, 2), (5, 3)] {
        let mut buffer = [0; LINE_MAX];
        let (mut script, mut reader) = (Script::new(bytes, piece), Reader::new(&mut buffer));
        let mut value = [0; 100];
        for _ in 0..1000 {
            let result = match what {
                0 => reader.stored(&mut script),
                1 => reader.value(&mut script, &mut value).map(drop),
                2 => reader.reply(&mut script).map(drop),
                _ => reader.array_of(&mut script, 2),
            };
            if matches!(result, Err(RespError::Broken(_))) {
                break;
            }
        }
    }
}
