//! A minimal client: requests over one persistent connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

/// A connection.
pub struct Client {
    stream: BufReader<TcpStream>,
}

/// A response, read to its end.
pub struct Answered {
    pub status: u16,
    /// Seconds of `Retry-After`.
    pub retry_after: Option<u64>,
    pub body: String,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub fn send(&mut self, method: &str, path: &str, body: &str) {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}"
        );
        self.stream.get_mut().write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    }

    /// `None` if the connection was closed before a response.
    pub fn read(&mut self) -> Option<Answered> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        let status = line.split(' ').nth(1)?.parse().ok()?;
        let (mut length, mut retry_after) = (0, None);
        loop {
            line.clear();
            self.stream.read_line(&mut line).ok()?;
            match line.trim_end().split_once(": ") {
                Some(("content-length", value)) => length = value.parse().ok()?,
                Some(("retry-after", value)) => retry_after = value.parse().ok(),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).ok()?;
        Some(Answered { status, retry_after, body: String::from_utf8(body).ok()? })
    }

    /// Waits for the first bytes of a stream.
    pub fn read_some(&mut self) {
        self.stream.fill_buf().unwrap();
    }

    pub fn ask(&mut self, body: &Value) -> Option<Answered> {
        self.send("POST", "/v1/completions", &body.to_string());
        self.read()
    }
}

impl Answered {
    /// The text of the first choice.
    pub fn text(&self) -> String {
        let json: Value = serde_json::from_str(&self.body).unwrap_or_default();
        json["choices"][0]["text"].as_str().unwrap_or_default().to_owned()
    }
}

/// The value of a metric without labels.
pub fn metric(address: SocketAddr, name: &str) -> f64 {
    let mut client = Client::connect(address);
    client.send("GET", "/metrics", "");
    let text = client.read().unwrap().body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.trim().parse().unwrap())
}
