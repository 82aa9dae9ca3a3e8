//! Chat templates: Jinja text from the model or the user, compiled and rendered under limits.
//!
//! A template may come from an untrusted model. Its text, output, steps, memory and time are
//! bounded, and it is compiled and rendered on a separate thread with a fixed stack size, because
//! each part of a deep expression takes a level of the stack.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value;

use crate::metering::Budget;

/// Maximum number of steps of the template interpreter.
const MAX_STEPS: u64 = 1_000_000;
/// Number of copies of the messages that a rendering may hold at a time.
const MESSAGE_COPIES: usize = 32;
/// How often the waiting thread checks the memory limit.
const POLL: Duration = Duration::from_millis(5);
/// Maximum number of stopped or late threads; further rendering is rejected.
const MAX_STOPPED: usize = 4;

/// Resource limits of a template.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TemplateLimits {
    /// Maximum bytes of the template text.
    pub(crate) source: usize,
    /// Maximum bytes of the rendered prompt.
    pub(crate) output: usize,
    /// Maximum bytes of memory, in addition to copies of the messages.
    pub(crate) memory: usize,
    /// Stack size of the thread in bytes: enough for the longest chain of operators that fits in
    /// the text, with a margin.
    pub(crate) stack: usize,
    /// Maximum time for compiling or rendering.
    pub(crate) time: Duration,
}

/// Published templates have up to 20 kB.
const LIMITS: TemplateLimits = TemplateLimits {
    source: 64 << 10,
    output: 4 << 20,
    memory: 64 << 20,
    stack: 256 << 20,
    time: Duration::from_secs(2),
};

/// A compiled template.
pub struct JinjaTemplate {
    environment: Arc<Environment<'static>>,
    limits: TemplateLimits,
    /// Number of threads that exceeded their memory limit or are late.
    stopped: Arc<AtomicUsize>,
}

impl JinjaTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    ///
    /// If it is not valid Jinja or exceeds a limit.
    pub fn compile(source: String) -> Result<Self, String> {
        Self::compile_within(source, LIMITS)
    }

    pub(crate) fn compile_within(source: String, limits: TemplateLimits) -> Result<Self, String> {
        if source.len() > limits.source {
            return Err(format!(
                "it has {} bytes; at most {} are allowed",
                source.len(),
                limits.source
            ));
        }
        let stopped = Arc::new(AtomicUsize::new(0));
        let environment = bounded(&stopped, limits, move || environment(source))??;
        Ok(Self { environment: Arc::new(environment), limits, stopped })
    }

    /// Renders the template.
    ///
    /// # Errors
    ///
    /// The error raised by the template, or the exceeded limit.
    pub fn render(&self, context: Value) -> Result<String, String> {
        let copies = context.to_string().len().saturating_mul(MESSAGE_COPIES);
        let memory = self.limits.memory.saturating_add(copies);
        let limits = TemplateLimits { memory, ..self.limits };
        let environment = Arc::clone(&self.environment);
        bounded(&self.stopped, limits, move || render(&environment, &context, limits.output))?
    }
}

fn environment(source: String) -> Result<Environment<'static>, String> {
    let mut environment = Environment::new();
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(MAX_STEPS));
    let raise = |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    };
    environment.add_function("raise_exception", raise);
    let added = environment.add_template_owned("chat", source);
    added.map(|()| environment).map_err(|error| error.to_string())
}

fn render(environment: &Environment<'_>, context: &Value, limit: usize) -> Result<String, String> {
    let mut out = BoundedOutput { text: Vec::new(), limit };
    let template = environment.get_template("chat").map_err(|error| error.to_string())?;
    let context = minijinja::Value::from_serialize(context);
    let rendered = template.render_captured_to(context, &mut out);
    if out.text.len() > limit {
        return Err(format!("the chat template output exceeds {limit} bytes"));
    }
    rendered.map_err(|error| error.to_string())?;
    String::from_utf8(out.text).map_err(|error| error.to_string())
}

/// Output that stops one byte above its limit.
struct BoundedOutput {
    text: Vec<u8>,
    limit: usize,
}

impl Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = (self.limit + 1).saturating_sub(self.text.len());
        self.text.extend(&bytes[..bytes.len().min(left)]);
        match left < bytes.len() {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `work` on a separate thread with bounded stack, memory and time.
fn bounded<R: Send + 'static>(
    stopped: &Arc<AtomicUsize>,
    limits: TemplateLimits,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, String> {
    if stopped.load(Ordering::Relaxed) >= MAX_STOPPED {
        return Err(format!("the chat template was stopped {MAX_STOPPED} times and is disabled"));
    }
    let (sender, receiver) = mpsc::channel();
    let TemplateLimits { memory, stack, time, .. } = limits;
    let budget = Budget::new(memory);
    let thread = thread::Builder::new().name("chat-template".into()).stack_size(stack);
    let spawned = thread.spawn({
        let (budget, late) = (Arc::clone(&budget), Arc::clone(stopped));
        move || {
            let result = budget.run(work);
            if sender.send(result).is_err() {
                // The thread was late, but finished.
                late.fetch_sub(1, Ordering::Relaxed);
            }
        }
    });
    spawned.map_err(|error| format!("cannot start a thread for the chat template: {error}"))?;
    let deadline = Instant::now() + time;
    let why = loop {
        match receiver.recv_timeout(POLL) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err("the chat template failed".into()),
            Err(RecvTimeoutError::Timeout) if budget.is_exceeded() => {
                break format!("the chat template uses more than {} MiB", memory >> 20);
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                break format!("the chat template takes more than {} s", time.as_secs_f64());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    stopped.fetch_add(1, Ordering::Relaxed);
    if receiver.try_recv().is_ok() {
        // It finished in the meantime.
        stopped.fetch_sub(1, Ordering::Relaxed);
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use std::alloc::{GlobalAlloc, Layout, System};

    use serde_json::json;

    use super::*;

    /// The allocator of the tests implements budgets, like that of the program.
    struct MeteredAllocator;

    // SAFETY: every call is forwarded to the system allocator with unchanged arguments.
    unsafe impl GlobalAlloc for MeteredAllocator {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            crate::metering::charge(layout.size());
            // SAFETY: the requirements on the caller are those of `System::alloc`.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            crate::metering::refund(layout.size());
            // SAFETY: as above.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: MeteredAllocator = MeteredAllocator;

    fn render(source: &str) -> Result<String, String> {
        JinjaTemplate::compile(source.to_owned())?.render(json!({ "text": "x".repeat(1000) }))
    }

    fn refused(source: &str, why: &str) {
        let error = render(source).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn text_output_steps_and_memory_are_bounded() {
        refused(&" ".repeat(LIMITS.source + 1), "at most 65536");
        refused("{% for i in range(9999) %}{{ text * 1000 }}{% endfor %}", "exceeds 4194304");
        refused(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "fuel",
        );
        let doubled = "{% set ns = namespace(s=text) %}{% for i in range(40) %}\
            {% set ns.s = ns.s ~ ns.s %}{% endfor %}";
        refused(doubled, "more than 64 MiB");
        refused("{{ 'x'|indent(4000000000, true)|length }}", "more than 64 MiB");
        let replaced = "{% set ns = namespace(s=text) %}{% for i in range(9) %}\
            {% set ns.s = ns.s|replace('x', ns.s) %}{% endfor %}";
        refused(replaced, "more than 64 MiB");
    }

    #[test]
    fn the_longest_chains_fit_the_stack() {
        for (open, part, close) in [
            ("{{ 1", "+1", " }}"),
            ("{{ ", "not ", "1 }}"),
            ("{{ a", ".a", " }}"),
            ("{{ a", "|e", " }}"),
            ("{{ a", "~a", " }}"),
            ("{{ 1", " and 1", " }}"),
            ("{{ ", "(", "1 }}"),
            ("{{ ", "-", "1 }}"),
            ("{{ a", "[0]", " }}"),
            ("{{ a", "()", " }}"),
            ("{{ a", " is defined", " }}"),
            ("{{ 1", " if 1 else 1", " }}"),
            ("", "{% if 1 %}", ""),
            ("", "{{", ""),
        ] {
            let count = (LIMITS.source - open.len() - close.len()) / part.len();
            // An error is as good as a result; the process must survive.
            let _ = render(&format!("{open}{}{close}", part.repeat(count)));
        }
    }

    #[test]
    fn a_template_that_was_stopped_too_often_is_not_used() {
        let source = "{{ text|indent(4000000000, true)|length }}";
        let template = JinjaTemplate::compile(source.to_owned()).unwrap();
        for _ in 0..MAX_STOPPED {
            let error = template.render(json!({ "text": "x" })).unwrap_err();
            assert!(error.contains("more than 64 MiB"), "{error}");
        }
        let error = template.render(json!({ "text": "x" })).unwrap_err();
        assert!(error.contains("was stopped 4 times"), "{error}");
    }
}
