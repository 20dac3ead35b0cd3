//! A browser that is driven through the DevTools protocol: JSON messages that end with a zero byte. Its input is
//! descriptor 3 and its output descriptor 4. So no port is opened, and no library for sockets is needed.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(40);

/// A browser without a window; it ends when dropped.
pub(super) struct Browser {
    child: Child,
    input: ChildStdin,
    output: Receiver<Value>,
    events: VecDeque<Value>,
    number: u64,
    session: Option<String>,
}

impl Browser {
    /// Starts a browser, with an empty profile in `profile`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn start(program: &str, profile: &Path) -> Result<Self> {
        if profile.exists() {
            std::fs::remove_dir_all(profile)?;
        }
        // The shell moves its own input and output to the descriptors that the browser uses.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh", program])
            .args(["--headless", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run"])
            // Only our own page is opened, and the machine of CI may not allow a sandbox.
            .args(["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"])
            .args(["--disable-extensions", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {program}"))?;
        let input = child.stdin.take().context("no pipe to the browser")?;
        let mut reader = BufReader::new(child.stdout.take().context("no pipe from the browser")?);
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while let Ok(1..) = reader.read_until(0, &mut bytes) {
                bytes.pop();
                let Ok(message) = serde_json::from_slice(&bytes) else { break };
                if sender.send(message).is_err() {
                    break;
                }
                bytes.clear();
            }
        });
        Ok(Self { child, input, output, events: VecDeque::new(), number: 0, session: None })
    }

    /// Opens an empty page, to which later requests go. Events of earlier pages are dropped.
    ///
    /// # Errors
    /// If the browser does not answer.
    pub(super) fn new_page(&mut self) -> Result<()> {
        self.session = None;
        let target = self.ask("Target.createTarget", json!({"url": "about:blank"}))?;
        let params = json!({"targetId": target["targetId"], "flatten": true});
        let session = self.ask("Target.attachToTarget", params)?["sessionId"].as_str().map(str::to_string);
        self.session = Some(session.context("the browser gives no session")?);
        self.events.clear();
        Ok(())
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// If the browser reports an error, ends, or does not answer.
    pub(super) fn ask(&mut self, method: &str, params: Value) -> Result<Value> {
        self.number += 1;
        let number = self.number;
        let mut message = json!({"id": number, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(0);
        self.input.write_all(&bytes).with_context(|| format!("the browser ended before {method}"))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let message = self.next(deadline).with_context(|| format!("no answer to {method}"))?;
            if message["id"].as_u64() != Some(number) {
                self.events.push_back(message);
                continue;
            }
            if let Some(error) = message.get("error") {
                bail!("{method}: {}", error["message"].as_str().unwrap_or("failed"));
            }
            return Ok(message["result"].clone());
        }
    }

    /// Waits for an event, and stores all others.
    ///
    /// # Errors
    /// If the event does not come.
    pub(super) fn wait_for(&mut self, method: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.events.iter().any(|event| event["method"] == method) {
            let event = self.next(deadline).with_context(|| format!("no {method}"))?;
            self.events.push_back(event);
        }
        Ok(())
    }

    /// Iterates over the events of this page since it was opened.
    pub(super) fn events(&self) -> impl Iterator<Item = &Value> {
        let session = self.session.clone();
        self.events.iter().filter(move |event| event["sessionId"].as_str() == session.as_deref())
    }

    fn next(&mut self, deadline: Instant) -> Result<Value> {
        match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(message) => Ok(message),
            Err(RecvTimeoutError::Timeout) => Err(anyhow!("{} seconds went by", PATIENCE.as_secs())),
            Err(RecvTimeoutError::Disconnected) => Err(anyhow!("the browser ended")),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        // The browser ends its helper processes, if it still answers.
        let _ = self.ask("Browser.close", json!({}));
        let deadline = Instant::now() + Duration::from_secs(5);
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.wait();
    }
}
