//! RDMA edges: how two nodes find each other, and what each notices of the other while they are connected.
//!
//! The two ends meet on a control channel: a pair made before the lcores start where both are in one process, TCP
//! otherwise. The connecting end ([`Dial`]) sends a [`Greeting`], the accepting end ([`Acceptor`]) prepares its endpoint by
//! it and answers, the connecting end says ready. Both are polled by their nodes and never wait, since both may run on
//! one lcore. The channel stays open beside the connection ([`Line`]): when it ends without a goodbye, the peer is dead.
//!
//! A connection that breaks comes back where its client wants that: on the same queue pairs while both processes live, else
//! by dialling again. Its nodes hear of each [`Change`].

mod accept;
mod comeback;
mod desertion;
mod dial;
mod greeting;
mod guard;
mod home;
mod inquest;
mod line;
mod pulse;
mod refusal;
mod stall;

pub(crate) use desertion::Desertion;
pub(crate) use guard::guard;
pub(crate) use pulse::{Patience, Pulse, milliseconds};

pub use accept::{Acceptor, Admission, Host};
pub use comeback::{Change, Lost};
pub use dial::{Dial, Dialing, Route};
pub use greeting::{Greeting, GreetingError};
pub use home::Home;
pub use line::{Line, Peer};
pub use refusal::Refusal;
