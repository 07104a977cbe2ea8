//! Exactly once, with a database: an entry's effect and the bookmark behind it share one transaction.
//!
//! ```sh
//! cargo run --example exactly_once -- http://127.0.0.1:8080/feeds/orders totals.db
//! ```
//!
//! Adds up orders by customer. However often it is killed, each order counts once: what a transaction did
//! not commit is as if it had never been, and so is the bookmark; the next run begins where the last
//! committed one ended.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;

use rusqlite::{Connection, OptionalExtension as _, params};
use simplefeed_client::{Consumer, Since};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS totals (
        customer TEXT PRIMARY KEY, orders INTEGER NOT NULL, cents INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS bookmark (
        only INTEGER PRIMARY KEY CHECK (only = 1), value TEXT NOT NULL);";

const ADD: &str = "
    INSERT INTO totals VALUES (?1, 1, ?2)
    ON CONFLICT (customer) DO UPDATE SET orders = orders + 1, cents = cents + excluded.cents";

const REMEMBER: &str = "
    INSERT INTO bookmark VALUES (1, ?1)
    ON CONFLICT (only) DO UPDATE SET value = excluded.value";

#[derive(serde::Deserialize)]
struct Order {
    customer: String,
    cents: i64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(path)) = (args.next(), args.next()) else {
        return Err("usage: exactly_once URL DATABASE".into());
    };
    let mut database = Connection::open(path)?;
    database.execute_batch(TABLES)?;
    let kept: Option<String> = database
        .query_row("SELECT value FROM bookmark", [], |row| row.get(0))
        .optional()?;

    let mut builder = Consumer::builder(url).since(Since::Oldest);
    if let Some(kept) = kept {
        builder = builder.resume(serde_json::from_str(&kept)?);
    }
    let mut orders = builder.build()?;
    let mut counted = 0_u64;
    while let Some(delivery) = orders.next().await? {
        let order: Order = delivery.json()?;
        let bookmark = serde_json::to_string(&delivery.bookmark())?;
        let transaction = database.transaction()?;
        transaction.execute(ADD, params![order.customer, order.cents])?;
        transaction.execute(REMEMBER, [bookmark])?;
        transaction.commit()?;
        counted += 1;
    }
    println!("{counted} orders counted");
    Ok(())
}
