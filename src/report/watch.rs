//! The report of runs that go on: a page at an address of this machine, which makes itself anew when their files change.

use super::report;
use crate::{
    error::{Error, Result, contained, printable},
    rng::fnv1a,
};
use indicatif::ProgressBar;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::UNIX_EPOCH,
};
use tiny_http::{Header, Method, Request, Response, Server, StatusCode};

/// Asks whether anything has changed, every two seconds while the page is in sight, and then loads the page again,
/// which keeps its place, what is unfolded on it and which lines are shown.
const SCRIPT: &str = "<script>
const parts = () => [...document.querySelectorAll('details, input[type=checkbox]')]
const state = part => part.tagName === 'DETAILS' ? 'open' : 'checked'
try {
  const kept = JSON.parse(sessionStorage.getItem('parts'))
  if (kept.length === parts().length) parts().forEach((part, i) => part[state(part)] = kept[i])
} catch { /* the first time nothing is kept */ }
setInterval(async () => {
  if (document.hidden) return
  try {
    const now = await (await fetch('stamp')).text()
    document.title = 'tapezoo report'
    if (now !== 'STAMP') {
      sessionStorage.setItem('parts', JSON.stringify(parts().map(part => part[state(part)])))
      location.reload()
    }
  } catch { document.title = 'tapezoo report (the program has ended)' }
}, 2000)
</script>";

/// Serve the report of these directories, until the program ends.
pub struct Watch {
    dirs: Vec<PathBuf>,
    server: Server,
    /// The page that was made last, and the stamp that it is of.
    made: Mutex<Option<(u64, Arc<str>)>>,
}

/// The most requests that are answered at once.
const MOST: usize = 32;

impl Watch {
    /// Listen on this port of the loopback interface, which no other machine reaches; 0: on any that is free.
    ///
    /// # Errors
    /// When a directory is not there, or the port is taken.
    pub fn new(dirs: &[PathBuf], port: u16) -> Result<Watch> {
        for dir in dirs {
            fs::read_dir(dir).map_err(Error::io(dir))?;
        }
        let taken = |e| Error::config(format!("--port {port}: {e}; choose another, or 0 for any that is free"));
        let server = Server::http(("127.0.0.1", port)).map_err(taken)?;
        Ok(Watch { dirs: dirs.into(), server, made: Mutex::default() })
    }

    /// The address of the page.
    pub fn address(&self) -> String {
        self.server.server_addr().to_ip().map_or(String::new(), |at| format!("http://{at}/"))
    }

    /// Answer, each request in a thread of its own: whoever sends or reads slowly holds up nobody else.
    ///
    /// # Errors
    /// When there is nothing more to listen to.
    pub fn serve(&self) -> Result<()> {
        let busy = AtomicUsize::new(0);
        thread::scope(|scope| {
            loop {
                let request = self.server.recv().map_err(|e| Error::config(format!("the server stopped: {e}")))?;
                if busy.fetch_add(1, Ordering::SeqCst) >= MOST {
                    busy.fetch_sub(1, Ordering::SeqCst);
                    // Dropping the request would read all of its body.
                    std::mem::forget(request);
                    continue;
                }
                let busy = &busy;
                scope.spawn(move || {
                    // A failure is ignored: the reader may be gone.
                    let _ = self.answer(request);
                    busy.fetch_sub(1, Ordering::SeqCst);
                });
            }
        })
    }

    fn answer(&self, request: Request) -> std::io::Result<()> {
        let refused = |request: Request, status, why: &str| {
            request.respond(Response::from_string(format!("{why}\n")).with_status_code(StatusCode(status)))
        };
        let host = request.headers().iter().find(|h| h.field.equiv("host")).map(|h| h.value.as_str().to_string());
        // A foreign web page may have its host name resolve to this machine; the browser then sends that name as the
        // host.
        if !host.is_some_and(|host| self.is_ours(&host)) {
            return refused(request, 403, "another host");
        }
        if *request.method() != Method::Get {
            return refused(request, 405, "there is only GET");
        }
        let stamp = self.stamp();
        match request.url() {
            "/" => {
                let html = Header::from_bytes("Content-Type", "text/html; charset=utf-8");
                let no_store = Header::from_bytes("Cache-Control", "no-store");
                let response = Response::from_string(&*self.page_of(stamp));
                request.respond(html.into_iter().chain(no_store).fold(response, Response::with_header))
            }
            "/stamp" => request.respond(Response::from_string(format!("{stamp:016x}"))),
            _ => refused(request, 404, "there is only /"),
        }
    }

    /// Whether a host is this machine under a name that no other has; the usual port may be left out.
    fn is_ours(&self, host: &str) -> bool {
        let port = self.server.server_addr().to_ip().map_or(0, |at| at.port());
        let (name, said) = host.rsplit_once(':').unwrap_or((host, "80"));
        ["127.0.0.1", "localhost"].contains(&name) && said == port.to_string()
    }

    /// The page of this stamp; the one that was made last is kept.
    fn page_of(&self, stamp: u64) -> Arc<str> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match &*made {
            Some((of, page)) if *of == stamp => page.clone(),
            _ => made.insert((stamp, self.page(stamp).into())).1.clone(),
        }
    }

    fn page(&self, stamp: u64) -> String {
        let script = SCRIPT.replace("STAMP", &format!("{stamp:016x}"));
        match contained(|| report(&self.dirs, &ProgressBar::hidden())) {
            Ok(report) => report.page.replace("</body>", &format!("{script}</body>")),
            // There may be no report yet: the runs may have just begun.
            Err(e) => {
                let why = maud::html! { (printable(&e.to_string())) }.into_string();
                format!("<!doctype html><meta charset=utf-8><title>tapezoo report</title><p>{why}</p>{script}")
            }
        }
    }

    /// A number that changes when a file of a run does: of names, sizes and times.
    fn stamp(&self) -> u64 {
        fn walk(dir: &Path, text: &mut String) {
            let mut entries: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().collect();
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let Ok(about) = entry.metadata() else { continue };
                let path = entry.path();
                if about.is_dir() {
                    walk(&path, text);
                } else if path.extension().is_some_and(|e| ["toml", "json", "jsonl"].iter().any(|of| e == *of)) {
                    let time = about.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
                    let time = time.map_or(0, |t| t.as_nanos());
                    *text += &format!("{} {} {time}\n", path.display(), about.len());
                }
            }
        }
        let mut text = String::new();
        self.dirs.iter().for_each(|dir| walk(dir, &mut text));
        fnv1a(text.as_bytes())
    }
}
