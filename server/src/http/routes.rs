//! Routes: the resource that a path names.
//!
//! Pure. Paths are matched exactly as they arrive: no decoding, no dot segments, no second spelling
//! of a number, and no path ever reaches the file system.

use simplefeed_core::{
    feed::{DocumentName, FeedName, Numbered},
    header::{INDEX, RECENT},
};

use crate::{
    metrics::DOCUMENT,
    views::{documents::Address, index::block_of_name, sup::Circle},
};

/// Resource that a path names, with the parameters in the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/feeds`: the list of feeds.
    Catalogue,
    /// `/feeds/{feed}`: publishing, settings, and the way to the recent document.
    Feed(FeedName),
    /// A document, entry or index block below `/feeds/{feed}/`.
    Resource(FeedName, Address),
    /// `/sup.json` or `/sup-closed.json`, or an archived document below `/sup/` or `/sup-closed/`.
    Sup(Circle, Option<Numbered>),
    /// `/healthz`: whether the process lives.
    Health,
    /// `/readyz`: whether the log takes entries, and the clock is right.
    Ready,
}

impl Route {
    /// Returns the route of `path`, or `None`. `prefix` is the path of the public URL, which a proxy may have left on
    /// or taken off.
    pub fn of(path: &str, prefix: &str) -> Option<Self> {
        let below = path.strip_prefix(prefix).filter(|_| !prefix.is_empty());
        // With the prefix first, because the prefix may look like a route by itself.
        below
            .and_then(Self::of_path)
            .or_else(|| Self::of_path(path))
    }

    fn of_path(path: &str) -> Option<Self> {
        let mut segments = path.strip_prefix('/')?.split('/');
        let route = match (
            segments.next()?,
            segments.next(),
            segments.next(),
            segments.next(),
        ) {
            ("healthz", None, ..) => Self::Health,
            ("readyz", None, ..) => Self::Ready,
            ("feeds", None, ..) => Self::Catalogue,
            ("sup.json", None, ..) => Self::Sup(Circle::Public, None),
            ("sup-closed.json", None, ..) => Self::Sup(Circle::Apart, None),
            ("sup", Some(file), None, _) => Self::Sup(Circle::Public, Some(window(file)?)),
            ("sup-closed", Some(file), None, _) => Self::Sup(Circle::Apart, Some(window(file)?)),
            ("feeds", Some(feed), None, _) => Self::Feed(FeedName::parse(feed)?),
            ("feeds", Some(feed), Some(file), None) => {
                Self::Resource(FeedName::parse(feed)?, address(file)?)
            }
            ("feeds", Some(feed), Some("entries"), Some(file)) => {
                let entry = Numbered::parse(file.strip_suffix(".atom")?)?;
                Self::Resource(FeedName::parse(feed)?, Address::Entry(entry))
            }
            _ => return None,
        };
        // No route has five segments.
        segments.next().is_none().then_some(route)
    }

    /// Returns the label of its requests in the metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Catalogue => "catalogue",
            Self::Feed(_) => "feed",
            Self::Resource(_, Address::Recent | Address::Document(_)) => DOCUMENT,
            Self::Resource(_, Address::Entry(_)) => "entry",
            Self::Resource(_, Address::Index | Address::IndexBlock(_)) => "index",
            Self::Sup(..) => "sup",
            Self::Health | Self::Ready => "health",
        }
    }

    /// Returns the methods it answers, as in an `Allow` header (rule H-14).
    pub fn methods(&self) -> &'static str {
        match self {
            Self::Feed(_) => "GET, HEAD, POST, PUT",
            _ => "GET, HEAD",
        }
    }
}

fn window(file: &str) -> Option<Numbered> {
    let numbered = Numbered::parse(file.strip_suffix(".json")?)?;
    // Windows are numbered from 1.
    (numbered.number > 0).then_some(numbered)
}

fn address(file: &str) -> Option<Address> {
    match file {
        RECENT => return Some(Address::Recent),
        INDEX => return Some(Address::Index),
        _ => {}
    }
    if let Some(block) = block_of_name(file) {
        return Some(Address::IndexBlock(block));
    }
    DocumentName::of_file(file).map(Address::Document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, want: Option<&str>) {
        let found = Route::of(path, "/sub").map(|route| match route {
            Route::Feed(feed) => format!("feed {feed}"),
            Route::Resource(feed, address) => format!("{feed} {address:?}"),
            other => format!("{other:?}"),
        });
        assert_eq!(
            found.as_deref().map(|f| f.split('(').next().unwrap()),
            want,
            "{path}"
        );
    }

    #[test]
    fn known_paths_are_found_with_and_without_the_prefix() {
        check("/feeds", Some("Catalogue"));
        check("/sub/feeds", Some("Catalogue"));
        check("/healthz", Some("Health"));
        check("/readyz", Some("Ready"));
        check("/feeds/a", Some("feed a"));
        check("/feeds/a/recent.atom", Some("a Recent"));
        check("/sub/feeds/a/1.atom", Some("a Document"));
        check("/feeds/a/12-2.atom", Some("a Document"));
        check("/feeds/a/entries/0.atom", Some("a Entry"));
        check("/feeds/a/index.json", Some("a Index"));
        check("/feeds/a/index-1.json", Some("a IndexBlock"));
        check("/sup.json", Some("Sup"));
        check("/sub/sup-closed.json", Some("Sup"));
        check("/sup/1.json", Some("Sup"));
        check("/sup-closed/7-2.json", Some("Sup"));
    }

    #[test]
    fn other_spellings_name_nothing() {
        for path in [
            "",
            "/",
            "feeds",
            "//feeds",
            "/feeds/",
            "/Feeds",
            "/feeds/A",
            "/feeds/a/",
            "/feeds/../feeds",
            "/feeds/a/0.atom",
            "/feeds/a/01.atom",
            "/feeds/a/1.atom/",
            "/feeds/a/1-1.atom",
            "/feeds/a/+1.atom",
            "/feeds/a/1",
            "/feeds/a/recent",
            "/feeds/a/recent.atom/x",
            "/feeds/%61",
            "/feeds/a%2f1.atom",
            "/feeds/a/entries/",
            "/feeds/a/entries/1",
            "/feeds/a/entries/1.atom/x",
            "/feeds/a/index-0.json",
            "/sup",
            "/sup/",
            "/sup/0.json",
            "/sup/01.json",
            "/sup/1",
            "/sup/1.json/x",
            "/sup.json/1.json",
            "/feeds/a/18446744073709551616.atom",
            "/sub",
            "/subfeeds",
            "/feeds/a/../b/recent.atom",
        ] {
            check(path, None);
        }
    }
}
