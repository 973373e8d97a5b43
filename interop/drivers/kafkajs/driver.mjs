// Driver of kafkajs. Codecs other than gzip are plug-ins; snappy is one in pure JavaScript, the others are not given.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import readline from "node:readline";

const require = createRequire(import.meta.url);
const kafkajs = require("kafkajs");
const snappy = require("snappyjs");
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = kafkajs;

// Kafka's framing of snappy by Java clients is only read, never needed here: each record batch is one raw block.
CompressionCodecs[CompressionTypes.Snappy] = () => ({
  compress: async (encoder) => Buffer.from(snappy.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(snappy.uncompress(buffer)),
});

class Unsupported extends Error {}

// What this client shows to come in (interop/logins.py); nothing where the cluster asks nobody.
function loginSettings() {
  const login = JSON.parse(process.env.INTEROP_LOGIN ?? "null");
  if (login === null) return {};
  const shown = login.keystore === "" ? null : readFileSync(login.keystore);
  const settings = { ssl: { ca: readFileSync(login.ca), ...(shown && { key: shown, cert: shown }) } };
  const mechanism = login.mechanism.toLowerCase();
  if (mechanism === "oauthbearer") {
    settings.sasl = { mechanism, oauthBearerProvider: async () => ({ value: login.token }) };
  } else if (mechanism !== "") {
    settings.sasl = { mechanism, username: login.user, password: login.secret };
  }
  return settings;
}

const kafka = new Kafka({
  clientId: "interop",
  brokers: process.argv[2].split(","),
  logLevel: logLevel.NOTHING,
  retry: { retries: 3, initialRetryTime: 100 },
  ...loginSettings(),
});
const admin = kafka.admin();
const connected = admin.connect();
connected.catch(() => {}); // told to whoever waits for it
const codecs = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy };

const bytes = (text) => (text === null || text === undefined ? null : Buffer.from(text, "base64"));
const packed = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString("base64"));
const told = (partition, message) => ({
  partition,
  offset: Number(message.offset),
  timestamp: Number(message.timestamp),
  key: packed(message.key),
  value: packed(message.value),
  headers: Object.entries(message.headers ?? {}).flatMap(([name, values]) =>
    [values].flat().map((value) => [name, packed(value)]),
  ),
});

let member = null;
let kept = null;
const transactional = new Map();

// One consumer that keeps what it is handed until it is polled. kafkajs joins a group with every consumer.
class Member {
  constructor(settings) {
    this.records = [];
    this.assigned = [];
    this.crash = null;
    this.consumer = kafka.consumer({
      heartbeatInterval: 500,
      maxWaitTimeInMs: 100,
      retry: { retries: 3, initialRetryTime: 100 },
      ...settings,
    });
    this.consumer.on(this.consumer.events.GROUP_JOIN, ({ payload }) => {
      this.assigned = Object.entries(payload.memberAssignment).flatMap(([topic, numbers]) =>
        numbers.map((number) => [topic, number]),
      );
      this.settled();
    });
    this.consumer.on(this.consumer.events.REBALANCING, () => { this.assigned = []; });
    this.consumer.on(this.consumer.events.CRASH, ({ payload }) => {
      if (payload.restart) return; // a coordinator that is not there yet: kafkajs starts the consumer again by itself
      this.crash = payload.error;
      this.settled();
    });
    this.begun = new Promise((done) => { this.settled = done; });
  }

  async start(topics) {
    await this.consumer.connect();
    await this.consumer.subscribe({ topics, fromBeginning: true });
    await this.consumer.run({
      autoCommit: false,
      eachMessage: async ({ topic, partition, message }) => {
        this.records.push({ topic, ...told(partition, message) });
      },
    });
    await this.begun;
  }

  async take({ count, timeout_ms }, wanted = () => true) {
    const deadline = Date.now() + timeout_ms;
    const taken = [];
    while (taken.length < count && Date.now() < deadline) {
      if (this.crash) throw this.crash;
      const next = this.records.shift();
      if (next === undefined) await new Promise((done) => setTimeout(done, 10));
      else if (wanted(next)) taken.push(next);
    }
    for (const each of taken) this.last = { ...this.last, [`${each.topic}\n${each.partition}`]: each.offset + 1 };
    return taken;
  }

  async commit() {
    const offsets = Object.entries(this.last ?? {}).map(([where, offset]) => {
      const [topic, partition] = where.split("\n");
      return { topic, partition: Number(partition), offset: String(offset) };
    });
    await this.consumer.commitOffsets(offsets);
  }
}

const ops = {
  hello: async () => ({ version: require("kafkajs/package.json").version }),
  create_topic: async ({ topic, partitions, replication, configs }) => {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }));
    const wanted = { topic, numPartitions: partitions, replicationFactor: replication, configEntries };
    if (!(await admin.createTopics({ topics: [wanted], waitForLeaders: false }))) {
      throw Object.assign(new Error("createTopics returned false: the topic exists"), { code: 36 });
    }
  },
  delete_topic: async ({ topic }) => admin.deleteTopics({ topics: [topic] }),
  describe_topic: async ({ topic }) => {
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
    return { partitions: topics[0].partitions.map(({ leader, replicas }) => ({ leader, replicas })) };
  },
  alter_config: async ({ topic, configs }) => {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }));
    await admin.alterConfigs({ resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries }] });
  },
  describe_config: async ({ topic }) => {
    const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic }];
    const found = await admin.describeConfigs({ resources, includeSynonyms: false });
    const entries = found.resources[0].configEntries.map((each) => [each.configName, each.configValue]);
    return { configs: Object.fromEntries(entries) };
  },
  create_partitions: async ({ topic, total }) => {
    await admin.createPartitions({ topicPartitions: [{ topic, count: total }] });
  },
  delete_records: async ({ topic, partition, before }) => {
    await admin.fetchTopicOffsets(topic); // else: "Topic metadata not loaded"
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] });
  },
  offset_at: async ({ topic, partition, at }) => {
    if (typeof at === "number") {
      const found = await admin.fetchTopicOffsetsByTimestamp(topic, at);
      return { offset: Number(found.find((each) => each.partition === partition).offset) };
    }
    const found = (await admin.fetchTopicOffsets(topic)).find((each) => each.partition === partition);
    return { offset: Number(at === "latest" ? found.high : found.low) };
  },
  produce: async (given) => {
    const { topic, records, acks, codec, idempotent } = given;
    if (!(codec in codecs)) throw new Unsupported(`${codec} needs a native plug-in`);
    const made = () => kafka.producer({ idempotent, createPartitioner: kafkajs.Partitioners.DefaultPartitioner });
    const producer = (given.kept && kept) || made();
    if (given.kept) kept = producer;
    await producer.connect();
    try {
      const messages = records.map((each) => {
        const headers = {};
        for (const [name, data] of each.headers ?? []) {
          headers[name] = name in headers ? [headers[name], bytes(data)].flat() : bytes(data);
        }
        const made = { key: bytes(each.key), value: bytes(each.value), headers };
        if (each.partition !== undefined) made.partition = each.partition;
        if (each.timestamp !== undefined) made.timestamp = String(each.timestamp);
        return made;
      });
      const level = { 0: 0, 1: 1, all: -1 }[acks];
      if (messages.length > 1 && messages.every((each) => each.partition === undefined)) {
        return { sent: await oneByOne(producer, topic, messages, level) };
      }
      const sent = await producer.send({ topic, messages, acks: level, compression: codecs[codec] });
      const base = Number(sent?.[0]?.baseOffset ?? -1);
      const partition = messages[0].partition ?? sent[0].partition;
      return { sent: messages.map((_, number) => ({ partition, offset: base + number })) };
    } finally {
      if (!given.kept) await producer.disconnect();
    }
  },
  transact: async ({ id, topic, records, end, group, source, partition, offset }) => {
    if (!transactional.has(id)) {
      const made = kafka.producer({ transactionalId: id, idempotent: true, maxInFlightRequests: 1 });
      await made.connect();
      transactional.set(id, made);
    }
    const transaction = await transactional.get(id).transaction();
    const messages = records.map((each) => ({ value: bytes(each.value), partition: each.partition }));
    await transaction.send({ topic, messages });
    if (group !== undefined) {
      const topics = [{ topic: source, partitions: [{ partition, offset: String(offset) }] }];
      await transaction.sendOffsets({ consumerGroupId: group, topics });
    }
    if (end === "commit") await transaction.commit();
    if (end === "abort") await transaction.abort();
  },
  fetch: async ({ topic, partition, offset, count, timeout_ms, committed }) => {
    const ends = await admin.fetchTopicOffsets(topic);
    const outside = offset > Number(ends.find((each) => each.partition === partition).high);
    const groupId = `fetch-${Date.now()}-${Math.random()}`;
    const reader = new Member({ groupId, readUncommitted: committed !== true });
    try {
      await reader.start([topic]);
      reader.consumer.seek({ topic, partition, offset: String(offset) });
      const wanted = (each) => {
        if (each.partition !== partition) return false;
        if (outside) throw new Unsupported("goes to its default offset by itself");
        return each.offset >= offset;
      };
      return { records: await reader.take({ count, timeout_ms }, wanted) };
    } finally {
      await reader.consumer.disconnect();
    }
  },
  join: async ({ group, topics, assignor, instance, protocol }) => {
    if (protocol !== "classic") throw new Unsupported("has no KIP-848 protocol");
    if (assignor !== "range") throw new Unsupported("has one eager assignor");
    if (instance !== null) throw new Unsupported("has no static members");
    member = new Member({ groupId: group });
    await member.start(topics);
  },
  poll: async (given) => ({ records: await member.take(given), assigned: member.assigned }),
  commit: async () => member.commit(),
  close: async () => {
    await member?.consumer.disconnect();
    member = null;
  },
  list_groups: async () => ({ groups: (await admin.listGroups()).groups.map((each) => each.groupId) }),
  describe_group: async ({ group }) => {
    const [found] = (await admin.describeGroups([group])).groups;
    return { state: found.state, members: found.members.length };
  },
  delete_group: async ({ group }) => admin.deleteGroups([group]),
  committed: async ({ group, topic }) => {
    const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] });
    return { offsets: Object.fromEntries(found.partitions.map((each) => [each.partition, Number(each.offset)])) };
  },
  reset_group: async ({ group, topic, offsets }) => {
    const partitions = Object.entries(offsets).map(([partition, offset]) => ({
      partition: Number(partition),
      offset: String(offset),
    }));
    await admin.setOffsets({ groupId: group, topic, partitions });
  },
};

async function oneByOne(producer, topic, messages, acks) {
  const sent = [];
  for (const message of messages) {
    const [{ partition, baseOffset }] = await producer.send({ topic, messages: [message], acks });
    sent.push({ partition, offset: Number(baseOffset) });
  }
  return sent;
}

function codeOf(error) {
  for (let cause = error; cause; cause = cause.cause ?? cause.originalError) {
    const inner = cause.errors?.[0] ?? cause.groups?.[0] ?? cause.partitions?.[0]?.error ?? cause;
    const code = inner.errorCode ?? inner.code ?? inner.error?.code;
    if (Number.isInteger(code)) return code;
  }
  return -1;
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { op, ...given } = JSON.parse(line);
  let answer;
  try {
    await connected;
    if (!(op in ops)) throw new Unsupported("no such call in this client");
    answer = { ok: (await ops[op](given)) ?? {} };
    if (typeof answer.ok !== "object") answer.ok = {};
  } catch (error) {
    answer = error instanceof Unsupported
      ? { unsupported: error.message }
      : { error: codeOf(error), text: `${error.name}: ${error.message} ${error.partitions?.[0]?.error ?? ""}`.slice(0, 300) };
  }
  console.log(JSON.stringify(answer));
}
process.exit(0);
