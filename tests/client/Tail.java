// Stands with Apache Kafka's own consumer at the end of every partition that is named, and prints each value that comes.
// Arguments: bootstrap, then for each partition two words: its topic and its number.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Tail {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("auto.offset.reset", "latest");
        settings.put("enable.auto.commit", "false");
        settings.put("metadata.max.age.ms", "500");
        var partitions = new ArrayList<TopicPartition>();
        for (int word = 1; word < arguments.length; word += 2) {
            partitions.add(new TopicPartition(arguments[word], Integer.parseInt(arguments[word + 1])));
        }
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(partitions);
            partitions.forEach(consumer::position);
            System.out.println("placed");
            while (true) {
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    System.out.println("read " + record.value());
                }
            }
        }
    }
}
