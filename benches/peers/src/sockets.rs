//! Plain sockets between two processes on two cores: what people have without us.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pmd_lcore::pin::pin_current;

use crate::command::Kept;

/// What the sockets do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// A `send` per message; the receiver spins and grants credit, so that nothing is lost.
    UdpSend,
    /// Ping-pong, both ends spinning.
    UdpSpin,
    /// One stream, a `write` per message.
    TcpStream,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::UdpSend => "udp-send",
            Self::UdpSpin => "udp-spin",
            Self::TcpStream => "tcp-stream",
        }
    }
}

/// How long a measurement takes, and how much of it does not count.
const DURATION: Duration = Duration::from_millis(500);
const WARM_UP: Duration = Duration::from_millis(50);
/// Nothing heard for so long: the other end is gone.
const SILENCE: Duration = Duration::from_secs(5);
/// Messages after which a receiver grants as many again; a few of these grants are in flight.
const CREDIT: u64 = 256;
const GRANTS: u64 = 4;
const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Millions of messages, 10^9 bytes per second, or nanoseconds, as the kind has it.
pub(crate) fn measure(kind: Kind, size: usize, [a, b]: [usize; 2]) -> Result<f64> {
    let mut far = Kept(
        Command::new(std::env::current_exe()?)
            .args(["socket", kind.name(), &size.to_string(), &a.to_string()])
            .stdout(Stdio::piped())
            .spawn()?,
    );
    let mut port = String::new();
    let stdout = far.0.stdout.take().context("the far end has no output")?;
    BufReader::new(stdout).read_line(&mut port)?;
    let to = SocketAddr::new(LOCAL.ip(), port.trim().parse().context("the far end gave no port")?);
    // In a thread, so that the caller keeps its cores.
    std::thread::scope(|scope| {
        let near = scope.spawn(|| {
            pin_current(b)?;
            match kind {
                Kind::UdpSend => udp_send(to, size),
                Kind::UdpSpin => udp_spin(to, size),
                Kind::TcpStream => tcp_stream(to, size),
            }
        });
        near.join().unwrap_or_else(|_| anyhow::bail!("the measurement panicked"))
    })
}

/// The other process.
pub(crate) fn far_end(kind: Kind, size: usize, cpu: usize) -> Result<()> {
    pin_current(cpu)?;
    let mut stdout = std::io::stdout();
    match kind {
        Kind::TcpStream => {
            let listener = TcpListener::bind(LOCAL)?;
            writeln!(stdout, "{}", listener.local_addr()?.port())?;
            let (mut stream, _) = listener.accept()?;
            let (mut buffer, mut received) = (vec![0; size.max(1 << 18)], 0_u64);
            loop {
                match stream.read(&mut buffer)? {
                    0 => break,
                    n => received += n as u64,
                }
            }
            stream.write_all(&received.to_le_bytes())?;
        }
        Kind::UdpSend | Kind::UdpSpin => {
            let socket = UdpSocket::bind(LOCAL)?;
            writeln!(stdout, "{}", socket.local_addr()?.port())?;
            let mut buffer = vec![0; 65536];
            let (_, from) = socket.recv_from(&mut buffer)?;
            socket.connect(from)?;
            socket.send(&buffer[..size.min(8)])?;
            socket.set_nonblocking(true)?;
            let mut received = 0;
            while receive(&socket, &mut buffer)? {
                received += 1;
                if kind == Kind::UdpSpin {
                    socket.send(&buffer[..size])?;
                } else if received % CREDIT == 0 {
                    socket.send(&[0; 8])?;
                }
            }
        }
    }
    Ok(())
}

/// Spins for a datagram; false after a long silence.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Result<bool> {
    let mut since = None;
    loop {
        for _ in 0..4096 {
            match socket.recv(buffer) {
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The near end is gone.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        if since.get_or_insert_with(Instant::now).elapsed() > SILENCE {
            return Ok(false);
        }
    }
}

fn greet(to: SocketAddr, size: usize) -> Result<(UdpSocket, Vec<u8>)> {
    let socket = UdpSocket::bind(LOCAL)?;
    socket.connect(to)?;
    let mut buffer = vec![0; size.max(64)];
    socket.send(&buffer[..size])?;
    socket.set_nonblocking(true)?;
    ensure!(receive(&socket, &mut buffer)?, "the far end does not answer");
    Ok((socket, buffer))
}

#[expect(clippy::cast_precision_loss, reason = "counts of one second")]
fn udp_send(to: SocketAddr, size: usize) -> Result<f64> {
    let (socket, mut buffer) = greet(to, size)?;
    let mut granted = CREDIT * GRANTS;
    let (mut sent, mut begin, mut sent_before) = (0, Instant::now(), None);
    loop {
        while sent == granted {
            ensure!(receive(&socket, &mut buffer)?, "the far end stopped");
            granted += CREDIT;
        }
        socket.send(&buffer[..size])?;
        sent += 1;
        if sent % CREDIT == 0 {
            match sent_before {
                None if begin.elapsed() > WARM_UP => {
                    (begin, sent_before) = (Instant::now(), Some(sent));
                }
                Some(before) if begin.elapsed() > DURATION => {
                    return Ok((sent - before) as f64 / begin.elapsed().as_secs_f64() / 1e6);
                }
                _ => {}
            }
        }
    }
}

fn udp_spin(to: SocketAddr, size: usize) -> Result<f64> {
    let (socket, mut buffer) = greet(to, size)?;
    let begin = Instant::now();
    let mut samples = Vec::with_capacity(1 << 20);
    let mut last = begin;
    while last - begin < DURATION {
        socket.send(&buffer[..size])?;
        ensure!(receive(&socket, &mut buffer)?, "the far end stopped");
        let now = Instant::now();
        if last - begin > WARM_UP {
            samples.push((now - last).as_secs_f64() * 1e9 / 2.0);
        }
        last = now;
    }
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().context("no round trip in time")
}

#[expect(clippy::cast_precision_loss, reason = "bytes of one second")]
fn tcp_stream(to: SocketAddr, size: usize) -> Result<f64> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(SILENCE))?;
    stream.set_read_timeout(Some(SILENCE))?;
    let bytes = vec![7; size];
    let begin = Instant::now();
    while begin.elapsed() < DURATION {
        stream.write_all(&bytes)?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut received = [0; 8];
    stream.read_exact(&mut received)?;
    Ok(u64::from_le_bytes(received) as f64 / begin.elapsed().as_secs_f64() / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_carries_what_was_written() {
        let listener = TcpListener::bind(LOCAL).expect("a port");
        let to = listener.local_addr().expect("it is bound");
        let far = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the near end comes");
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).expect("a stream");
            stream.write_all(&(bytes.len() as u64).to_le_bytes()).expect("it still reads");
            bytes.len()
        });
        let figure = tcp_stream(to, 4096).expect("a figure");
        assert!(far.join().expect("no panic") > 0);
        assert!(figure > 0.0);
    }
}
