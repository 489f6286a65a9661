//! Between a device and what is judged of it. A check that cannot fail is no check: tests look at a device that is right
//! through a lens that makes it wrong.

use std::fmt::Debug;

use pmd_verbs::Completion;
use pmd_verbs::roce::engine::QpView;
use pmd_verbs::roce::event::AsyncEvent;

/// What a check sees of a device, each kind by its method; `None`: it is not seen.
pub(crate) trait Lens: Debug {
    /// A completion that was polled.
    fn completion(&self, completion: Completion) -> Option<Completion> {
        Some(completion)
    }

    /// An asynchronous event that was taken.
    fn event(&self, event: AsyncEvent) -> Option<AsyncEvent> {
        Some(event)
    }

    /// What a query of a queue pair answered.
    fn view(&self, view: QpView) -> QpView {
        view
    }

    /// Whether a call that was refused looks so.
    fn refuses(&self) -> bool {
        true
    }

    /// Nanoseconds that something took, by so many.
    fn nanoseconds(&self, took: u64) -> u64 {
        took
    }
}

/// The lens that changes nothing.
#[derive(Debug)]
pub(crate) struct Clear;

impl Lens for Clear {}
