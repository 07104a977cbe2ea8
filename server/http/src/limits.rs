//! Bounds on connections and requests.
//!
//! Pure.

use std::time::Duration;

/// Bounds on the connections of each listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of connections that are open at the same time.
    pub connections: usize,
    /// Longest time that a connection may be idle, or take to send the head of a request.
    pub idle: Duration,
    /// Longest time in which the body of a request must arrive.
    pub body: Duration,
    /// Longest time in which no byte of a body arrives, or no byte of an answer is taken.
    pub stall: Duration,
    /// Age at which a connection ends, after the current answer.
    pub age: Duration,
}
