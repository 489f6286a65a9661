//! Pipelines from text to plan: what is refused, what is decided, and how it is shown.

mod guide;
mod kinds;
mod made_up;
mod planned;
mod refusals;
mod retry;
mod shown;
