//! The connection that hears of new jobs, and checks whether old transactions hold up vacuum.
//!
//! Shell: one connection to PostgreSQL, and the log.

use std::{future::poll_fn, sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, tls::NoTlsStream};
use tracing::{debug, warn};

use super::statements::OLDEST_TRANSACTION;

/// Tells all processes that a job is due soon.
pub(super) const NOTIFY: &str = "NOTIFY simplefeed_jobs";
/// Pause after a connection that failed or broke.
const PAUSE: Duration = Duration::from_secs(1);
/// Time between two checks for old transactions.
const LOOK_EVERY: Duration = Duration::from_mins(1);
/// Age of a transaction that is worth a warning: vacuum removes no row that the transaction may
/// see.
const TRANSACTION_SECONDS_MAX: f64 = 300.0;

/// Listens for notifications for ever, on a new connection after each failure.
pub(super) async fn listen(config: Config, changes: Arc<watch::Sender<()>>) {
    loop {
        match config.connect(NoTls).await {
            Ok((client, connection)) => {
                tokio::select! {
                    // The client's statements make progress only while `pass_on` polls the
                    // connection.
                    () = listen_on(&client) => {}
                    () = pass_on(connection, &changes) => {}
                }
            }
            // Workers poll, and report the error.
            Err(error) => debug!(%error, "no connection to listen for new jobs"),
        }
        // A server that refuses connections must not be asked without a pause.
        tokio::time::sleep(PAUSE).await;
    }
}

/// Passes notifications on until the connection ends.
async fn pass_on(
    mut connection: Connection<tokio_postgres::Socket, NoTlsStream>,
    changes: &watch::Sender<()>,
) {
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(_) = message {
            changes.send_replace(());
        }
    }
}

/// Begins to listen, and warns of old transactions, until the connection ends.
async fn listen_on(client: &Client) {
    if client
        .batch_execute("LISTEN simplefeed_jobs")
        .await
        .is_err()
    {
        return;
    }
    while let Ok(row) = client.query_one(OLDEST_TRANSACTION, &[]).await {
        // NULL where no other client has a transaction.
        let seconds: Option<f64> = row.get(0);
        if let Some(seconds) = seconds.filter(|seconds| *seconds > TRANSACTION_SECONDS_MAX) {
            warn!(
                seconds,
                "an old transaction of this PostgreSQL keeps dead rows of the queue, which makes it slow"
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
