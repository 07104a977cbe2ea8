//! Documents: the entries of a feed as documents, open and archived, and the archive index.
//!
//! Shell: the log, and files of documents. [`reading`] answers requests for documents, [`pages`]
//! answers requests for a stretch of entries by place. [`archive`] keeps closed documents as files,
//! rendered by [`frozen`] and recorded by [`manifest`]. The view follows the log to archive the
//! documents that a commit closes.

pub mod archive;
pub mod frozen;
pub mod index;
pub mod manifest;
pub mod pages;
pub mod reading;
pub mod sidecar;
mod each_head;
mod checking;
mod exporting;
mod following;
mod in_flight;
mod replaced;
mod stranger;
