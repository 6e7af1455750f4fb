//! wal3 as a program: commands come in as lines of JSON, and each is answered by one.
//!
//!     wal3-driver DIRECTORY
//!
//! A command is `{"id": 1, "do": "append", …}`, its answer `{"id": 1, "ok": …}` or `{"id": 1, "error": name,
//! "text": …}`, where the name is that of wal3's error. Commands run at the same time; who wants an order
//! waits for the answers. The directory is the log's own, as in walstore's `file://` addresses. The program
//! ends with its input, and closes nothing then.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use chroma_storage::{Moment, Storage};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use wal3::{
    create_s3_factories, Cursor, CursorName, CursorStore, CursorStoreOptions, Error,
    FragmentManagerFactory, FragmentSeqNo, GarbageCollectionOptions, Limits, LogPosition,
    LogReader, LogReaderOptions, LogWriter, LogWriterOptions, ManifestManager,
    S3FragmentManagerFactory, S3ManifestManagerFactory,
};

type Pointer = (FragmentSeqNo, LogPosition);
type Writer = LogWriter<Pointer, S3FragmentManagerFactory, S3ManifestManagerFactory>;

const WRITER: &str = "wal3";
/// The log's directory is its store, so nothing comes before its keys.
const PREFIX: &str = "";

/// What a command failed with: a name to tell by, and words.
struct Failure(String, String);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let debug = format!("{error:?}");
        let name = debug
            .split(|each: char| !each.is_alphanumeric())
            .next()
            .unwrap_or_default();
        Self(name.to_string(), error.to_string())
    }
}

impl From<Vec<Error>> for Failure {
    fn from(errors: Vec<Error>) -> Self {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let first = errors.into_iter().next().unwrap_or_default();
        Self(Self::from(first).0, texts.join("; "))
    }
}

fn misused(text: impl ToString) -> Failure {
    Failure("Misused".to_string(), text.to_string())
}

type Answer = Result<Value, Failure>;

struct Driver {
    storage: Arc<Storage>,
    writer: Mutex<Option<Arc<Writer>>>,
    reached: mpsc::UnboundedSender<(String, oneshot::Sender<()>)>,
    stopped: tokio::sync::Mutex<mpsc::UnboundedReceiver<(String, oneshot::Sender<()>)>>,
    waiting: Mutex<Vec<oneshot::Sender<()>>>,
}

impl Driver {
    fn new(root: PathBuf) -> Self {
        let (reached, stopped) = mpsc::unbounded_channel();
        Self {
            storage: Arc::new(Storage::new(root)),
            writer: Mutex::new(None),
            reached,
            stopped: tokio::sync::Mutex::new(stopped),
            waiting: Mutex::new(Vec::new()),
        }
    }

    async fn answer(&self, command: &Value) -> Answer {
        match command["do"].as_str().unwrap_or_default() {
            "open" => self.open(command).await,
            "append" => self.append(command).await,
            "close" => self.close().await,
            "read" => self.read(command).await,
            "scrub" => self.scrub().await,
            "state" => self.state().await,
            "cursor" => self.cursor(command).await,
            "collect" => self.collect(command).await,
            "copy" => self.copy(command).await,
            "destroy" => self.destroy().await,
            "stop" => self.stop(command),
            "stopped" => self.stopped().await,
            "go" => self.go(),
            other => Err(misused(format!("there is no command {other:?}"))),
        }
    }

    /// Open for writing; `create`: also where there is no log. `options` are wal3's own.
    async fn open(&self, command: &Value) -> Answer {
        let options = options_of(command)?;
        let (fragments, manifests) = self.factories(&options, &self.storage);
        let writer = if command["create"].as_bool().unwrap_or(true) {
            Writer::open_or_initialize(options, WRITER, fragments, manifests, None).await?
        } else {
            Writer::open(options, WRITER, fragments, manifests, None).await?
        };
        *self.writer.lock().expect("no panic") = Some(Arc::new(writer));
        Ok(Value::Null)
    }

    /// Append one fragment's worth of records, which nothing divides; return the first offset.
    async fn append(&self, command: &Value) -> Answer {
        let values = command["values"]
            .as_array()
            .ok_or_else(|| misused("no values"))?;
        let values = values.iter().map(unhex).collect::<Result<Vec<_>, _>>()?;
        Ok(json!(self.writer()?.append_many(values).await?.offset()))
    }

    /// Let go of the writer. wal3's own `close` waits until its other tasks do, and that may be never.
    async fn close(&self) -> Answer {
        drop(self.writer.lock().expect("no panic").take());
        Ok(Value::Null)
    }

    /// Read all from an offset on; each fragment's sum is compared with the manifest's.
    async fn read(&self, command: &Value) -> Answer {
        let from = command["from"].as_u64().unwrap_or(0);
        let reader = self.reader().await?;
        let mut records = Vec::new();
        for fragment in reader
            .scan(LogPosition::from_offset(from), Limits::UNLIMITED)
            .await?
        {
            let (setsum, found, _, time_us) = reader.read_parquet(&fragment).await?;
            if setsum != fragment.setsum {
                return Err(Failure("SetsumMismatch".to_string(), fragment.path));
            }
            let wanted = found
                .into_iter()
                .filter(|(position, _)| position.offset() >= from);
            records.extend(wanted.map(|(at, data)| json!([at.offset(), time_us, hex(&data)])));
        }
        Ok(Value::Array(records))
    }

    async fn scrub(&self) -> Answer {
        let found = self.reader().await?.scrub(Limits::default()).await?;
        Ok(json!({"setsum": found.calculated_setsum.hexdigest(), "bytes": found.bytes_read}))
    }

    /// Where the log begins and ends.
    async fn state(&self) -> Answer {
        let manifest = self
            .reader()
            .await?
            .manifest()
            .await?
            .ok_or(Error::UninitializedLog)?;
        Ok(json!({
            "head": manifest.oldest_timestamp().offset(),
            "next": manifest.next_write_timestamp().offset(),
            "writer": manifest.writer,
            "fragments": manifest.fragments.len(),
            "snapshots": manifest.snapshots.len(),
        }))
    }

    /// Make a cursor, or move it.
    async fn cursor(&self, command: &Value) -> Answer {
        let name = command["name"]
            .as_str()
            .and_then(CursorName::new)
            .ok_or_else(|| misused("no name"))?;
        let position = command["position"]
            .as_u64()
            .ok_or_else(|| misused("no position"))?;
        let options = CursorStoreOptions::default();
        let cursors = CursorStore::new(
            options,
            Arc::clone(&self.storage),
            PREFIX.to_string(),
            WRITER.to_string(),
        );
        let position = LogPosition::from_offset(position);
        let cursor = Cursor {
            position,
            epoch_us: wal3::now_micros(),
            writer: WRITER.to_string(),
        };
        match cursors.load(&name).await? {
            Some(witness) => cursors.save(&name, &cursor, &witness).await?,
            None => cursors.init(&name, cursor).await?,
        };
        Ok(Value::Null)
    }

    /// Collect garbage through the open writer: all of it, or the `phase` 1, 2 or 3.
    async fn collect(&self, command: &Value) -> Answer {
        let (writer, options) = (self.writer()?, GarbageCollectionOptions::default());
        match command["phase"].as_u64() {
            None => writer.garbage_collect(&options, None).await?,
            Some(1) => {
                writer
                    .garbage_collect_phase1_compute_garbage(&options, None)
                    .await?;
            }
            Some(2) => {
                writer
                    .garbage_collect_phase2_update_manifest(&options)
                    .await?
            }
            Some(_) => {
                let state = Default::default();
                writer
                    .garbage_collect_phase3_delete_garbage(&options, &state)
                    .await?;
            }
        }
        Ok(Value::Null)
    }

    /// Copy the log into another directory.
    async fn copy(&self, command: &Value) -> Answer {
        let to = command["to"]
            .as_str()
            .ok_or_else(|| misused("no directory"))?;
        let target = Arc::new(Storage::new(PathBuf::from(to)));
        let (fragments, manifests) = self.factories(&LogWriterOptions::default(), &target);
        let from = LogPosition::from_offset(command["from"].as_u64().unwrap_or(0));
        let publisher = fragments.make_publisher().await?;
        wal3::copy(&self.reader().await?, from, &publisher, manifests, None).await?;
        Ok(Value::Null)
    }

    async fn destroy(&self) -> Answer {
        let options = LogWriterOptions::default();
        let manager = ManifestManager::new(
            options.throttle_manifest,
            options.snapshot_manifest,
            Arc::clone(&self.storage),
            PREFIX.to_string(),
            WRITER.to_string(),
            Arc::new(()),
            Arc::new(()),
        )
        .await?;
        wal3::destroy(Arc::clone(&self.storage), PREFIX, &manager).await?;
        Ok(Value::Null)
    }

    /// Make the next `call` with `key` in its key wait `when` "before" or "after".
    fn stop(&self, command: &Value) -> Answer {
        let when = match command["when"].as_str() {
            Some("after") => Moment::After,
            _ => Moment::Before,
        };
        let call = command["call"].as_str().unwrap_or("put").to_string();
        let part = command["key"].as_str().unwrap_or_default().to_string();
        self.storage
            .gate()
            .stop(when, call, part, self.reached.clone());
        Ok(Value::Null)
    }

    /// Return the key of a call that waits, once there is one.
    async fn stopped(&self) -> Answer {
        let found = self.stopped.lock().await.recv().await;
        let (key, go) = found.ok_or_else(|| misused("nothing can stop"))?;
        self.waiting.lock().expect("no panic").push(go);
        Ok(json!(key))
    }

    /// Let go on whatever waits.
    fn go(&self) -> Answer {
        for waiting in self.waiting.lock().expect("no panic").drain(..) {
            let _ = waiting.send(());
        }
        Ok(Value::Null)
    }

    fn writer(&self) -> Result<Arc<Writer>, Failure> {
        self.writer
            .lock()
            .expect("no panic")
            .clone()
            .ok_or_else(|| misused("not open"))
    }

    async fn reader(&self) -> Result<LogReader, Failure> {
        let options = LogReaderOptions::default();
        Ok(LogReader::open_classic(options, Arc::clone(&self.storage), PREFIX.to_string()).await?)
    }

    fn factories(
        &self,
        options: &LogWriterOptions,
        storage: &Arc<Storage>,
    ) -> (S3FragmentManagerFactory, S3ManifestManagerFactory) {
        create_s3_factories(
            options.clone(),
            LogReaderOptions::default(),
            Arc::clone(storage),
            PREFIX.to_string(),
            WRITER.to_string(),
            Arc::new(()),
            Arc::new(()),
        )
    }
}

fn options_of(command: &Value) -> Result<LogWriterOptions, Failure> {
    match &command["options"] {
        Value::Null => Ok(LogWriterOptions::default()),
        options => serde_json::from_value(options.clone()).map_err(misused),
    }
}

fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(value: &Value) -> Result<Vec<u8>, Failure> {
    let text = value
        .as_str()
        .ok_or_else(|| misused("a value is no text"))?;
    (0..text.len())
        .step_by(2)
        .map(|at| {
            text.get(at..at + 2)
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
        })
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| misused("a value is not hexadecimal"))
}

#[tokio::main]
async fn main() {
    let Some(root) = std::env::args_os().nth(1) else {
        eprintln!("usage: wal3-driver DIRECTORY");
        std::process::exit(2);
    };
    let driver = Arc::new(Driver::new(PathBuf::from(root)));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let driver = Arc::clone(&driver);
        tokio::spawn(async move {
            let command: Value = serde_json::from_str(&line).unwrap_or_default();
            let id = &command["id"];
            let answer = match driver.answer(&command).await {
                Ok(value) => json!({"id": id, "ok": value}),
                Err(Failure(name, text)) => json!({"id": id, "error": name, "text": text}),
            };
            // One write to a line, which standard output's own lock keeps whole.
            println!("{answer}");
        });
    }
    std::process::exit(0);
}
