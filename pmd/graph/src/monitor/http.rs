//! Serves the pages of a run to many readers at once, on one thread, and waits for none of them.
//!
//! Whatever comes over the network costs bounded memory and time: so many connections, so many bytes of a request, and so
//! long for each of them.

use std::io::{self, PipeReader, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmd_verbs::connect::oldest_of_most;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::request::{Page, Request, head, parse};
use crate::limits::{
    REQUEST_BYTES_MAX, SCRAPE_ACCEPTS, SCRAPE_CONNECTIONS, SCRAPE_FRESH, SCRAPE_UNDISTURBED,
    SCRAPE_WAIT,
};

/// How long nobody is let in after the system had no room for a connection.
const FULL_WAIT: Duration = Duration::from_millis(100);

/// What is served.
#[derive(Debug)]
pub(super) struct Pages {
    /// When they were made.
    pub(super) at: Instant,
    pub(super) metrics: String,
    pub(super) status: String,
}

/// The server, and what wakes its thread.
pub(super) struct Server {
    listener: Option<TcpListener>,
    /// Readable, or at its end, when the thread is to end.
    woken: PipeReader,
    pages: Option<Arc<Pages>>,
    clients: Vec<Client>,
    deaf_until: Instant,
}

struct Client {
    stream: TcpStream,
    from: IpAddr,
    came: Instant,
    deadline: Instant,
    stage: Stage,
}

enum Stage {
    /// The request so far.
    Asking(Vec<u8>),
    /// A request since then, for a page that is not there yet, or not fresh enough.
    Asked(Request, Instant),
    Answering {
        head: Vec<u8>,
        /// The page, if it is wanted.
        body: Option<(Arc<Pages>, Page)>,
        sent: usize,
    },
    /// Everything is sent. What the reader may still send is thrown away: closing now would take the answer from it.
    Leaving,
}

impl Server {
    /// A server that lets in whoever comes to the listener.
    pub(super) fn new(listener: Option<TcpListener>, woken: PipeReader) -> Self {
        Self { listener, woken, pages: None, clients: Vec::new(), deaf_until: Instant::now() }
    }

    /// Whether anybody can come.
    pub(super) fn is_open(&self) -> bool {
        self.listener.is_some()
    }

    /// Serves these from now on, and begins with those who wait for them. An answer under way goes on with what it began with.
    pub(super) fn show(&mut self, pages: Pages) {
        self.pages = Some(Arc::new(pages));
        self.serve();
    }

    /// Whether somebody waits for pages that are fresher.
    pub(super) fn is_awaited(&self) -> bool {
        self.clients.iter().any(|client| matches!(client.stage, Stage::Asked(..)))
    }

    /// Waits for whatever comes, at most so long, and deals with it. False when the thread is to end.
    pub(super) fn turn(&mut self, wait: Duration) -> bool {
        let now = Instant::now();
        let deadlines = self.clients.iter().map(|client| client.deadline);
        let deadline = deadlines.min().map(|at| at.saturating_duration_since(now));
        let wait = deadline.map_or(wait, |deadline| deadline.min(wait));
        let is_deaf = now < self.deaf_until;
        let wait = if is_deaf { wait.min(FULL_WAIT) } else { wait };
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        fds.extend(self.clients.iter().map(Client::interest));
        let listener = self.listener.as_ref().filter(|_| !is_deaf);
        fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        let timeout = Timespec::try_from(wait).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                // Without it, at least the time passes.
                tracing::debug!("poll: {error}");
                std::thread::sleep(wait.min(FULL_WAIT));
            }
        }
        let is_over = !fds[0].revents().is_empty();
        drop(fds);
        if is_over {
            return false;
        }
        self.let_in();
        self.serve();
        true
    }

    /// Goes on with everybody.
    fn serve(&mut self) {
        let (pages, now) = (self.pages.clone(), Instant::now());
        self.clients.retain_mut(|client| client.go_on(pages.as_ref()) && now < client.deadline);
    }

    fn let_in(&mut self) {
        let Some(listener) = &self.listener else { return };
        for _ in 0..SCRAPE_ACCEPTS {
            match listener.accept() {
                Ok((stream, from)) => {
                    let came = Instant::now();
                    if self.clients.len() >= SCRAPE_CONNECTIONS {
                        // Where all are served, one who is too many is closed at once.
                        let Some(index) = who_yields(&self.clients, came) else { continue };
                        self.clients.swap_remove(index);
                    }
                    if stream.set_nonblocking(true).is_ok() {
                        let (from, deadline) = (from.ip(), came + SCRAPE_WAIT);
                        let mut client = Client {
                            stream,
                            from,
                            came,
                            deadline,
                            stage: Stage::Asking(Vec::new()),
                        };
                        // Most ask at once, and keep their place by it.
                        if client.go_on(self.pages.as_ref()) {
                            self.clients.push(client);
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Gone before it was let in.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::debug!("nobody is let in for a moment: {error}");
                    self.deaf_until = Instant::now() + FULL_WAIT;
                    return;
                }
            }
        }
    }
}

/// Which of them makes room at `now`: of those that have not asked yet, or take their answer so slowly that others would wait
/// for it, the oldest of the source that has most.
fn who_yields(clients: &[Client], now: Instant) -> Option<usize> {
    oldest_of_most(clients.iter().map(|client| {
        let may = match client.stage {
            Stage::Asking(_) => true,
            Stage::Asked(..) => false,
            Stage::Answering { .. } | Stage::Leaving => now >= client.came + SCRAPE_UNDISTURBED,
        };
        (client.from, may.then_some(client.came))
    }))
}

impl Client {
    fn interest(&self) -> PollFd<'_> {
        let flags = match self.stage {
            Stage::Asking(_) | Stage::Leaving => PollFlags::IN,
            Stage::Asked(..) => PollFlags::empty(),
            Stage::Answering { .. } => PollFlags::OUT,
        };
        PollFd::new(&self.stream, flags)
    }

    /// Goes as far as it can without waiting. False: it is done, or gone.
    fn go_on(&mut self, pages: Option<&Arc<Pages>>) -> bool {
        loop {
            let moved = match &mut self.stage {
                Stage::Asking(bytes) => listen(&mut self.stream, bytes),
                Stage::Asked(request, since) => {
                    let pages = pages.filter(|pages| pages.at + SCRAPE_FRESH >= *since);
                    Ok(pages.map(|pages| Stage::page(*request, pages)))
                }
                Stage::Answering { head, body, sent } => {
                    say(&mut self.stream, head, body.as_ref(), sent)
                }
                Stage::Leaving => discard(&mut self.stream),
            };
            match moved {
                Ok(Some(stage)) => self.stage = stage,
                Ok(None) => return true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }
}

impl Stage {
    fn page(request: Request, pages: &Arc<Pages>) -> Self {
        let kind = match request.page {
            Page::Metrics => "text/plain; version=0.0.4; charset=utf-8",
            Page::Status => "application/json",
        };
        let head = head("200 OK", kind, pages.page(request.page).len()).into_bytes();
        let body = (!request.head_only).then(|| (Arc::clone(pages), request.page));
        Self::Answering { head, body, sent: 0 }
    }
}

impl Pages {
    fn page(&self, page: Page) -> &str {
        match page {
            Page::Metrics => &self.metrics,
            Page::Status => &self.status,
        }
    }
}

/// Reads more of a request.
fn listen(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<Option<Stage>> {
    let mut more = [0; 1024];
    let room = (REQUEST_BYTES_MAX - bytes.len()).min(more.len());
    let read = stream.read(&mut more[..room])?;
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    bytes.extend_from_slice(&more[..read]);
    Ok(Some(match parse(bytes) {
        None => Stage::Asking(std::mem::take(bytes)),
        Some(Ok(request)) => Stage::Asked(request, Instant::now()),
        Some(Err(refused)) => {
            let text = refused.text();
            let head = head(refused.status(), "text/plain; charset=utf-8", text.len()) + text;
            Stage::Answering { head: head.into_bytes(), body: None, sent: 0 }
        }
    }))
}

/// Sends more of an answer.
fn say(
    stream: &mut TcpStream,
    head: &[u8],
    body: Option<&(Arc<Pages>, Page)>,
    sent: &mut usize,
) -> io::Result<Option<Stage>> {
    let body = body.map_or(&[][..], |(pages, page)| pages.page(*page).as_bytes());
    loop {
        let rest = if *sent < head.len() { &head[*sent..] } else { &body[*sent - head.len()..] };
        if rest.is_empty() {
            stream.shutdown(Shutdown::Write)?;
            return Ok(Some(Stage::Leaving));
        }
        *sent += stream.write(rest)?;
    }
}

/// Waits for the reader to close its end.
fn discard(stream: &mut TcpStream) -> io::Result<Option<Stage>> {
    match stream.read(&mut [0; 1024])? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        // Whoever sends without end gets no more of this turn.
        _ => Ok(None),
    }
}
