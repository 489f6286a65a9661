//! What somebody asks for over HTTP (RFC 9112), and the head of the answer.

use crate::limits::REQUEST_BYTES_MAX;

/// A page that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// Prometheus text.
    Metrics,
    /// The status as JSON.
    Status,
}

/// A request, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) page: Page,
    /// The head of the answer is wanted, without the page.
    pub(super) head_only: bool,
}

/// Why a request is not answered with a page: the status line says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Malformed,
    NotFound,
    Method,
    TooLong,
}

impl Refused {
    pub(super) const fn status(self) -> &'static str {
        match self {
            Self::Malformed => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::Method => "405 Method Not Allowed",
            Self::TooLong => "431 Request Header Fields Too Large",
        }
    }

    /// What a person is told.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Malformed => "this is no HTTP request\n",
            Self::NotFound => "there are /metrics and /status\n",
            Self::Method => "only GET and HEAD\n",
            Self::TooLong => "the request is too long\n",
        }
    }
}

/// Reads what has arrived so far. `None`: there must be more.
pub(super) fn parse(bytes: &[u8]) -> Option<Result<Request, Refused>> {
    let end = |mark: &[u8]| bytes.windows(mark.len()).position(|window| window == mark);
    if end(b"\r\n\r\n").or_else(|| end(b"\n\n")).is_none() {
        return (bytes.len() >= REQUEST_BYTES_MAX).then_some(Err(Refused::TooLong));
    }
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Some(
        std::str::from_utf8(line)
            .map_err(|_| Refused::Malformed)
            .and_then(|line| ask(line.trim_end())),
    )
}

fn ask(line: &str) -> Result<Request, Refused> {
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refused::Malformed);
    };
    if !version.starts_with("HTTP/1.") {
        return Err(Refused::Malformed);
    }
    let head_only = match method {
        "GET" => false,
        "HEAD" => true,
        _ => return Err(Refused::Method),
    };
    // A proxy may be told the whole address.
    let path = target
        .strip_prefix("http://")
        .map_or(target, |rest| rest.find('/').map_or("/", |slash| &rest[slash..]));
    let page = match path.split(['?', '#']).next().unwrap_or_default() {
        "/" | "/metrics" => Page::Metrics,
        "/status" => Page::Status,
        _ => return Err(Refused::NotFound),
    };
    Ok(Request { page, head_only })
}

/// The head of an answer.
pub(super) fn head(status: &str, kind: &str, bytes: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\nAllow: GET, HEAD\r\n\
         Connection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_every_shape() {
        let metrics = Ok(Request { page: Page::Metrics, head_only: false });
        let status = Ok(Request { page: Page::Status, head_only: true });
        for (text, answer) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Some(metrics)),
            ("GET / HTTP/1.0\n\n", Some(metrics)),
            ("GET http://host:9471/metrics?x=1 HTTP/1.1\r\n\r\n", Some(metrics)),
            ("GET http://host HTTP/1.1\r\n\r\n", Some(metrics)),
            ("HEAD /status HTTP/1.1\r\n\r\n", Some(status)),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", None),
            ("", None),
            ("GET /other HTTP/1.1\r\n\r\n", Some(Err(Refused::NotFound))),
            ("POST /metrics HTTP/1.1\r\n\r\n", Some(Err(Refused::Method))),
            ("GET /metrics\r\n\r\n", Some(Err(Refused::Malformed))),
            ("GET /metrics SMTP\r\n\r\n", Some(Err(Refused::Malformed))),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Some(Err(Refused::Malformed))),
            ("\r\n\r\n", Some(Err(Refused::Malformed))),
        ] {
            assert_eq!(parse(text.as_bytes()), answer, "{text:?}");
        }
        assert_eq!(parse(b"\xff\xfe\n\n"), Some(Err(Refused::Malformed)));
        assert_eq!(parse(&vec![b'x'; REQUEST_BYTES_MAX]), Some(Err(Refused::TooLong)));
    }
}
