// Driver of Apache Kafka's own Java clients: topics and records; groups are in Groups.java.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

public class Driver {
    static final ObjectMapper JSON = new ObjectMapper();
    static final int WAIT_S = 20;

    final String bootstrap;
    final Admin admin;
    final Map<String, String> login;
    KafkaProducer<byte[], byte[]> kept;
    final Map<String, KafkaProducer<byte[], byte[]>> transactional = new HashMap<>();

    /** The environment has what this client shows to come in (interop/logins.py); nothing where nobody is asked. */
    Driver(String bootstrap) throws Exception {
        this.bootstrap = bootstrap;
        String told = System.getenv("INTEROP_LOGIN");
        this.login = told == null ? Map.of() : strings(JSON.readTree(told).get("java"));
        this.admin = Admin.create(settings());
    }

    Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.putAll(login);
        return settings;
    }

    public static void main(String[] arguments) throws Exception {
        Driver driver = new Driver(arguments[0]);
        Groups groups = new Groups(driver);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = JSON.readTree(line);
            Map<String, Object> answer;
            try {
                String op = command.get("op").asText();
                Map<String, Object> told = driver.run(op, command);
                answer = Map.of("ok", told != null ? told : groups.run(op, command));
            } catch (UnsupportedOperationException lacking) {
                answer = Map.of("unsupported", String.valueOf(lacking.getMessage()));
            } catch (Throwable error) {
                answer = Map.of("error", codeOf(error), "text", String.valueOf(error));
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
        System.exit(0);
    }

    static int codeOf(Throwable error) {
        Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
        if (cause instanceof OffsetOutOfRangeException) {
            return Errors.OFFSET_OUT_OF_RANGE.code();
        }
        if (cause instanceof TimeoutException && String.valueOf(cause.getMessage()).contains("not present in metadata")) {
            return Errors.UNKNOWN_TOPIC_OR_PARTITION.code();
        }
        return Errors.forException(cause).code();
    }

    static <T> T get(Future<T> future) throws Exception {
        return future.get(WAIT_S, TimeUnit.SECONDS);
    }

    static Map<String, String> strings(JsonNode node) {
        Map<String, String> found = new HashMap<>();
        node.fields().forEachRemaining(each -> found.put(each.getKey(), each.getValue().asText()));
        return found;
    }

    /** The answer; null where the call is about groups. */
    Map<String, Object> run(String op, JsonNode given) throws Exception {
        String topic = given.path("topic").asText();
        int partition = given.path("partition").asInt();
        switch (op) {
            case "hello":
                return Map.of("version", AppInfoParser.getVersion());
            case "create_topic":
                short replication = (short) given.get("replication").asInt();
                NewTopic wanted = new NewTopic(topic, given.get("partitions").asInt(), replication);
                get(admin.createTopics(List.of(wanted.configs(strings(given.get("configs"))))).all());
                return Map.of();
            case "delete_topic":
                get(admin.deleteTopics(List.of(topic)).all());
                return Map.of();
            case "describe_topic":
                return describe(topic);
            case "alter_config":
                alter(topic, strings(given.get("configs")));
                return Map.of();
            case "describe_config":
                return configs(topic);
            case "create_partitions":
                get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(given.get("total").asInt()))).all());
                return Map.of();
            case "delete_records":
                var before = RecordsToDelete.beforeOffset(given.get("before").asLong());
                get(admin.deleteRecords(Map.of(new TopicPartition(topic, partition), before)).all());
                return Map.of();
            case "offset_at":
                JsonNode at = given.get("at");
                OffsetSpec spec = at.isNumber() ? OffsetSpec.forTimestamp(at.asLong())
                    : at.asText().equals("latest") ? OffsetSpec.latest() : OffsetSpec.earliest();
                TopicPartition where = new TopicPartition(topic, partition);
                return Map.of("offset", get(admin.listOffsets(Map.of(where, spec)).partitionResult(where)).offset());
            case "produce":
                return produce(topic, given);
            case "transact":
                transact(topic, given);
                return Map.of();
            case "fetch":
                return fetch(new TopicPartition(topic, partition), given);
            default:
                return null;
        }
    }

    Map<String, Object> describe(String topic) throws Exception {
        List<Object> partitions = new ArrayList<>();
        for (var each : get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions()) {
            int leader = each.leader() == null ? -1 : each.leader().id();
            partitions.add(Map.of("leader", leader, "replicas", each.replicas().stream().map(node -> node.id()).toList()));
        }
        return Map.of("partitions", partitions);
    }

    void alter(String topic, Map<String, String> configs) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        configs.forEach((name, value) -> changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        get(admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, topic), changes)).all());
    }

    Map<String, Object> configs(String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Map<String, String> found = new HashMap<>();
        for (ConfigEntry each : get(admin.describeConfigs(List.of(resource)).all()).get(resource).entries()) {
            found.put(each.name(), each.value());
        }
        return Map.of("configs", found);
    }

    static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    Map<String, Object> produce(String topic, JsonNode given) throws Exception {
        if (given.path("kept").asBoolean()) {
            kept = kept == null ? producer(given) : kept;
            return send(kept, topic, given);
        }
        try (var producer = producer(given)) {
            return send(producer, topic, given);
        }
    }

    KafkaProducer<byte[], byte[]> producer(JsonNode given) {
        Properties settings = settings();
        settings.put("acks", given.get("acks").asText());
        settings.put("compression.type", given.get("codec").asText());
        settings.put("enable.idempotence", given.get("idempotent").asText());
        settings.put("linger.ms", "20");
        settings.put("max.request.size", "8000000");
        settings.put("max.block.ms", "10000");
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static Map<String, Object> send(KafkaProducer<byte[], byte[]> producer, String topic, JsonNode given) throws Exception {
        List<Map<String, Object>> sent = new ArrayList<>();
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        for (JsonNode each : given.get("records")) {
            Integer partition = each.has("partition") ? each.get("partition").asInt() : null;
            Long timestamp = each.has("timestamp") ? each.get("timestamp").asLong() : null;
            var record = new ProducerRecord<>(topic, partition, timestamp, bytes(each.get("key")), bytes(each.get("value")));
            each.path("headers").forEach(header -> record.headers().add(header.get(0).asText(), bytes(header.get(1))));
            futures.add(producer.send(record));
        }
        for (Future<RecordMetadata> future : futures) {
            RecordMetadata told = get(future);
            sent.add(Map.of("partition", told.partition(), "offset", told.offset()));
        }
        return Map.of("sent", sent);
    }

    /** One transaction of the producer under this id, with the offset of a group if one is given. */
    void transact(String topic, JsonNode given) throws Exception {
        String id = given.get("id").asText();
        KafkaProducer<byte[], byte[]> producer = transactional.get(id);
        if (producer == null) {
            Properties settings = settings();
            settings.put("transactional.id", id);
            producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
            producer.initTransactions();
            transactional.put(id, producer);
        }
        producer.beginTransaction();
        send(producer, topic, given);
        if (given.has("group")) {
            TopicPartition read = new TopicPartition(given.get("source").asText(), given.get("partition").asInt());
            OffsetAndMetadata offset = new OffsetAndMetadata(given.get("offset").asLong());
            producer.sendOffsetsToTransaction(Map.of(read, offset), new ConsumerGroupMetadata(given.get("group").asText()));
        }
        switch (given.get("end").asText()) {
            case "commit": producer.commitTransaction(); break;
            case "abort": producer.abortTransaction(); break;
            default: producer.flush();
        }
    }

    Map<String, Object> fetch(TopicPartition where, JsonNode given) {
        Properties settings = settings();
        settings.put("isolation.level", given.path("committed").asBoolean() ? "read_committed" : "read_uncommitted");
        settings.put("auto.offset.reset", "none");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(where));
            consumer.seek(where, given.get("offset").asLong());
            return Map.of("records", take(consumer, given));
        }
    }

    /** Poll until so many records are here, or the time is over. */
    static List<Object> take(Consumer<byte[], byte[]> consumer, JsonNode given) {
        List<Object> records = new ArrayList<>();
        long deadline = System.currentTimeMillis() + given.get("timeout_ms").asLong();
        while (records.size() < given.get("count").asInt() && System.currentTimeMillis() < deadline) {
            for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100))) {
                records.add(told(each));
            }
        }
        return records;
    }

    static String packed(byte[] data) {
        return Optional.ofNullable(data).map(Base64.getEncoder()::encodeToString).orElse(null);
    }

    static Map<String, Object> told(ConsumerRecord<byte[], byte[]> record) {
        List<List<String>> headers = new ArrayList<>();
        record.headers().forEach(each -> headers.add(java.util.Arrays.asList(each.key(), packed(each.value()))));
        Map<String, Object> found = new HashMap<>();
        found.put("partition", record.partition());
        found.put("offset", record.offset());
        found.put("timestamp", record.timestamp());
        found.put("key", packed(record.key()));
        found.put("value", packed(record.value()));
        found.put("headers", headers);
        return found;
    }
}
