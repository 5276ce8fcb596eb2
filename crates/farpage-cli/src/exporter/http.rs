//! A small HTTP server: one answer for each connection, nothing kept alive, everything bounded.
//!
//! Some threads accept connections, so a client that is slow keeps one of them busy, for [`MOST`] at most, and there
//! are never more connections than threads; others wait in the kernel's queue. A request is a head of at most
//! [`HEAD_BYTES`]; a body is not looked at.
//!
//! Callers: [`super`]. Nothing is shared between the threads but the listener.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Connections that are served at the same time.
const THREADS: usize = 4;
/// How long one may take, from its first byte to the last.
const MOST: Duration = Duration::from_secs(10);
/// How long is waited for the client to close, after the answer.
const CLOSE: Duration = Duration::from_secs(1);
/// Most bytes of a request.
const HEAD_BYTES: usize = 8 << 10;
/// Most header lines.
const HEADERS: usize = 64;

/// What is asked for.
#[derive(Debug)]
pub struct Request<'a> {
    /// Without what comes after a question mark.
    pub path: &'a str,
    /// What the client can read; empty: it did not say.
    pub accepts: &'a str,
}

/// What is answered.
#[derive(Debug)]
pub struct Answer {
    /// 200, 404 ...
    pub status: u16,
    /// What the body is.
    pub content_type: &'static str,
    /// All of it.
    pub body: String,
}

impl Answer {
    /// One line of text.
    pub fn words(status: u16, words: &str) -> Answer {
        Answer { status, content_type: "text/plain; charset=utf-8", body: format!("{words}\n") }
    }
}

/// Answers requests for good.
pub fn serve(listener: &TcpListener, answer: &(dyn Fn(&Request<'_>) -> Answer + Sync)) -> ! {
    let work = || loop {
        match listener.accept() {
            // What goes wrong with one connection is its client's matter.
            Ok((stream, _)) => drop(connection(&stream, answer)),
            // It went away again, or there is no descriptor left just now.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..THREADS {
            scope.spawn(work);
        }
        work()
    })
}

fn connection(stream: &TcpStream, answer: &dyn Fn(&Request<'_>) -> Answer) -> io::Result<()> {
    let until = Instant::now() + MOST;
    let mut head = Vec::new();
    let (answer, with_body) = loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => break answered(&request, answer),
            Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES => {}
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                break (Answer::words(431, "the request is too long"), true);
            }
            Err(_) => break (Answer::words(400, "this is no request"), true),
        }
        let mut more = [0; 1024];
        match read(stream, &mut more, until)? {
            0 => return Ok(()),
            n => head.extend_from_slice(&more[..n]),
        }
    };
    write(stream, text(&answer, with_body).as_bytes(), until)?;
    // If bytes that were not read are there when it is closed, the client may lose the answer.
    stream.shutdown(Shutdown::Write)?;
    let until = until.min(Instant::now() + CLOSE);
    let mut rest = [0; 4096];
    while read(stream, &mut rest, until)? > 0 {}
    Ok(())
}

/// The answer to a request, and whether its body is sent, too.
fn answered(request: &httparse::Request<'_, '_>, answer: &dyn Fn(&Request<'_>) -> Answer) -> (Answer, bool) {
    let with_body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return (Answer::words(405, "there is GET and HEAD"), true),
    };
    let accepts = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("accept"));
    let accepts = accepts.and_then(|header| std::str::from_utf8(header.value).ok()).unwrap_or_default();
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    (answer(&Request { path, accepts }), with_body)
}

fn text(answer: &Answer, with_body: bool) -> String {
    let reason = match answer.status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    };
    let mut text = format!("HTTP/1.1 {} {reason}\r\n", answer.status);
    let (kind, length) = (answer.content_type, answer.body.len());
    // To a string: cannot fail.
    let _ = write!(text, "Content-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n");
    if answer.status == 405 {
        text.push_str("Allow: GET, HEAD\r\n");
    }
    text.push_str("\r\n");
    if with_body {
        text.push_str(&answer.body);
    }
    text
}

/// What is left until then; it is an error if nothing is.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn read(mut stream: &TcpStream, buffer: &mut [u8], until: Instant) -> io::Result<usize> {
    stream.set_read_timeout(Some(left(until)?))?;
    stream.read(buffer)
}

fn write(mut stream: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => bytes = &bytes[n..],
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;

    /// A server for all tests; what it is asked for is what it answers.
    fn server() -> std::net::SocketAddr {
        static SERVER: OnceLock<std::net::SocketAddr> = OnceLock::new();
        *SERVER.get_or_init(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = listener.local_addr().unwrap();
            let echo = |r: &Request<'_>| match r.path {
                "/long" => Answer::words(200, &"x".repeat(8 << 20)),
                _ => Answer::words(200, &format!("{} {}", r.path, r.accepts)),
            };
            std::thread::spawn(move || serve(&listener, &echo));
            at
        })
    }

    fn ask(request: &[u8]) -> String {
        let mut stream = TcpStream::connect(server()).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn requests_are_answered_once() {
        let whole = ask(b"GET /a/b?c=d HTTP/1.1\r\nHost: x\r\naCCept: text/plain\r\n\r\n");
        assert!(whole.starts_with("HTTP/1.1 200 OK\r\n") && whole.ends_with("\r\n\r\n/a/b text/plain\n"), "{whole}");
        assert!(whole.contains("\r\nContent-Length: 16\r\nConnection: close\r\n"), "{whole}");
        let head = ask(b"HEAD /a HTTP/1.0\r\n\r\n");
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let two = ask(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
        assert_eq!(two.matches("HTTP/1.1").count(), 1, "{two}");
        let post = ask(&[&b"POST /a HTTP/1.1\r\nContent-Length: 99999\r\n\r\n"[..], &[b'x'; 99_999]].concat());
        assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("\r\nAllow: GET, HEAD\r\n"), "{post}");
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for (request, status) in [
            (&b"\0\x01\x02\x03"[..], "400"),
            (b"GET\r\n\r\n", "400"),
            (&[b"GET /", &[b'a'; 9000][..]].concat(), "431"),
            (&[&b"GET / HTTP/1.1\r\n"[..], &b"A: b\r\n".repeat(100), b"\r\n"].concat(), "431"),
        ] {
            let answer = ask(request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
    }

    #[test]
    fn clients_that_come_and_go_do_no_harm() {
        let open: Vec<TcpStream> = (0..THREADS - 1).map(|_| TcpStream::connect(server()).unwrap()).collect();
        for _ in 0..3 {
            // It leaves while it is told a lot.
            let mut stream = TcpStream::connect(server()).unwrap();
            stream.write_all(b"GET /long HTTP/1.1\r\n\r\n").unwrap();
            drop(stream);
            assert!(ask(b"GET /a HTTP/1.1\r\n\r\n").ends_with("/a \n"));
        }
        drop(open);
    }

    /// Whatever bytes a client sends, its connection is answered or closed.
    #[test]
    fn fuzz_requests() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let mut stream = TcpStream::connect(server()).unwrap();
            let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
            let _ = stream.read_to_end(&mut Vec::new());
        });
    }
}
