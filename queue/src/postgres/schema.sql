-- Tables of the queue. Run at each opening, under an advisory lock.

CREATE TABLE IF NOT EXISTS simplefeed_jobs (
    namespace text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- Due time set by schedule or by a finish.
    slot timestamptz NOT NULL,
    -- Time from which it may be leased; a failure moves it.
    due timestamptz NOT NULL,
    -- Number and end of the newest lease, if the job has been leased since its slot began. In no index, so that a lease
    -- writes none (a heap-only update).
    token bigint,
    leased_until timestamptz,
    failures integer NOT NULL,
    payload bytea NOT NULL,
    note bytea NOT NULL,
    -- Why the job is dead, if it is.
    reason text,
    PRIMARY KEY (namespace, key)
)
-- Every lease and finish leaves a dead row behind, so vacuum has to come often and not to pause.
WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Without the key: with it, a planner without statistics takes this index to find a job by its key, and reads all of it.
CREATE INDEX IF NOT EXISTS simplefeed_jobs_due
    ON simplefeed_jobs (namespace, due) WHERE reason IS NULL;
CREATE INDEX IF NOT EXISTS simplefeed_jobs_dead
    ON simplefeed_jobs (namespace, key) WHERE reason IS NOT NULL;

-- Quotas of credentials, in microseconds after 1970.
CREATE TABLE IF NOT EXISTS simplefeed_buckets (
    credential text PRIMARY KEY,
    spread bigint NOT NULL,
    paused bigint NOT NULL,
    remaining bigint NOT NULL,
    reset bigint NOT NULL
);
