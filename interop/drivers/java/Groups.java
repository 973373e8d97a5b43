// Consumer groups in the driver of Apache Kafka's own Java clients.

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Groups {
    private final Driver driver;
    private KafkaConsumer<byte[], byte[]> consumer;

    Groups(Driver driver) {
        this.driver = driver;
    }

    Map<String, Object> run(String op, JsonNode given) throws Exception {
        String group = given.path("group").asText();
        String topic = given.path("topic").asText();
        switch (op) {
            case "join":
                join(group, given);
                return Map.of();
            case "poll":
                List<Object> records = Driver.take(consumer, given);
                List<Object> assigned = new ArrayList<>();
                consumer.assignment().forEach(each -> assigned.add(List.of(each.topic(), each.partition())));
                return Map.of("records", records, "assigned", assigned);
            case "commit":
                consumer.commitSync();
                return Map.of();
            case "close":
                if (consumer != null) {
                    consumer.close();
                    consumer = null;
                }
                return Map.of();
            case "list_groups":
                var groups = Driver.get(driver.admin.listGroups().all());
                return Map.of("groups", groups.stream().map(each -> each.groupId()).toList());
            case "describe_group":
                var told = Driver.get(driver.admin.describeConsumerGroups(List.of(group)).all()).get(group);
                return Map.of("state", told.groupState().name(), "members", told.members().size());
            case "delete_group":
                Driver.get(driver.admin.deleteConsumerGroups(List.of(group)).all());
                return Map.of();
            case "committed":
                return committed(group, topic, given.get("partitions"));
            case "reset_group":
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                given.get("offsets").fields().forEachRemaining(each -> offsets.put(
                    new TopicPartition(topic, Integer.parseInt(each.getKey())),
                    new OffsetAndMetadata(each.getValue().asLong())));
                Driver.get(driver.admin.alterConsumerGroupOffsets(group, offsets).all());
                return Map.of();
            default:
                throw new UnsupportedOperationException("no such call in this client");
        }
    }

    private void join(String group, JsonNode given) {
        Properties settings = driver.settings();
        settings.put("group.id", group);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        String protocol = given.get("protocol").asText();
        settings.put("group.protocol", protocol);
        if (protocol.equals("classic")) {
            boolean cooperative = given.get("assignor").asText().startsWith("cooperative");
            Class<?> assignor = cooperative ? CooperativeStickyAssignor.class : RangeAssignor.class;
            settings.put("partition.assignment.strategy", assignor.getName());
            settings.put("heartbeat.interval.ms", "500");
        }
        if (!given.get("instance").isNull()) {
            settings.put("group.instance.id", given.get("instance").asText());
        }
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<String> topics = new ArrayList<>();
        given.get("topics").forEach(each -> topics.add(each.asText()));
        consumer.subscribe(topics);
    }

    private Map<String, Object> committed(String group, String topic, JsonNode partitions) throws Exception {
        List<TopicPartition> wanted = new ArrayList<>();
        partitions.forEach(each -> wanted.add(new TopicPartition(topic, each.asInt())));
        var spec = new ListConsumerGroupOffsetsSpec().topicPartitions(wanted);
        var found = Driver.get(driver.admin.listConsumerGroupOffsets(Map.of(group, spec)).all()).get(group);
        Map<String, Long> offsets = new HashMap<>();
        found.forEach((where, told) -> offsets.put(String.valueOf(where.partition()), told == null ? -1 : told.offset()));
        return Map.of("offsets", offsets);
    }
}
