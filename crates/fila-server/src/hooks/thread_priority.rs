//! The priority of the threads that run hooks.
//!
//! A script may compute for as long as its limit allows, on every core. With a lower priority its threads use what the
//! other threads of the server leave: a queue without a script does not compete with hooks. On Linux the niceness is a
//! property of a thread; elsewhere it is one of the process, and stays as it is.

/// How much nicer the threads of hooks are than the thread that starts them. At ten, a thread that competes for a core
/// with one other busy thread gets about a tenth of it.
#[cfg(target_os = "linux")]
const NICER: i32 = 10;

/// The niceness of the threads that run hooks.
#[derive(Clone, Copy, Debug)]
pub(super) struct HookPriority {
    #[cfg(target_os = "linux")]
    niceness: Option<i32>,
}

impl HookPriority {
    /// Returns the priority below that of the calling thread.
    pub(super) fn below_this_thread() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            niceness: rustix::process::getpriority_process(None)
                .ok()
                .map(|niceness| niceness.saturating_add(NICER).min(19)),
        }
    }

    /// Gives this priority to the calling thread. Without the right to do so, the thread keeps its own.
    pub(super) fn apply(self) {
        #[cfg(target_os = "linux")]
        if let Some(niceness) = self.niceness
            && let Err(error) = rustix::process::setpriority_process(None, niceness)
        {
            tracing::debug!(%error, "a thread of hooks keeps its priority");
        }
    }
}
