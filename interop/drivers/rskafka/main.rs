// Driver of rskafka: topics, records of one partition, offsets. It has no groups, settings or partitioner.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::{engine::general_purpose::STANDARD, Engine};
use chrono::{DateTime, Utc};
use rskafka::client::error::{Error, ProtocolError};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use rskafka::{BackoffConfig, BackoffError};
use serde_json::{json, Value};

enum Failure {
    Unsupported(&'static str),
    Refused(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Refused(error)
    }
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    value.as_str().map(|text| STANDARD.decode(text).expect("base64"))
}

fn packed(data: &Option<Vec<u8>>) -> Value {
    data.as_ref().map_or(Value::Null, |data| json!(STANDARD.encode(data)))
}

fn code_of(error: &Error) -> i64 {
    let protocol_error = match error {
        Error::ServerError { protocol_error, .. } => protocol_error,
        Error::RetryFailed(BackoffError::DeadlineExceded { source, .. }) => {
            return source.downcast_ref::<Error>().map_or(-1, code_of);
        }
        _ => return -1,
    };
    match protocol_error {
        ProtocolError::OffsetOutOfRange => 1,
        ProtocolError::UnknownTopicOrPartition => 3,
        ProtocolError::MessageTooLarge => 10,
        ProtocolError::InvalidTopicException => 17,
        ProtocolError::TopicAlreadyExists => 36,
        ProtocolError::InvalidPartitions => 37,
        ProtocolError::InvalidReplicationFactor => 38,
        ProtocolError::InvalidConfig => 40,
        _ => -1,
    }
}

// A broker that has not heard of a new topic yet is asked again, as rskafka advises: for six seconds.
async fn partition(client: &Client, given: &Value) -> Result<PartitionClient, Failure> {
    let topic = given["topic"].as_str().unwrap_or_default();
    let number = given["partition"].as_i64().unwrap_or(0) as i32;
    Ok(client.partition_client(topic, number, UnknownTopicHandling::Retry).await?)
}

async fn produce(client: &Client, given: &Value) -> Result<Value, Failure> {
    if given["acks"] != "all" {
        return Err(Failure::Unsupported("always asks for acks=all"));
    }
    if given["idempotent"] == true {
        return Err(Failure::Unsupported("has no idempotent producer"));
    }
    let codec = match given["codec"].as_str() {
        Some("gzip") => Compression::Gzip,
        Some("snappy") => Compression::Snappy,
        Some("lz4") => Compression::Lz4,
        Some("zstd") => Compression::Zstd,
        _ => Compression::NoCompression,
    };
    let mut records = Vec::new();
    let listed = given["records"].as_array().expect("records");
    for each in listed {
        if each.get("partition").is_none() {
            return Err(Failure::Unsupported("has no partitioner"));
        }
        let mut headers = BTreeMap::new();
        for pair in each["headers"].as_array().into_iter().flatten() {
            let name = pair[0].as_str().unwrap_or_default().to_string();
            if headers.insert(name, bytes(&pair[1]).unwrap_or_default()).is_some() {
                return Err(Failure::Unsupported("keeps one header of a name"));
            }
        }
        let timestamp = match each["timestamp"].as_i64() {
            Some(ms) => DateTime::from_timestamp_millis(ms).expect("a time"),
            None => now(),
        };
        records.push(Record { key: bytes(&each["key"]), value: bytes(&each["value"]), headers, timestamp });
    }
    let number = listed[0]["partition"].as_i64().unwrap_or(0);
    let to = json!({"topic": given["topic"], "partition": number});
    let offsets = partition(client, &to).await?.produce(records, codec).await?;
    let sent: Vec<Value> = offsets.iter().map(|offset| json!({"partition": number, "offset": offset})).collect();
    Ok(json!({"sent": sent}))
}

fn now() -> DateTime<Utc> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    DateTime::from_timestamp_millis(since.as_millis() as i64).expect("a time")
}

async fn fetch(client: &Client, given: &Value) -> Result<Value, Failure> {
    let reader = partition(client, given).await?;
    let wanted = given["count"].as_u64().unwrap_or(1) as usize;
    let deadline = Instant::now() + Duration::from_millis(given["timeout_ms"].as_u64().unwrap_or(0));
    let mut offset = given["offset"].as_i64().unwrap_or(0);
    let mut records = Vec::new();
    while records.len() < wanted && Instant::now() < deadline {
        let (found, _) = reader.fetch_records(offset, 1..2_000_000, 200).await?;
        for each in found {
            offset = each.offset + 1;
            let headers: Vec<Value> =
                each.record.headers.iter().map(|(name, data)| json!([name, STANDARD.encode(data)])).collect();
            records.push(json!({
                "partition": given["partition"],
                "offset": each.offset,
                "timestamp": each.record.timestamp.timestamp_millis(),
                "key": packed(&each.record.key),
                "value": packed(&each.record.value),
                "headers": headers,
            }));
        }
    }
    Ok(json!({"records": records}))
}

async fn run(client: &Client, given: &Value) -> Result<Value, Failure> {
    let topic = given["topic"].as_str().unwrap_or_default();
    match given["op"].as_str().unwrap_or_default() {
        "hello" => Ok(json!({"version": "rskafka"})),
        "create_topic" => {
            if given["configs"].as_object().is_some_and(|configs| !configs.is_empty()) {
                return Err(Failure::Unsupported("creates topics without settings"));
            }
            let partitions = given["partitions"].as_i64().unwrap_or(1) as i32;
            let replication = given["replication"].as_i64().unwrap_or(1) as i16;
            client.controller_client()?.create_topic(topic, partitions, replication, 10_000).await?;
            Ok(json!({}))
        }
        "delete_topic" => {
            client.controller_client()?.delete_topic(topic, 10_000).await?;
            Ok(json!({}))
        }
        "delete_records" => {
            let before = given["before"].as_i64().unwrap_or(0);
            partition(client, given).await?.delete_records(before, 10_000).await?;
            Ok(json!({}))
        }
        "offset_at" => {
            let at = match (&given["at"].as_i64(), given["at"].as_str()) {
                (Some(ms), _) => OffsetAt::Timestamp(DateTime::from_timestamp_millis(*ms).expect("a time")),
                (_, Some("latest")) => OffsetAt::Latest,
                _ => OffsetAt::Earliest,
            };
            Ok(json!({"offset": partition(client, given).await?.get_offset(at).await?}))
        }
        "describe_topic" => Err(Failure::Unsupported("tells partitions' numbers, not their leaders")),
        "produce" => produce(client, given).await,
        "fetch" => fetch(client, given).await,
        _ => Err(Failure::Unsupported("no such call in this client")),
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let brokers = std::env::args().nth(1).expect("addresses").split(',').map(str::to_string).collect();
    let patience = BackoffConfig {
        max_backoff: Duration::from_millis(500),
        deadline: Some(Duration::from_secs(6)),
        ..BackoffConfig::default()
    };
    let connecting = ClientBuilder::new(brokers).backoff_config(patience).build();
    let client = Arc::new(runtime.block_on(connecting).expect("a connection"));
    for line in std::io::stdin().lock().lines() {
        let given: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        let limit = Duration::from_secs(15);
        let answer = match runtime.block_on(async { tokio::time::timeout(limit, run(&client, &given)).await }) {
            Ok(Ok(told)) => json!({"ok": told}),
            Ok(Err(Failure::Unsupported(reason))) => json!({"unsupported": reason}),
            Ok(Err(Failure::Refused(error))) => json!({"error": code_of(&error), "text": error.to_string()}),
            Err(_) => json!({"error": -1, "text": "the client did not answer within 15 s"}),
        };
        println!("{answer}");
        std::io::stdout().flush().expect("a reader");
    }
}
