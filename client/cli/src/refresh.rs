//! `refresh`: keeps copies of a provider's items fresh, at intervals that depend on the age of each
//! item.
//!
//! Shell: the network, the queue and the terminal. A starter reads the items feed; workers look
//! items up and publish the changes. Jobs are in a file of this process or in PostgreSQL, where any
//! number of processes share them.

use std::{
    io::Write as _, net::SocketAddr, num::NonZeroUsize, path::PathBuf, sync::Arc, time::Duration,
};

use anyhow::Context as _;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use simplefeed_client::consumer::Builder;
use simplefeed_client::refresher::{Credential, Intervals, Lookup, RefreshTally, Refresher};
use simplefeed_queue::{Namespace, Queue};
use tokio::{sync::watch, task::JoinSet};
use url::Url;

mod answers;
pub(crate) mod control;
mod exec;
mod http;
mod items;
mod keeper;
mod metrics;
mod quota;
mod settings;
mod starter;

use self::{
    answers::pointer,
    control::{Answerer, ControlAnswer, DeadItem, Question, Socket},
    items::ItemPart,
    keeper::Keeper,
    metrics::MetricsListener,
    starter::Starter,
};
use crate::{
    duration,
    exit::{self, Usage},
    progress, say,
    signals::Ends,
    source::SourceArgs,
    stdout::stdout,
    token::TokenArgs,
};

/// Maximum number of items in a request.
const BATCH_MAX: usize = 10_000;

/// Work on a queue, or a question about a queue.
#[derive(Debug)]
pub(crate) enum RefreshArgs {
    Work(Box<WorkArgs>),
    Action(Action),
}

// clap cannot derive a choice between plain arguments and a subcommand.
impl Args for RefreshArgs {
    fn augment_args(command: Command) -> Command {
        let command = Action::augment_subcommands(WorkArgs::augment_args(command));
        command
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .subcommand_required(false)
            .arg_required_else_help(false)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RefreshArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        if matches.subcommand_name().is_some() {
            return Action::from_arg_matches(matches).map(Self::Action);
        }
        WorkArgs::from_arg_matches(matches).map(|work| Self::Work(Box::new(work)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A question about a queue, or a change by hand.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Count the items: waiting, due, in work, dead
    Status {
        #[command(flatten)]
        queue: QueueArgs,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// List the items that failed too often, a JSON object a line
    Dead {
        #[command(flatten)]
        queue: QueueArgs,
    },
    /// Look dead items up again
    Retry {
        #[command(flatten)]
        queue: QueueArgs,
        #[command(flatten)]
        which: WhichArgs,
    },
    /// Refresh items no longer
    Drop {
        #[command(flatten)]
        queue: QueueArgs,
        #[command(flatten)]
        which: WhichArgs,
    },
}

/// Where the jobs are
#[derive(Args, Debug)]
pub(crate) struct QueueArgs {
    /// File of the queue, or the URL of a PostgreSQL, as `postgres://user@host/database`
    #[arg(long, value_name = "FILE|URL")]
    queue: String,
    /// Name of these jobs in the queue
    #[arg(long, value_name = "NAME", default_value = "refresh")]
    name: String,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct WhichArgs {
    /// Ids of the items
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// All items that failed too often, instead of items by id
    #[arg(long)]
    all_dead: bool,
}

/// What to refresh, and how
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("provider").required(true).args(["lookup", "lookup_exec"])))]
pub(crate) struct WorkArgs {
    /// URL of the feed of items
    items_feed: String,
    /// URL to ask about items, with {ids} where their ids stand, separated by commas
    #[arg(long, value_name = "URL")]
    lookup: Option<String>,
    /// Send the ids in a body, as `{"ids": ["1", "2"]}`
    #[arg(long, requires = "lookup", conflicts_with = "lookup_exec")]
    post: bool,
    /// Command that looks items up (by `sh -c`): ids on its stdin, one a line; answers on its
    /// stdout, a line of JSON each. `$SIMPLEFEED_CREDENTIAL` and `$SIMPLEFEED_HEADER` are set
    #[arg(long, value_name = "COMMAND")]
    lookup_exec: Option<String>,
    /// URL of the feed to publish changes to
    #[arg(long, value_name = "URL")]
    into: String,
    #[command(flatten)]
    queue: QueueArgs,
    /// Where an entry has the item's id: id, title, published, updated, or a JSON pointer into the
    /// content
    #[arg(
        long,
        value_name = "WHERE",
        default_value = "id",
        help_heading = "Items"
    )]
    item_id: ItemPart,
    /// Where an entry has the time of the item's birth [default: published, else updated]
    #[arg(long, value_name = "WHERE", help_heading = "Items")]
    born: Option<ItemPart>,
    /// JSON pointer to the answers in a body: an array, or an object by id [default: the body]
    #[arg(long, value_name = "POINTER", default_value = "", hide_default_value = true, value_parser = pointer, help_heading = "Answers")]
    items: String,
    /// JSON pointer to the item's id in its answer
    #[arg(long, value_name = "POINTER", default_value = "/id", value_parser = pointer, help_heading = "Answers")]
    answer_id: String,
    /// JSON pointer to a part of an answer whose change does not count; can be given more than once
    #[arg(long, value_name = "POINTER", value_parser = pointer, help_heading = "Answers")]
    ignore: Vec<String>,
    /// TOML file: how often by age, as `"18m" = "2m"` [default: 18m 2m, 1h 5m, 1d 1h, 7d 6h, 30d
    /// 1d]
    #[arg(long, value_name = "FILE", help_heading = "Pace")]
    intervals: Option<PathBuf>,
    /// Most items of a request
    #[arg(long, value_name = "N", default_value = "100", help_heading = "Pace")]
    batch: NonZeroUsize,
    /// How long an item waits for a full request
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "2s", help_heading = "Pace")]
    buffer: Duration,
    /// TOML file of `[[credential]]`, each with name, header, limit, window [default: 60 requests a
    /// minute]
    #[arg(long, value_name = "FILE", help_heading = "Pace")]
    credentials: Option<PathBuf>,
    /// Requests at a time, by this process: at most 1,000
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1_000), help_heading = "Pace")]
    workers: u16,
    /// Address at which to tell Prometheus about this process and its queue, at /metrics
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
    #[command(flatten)]
    source: SourceArgs,
    /// File that holds the token for the feed of items, if another server has it
    #[arg(long, value_name = "FILE")]
    items_token_file: Option<PathBuf>,
}

impl RefreshArgs {
    /// Returns whether the command has signal handlers of its own.
    pub(crate) fn ends_by_itself(&self) -> bool {
        matches!(self, Self::Work(_))
    }

    /// Returns whether messages are JSON, for a program.
    pub(crate) fn json(&self) -> bool {
        matches!(self, Self::Action(Action::Status { json: true, .. }))
    }
}

pub(crate) async fn refresh(args: RefreshArgs) -> anyhow::Result<u8> {
    match args {
        RefreshArgs::Action(action) => run_action(action).await,
        RefreshArgs::Work(work) => run(*work).await,
    }
}

async fn run(args: WorkArgs) -> anyhow::Result<u8> {
    if args.items_feed == args.into {
        return Err(Usage("changes cannot go into the feed of the items itself".into()).into());
    }
    // The name NAME also has the namespaces `NAME:items` and `NAME:feeds`, which no other name may
    // equal.
    if args.queue.name.contains(':') {
        return Err(Usage("--name has no colon".into()).into());
    }
    if args.batch.get() > BATCH_MAX {
        return Err(Usage(format!("--batch is at most {BATCH_MAX}")).into());
    }
    let credentials = settings::credentials(args.credentials.as_deref(), &provider_name(&args));
    let credentials = credentials.map_err(|why| Usage(format!("{why:#}")))?;
    let intervals = settings::intervals(args.intervals.as_deref());
    let intervals = intervals.map_err(|why| Usage(format!("{why:#}")))?;
    let settings = (credentials, intervals);
    let places = answers::AnswerPointers {
        items: args.items.clone(),
        id: args.answer_id.clone(),
    };
    match (&args.lookup, &args.lookup_exec) {
        (Some(url), _) => {
            let lookup = http::Http::new(url.clone(), args.post, places, &settings.0)?;
            open_queue(args, settings, lookup).await
        }
        (None, command) => {
            let command = command.clone().context("clap asks for a lookup")?;
            open_queue(args, settings, exec::Exec { command, places }).await
        }
    }
}

/// Credentials, and how often items are refreshed.
type RefreshSettings = (Vec<Credential>, Intervals);

/// Returns a name that distinguishes a provider from others.
fn provider_name(args: &WorkArgs) -> String {
    let url = args.lookup.as_deref().and_then(|url| Url::parse(url).ok());
    match url {
        Some(url) => url
            .authority()
            // The user name and the password do not distinguish providers.
            .rsplit('@')
            .next()
            .unwrap_or_default()
            .to_owned(),
        // A command may ask any provider, so the name of the jobs stands for the provider.
        None => args.queue.name.clone(),
    }
}

async fn open_queue<L: Lookup>(
    args: WorkArgs,
    settings: RefreshSettings,
    lookup: L,
) -> anyhow::Result<u8> {
    match Keeper::open_for_work(&args.queue.queue).await? {
        Keeper::File(queue, path) => {
            // Without the socket, the refresher works all the same.
            let socket = Socket::listen(&path);
            if let Err(why) = &socket {
                say::warning(&format!(
                    "other commands cannot ask about {}: {why}",
                    path.display()
                ));
            }
            work_until_signal(args, settings, lookup, queue, socket.ok()).await
        }
        Keeper::Postgres(queue) => work_until_signal(args, settings, lookup, queue, None).await,
    }
}

/// Works until a signal, or an error.
async fn work_until_signal<L: Lookup, Q: Queue>(
    args: WorkArgs,
    (credentials, intervals): RefreshSettings,
    lookup: L,
    queue: Q,
    socket: Option<Socket>,
) -> anyhow::Result<u8> {
    // Before anything begins that a signal would have to end.
    let mut ends = Ends::listen()?;
    crate::signals::end_in_any_case()?;
    let name = args.queue.name.clone();
    let feeds = format!("{}\n{}", args.items_feed, args.into);
    // Before a worker starts: jobs of other feeds must not be looked up for these feeds.
    starter::claim(&queue, &name, &feeds).await?;
    let publisher = args.source.publisher(&args.into)?;
    let refresher = Refresher::new(queue.clone(), Namespace::new(&name)?, publisher)
        .intervals(intervals)
        .batch(args.batch.get(), args.buffer)
        .ignore(args.ignore.clone())
        .on_trouble(say::warning);
    let refresher = credentials
        .into_iter()
        .fold(refresher, Refresher::credential);
    let metrics = match args.metrics_listen {
        Some(address) => {
            let (refresher, queue) = (refresher.clone(), queue.clone());
            Some(MetricsListener::listen(address, refresher, queue, Namespace::new(&name)?).await?)
        }
        None => None,
    };
    let workers = args.workers;
    // All tasks end by themselves at the signal: a worker that is dropped would leave its batch
    // leased.
    let (tell, told) = watch::channel(false);
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let places = items::ItemParts {
        id: args.item_id.clone(),
        born: args.born.clone(),
    };
    let starter = Starter::new(
        queue.clone(),
        refresher.clone(),
        &name,
        places,
        told.clone(),
    )?;
    tasks.spawn(async move { starter.run(|| items_consumer(&args)).await });
    let lookup = Arc::new(lookup);
    for _ in 0..workers {
        let (refresher, lookup, mut told) = (refresher.clone(), lookup.clone(), told.clone());
        tasks.spawn(async move {
            let stop = async { drop(told.wait_for(|is_told| *is_told).await) };
            Ok(refresher.work_until(&*lookup, stop).await?)
        });
    }
    let (code, first) = tokio::select! {
        code = ends.told() => (code, None),
        ended = tasks.join_next() => (exit::OK, ended),
        () = serve_beside(&queue, &name, socket.as_ref(), metrics.as_ref(), &refresher) => (exit::OK, None),
    };
    // The end of one task ends all: without the starter or a worker, the command would only seem to
    // work.
    tell.send_replace(true);
    let mut outcome = first.map_or(Ok(()), |ended| ended?);
    // Every task ends before the report, and the first error is the outcome.
    while let Some(ended) = tasks.join_next().await {
        outcome = outcome.and(ended?);
    }
    say::note(&done_text(refresher.refreshed()));
    outcome.map(|()| code)
}

/// Answers questions and scrapes, and shows the progress, for ever.
async fn serve_beside<Q: Queue>(
    queue: &Q,
    name: &str,
    socket: Option<&Socket>,
    metrics: Option<&MetricsListener<Q>>,
    refresher: &Refresher<Q>,
) {
    let questions = async {
        if let Some(socket) = socket {
            socket.answer_all(queue).await;
        }
    };
    let scrapes = async {
        if let Some(metrics) = metrics {
            metrics.serve().await;
        }
    };
    tokio::join!(
        questions,
        scrapes,
        show_progress(refresher),
        tell_next(queue, name)
    );
}

/// Time between two questions to the queue about the first lookup.
const NEXT_LOOK: Duration = Duration::from_secs(2);

/// Prints the time of the first lookup, unless an item is due or in work before.
async fn tell_next<Q: Queue>(queue: &Q, name: &str) {
    let Ok(name) = Namespace::new(name) else {
        return;
    };
    loop {
        tokio::time::sleep(NEXT_LOOK).await;
        // Workers report errors of the queue.
        let Ok(stats) = queue.stats(&name).await else {
            continue;
        };
        if stats.due + stats.leased > 0 {
            return;
        }
        if let Some(next) = stats.next_due {
            let waiting = say::count(stats.waiting, "item waits", "items wait");
            return say::note(&format!(
                "{waiting}; next lookup at {}",
                next.format("%H:%M UTC")
            ));
        }
    }
}

/// Returns counts of the finished work, for people.
fn done_text(refreshed: RefreshTally) -> String {
    let RefreshTally {
        requests,
        items,
        events,
        failures,
        ..
    } = refreshed;
    format!(
        "{}, {} looked up, {} published, {failures} failed alone.",
        say::count(requests, "request", "requests"),
        say::count(items, "item", "items"),
        say::count(events, "change", "changes"),
    )
}

/// Returns a consumer of the items. The command's token is for the server of `--into`. If the items
/// are on another server, they need a token of their own.
fn items_consumer(args: &WorkArgs) -> anyhow::Result<Builder> {
    let origin = |url: &str| Url::parse(url).map(|url| url.origin());
    let is_same = origin(&args.items_feed)? == origin(&args.into)?;
    let token = match &args.items_token_file {
        Some(file) => TokenArgs::of(file).token()?,
        None if is_same => args.source.token()?,
        None => None,
    };
    Ok(args.source.consumer_with(&args.items_feed, token))
}

/// Shows the progress to a person, for ever.
async fn show_progress<Q: Queue>(refresher: &Refresher<Q>) {
    let bar = progress::counter("items looked up");
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        bar.set_position(refresher.refreshed().items);
    }
}

async fn run_action(action: Action) -> anyhow::Result<u8> {
    match action {
        Action::Status { queue, json } => {
            let asking = Answerer::open(&queue.queue).await?;
            if let ControlAnswer::Status(counts) = asking.ask(&queue.name, Question::Status).await?
            {
                let text = if json {
                    serde_json::to_string(&counts)?
                } else {
                    format!(
                        "{} waiting, {} due, {} in work, {} dead; the oldest is due for {}",
                        counts.waiting,
                        counts.due,
                        counts.leased,
                        counts.dead,
                        duration::shown(counts.oldest_due_seconds)
                    )
                };
                print_line(&text)?;
            }
        }
        Action::Dead { queue } => {
            let asking = Answerer::open(&queue.queue).await?;
            for item in all_dead(&asking, &queue.name).await? {
                print_line(&serde_json::to_string(&item)?)?;
            }
        }
        Action::Retry { queue, which } => {
            let retry = |ids| Question::Retry { ids };
            let count = change_items(&queue, which, retry).await?;
            say::note(&format!(
                "{} will be looked up again.",
                say::count(count, "item", "items")
            ));
        }
        Action::Drop { queue, which } => {
            let count = change_items(&queue, which, |ids| Question::Drop { ids }).await?;
            say::note(&format!("{} dropped.", say::count(count, "item", "items")));
        }
    }
    Ok(exit::OK)
}

/// Lists all dead items.
async fn all_dead(asking: &Answerer, name: &str) -> anyhow::Result<Vec<DeadItem>> {
    let mut all: Vec<DeadItem> = Vec::new();
    loop {
        // An answer has a bounded number of items, so a long list takes several questions.
        let after = all.last().map(|item| item.id.clone());
        let ControlAnswer::Dead(some) = asking.ask(name, Question::Dead { after }).await? else {
            return Ok(all);
        };
        if some.is_empty() {
            return Ok(all);
        }
        all.extend(some);
    }
}

/// Asks for a change of items. Returns the number of changed items.
async fn change_items(
    queue: &QueueArgs,
    which: WhichArgs,
    question: impl Fn(Vec<String>) -> Question,
) -> anyhow::Result<u64> {
    let asking = Answerer::open(&queue.queue).await?;
    let mut ids = which.ids;
    // A change is by id, so an item that dies after the list was read stays dead.
    if which.all_dead {
        let dead = all_dead(&asking, &queue.name).await?;
        ids = dead.into_iter().map(|item| item.id).collect();
    }
    let mut changed = 0;
    // A call of the queue has a bound of its own.
    for ids in ids.chunks(control::DEAD_MAX) {
        if let ControlAnswer::Changed(count) =
            asking.ask(&queue.name, question(ids.to_vec())).await?
        {
            changed += u64::try_from(count)?;
        }
    }
    Ok(changed)
}

fn print_line(line: &str) -> anyhow::Result<()> {
    writeln!(stdout(), "{line}")?;
    Ok(())
}
