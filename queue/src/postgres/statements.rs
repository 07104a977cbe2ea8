//! The statements of PostgreSQL. In the statements that need the time, `$1` is the time that a test
//! has set, or NULL.
//!
//! Pure.

/// Time of a statement, which is one instant for all of its rows.
macro_rules! now {
    () => {
        "coalesce($1::timestamptz, statement_timestamp())"
    };
}

/// Due times of rows that have `at` or `after` (in microseconds).
macro_rules! due {
    () => {
        concat!(
            "least(coalesce(at, ",
            now!(),
            " + after * interval '1 microsecond'), '9999-12-31 23:59:59Z')"
        )
    };
}

/// Whether a job that is not dead has no lease, or an expired lease.
macro_rules! is_free {
    () => {
        concat!("(leased_until IS NULL OR leased_until <= ", now!(), ")")
    };
}

/// Whether the lease of `job` is the one that `given` names, and has not expired. A dead job has no
/// token.
macro_rules! is_held {
    () => {
        concat!(
            "job.namespace = given.namespace AND job.key = given.key AND job.token = given.token",
            " AND job.leased_until > ",
            now!()
        )
    };
}

/// Inserts rows of jobs to be scheduled, in the order of keys, so that two calls do not wait for
/// each other.
macro_rules! insert {
    () => {
        concat!(
            "INSERT INTO simplefeed_jobs AS job
                (namespace, key, slot, due, failures, payload, note)
            SELECT namespace, key, due, due, 0, payload, ''
            FROM (
                SELECT namespace, key, payload, ",
            due!(),
            " AS due
                FROM unnest($2::text[], $3::text[], $4::bytea[], $5::timestamptz[], $6::bigint[])
                    AS given (namespace, key, payload, at, after)
            ) AS given
            ORDER BY namespace, key "
        )
    };
}

pub(super) const SCHEDULE_AND_KEEP: &str = concat!(
    insert!(),
    "ON CONFLICT (namespace, key) DO NOTHING RETURNING namespace, key, true"
);

/// A row that is new has no `xmax`.
pub(super) const SCHEDULE_AND_MOVE: &str = concat!(
    insert!(),
    "ON CONFLICT (namespace, key) DO UPDATE SET
        slot = excluded.slot, due = excluded.due, token = NULL, leased_until = NULL,
        failures = 0, payload = excluded.payload, note = ''
    WHERE job.reason IS NULL AND (job.leased_until IS NULL OR job.leased_until <= ",
    now!(),
    ")
    RETURNING namespace, key, xmax = 0"
);

pub(super) const STATES: &str = concat!(
    "SELECT job.namespace, job.key, job.reason IS NOT NULL,
        coalesce(job.leased_until > ",
    now!(),
    ", false) FROM simplefeed_jobs AS job JOIN unnest($2::text[], $3::text[]) AS given (namespace, key)
        USING (namespace, key)"
);

/// Leases a batch of due jobs whose due times are `$6` or later, if there is one. The statement
/// skips rows that another worker is about to lease. If rows are skipped, the remaining rows must
/// fill a batch. Otherwise, all workers that search at the same time would split one batch among
/// them.
///
/// The commit is not synced, because a crash is allowed to forget leases. So tokens are random: a
/// sequence would repeat the tokens that the crash forgot.
pub(super) const LEASE: &str = concat!(
    "WITH first AS MATERIALIZED (
        SELECT key, due FROM simplefeed_jobs
        WHERE namespace = $2 AND reason IS NULL AND due >= $6 AND due <= ",
    now!(),
    " AND ",
    is_free!(),
    " AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
        ORDER BY due LIMIT $3 FOR UPDATE SKIP LOCKED
    ), batch AS MATERIALIZED (
        SELECT key FROM first
        WHERE (SELECT count(*) = $3 OR min(due) + $4::bigint * interval '1 microsecond' <= ",
    now!(),
    " AND count(*) = (SELECT count(*) FROM (
            SELECT FROM simplefeed_jobs
            WHERE namespace = $2 AND reason IS NULL AND due <= ",
    now!(),
    " AND ",
    is_free!(),
    " LIMIT $3
        ) AS seen) FROM first)
    )
    UPDATE simplefeed_jobs AS job
    SET token = (random() * 9007199254740992)::bigint, leased_until = ",
    now!(),
    " + $5::bigint * interval '1 microsecond'
    FROM batch WHERE job.namespace = $2 AND job.key = batch.key
    RETURNING job.key, job.payload, job.note, job.slot, job.failures, job.token, ",
    now!(),
    ", job.leased_until, job.due"
);

/// Returns the time, the number of free jobs that are due (at most `$3`), the due time of the first
/// free job, the first end of a lease, and the due time of the last job of a full batch. (Only the
/// leases among the first 1,000 jobs count for the end: workers search again soon.)
pub(super) const LOOK: &str = concat!(
    "SELECT ",
    now!(),
    ", count(*) FILTER (WHERE due <= ",
    now!(),
    "), min(due), (
        SELECT min(leased_until) FILTER (WHERE leased_until > ",
    now!(),
    ") FROM (
            SELECT leased_until FROM simplefeed_jobs
            WHERE namespace = $2 AND reason IS NULL ORDER BY due LIMIT 1000
        ) AS leased
    ), CASE WHEN count(*) = $3 THEN max(due) END
    FROM (
        SELECT due FROM simplefeed_jobs
        WHERE namespace = $2 AND reason IS NULL AND ",
    is_free!(),
    " ORDER BY due LIMIT $3
    ) AS first"
);

pub(super) const EXTEND: &str = concat!(
    "UPDATE simplefeed_jobs AS job SET
        leased_until = ",
    now!(),
    " + given.lease * interval '1 microsecond', note = coalesce(given.note, job.note)
    FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[])
        AS given (namespace, key, token, lease, note)
    WHERE ",
    is_held!(),
    " RETURNING job.namespace, job.key, job.token, false"
);

pub(super) const FINISH: &str = concat!(
    "DELETE FROM simplefeed_jobs AS job
    USING unnest($2::text[], $3::text[], $4::bigint[]) AS given (namespace, key, token)
    WHERE ",
    is_held!(),
    " RETURNING job.namespace, job.key, job.token, false"
);

pub(super) const FINISH_AND_AGAIN: &str = concat!(
    "UPDATE simplefeed_jobs AS job SET
        slot = given.due, due = given.due, token = NULL, leased_until = NULL, failures = 0,
        payload = coalesce(given.payload, job.payload), note = ''
    FROM (
        SELECT namespace, key, token, payload, ",
    due!(),
    " AS due
        FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bytea[], $6::timestamptz[], $7::bigint[])
            AS given (namespace, key, token, payload, at, after)
    ) AS given
    WHERE ",
    is_held!(),
    " RETURNING job.namespace, job.key, given.token, false"
);

pub(super) const FAIL: &str = concat!(
    "UPDATE simplefeed_jobs AS job SET
        due = given.due, token = NULL, leased_until = NULL, failures = job.failures + 1,
        reason = CASE WHEN job.failures + 1 >= given.attempts THEN given.reason END
    FROM (
        SELECT namespace, key, token, attempts, reason, ",
    due!(),
    " AS due
        FROM unnest(
            $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::timestamptz[], $8::bigint[]
        ) AS given (namespace, key, token, attempts, reason, at, after)
    ) AS given
    WHERE ",
    is_held!(),
    " RETURNING job.namespace, job.key, given.token, job.reason IS NOT NULL"
);

pub(super) const DEAD: &str =
    "SELECT key, payload, note, slot, failures, reason FROM simplefeed_jobs
    WHERE namespace = $1 AND reason IS NOT NULL AND key > $2 ORDER BY key LIMIT $3";

pub(super) const RETRY: &str = concat!(
    "UPDATE simplefeed_jobs SET due = ",
    now!(),
    ", failures = 0, reason = NULL
    WHERE namespace = $2 AND key = ANY($3::text[]) AND reason IS NOT NULL"
);

/// Reads all jobs of the namespace: no index has the ends of leases, because each lease would have
/// to write the index.
pub(super) const SHORTEN: &str = concat!(
    "UPDATE simplefeed_jobs AS job SET token = NULL, leased_until = NULL
    FROM (
        SELECT key FROM simplefeed_jobs
        WHERE namespace = $2 AND reason IS NULL
            AND leased_until > ",
    now!(),
    " + $3::bigint * interval '1 microsecond'
        LIMIT $4 FOR UPDATE SKIP LOCKED
    ) AS long
    WHERE job.namespace = $2 AND job.key = long.key"
);

/// The jobs that are due last come first, so that the search ends early in the index of due times.
pub(super) const BRING_FORWARD: &str = concat!(
    "UPDATE simplefeed_jobs AS job SET due = ",
    now!(),
    " FROM (
        SELECT key FROM simplefeed_jobs
        WHERE namespace = $2 AND reason IS NULL AND ",
    is_free!(),
    " AND due > ",
    now!(),
    " + $3::bigint * interval '1 microsecond'
        ORDER BY due DESC LIMIT $4 FOR UPDATE SKIP LOCKED
    ) AS far
    WHERE job.namespace = $2 AND job.key = far.key"
);

pub(super) const REMOVE: &str =
    "DELETE FROM simplefeed_jobs WHERE namespace = $1 AND key = ANY($2::text[])";

pub(super) const STATS: &str = concat!(
    "SELECT
        count(*) FILTER (WHERE reason IS NULL AND is_free AND due > ",
    now!(),
    "), count(*) FILTER (WHERE reason IS NULL AND is_free AND due <= ",
    now!(),
    "), count(*) FILTER (WHERE reason IS NULL AND NOT is_free),
        count(*) FILTER (WHERE reason IS NOT NULL),
        min(due) FILTER (WHERE reason IS NULL AND is_free AND due <= ",
    now!(),
    "), min(due) FILTER (WHERE reason IS NULL AND is_free AND due > ",
    now!(),
    ") FROM (SELECT due, reason, ",
    is_free!(),
    " AS is_free FROM simplefeed_jobs WHERE namespace = $2) AS job"
);

pub(super) const NOW: &str = concat!("SELECT ", now!());

/// Makes the row of a credential, if there is no row.
pub(super) const BUCKET: &str =
    "INSERT INTO simplefeed_buckets VALUES ($1, 0, 0, 0, 0) ON CONFLICT DO NOTHING";

pub(super) const LOCK_BUCKET: &str = concat!(
    "SELECT spread, paused, remaining, reset, ",
    now!(),
    " FROM simplefeed_buckets WHERE credential = $2 FOR UPDATE"
);

pub(super) const STORE_BUCKET: &str =
    "UPDATE simplefeed_buckets SET spread = $2, paused = $3, remaining = $4, reset = $5
    WHERE credential = $1";

/// Age of the oldest transaction, which keeps vacuum from removing dead rows.
pub(super) const OLDEST_TRANSACTION: &str =
    "SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::float8 FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
