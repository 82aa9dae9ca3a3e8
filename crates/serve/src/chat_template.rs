//! Chat templates: Jinja text of the model or the user, compiled and rendered under limits.
//!
//! A template comes with a model, whose author may mean harm. Its text, its output, its steps, its
//! memory and its time are bounded, and it is compiled and rendered on a thread of its own with a
//! known stack: a deep expression takes a level of the stack for each of its parts.

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

/// Bytes of a template's text; published ones have up to 20 kB.
const MAX_SOURCE: usize = 64 << 10;
/// Bytes of a prompt that a template writes.
const MAX_OUTPUT: usize = 4 << 20;
/// Steps of the template's interpreter.
const MAX_STEPS: u64 = 1_000_000;
/// Memory of compiling or rendering, beside copies of the messages.
const MAX_MEMORY: usize = 64 << 20;
/// Copies of the messages that a rendering may hold at a time.
const MESSAGE_COPIES: usize = 32;
/// Stack of the thread: the longest chain of operators that fits the text, with a margin.
const STACK: usize = 256 << 20;
/// The time for compiling or rendering.
const DEADLINE: Duration = Duration::from_secs(2);
/// How often the waiting thread looks whether the memory is exceeded.
const POLL: Duration = Duration::from_millis(5);
/// Threads that may be stopped or late at a time; beyond them nothing is rendered.
const MAX_STOPPED: usize = 4;

/// A compiled template.
pub struct JinjaTemplate {
    environment: Arc<Environment<'static>>,
    /// Threads that exceeded their memory, or are late.
    stopped: Arc<AtomicUsize>,
}

impl JinjaTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    ///
    /// What is wrong with it: it is no Jinja, or exceeds a limit.
    pub fn compile(source: String) -> Result<Self, String> {
        if source.len() > MAX_SOURCE {
            return Err(format!("it has {} bytes, at most {MAX_SOURCE} are read", source.len()));
        }
        let stopped = Arc::new(AtomicUsize::new(0));
        let environment = bounded(&stopped, MAX_MEMORY, move || environment(source))??;
        Ok(Self { environment: Arc::new(environment), stopped })
    }

    /// Renders the template.
    ///
    /// # Errors
    ///
    /// What the template says, or the limit that it exceeds.
    pub fn render(&self, context: Value) -> Result<String, String> {
        let size = context.to_string().len();
        let memory = MAX_MEMORY.saturating_add(size.saturating_mul(MESSAGE_COPIES));
        let environment = Arc::clone(&self.environment);
        bounded(&self.stopped, memory, move || render(&environment, &context))?
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

fn render(environment: &Environment<'_>, context: &Value) -> Result<String, String> {
    let mut out = BoundedOutput(Vec::new());
    let template = environment.get_template("chat").map_err(|error| error.to_string())?;
    let context = minijinja::Value::from_serialize(context);
    let rendered = template.render_captured_to(context, &mut out);
    if out.0.len() > MAX_OUTPUT {
        return Err(format!("the chat template writes more than {MAX_OUTPUT} bytes"));
    }
    rendered.map_err(|error| error.to_string())?;
    String::from_utf8(out.0).map_err(|error| error.to_string())
}

/// Text that ends one byte above its limit.
struct BoundedOutput(Vec<u8>);

impl Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = (MAX_OUTPUT + 1).saturating_sub(self.0.len());
        self.0.extend(&bytes[..bytes.len().min(left)]);
        match left < bytes.len() {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `work` on a thread of its own, with a stack, a memory and a time that are bounded.
fn bounded<R: Send + 'static>(
    stopped: &Arc<AtomicUsize>,
    memory: usize,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, String> {
    if stopped.load(Ordering::Relaxed) >= MAX_STOPPED {
        return Err(format!("the chat template was stopped {MAX_STOPPED} times; it is not used"));
    }
    let (sender, receiver) = mpsc::channel();
    let budget = Budget::new(memory);
    let thread = thread::Builder::new().name("chat-template".into()).stack_size(STACK);
    let spawned = thread.spawn({
        let (budget, late) = (Arc::clone(&budget), Arc::clone(stopped));
        move || {
            let result = budget.run(work);
            if sender.send(result).is_err() {
                // Late, and not stopped after all.
                late.fetch_sub(1, Ordering::Relaxed);
            }
        }
    });
    spawned.map_err(|error| format!("cannot start a thread for the chat template: {error}"))?;
    let deadline = Instant::now() + DEADLINE;
    let why = loop {
        match receiver.recv_timeout(POLL) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err("the chat template failed".into()),
            Err(RecvTimeoutError::Timeout) if budget.is_exceeded() => {
                break format!("the chat template takes more than {} MiB", memory >> 20);
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                break format!("the chat template takes more than {} s", DEADLINE.as_secs());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    stopped.fetch_add(1, Ordering::Relaxed);
    if receiver.try_recv().is_ok() {
        // It has ended in the meantime.
        stopped.fetch_sub(1, Ordering::Relaxed);
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use std::alloc::{GlobalAlloc, Layout, System};

    use serde_json::json;

    use super::*;

    /// The tests' allocator takes part in budgets, as the program's does.
    struct MeteredAllocator;

    // SAFETY: every call goes to the system's allocator with its arguments unchanged.
    unsafe impl GlobalAlloc for MeteredAllocator {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            crate::metering::charge(layout.size());
            // SAFETY: the caller's promises are those of `System::alloc`.
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
        refused(&" ".repeat(MAX_SOURCE + 1), "at most 65536");
        refused("{% for i in range(9999) %}{{ text * 1000 }}{% endfor %}", "more than 4194304");
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
            let count = (MAX_SOURCE - open.len() - close.len()) / part.len();
            // An error is as good as a result: the process goes on.
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
