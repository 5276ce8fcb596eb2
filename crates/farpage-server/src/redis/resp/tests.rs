//! The codec against replies that are known beforehand.

use super::*;
use farpage_swap::sim::Random;

#[test]
fn commands_are_written_as_the_protocol_wants_them() {
    let mut commands = Vec::new();
    command(&mut commands, &[b"SET", b"a key", b"\r\n\0"]);
    command(&mut commands, &[b"GET", &[b'x'; 120]]);
    let mut expected = b"*3\r\n$3\r\nSET\r\n$5\r\na key\r\n$3\r\n\r\n\0\r\n*2\r\n$3\r\nGET\r\n$120\r\n".to_vec();
    expected.extend([b'x'; 120]);
    expected.extend(b"\r\n");
    assert_eq!(commands, expected);
}

#[test]
fn replies_are_read_one_after_the_other() {
    let long = [b'v'; 5000];
    let mut replies = b"+OK\r\n:12\r\n-OOM command not allowed\r\n*3\r\n$2\r\n\r\n\r\n$-1\r\n$5000\r\n".to_vec();
    replies.extend(long);
    replies.extend(b"\r\n+OK\r\n*2\r\n$1\r\nk\r\n*2\r\n:-3\r\n+x\r\n");
    let inner = Reply::Array(vec![Reply::Number(-3), Reply::Status(b"x".to_vec())]);
    let expected = [
        Reply::Status(b"OK".to_vec()),
        Reply::Number(12),
        Reply::Refused(ServerRefusal::Full),
        Reply::Array(vec![Reply::Bulk(b"\r\n".to_vec()), Reply::Nothing, Reply::Bulk(long.to_vec())]),
        Reply::Status(b"OK".to_vec()),
        Reply::Array(vec![Reply::Bulk(b"k".to_vec()), inner]),
    ];
    let mut rest = &replies[..];
    for expected in expected {
        let (used, reply) = reply_of(rest).unwrap().unwrap();
        assert_eq!(reply, expected);
        assert!((0..used).all(|cut| reply_of(&rest[..cut]) == Ok(None)), "{expected:?} before it is there");
        rest = &rest[used..];
    }
    assert!(rest.is_empty());
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
        let bytes = format!("-{text}\r\n");
        assert_eq!(part_of(bytes.as_bytes(), 9), Ok(Some((bytes.len(), ReplyPart::Refused(refusal)))), "{text}");
    }
}

#[test]
fn lengths_of_a_hostile_server_are_refused() {
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
        "*-2\r\n",
        "!x\r\n",
        "\r\n",
        "\n",
    ] {
        assert_eq!(part_of(reply.as_bytes(), 4097), Err(NONSENSE), "{reply:?}");
    }
    let deep = b"*1\r\n*1\r\n*1\r\n:1\r\n";
    let endless = [b'+'; 1 << 16];
    for reply in [&b"*9223372036854775807\r\n"[..], b"*262145\r\n", b"$4194304\r\n", deep, &endless, b"!x\r\n"] {
        assert_eq!(reply_of(reply), Err(NONSENSE), "{:?}", &reply[..reply.len().min(30)]);
    }
    // So many parts are allowed, but nothing is reserved for them before they come.
    assert_eq!(reply_of(b"*262144\r\n:1\r\n"), Ok(None));
    let mut many = b"*200000\r\n".to_vec();
    many.extend(b":1\r\n".repeat(200_000));
    assert_eq!(reply_of(&many), Err(NONSENSE), "too much memory");
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
        if let ReplyPart::Value(from, to) = part {
            assert!(from <= to && to - from <= 100 && to < used, "{part:?} of {used}");
        }
        rest = &rest[used..];
    }
}

fn read_all(bytes: &[u8]) {
    read_parts(bytes);
    let whole = reply_of(bytes);
    for cut in 0..bytes.len().min(2 * LINE_MAX) {
        let early = reply_of(&bytes[..cut]);
        assert!(early == Ok(None) || early == whole, "{cut} bytes of {bytes:?}: {early:?}, and then {whole:?}");
    }
}
