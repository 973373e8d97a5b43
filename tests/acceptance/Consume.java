// Reads with Apache Kafka's own consumer until it has seen so many records, or is told to end (SIGTERM); prints each
// value, what was assigned and taken away, and how many partitions it has.

import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;
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
        var owned = new TreeSet<Integer>();
        var listener = new ConsumerRebalanceListener() {
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                taken("revoked", partitions);
            }

            public void onPartitionsLost(Collection<TopicPartition> partitions) {
                taken("lost", partitions);
            }

            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                partitions.forEach(partition -> owned.add(partition.partition()));
                System.out.println("assigned " + partitions.size());
                System.out.println("owns " + owned);
            }

            private void taken(String how, Collection<TopicPartition> partitions) {
                partitions.forEach(partition -> owned.remove(partition.partition()));
                System.out.println(how + " " + partitions.size());
                System.out.println("owns " + owned);
            }
        };
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            if (arguments[2].startsWith("^")) {
                consumer.subscribe(new SubscriptionPattern(arguments[2].substring(1)), listener);
            } else {
                consumer.subscribe(List.of(arguments[2]), listener);
            }
            var reading = Thread.currentThread();
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                consumer.wakeup();
                try {
                    reading.join(20_000);
                } catch (InterruptedException ended) {
                    reading.interrupt();
                }
            }));
            for (int seen = 0; seen < wanted;) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println("read " + record.value());
                    seen++;
                }
                try {
                    consumer.commitSync();
                } catch (RebalanceInProgressException | CommitFailedException refused) {
                    // The group moves on: the next poll hears of it, and who has the partition then reads these again.
                    System.out.println("not committed: " + refused.getMessage());
                }
            }
        } catch (WakeupException told) {
            System.out.println("told to end");
        }
        System.out.println("closed");
    }
}
