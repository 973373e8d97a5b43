// Reads with Apache Kafka's own consumer until it has seen so many records; prints each value and each assignment.

import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Consume {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("group.protocol", arguments[3]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        int wanted = Integer.parseInt(arguments[4]);
        for (int number = 5; number < arguments.length; number++) {
            String[] pair = arguments[number].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        var listener = new ConsumerRebalanceListener() {
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                System.out.println("revoked " + partitions.size());
            }

            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                System.out.println("assigned " + partitions.size());
            }
        };
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            if (arguments[2].startsWith("^")) {
                consumer.subscribe(new SubscriptionPattern(arguments[2].substring(1)), listener);
            } else {
                consumer.subscribe(List.of(arguments[2]), listener);
            }
            for (int seen = 0; seen < wanted;) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println("read " + record.value());
                    seen++;
                }
                consumer.commitSync();
            }
        }
        System.out.println("closed");
    }
}
